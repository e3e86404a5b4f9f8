"""What was trained here runs elsewhere: every format computes the same, and nothing wrong is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import TESTS, golden, shared

from darknetpy import Detector, Network
from darknetpy.cli.main import main
from darknetpy.errors import UsageError, WeightsError
from darknetpy.export import Options, export_file, verify
from darknetpy.export import formats as export_formats
from darknetpy.export.wild import read_foreign
from darknetpy.layers import read_structure

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
CFG = TESTS.parent / "cfg"


def network(name: str, *overrides: str) -> Network:
    """A packaged network of small size whose numbers stay in range, as a trained one's do."""
    torch.manual_seed(1)
    result = Network(CFG / name, overrides=["net.width=96", "net.height=96", *overrides])
    return calm(result)


def calm(result: Network) -> Network:
    with torch.no_grad():
        for _, spec, tensor in result.named_tensors():
            if spec.role == "variance":
                tensor.uniform_(0.5, 1.5)
            elif spec.role == "scale":
                tensor.uniform_(0.8, 1.2)
            elif spec.role == "bias":
                tensor.uniform_(-0.3, 0.3)
    return result


def outputs_of(ours: Network, images: np.ndarray) -> dict[str, np.ndarray]:
    """What a file without decoding gives, by name: the heads' outputs, or the last layer's."""
    outputs = ours.predict(torch.from_numpy(images)).outputs
    if heads := ours.structure.detectors:
        return {f"head_{head.index}": outputs[head.index].numpy() for head in heads}
    return {"output": outputs[[layer.index for layer in ours.layers if layer.type != "cost"][-1]].numpy()}


def check_in_opencv(path: str, images: np.ndarray, wanted: dict[str, np.ndarray]) -> None:
    """OpenCV 5, which has no Darknet reader any more, gives the same for the first picture."""
    net = cv2.dnn.readNetFromONNX(path)
    net.setInput(images[:1])
    for got, want in zip(net.forward(list(wanted)), wanted.values(), strict=True):
        np.testing.assert_allclose(got.reshape(want[:1].shape), want[:1], rtol=1e-4, atol=1e-4)


def run_onnx(path: str, images: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: images}), strict=True))


QUICK = ["yolov4-tiny.cfg"]
SLOW = ["yolov4-tiny-3l.cfg", "yolov3-tiny.cfg", "yolov7-tiny.cfg", "yolov4-csp.cfg"]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_onnx_equals_ours_in_both_runtimes(name, tmp_path):
    """Any number of pictures by ONNX Runtime, and one by OpenCV."""
    path, ours = str(tmp_path / "a.onnx"), network(name)
    comparison = export_file(ours, path)
    assert comparison.same and comparison.worst < 1e-4
    images = np.random.default_rng(0).random((3, 3, 96, 96), np.float32)
    wanted = outputs_of(ours, images)
    for name, got in run_onnx(path, images).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-4, atol=1e-4)
    check_in_opencv(path, images, wanted)


CORPUS = ["Yolo-Fastest-1.1", "enet-coco", "darknet19"]


@pytest.mark.slow
@pytest.mark.parametrize("stem", CORPUS)
def test_onnx_of_networks_that_others_made(stem, tmp_path):
    found = sorted(p for p in shared("corpus").rglob("*.cfg") if p.stem.lower() == stem.lower())
    if not found:
        found = sorted(p for p in shared("models").rglob("*.cfg") if p.stem.lower() == stem.lower())
    assert found, stem
    structure = read_structure(found[0], overrides=["net.width=96", "net.height=96"], batch=1)
    torch.manual_seed(1)
    path, ours = str(tmp_path / "a.onnx"), calm(Network.from_structure(structure))
    assert export_file(ours, path).same
    images = np.random.default_rng(0).random((1, 3, 96, 96), np.float32)
    check_in_opencv(path, images, outputs_of(ours, images))


