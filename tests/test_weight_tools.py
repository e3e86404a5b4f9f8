"""`partial`, `average`, `normalize` and their sisters: each is tested by what the network computes afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import shared

from darknetpy import Network
from darknetpy.cli.main import main
from darknetpy.errors import ConfigError
from darknetpy.export import transforms
from darknetpy.training.learner import Learner
from darknetpy.weights import Header, read_header

NET = "[net]\nbatch=2\nsubdivisions=1\nwidth=12\nheight=10\nchannels=3\nlearning_rate=0.01\nmax_batches=9\n"
CONV = "\n[convolutional]\nfilters={filters}\nsize={size}\nactivation=leaky\n{more}\n"
MIXED = (
    NET
    + CONV.format(filters=6, size=3, more="batch_normalize=1")
    + CONV.format(filters=6, size=3, more="pad=1\ngroups=2\nbatch_normalize=1")
    + CONV.format(filters=6, size=1, more="cbn=1")
    + CONV.format(filters=6, size=1, more="")
    + "\n[shortcut]\nfrom=-3\nweights_type=per_channel\nweights_normalization=relu\nactivation=linear\n"
    + "\n[crnn]\noutput=4\nhidden=3\nsize=3\npad=1\nbatch_normalize=1\nactivation=tanh\n"
    + "\n[connected]\noutput=5\nbatch_normalize=1\nactivation=leaky\n"
    + "\n[lstm]\noutput=4\nbatch_normalize=1\n\n[gru]\noutput=3\n"
)
SIMPLE = NET + CONV.format(filters=4, size=3, more="{more}") + CONV.format(filters=2, size=1, more="")


def _shuffle(network: Network) -> None:
    """Random values in every tensor; variances stay positive."""
    with torch.no_grad():
        for _, spec, tensor in network.named_tensors():
            tensor.copy_(torch.rand(spec.shape) + 0.5 if spec.role == "variance" else torch.randn(spec.shape) * 0.5)


def _files(folder: Path, text: str, count: int = 1, seen: int = 6400) -> tuple[str, list[str]]:
    """A cfg and weight files with random values."""
    cfg, paths = folder / "net.cfg", []
    cfg.write_text(text)
    torch.manual_seed(3)
    for i in range(count):
        network = Network(cfg)
        _shuffle(network)
        paths.append(str(folder / f"w{i}.weights"))
        network.save_weights(paths[-1], Header(seen=seen + i))
    return str(cfg), paths


def _outputs(cfg, weights, x, words=()) -> list[torch.Tensor]:
    return Network(cfg, weights, overrides=words).layer_outputs(x)


def _picture(rows: int = 1) -> torch.Tensor:
    return torch.rand(rows, 3, 10, 12, generator=torch.Generator().manual_seed(5))


def _same(a: list[torch.Tensor], b: list[torch.Tensor], tolerance: float = 2e-5) -> bool:
    return all(torch.allclose(p, q, rtol=tolerance, atol=tolerance) for p, q in zip(a, b, strict=True))


def _run(*words: object) -> None:
    assert main([*map(str, words), "-quiet"]) == 0


# --- partial ---------------------------------------------------------------------------------------------------------


def test_partial_keeps_the_first_layers_and_forgets_the_iterations(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    out = tmp_path / "net.conv.2"
    _run("partial", cfg, path, out, 2)
    size = 4 * sum(block.count for block in Network(cfg).layout()[:2])
    assert out.read_bytes() == Header().encode() + Path(path).read_bytes()[20 : 20 + size]
    _run("partial", cfg, out, tmp_path / "again", 1)  # a file that ends early, but not before layer 1
    assert (tmp_path / "again").read_bytes() == out.read_bytes()[: (tmp_path / "again").stat().st_size]
    assert Learner(Network(cfg, path, training=True)).iteration == 3200
    assert Learner(Network(cfg, out, training=True)).iteration == 0


def test_partial_takes_the_beginning_of_another_networks_file(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    other = tmp_path / "other.cfg"
    other.write_text(MIXED.split("[crnn]")[0] + "[dropout]\n")
    _run("partial", other, path, tmp_path / "out", 3)
    _run("partial", cfg, path, tmp_path / "same", 3)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "same").read_bytes()


def test_partial_of_a_shorter_file_is_refused(tmp_path, capsys) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    _run("partial", cfg, path, tmp_path / "two", 2)
    assert main(["partial", cfg, str(tmp_path / "two"), str(tmp_path / "four"), "4", "-quiet"]) == 1
    assert "holds 2 layers, 4 are wanted" in capsys.readouterr().err
    assert not (tmp_path / "four").exists()
    _run("partial", cfg, tmp_path / "two", tmp_path / "four", 4, "-strict")
    assert (tmp_path / "four").stat().st_size == 20 + 4 * sum(block.count for block in Network(cfg).layout()[:4])


def test_sizes_as_darknet_wrote_them(tmp_path, monkeypatch, capsys) -> None:
    """Commands and file sizes of the captures 44, 46, 48 and 53."""
    monkeypatch.chdir(tmp_path)
    model = shared("models", "yolo-fastest-1.1")
    cfg, weights = model / "yolo-fastest-1.1.cfg", model / "yolo-fastest-1.1.weights"
    _run("partial", cfg, weights, "yolo-fastest-1.1.conv.109", 109)
    assert "Loaded 109 layers from weights-file" in capsys.readouterr().err
    _run("normalize", cfg, weights, "norm.weights")
    _run("rgbgr", cfg, weights, "rgbgr.weights")
    sizes = {path: os.path.getsize(path) for path in sorted(os.listdir())}
    assert sizes == {"norm.weights": 1390388, "rgbgr.weights": 1384268, "yolo-fastest-1.1.conv.109": 840692}
    capsys.readouterr()
    _run("ops", cfg)
    assert capsys.readouterr().out == shared("golden", "cli", "46_ops.stdout.txt").read_text().split("0.600000 \n")[-1]


# --- average ---------------------------------------------------------------------------------------------------------


def test_average_is_the_mean_of_everything(tmp_path) -> None:
    cfg, paths = _files(tmp_path, MIXED, 3)
    out = tmp_path / "mean.weights"
    _run("average", cfg, out, *paths)
    values = [np.fromfile(path, np.float32, offset=20) for path in paths]
    assert np.allclose(np.fromfile(out, np.float32, offset=20), np.mean(values, 0), atol=1e-6)
    assert read_header(out) == Header(seen=6400)
    _run("average", cfg, out, paths[0], paths[0])
    assert out.read_bytes() == Path(paths[0]).read_bytes()


def test_strict_average_is_darknets(tmp_path) -> None:
    cfg, paths = _files(tmp_path, MIXED, 2)
    a, b = (Network(cfg, path) for path in paths)
    mean = Network(cfg)
    transforms.average(mean, paths, strict=True)
    tensors = zip(mean.named_tensors(), a.named_tensors(), b.named_tensors(), strict=True)
    for (layer, spec, got), (_, _, first), (_, _, second) in tensors:
        counted = layer.type == "convolutional" or (layer.type == "connected" and spec.name in ("biases", "weights"))
        assert torch.equal(got, (first + second) / 2 if counted else first), (layer, spec.name)


# --- batch normalisation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["normalize", "denormalize", "reset"])
def test_moving_normalisation_leaves_the_function(tmp_path, capsys, command: str) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    out, x = tmp_path / "out.weights", _picture(2)
    _run(command, cfg, path, out)
    hint = capsys.readouterr().err.partition("-set ")[2].split()
    assert (hint == []) == (command == "reset")
    network = Network(cfg, out, overrides=hint)
    assert _same(network.layer_outputs(x), _outputs(cfg, path, x))
    parts = list(transforms._normalized(network))
    assert len(parts) == {"normalize": 5 + 3 + 8 + 6, "denormalize": 0, "reset": 4 + 3 + 8}[command]
    if command == "reset":
        assert all(torch.equal(part.scales, torch.ones_like(part.scales)) for part in parts)
        assert not any(part.rolling_mean.any() for part in parts)
    assert read_header(out).seen == 6400


def test_there_and_back_is_the_same_function(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    x = _picture()
    network = Network(cfg, path)
    plain = transforms.denormalize(network)
    assert _same(transforms.normalize(plain).layer_outputs(x), _outputs(cfg, path, x))


def test_a_pt_file_brings_the_changed_cfg_along(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    out, x = tmp_path / "out.pt", _picture()
    _run("denormalize", cfg, path, out)
    text = torch.load(out, weights_only=True)["cfg"]
    (tmp_path / "changed.cfg").write_text(text)
    assert "batch_normalize=0" in text
    assert _same(_outputs(tmp_path / "changed.cfg", out, x), _outputs(cfg, path, x))


def test_strict_normalize_and_reset_are_darknets(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    network = transforms.normalize(Network(cfg, path, strict=True), strict=True)
    assert network.slots[3].rolling_variance.eq(0).all()
    assert network.slots[6].rolling_variance.ne(0).all()  # [connected] with normalisation keeps it
    assert network.slots[7].wf.rolling_variance.eq(0).all()  # [lstm] with normalisation loses it
    assert not network.layers[8].options.batch_normalize  # [gru] without gets none
    network = Network(cfg, path, strict=True)
    transforms.reset_normalization(network, strict=True)
    assert all(part.rolling_variance.eq(1).all() for part in transforms._normalized(network))


# --- the first layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", "batch_normalize=1", "pad=1"])
def test_rgbgr_is_the_network_for_exchanged_channels(tmp_path, more: str) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more=more))
    out, x = tmp_path / "out.weights", _picture()
    _run("rgbgr", cfg, path, out)
    assert _same(_outputs(cfg, out, x), _outputs(cfg, path, x.flip(1)))
    assert not _same(_outputs(cfg, out, x), _outputs(cfg, path, x))


@pytest.mark.parametrize("more", ["", "batch_normalize=1", "pad=1\nbatch_normalize=1"])
def test_rescale_is_the_network_for_pixels_from_0_to_1(tmp_path, more: str) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more=more))
    out, x = tmp_path / "out.weights", _picture()
    _run("rescale", cfg, path, out)
    got, wanted = _outputs(cfg, out, x), _outputs(cfg, path, 2 * x - 1)
    inner = slice(1, -1) if "pad" in more else slice(None)
    assert _same([y[:, :, inner, inner] for y in got], [y[:, :, inner, inner] for y in wanted])


def test_strict_rescale_moves_the_bias_behind_the_normalisation(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more="batch_normalize=1"))
    before, network = Network(cfg, path), Network(cfg, path, strict=True)
    transforms.rescale(network, strict=True)
    moved = before.slots[0].biases - 0.5 * network.slots[0].weights.sum((1, 2, 3))
    assert torch.allclose(network.slots[0].biases, moved, atol=1e-6)
    assert torch.equal(network.slots[0].rolling_mean, before.slots[0].rolling_mean)
    x = _picture()
    assert not _same(network.layer_outputs(x), before.layer_outputs(2 * x - 1))


@pytest.mark.parametrize("edit", [transforms.rescale, transforms.swap_red_and_blue])
def test_a_first_layer_without_colours_is_refused(tmp_path, edit) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more="").replace("channels=3", "channels=4"))
    network = Network(cfg, path)
    with pytest.raises(ConfigError, match="reads 4 channels"):
        edit(network)
    before = network.slots[0].weights.clone()
    edit(network, strict=True)  # Darknet writes the file as it was
    assert torch.equal(network.slots[0].weights, before)


# --- oneoff, statistics, ops, speed ----------------------------------------------------------------------------------

BODY = NET + CONV.format(filters=4, size=3, more="pad=1")
CLASSIFIER = BODY + CONV.format(filters=3, size=1, more="") + "[avgpool]\n\n[softmax]\n"
DETECTOR = BODY + CONV.format(filters=24, size=1, more="") + "[region]\nclasses=3\nnum=3\nanchors=1,1,2,2,3,3\n"


def test_oneoff_puts_the_classifier_behind_every_anchor(tmp_path, capsys) -> None:
    classifier, (path,) = _files(tmp_path, CLASSIFIER)
    cfg, out, x = tmp_path / "region.cfg", tmp_path / "out.weights", _picture()
    cfg.write_text(DETECTOR)
    _run("oneoff", cfg, path, out)
    assert capsys.readouterr().out.split()[-1] == "24"
    heads = _outputs(cfg, out, x)[1].view(1, 3, 8, 10, 12)
    classes = _outputs(classifier, path, x)[1]
    assert all(torch.allclose(heads[:, anchor, 5:], classes, atol=1e-6) for anchor in range(3))
    assert torch.equal(heads[:, 0], heads[:, 2])
    assert read_header(out).seen == 0


def test_oneoff_refuses_a_classifier_of_other_classes(tmp_path, capsys) -> None:
    _, (path,) = _files(tmp_path, CLASSIFIER.replace("filters=3", "filters=4"))
    cfg = tmp_path / "region.cfg"
    cfg.write_text(DETECTOR)
    for flags, found in (([], "has 4 filters"), (["-strict"], "has 9372 filters")):
        assert main(["oneoff", str(cfg), path, str(tmp_path / "out"), "-quiet", *flags]) == 1
        assert found in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_statistics_has_a_row_for_every_tensor(tmp_path, capsys) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    _run("statistics", cfg, path)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0].isdigit()]
    network = Network(cfg, path)
    assert [(int(row[0]), row[2]) for row in rows] == [(la.index, spec.name) for la, spec, _ in network.named_tensors()]
    values = network.slots[0].weights.detach().numpy()
    wanted = np.sqrt((values**2).mean()), values.mean(), values.var(), values.min(), values.max()
    row = next(row for row in rows if row[0] == "0" and row[2] == "weights")
    assert np.allclose([float(word) for word in row[4:]], wanted, rtol=1e-4)


def test_strict_statistics_are_darknets_lines(tmp_path, capsys) -> None:
    cfg, (path,) = _files(tmp_path, MIXED)
    _run("statistics", cfg, path, "-strict")
    lines = capsys.readouterr().out.splitlines()
    lines = lines[lines.index("Connected Layer 6") - 6 :]
    assert lines[:6] == [""] * 6
    scales = Network(cfg, path).slots[6].scales.detach().numpy()
    rms, mean, variance = np.sqrt((scales**2).mean()), scales.mean(), scales.var()
    assert lines[7] == f"Scales MSE: {rms:.6f}, Mean: {mean:.6f}, Variance: {variance:.6f}"
    assert [line.split()[0] for line in lines[8:10]] == ["Biases", "Weights"]
    assert lines[10:13] == ["", "LSTM Layer 7", "wf"]
    assert "GRU Layer 8" not in lines  # it has no batch normalisation


def test_ops_counts_as_darknet_and_says_what_it_leaves_out(tmp_path, capsys) -> None:
    cfg, _ = _files(tmp_path, MIXED)
    _run("ops", cfg)
    first, second = 2 * 6 * 9 * 3 * 10 * 8, 2 * 6 * 9 * 6 * 10 * 8
    ones, dense = 2 * (2 * 36 * 80), 2 * (4 * 80 * 5)
    lstm, gru = 2 * 4 * (5 * 4 + 4 * 4), 2 * 3 * (4 * 3 + 3 * 3)
    crnn = 2 * 9 * 80 * (6 * 3 + 3 * 3 + 3 * 4)
    output = capsys.readouterr()
    total = first + second + ones + dense + lstm + gru
    assert output.out.splitlines() == [
        f"Floating Point Operations: {total}", f"Floating Point Operations: {total / 1e9:.2f} Bn"
    ]  # fmt: skip
    assert f"counted: {(total - second // 2 + crnn) / 1e9:.2f} Bn" in output.err


def test_speed_reports_passes_seconds_and_hertz(tmp_path, capsys) -> None:
    cfg, _ = _files(tmp_path, SIMPLE.format(more=""))
    _run("speed", cfg, 3, "-nogpu")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "" and lines[1].startswith("3 evals, ") and lines[1].endswith(" Seconds")
    seconds, hertz = float(lines[2].split()[1]), float(lines[3].split()[1])
    assert lines[2].endswith("sec/eval") and lines[3].endswith("Hz") and 0 < seconds < 5 and hertz > 0


# --- what can go wrong -----------------------------------------------------------------------------------------------


def test_the_output_may_be_the_input(tmp_path) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more=""))
    x = _picture()
    wanted = _outputs(cfg, path, x.flip(1))
    _run("rgbgr", cfg, path, path)
    assert _same(_outputs(cfg, path, x), wanted)


@pytest.mark.parametrize("words", ["partial {c} {w}", "average {c} {o}", "rgbgr {c} {w}", "oneoff {c}", "ops", "speed"])
def test_missing_words_are_a_usage_line(tmp_path, capsys, words: str) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more=""))
    assert main(words.format(c=cfg, w=path, o=tmp_path / "out").split()) == 1
    assert f"usage: darknetpy {words.split()[0]} " in capsys.readouterr().err


@pytest.mark.parametrize("count", ["-3", "many", "1.5"])
def test_partial_needs_a_whole_number(tmp_path, capsys, count: str) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more=""))
    assert main(["partial", cfg, path, str(tmp_path / "out"), count]) == 1
    assert "whole number" in capsys.readouterr().err


def test_a_folder_that_is_not_there_leaves_nothing(tmp_path, capsys) -> None:
    cfg, (path,) = _files(tmp_path, SIMPLE.format(more=""))
    before = sorted(tmp_path.iterdir())
    assert main(["rescale", cfg, path, str(tmp_path / "none" / "out.weights"), "-quiet"]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