def test_detections_of_a_real_network(tmp_path):
    """A trained network's boxes: ours, by ONNX Runtime with suppression inside, and by OpenCV from decoded boxes."""
    folder = shared("models") / "yolo-fastest-1.1"
    picture = str(shared("images") / "dog.jpg")
    args = [str(folder / "yolo-fastest-1.1.cfg"), str(folder / "yolo-fastest-1.1.weights")]
    detector = Detector(*args, str(folder / "coco.names"))
    found = detector(picture, nms=0).nms("default", 0.45)  # the network's own kind is not one that others have
    ours = sorted((d.name, round(d.confidence, 3)) for d in found)
    image = detector.prepare(detector._picture(picture))[None]
    names = str(folder / "coco.names")
    assert main(["export", *args, str(tmp_path / "boxes.onnx"), names, "-outputs", "boxes", "-quiet"]) == 0
    assert main(["export", *args, str(tmp_path / "nms.onnx"), names, "-nms", "-thresh", ".25", "-quiet"]) == 0
    found = run_onnx(str(tmp_path / "nms.onnx"), image)["detections"]
    assert sorted((detector.names[int(row[1])], round(float(row[2]), 3)) for row in found) == ours
    net = cv2.dnn.readNetFromONNX(str(tmp_path / "boxes.onnx"))
    net.setInput(image)
    boxes, scores = net.forward(["boxes", "scores"])
    boxes, scores = boxes.reshape(-1, 4), scores.reshape(-1, len(detector.names))
    corners = [[x - w / 2, y - h / 2, w, h] for x, y, w, h in boxes.tolist()]
    kept = [
        (detector.names[c], round(float(scores[i, c]), 3))
        for c in range(scores.shape[1])
        for i in cv2.dnn.NMSBoxes(corners, scores[:, c].tolist(), 0.25, 0.45)
    ]
    assert sorted(kept) == ours
    session = onnxruntime.InferenceSession(str(tmp_path / "nms.onnx"), providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["names"])[:2] == ["person", "bicycle"]
    assert json.loads(facts["size"]) == [320, 320, 3] and json.loads(facts["letter_box"]) is False
    assert "[yolo]" in facts["cfg"] and len(json.loads(facts["heads"])) == 2


def test_onnx_of_any_size(tmp_path):
    path, ours = str(tmp_path / "a.onnx"), network("yolov4-tiny.cfg")
    export_file(ours, path, Options(dynamic_size=True))
    images = np.random.default_rng(0).random((1, 3, 128, 64), np.float32)
    wanted = ours.predict(torch.from_numpy(images)).outputs
    for name, got in run_onnx(path, images).items():
        np.testing.assert_allclose(got, wanted[int(name.split("_")[1])].numpy(), rtol=1e-4, atol=1e-4)


def test_torchscript_runs_without_this_package(tmp_path):
    """Nor do its metadata need it."""
    path, ours = tmp_path / "a.torchscript", network("yolov4-tiny.cfg", "net.letter_box=1")
    assert export_file(ours, path, Options("boxes", names=["x"])).same
    images = torch.rand(3, 3, 96, 96)
    torch.save(images, tmp_path / "images.pt")
    script = (
        "import sys, torch; sys.modules['darknetpy'] = None; facts = {'darknetpy.json': ''}\n"
        "boxes, scores = torch.jit.load('a.torchscript', _extra_files=facts)(torch.load('images.pt'))\n"
        "print(facts['darknetpy.json'].decode())\n"
        "torch.save([boxes, scores], 'out.pt')"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    facts = json.loads(process.stdout)
    assert json.loads(facts["names"]) == ["x"] and json.loads(facts["size"]) == [96, 96, 3]
    assert facts["contents"] == "boxes" and "[yolo]" in facts["cfg"] and len(json.loads(facts["heads"])) == 2
    assert json.loads(facts["letter_box"]) is True
    from darknetpy.export.module import Exported

    boxes, scores = torch.load(tmp_path / "out.pt")
    with torch.no_grad():
        wanted = Exported(ours, "boxes")(images)
    torch.testing.assert_close(boxes, wanted[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores, wanted[1], rtol=1e-4, atol=1e-4)


def test_safetensors_hold_the_weights_and_the_cfg(tmp_path):
    from safetensors import safe_open

    ours = network("yolov4-tiny.cfg")
    export_file(ours, tmp_path / "a.safetensors", Options(names=["x"]))
    with safe_open(tmp_path / "a.safetensors", "pt") as stored:
        assert "[yolo]" in stored.metadata()["cfg"]
        assert "width=96" in stored.metadata()["cfg"], "what -set changed is in the cfg"
        for layer, spec, tensor in ours.named_tensors():
            assert torch.equal(stored.get_tensor(f"{layer.index}.{spec.name}"), tensor)


def test_a_pt_file_brings_the_names_of_its_classes(tmp_path):
    ours = network("yolov4-tiny.cfg")
    names = ["", *(f"thing {i}" for i in range(1, 80))]
    cfg = tmp_path / "a.cfg"
    cfg.write_text(ours.structure.cfg.text)
    export_file(ours, tmp_path / "a.pt", Options(names=names))
    assert Detector(cfg, tmp_path / "a.pt").names == names
    assert Detector(cfg, tmp_path / "a.pt", ["x"] * 80).names == ["x"] * 80, "given ones come first"
    again = Network(cfg, tmp_path / "a.pt")
    again.save_weights(tmp_path / "b.pt")
    again.load_weights(tmp_path / "b.pt")
    assert again.names == names, "also when it is written again"
    ours.save_weights(tmp_path / "a.weights")
    assert Detector(cfg, tmp_path / "a.weights").names[1] == "class_1"


# --- nothing wrong is left behind -----------------------------------------------------------------------------------


def test_a_file_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    ours = network("yolov4-tiny.cfg")
    (tmp_path / "a.torchscript").write_bytes(b"the one before")

    def wrong(network, path, options):
        with torch.no_grad():
            original = network.tensors_of(0).biases.clone()
            network.tensors_of(0).biases += 1
            network._fused = None
            export_formats.write_torchscript(network, path, "raw")
            network.tensors_of(0).biases.copy_(original)
            network._fused = None

    monkeypatch.setitem(export_formats.FORMATS, ".torchscript", export_formats.Format(wrong))
    with pytest.raises(WeightsError, match="is not written: output head_"):
        export_file(ours, tmp_path / "a.torchscript")
    assert (tmp_path / "a.torchscript").read_bytes() == b"the one before"
    assert os.listdir(tmp_path) == ["a.torchscript"]


def cut(network, path, options):
    network.save_weights(path)
    Path(path).write_bytes(Path(path).read_bytes()[:-4])


def changed(network, path, options):
    with torch.no_grad():
        bias = network.tensors_of(2).biases
        bias[0] += 1
        (export_formats.write_safetensors if path.endswith("safetensors") else Network.save_weights)(network, path)
        bias[0] -= 1


@pytest.mark.parametrize(
    ("suffix", "write", "sentence"),
    [
        (".weights", cut, "it was not read back whole"),
        (".weights", changed, r"tensor 2\.biases was not read back as it is"),
        (".safetensors", changed, r"tensor 2\.biases was not read back as it is"),
    ],
)
def test_a_file_that_holds_something_else_is_not_written(tmp_path, monkeypatch, suffix, write, sentence):
    wanted = export_formats.FORMATS[suffix]
    monkeypatch.setitem(export_formats.FORMATS, suffix, replace(wanted, write=write))
    with pytest.raises(WeightsError, match=f"is not written: {sentence}"):
        export_file(network("yolov4-tiny.cfg"), tmp_path / f"a{suffix}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("thresh", "overlap"), [(0.01, 0.0), (0.0, 0.5)])
def test_a_file_that_suppresses_otherwise_is_not_written(tmp_path, monkeypatch, thresh, overlap):
    ours, append = network("yolov4-tiny.cfg"), export_formats.append_suppression
    assert export_file(ours, tmp_path / "a.onnx", Options("nms")).same
    os.remove(tmp_path / "a.onnx")

    def otherwise(source, path, contents, least, most):
        append(source, path, contents, least + thresh, most + overlap)

    monkeypatch.setattr(export_formats, "append_suppression", otherwise)
    with pytest.raises(WeightsError, match=r"is not written: its suppression keeps \d+ boxes, not \d+"):
        export_file(ours, tmp_path / "a.onnx", Options("nms"))
    assert os.listdir(tmp_path) == []


def test_a_file_is_neither_its_own_copy_nor_read_back_from_a_one_way_format(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ours = network("yolov4-tiny.cfg")
    ours.save_weights("a.weights")
    cfg = str(ours.structure.cfg.path)
    before = Path("a.weights").read_bytes()
    assert main(["export", cfg, "a.weights", "./a.weights", "-quiet"]) == 1
    assert "OUT is the file that is converted ('./a.weights'); name another one" in capsys.readouterr().err
    Path("a.safetensors").write_bytes(before)
    assert main(["export", cfg, "a.safetensors", "b.weights", "-quiet"]) == 1
    assert "a.safetensors: is written for other programs and not read back; give .weights" in capsys.readouterr().err
    assert sorted(os.listdir(".")) == ["a.safetensors", "a.weights"] and Path("a.weights").read_bytes() == before


def test_a_name_that_cannot_be_written_is_said_before_anything_is_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ours = network("yolov4-tiny.cfg")
    ours.save_weights("a.weights")
    cfg = str(ours.structure.cfg.path)
    Path("folder.pt").mkdir()
    for name, sentence in (
        ("no/where/a.pt", "no/where/a.pt: cannot be written: there is no such folder; make it: mkdir -p no/where"),
        ("a.tflite", "no format has the suffix .tflite ('a.tflite'); use .weights, .pt, "),
        ("folder.pt", "folder.pt: cannot be written: it is a folder; name another file"),
    ):
        assert main(["export", cfg, "a.weights", name, "-quiet"]) == 1
        error = capsys.readouterr().err
        assert sentence in error and "Loading weights" not in error
    assert sorted(os.listdir(".")) == ["a.weights", "folder.pt"]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("a.tflite", Options(), "no format has the suffix .tflite"),
        ("a", Options(), r"no format has the suffix \(none\)"),
        ("a.torchscript", Options("nms"), "cannot be written with suppression inside"),
        ("a.weights", Options("boxes"), "cannot be written with boxes as outputs"),
    ],
)
def test_what_cannot_be_written_is_said(tmp_path, name, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        export_file(network("yolov4-tiny.cfg"), tmp_path / name, options)
    assert os.listdir(tmp_path) == []


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"needs the package onnx.*\[export\]"):
        export_file(network("yolov4-tiny.cfg"), tmp_path / "a.onnx")


def test_verify_tells_networks_apart(tmp_path, capsys):
    a, b = network("yolov4-tiny.cfg"), network("yolov4-tiny.cfg")
    with torch.no_grad():
        b.tensors_of(1).weights[0] += 0.01
    cfg, paths = str(tmp_path / "a.cfg"), [str(tmp_path / "a.weights"), str(tmp_path / "b.pt")]
    Path(cfg).write_text(a.structure.cfg.text)
    a.save_weights(paths[0])
    b.save_weights(paths[1])
    assert verify(a, f"{cfg},{paths[0]}").worst == 0
    assert not verify(a, b).same
    assert main(["verify", cfg, *paths]) == 1
    assert "NOT the same" in capsys.readouterr().out
    export_file(a, tmp_path / "a.torchscript")
    export_file(a, tmp_path / "b.torchscript", Options("boxes"))
    assert main(["verify", str(tmp_path / "a.torchscript"), str(tmp_path / "b.torchscript")]) == 0
    picture = str(tmp_path / "p.png")
    cv2.imwrite(picture, np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8))
    assert main(["verify", cfg, paths[0], str(tmp_path / "b.torchscript"), "-images", picture, picture]) == 0
    assert "On 2 pictures they give the same" in capsys.readouterr().out
    assert main(["verify", cfg, paths[0]]) == 1
    assert main(["verify", str(tmp_path / "none.onnx"), paths[1]]) == 1
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    assert main(["verify", str(tmp_path / "bad.onnx"), paths[1]]) == 1
    assert "is no ONNX file" in capsys.readouterr().err


# --- every type that ONNX has words for ------------------------------------------------------------------------------

FORWARD = sorted(p.name for p in golden("forward").iterdir() if (p / "net.cfg").is_file())
REMEMBERS = {"conv_lstm", "crnn", "gru", "history", "lstm", "recurrent", "rnn"}
"""Cases whose layers remember earlier calls, which a file without state cannot."""


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in FORWARD if not any(word in c for word in REMEMBERS)])
def test_forward_cases_in_onnx(case, tmp_path, monkeypatch):
    monkeypatch.chdir(golden("forward") / case)
    structure = read_structure("net.cfg", batch=1)
    ours = Network.from_structure(structure)
    ours.load_weights("net.weights")
    assert export_file(ours, tmp_path / "a.onnx").worst < 1e-4


# --- state dicts of other programs -----------------------------------------------------------------------------------


def foreign(ours: Network, style: str) -> dict:
    """The same weights under the names that PyTorch ports give them, in their order."""
    names = {"weights": "weight", "biases": "bias", "scales": "weight", "rolling_mean": "running_mean"}
    names["rolling_variance"] = "running_var"
    order = ["weights", "scales", "biases", "rolling_mean", "rolling_variance"]
    state: dict = {}
    for layer in ours.layers:
        specs = {spec.name: ours.slots[layer.index].get(spec.name) for spec in layer.tensors()}
        norm = len(specs) == 5
        for name in order:
            if name not in specs:
                continue
            part = "Conv2d" if name == "weights" or not norm else "BatchNorm2d"
            if style == "list":
                key = f"module_list.{layer.index}.{part}.{names[name]}"
            else:
                key = f"models.{layer.index}.{'conv' if part == 'Conv2d' else 'bn'}{layer.index}.{names[name]}"
            state[key] = specs[name].detach().clone()
        if norm:
            state[f"module_list.{layer.index}.BatchNorm2d.num_batches_tracked"] = torch.tensor(7)
    if style == "wrapped":
        return {"epoch": 3, "model": {f"module.{key}": value.half() for key, value in state.items()}}
    return state


@pytest.mark.parametrize("style", ["list", "models", "wrapped"])
def test_state_dicts_of_ports_become_weights(tmp_path, capsys, style):
    ours = network("yolov4-tiny.cfg")
    if style == "wrapped":
        with torch.no_grad():
            for _, _, tensor in ours.named_tensors():
                tensor.copy_(tensor.half().float())
    torch.save(foreign(ours, style), tmp_path / "port.pt")
    ours.save_weights(tmp_path / "ours.weights")
    words = [str(CFG / "yolov4-tiny.cfg"), str(tmp_path / "port.pt"), str(tmp_path / "new.weights")]
    assert main(["export", *words]) == 0
    assert "convolutional" in capsys.readouterr().err
    assert (tmp_path / "new.weights").read_bytes() == (tmp_path / "ours.weights").read_bytes()


def test_the_state_dict_of_a_module_is_read(tmp_path):
    """With the versions that torch keeps beside the tensors, and parameters for tensors."""
    cfg = tmp_path / "a.cfg"
    cfg.write_text(
        "[net]\nwidth=8\nheight=8\nchannels=3\n[conv]\nbatch_normalize=1\nfilters=4\nsize=3\n[conv]\nfilters=2\n"
    )
    port = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    torch.save(port.state_dict(), tmp_path / "port.pt")
    assert [match.layer for match in read_foreign(Network(cfg), tmp_path / "port.pt")] == [0, 1]
    torch.save(dict(port.named_parameters()) | dict(port.named_buffers()), tmp_path / "port.pt")
    network = Network(cfg)
    with pytest.raises(WeightsError, match="layer 0"):  # buffers at the end: not Darknet's order
        read_foreign(network, tmp_path / "port.pt")


def test_state_dicts_that_do_not_fit_are_refused(tmp_path):
    ours = network("yolov4-tiny.cfg")
    state = foreign(ours, "list")
    path = tmp_path / "port.pt"
    before = ours.tensors_of(0).weights.clone()
    for change, sentence in [
        (lambda s: s.pop("module_list.0.Conv2d.weight"), "begins with module_list.0.BatchNorm2d.weight"),
        (
            lambda s: s.pop("module_list.2.BatchNorm2d.running_mean"),
            r"layer 2 .* needs rolling_mean \(64,\), .* has none",
        ),
        (
            lambda s: s.update({"module_list.1.Conv2d.weight": torch.zeros(8, 32, 3, 3)}),
            r"layer 1 .*\(64, 32, 3, 3\), .*",
        ),
        (lambda s: s.update({"more.weight": torch.zeros(4, 4, 1, 1)}), "goes on with more.weight"),
        (lambda s: s.clear(), "holds no state dict"),
    ]:
        wrong = dict(state)
        change(wrong)
        torch.save(wrong, path)
        with pytest.raises(WeightsError, match=sentence):
            read_foreign(ours, path)
        assert torch.equal(before, ours.tensors_of(0).weights)
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(WeightsError, match="no plain-tensor PyTorch file"):
        read_foreign(ours, path)
