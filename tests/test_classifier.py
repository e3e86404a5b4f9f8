"""Classifiers: targets, batches, a training that learns digits, what it prints and what it refuses."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import TESTS, shared
from small import picture

from darknetpy.cli.main import main
from darknetpy.data.cache import make_cache
from darknetpy.data.classification import Truth
from darknetpy.data.classified import SOURCES, ClassificationData, Views
from darknetpy.data.draws import BOTH, CUTMIX, MIXUP, MOSAIC, NONE
from darknetpy.data.loader import Loader
from darknetpy.data.sampling import Request
from darknetpy.data.views import View, rotate_crop
from darknetpy.errors import ConfigError
from darknetpy.inference.classifier import Classifier
from darknetpy.layers.tree import IGNORED, Tree
from darknetpy.training.classifier import train_classifier
from darknetpy.training.learner import Learner

DIGITS = TESTS.parent / "data" / "digits"
LEARNED = 0.5
"""Top-1 accuracy on digits that were not trained on, after a few seconds; guessing gives 0.1."""
CFG = """[net]
batch=32
subdivisions=2
width=20
height=20
channels=1
max_crop=24
min_crop=20
flip=0
angle=7
learning_rate=0.02
policy=poly
power=1
max_batches=200
decay=0.0005

[convolutional]
batch_normalize=1
filters=16
size=3
stride=2
pad=1
activation=leaky

[convolutional]
batch_normalize=1
filters=32
size=3
stride=2
pad=1
activation=leaky

[connected]
output=64
activation=leaky

[connected]
output=10
activation=linear

[softmax]
groups=1
"""


def crops(folder: Path, part: str, count: int) -> None:
    """Each digit of some pictures of the sample set as a file of its own, and `PART.list` of them."""
    paths = []
    (folder / part).mkdir(parents=True)
    for image in sorted((DIGITS / part).glob("*.jpg"))[:count]:
        whole = cv2.imread(str(image))
        h, w = whole.shape[:2]
        for n, line in enumerate(image.with_suffix(".txt").read_text().splitlines()):
            label, *box = line.split()
            x, y, bw, bh = np.array(box, float) * (w, h, w, h)
            left, top = max(0, int(x - bw / 2)), max(0, int(y - bh / 2))
            paths.append(f"{part}/digit{label}_{image.stem}_{n}.png")
            cv2.imwrite(str(folder / paths[-1]), whole[top : int(y + bh / 2) + 1, left : int(x + bw / 2) + 1])
    (folder / f"{part}.list").write_text("".join(f"{path}\n" for path in paths))


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A folder with cropped digits, `digits.data` and `digits.cfg`."""
    folder = tmp_path_factory.mktemp("digits")
    crops(folder, "train", 150)
    crops(folder, "valid", 40)
    (folder / "labels.list").write_text("".join(f"digit{i}\n" for i in range(10)))
    text = "classes=10\ntrain=train.list\nvalid=valid.list\nlabels=labels.list\nbackup=backup\ntop=2\n"
    (folder / "digits.data").write_text(text)
    (folder / "digits.cfg").write_text(CFG)
    return folder


@pytest.fixture(scope="module")
def trained(digits):
    """What `train_classifier` gave for them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(digits)
        return train_classifier("digits.data", "digits.cfg", evaluate=True, workers=0, rehearse=False, sinks=[])


# --- training ------------------------------------------------------------------------------------------------------


def test_a_tiny_network_learns_digits_from_paths(digits, trained, monkeypatch, capsys):
    monkeypatch.chdir(digits)
    assert trained.iteration == 200
    pictures = len((digits / "train.list").read_text().split())
    assert 2 * pictures // 32 == 45  # two epochs
    assert [iteration for iteration, _ in trained.history] == [100, 145, 190, 200]
    words = ["classifier", "valid", "digits.data", "digits.cfg", "backup/digits_final.weights", "-quiet", "-nogpu"]
    assert main(words) == 0
    top1, top2 = re.findall(r"top 1: ([\d.]+), top 2: ([\d.]+)", capsys.readouterr().out)[-1]
    assert float(top1) > LEARNED
    assert float(top2) == pytest.approx(trained.map, abs=1e-6)


def test_a_trained_digit_is_named(digits, trained, monkeypatch):
    monkeypatch.chdir(digits)
    classifier = Classifier("digits.cfg", "backup/digits_final.weights", "labels.list")
    paths = (digits / "valid.list").read_text().split()[:60]
    right = [classifier(path, top=1)[0].name in path for path in paths]
    assert sum(right) > LEARNED * len(paths)


def test_a_tree_of_classes_is_learned(digits, monkeypatch, tmp_path):
    """A group for the shape and one for the digits of each; guessing costs ln 2 + ln 5 = 2.3."""
    monkeypatch.chdir(digits)
    shapes = {"round": "03689", "angular": "12457"}
    leaves = [f"digit{digit} {parent}" for parent, name in enumerate(shapes) for digit in shapes[name]]
    (digits / "digits.tree").write_text("\n".join([f"{name} -1" for name in shapes] + leaves))
    (digits / "tree.list").write_text("\n".join([*shapes, *(leaf.split()[0] for leaf in leaves)]))
    text = (digits / "digits.data").read_text().replace("backup=backup", f"backup={tmp_path}")
    (digits / "tree.data").write_text(text.replace("=10", "=12").replace("labels.list", "tree.list"))
    (digits / "tree.cfg").write_text(CFG.replace("output=10", "output=12").replace("groups=1", "tree=digits.tree"))
    options = {"workers": 0, "rehearse": False, "sinks": [], "overrides": ["net.max_batches=100"]}
    result = train_classifier("tree.data", "tree.cfg", **options)
    assert result.avg_loss < 2.0


def test_a_run_that_is_stopped_and_resumed_ends_as_one_that_was_not(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(digits)
    options = {"workers": 0, "rehearse": False, "sinks": [], "overrides": ["net.max_batches=6", "net.cutmix=1"]}
    for name in ("whole", "halves"):
        text = (digits / "digits.data").read_text().replace("backup=backup", f"backup={tmp_path / name}")
        (digits / f"{name}.data").write_text(text)
    train_classifier("whole.data", "digits.cfg", **options)
    stopped = train_classifier("halves.data", "digits.cfg", until=3, **options)
    assert stopped.stopped == "iteration"
    train_classifier("halves.data", "digits.cfg", tmp_path / "halves" / "digits_last.weights", **options)
    whole, halves = ((tmp_path / name / "digits_final.weights").read_bytes() for name in ("whole", "halves"))
    assert whole == halves


def shapes(text: str) -> set[str]:
    """The different lines of a log with their numbers left out, less those about Darknet's build."""
    lines = {re.sub(r"\d+(\.\d+)?", "#", line) for line in re.split(r"[\n\r]", text)}
    return {line for line in lines if not line.startswith((" GPU", " Used"))}


def test_the_log_is_darknets(tmp_path, monkeypatch, capsys):
    text = shared("golden", "cli", "59_classifier_train.stdout.txt").read_text()
    inputs = shared("golden", "cli", "inputs")
    monkeypatch.chdir(tmp_path)
    names = (inputs / "cls.names").read_text().split()
    for i, name in enumerate(names):
        cv2.imwrite(f"{name}.png", picture(i))
    Path("list.txt").write_text("".join(f"{name}.png\n" for name in names))
    (tmp_path / "cls.names").write_text("\n".join(names))
    Path("cls.data").write_text("classes=5\ntrain=list.txt\nvalid=list.txt\nlabels=cls.names\nbackup=backup\ntop=2\n")
    words = ["cls.data", str(inputs / "cls.cfg"), "-dont_show", "-topk", "-nogpu", "-workers", "0"]
    assert main(["classifier", "train", *words]) == 0
    mine = capsys.readouterr().out
    assert shapes(mine) >= shapes(text)
    fixed = re.compile(r"^(\d+, [\d.]+): .* avg, ([\d.]+ rate), .* seconds, (\d+ images)", re.M)
    assert fixed.findall(mine) == fixed.findall(text) != []
    assert sorted(path.name for path in Path("backup").iterdir()) == ["cls_best.weights", "cls_final.weights"]
    assert Path("chart_cls.png").stat().st_size > 10_000
    assert Path("results.csv").read_text().count("\n") == 7


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"classes": "9"}, "num of filters = 10"),
        ({"labels": "short.list"}, "there are 2 labels for classes=10"),
        ({"valid": "nowhere.list"}, "nowhere.list"),
        ({"train": "empty.list"}, "lists no image"),
    ],
)
def test_what_does_not_fit_is_one_sentence(digits, tmp_path, monkeypatch, capsys, change, problem):
    monkeypatch.chdir(digits)
    (digits / "short.list").write_text("digit0\ndigit1\n")
    (digits / "empty.list").write_text("\n")
    text = (digits / "digits.data").read_text().replace("backup=backup", f"backup={tmp_path / 'backup'}")
    for key, value in change.items():
        text = re.sub(f"{key}=.*", f"{key}={value}", text)
    (digits / "wrong.data").write_text(text)
    assert main(["classifier", "train", "wrong.data", "digits.cfg", "-topk", "-nogpu", "-quiet"]) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "backup").exists()


def test_a_detector_is_refused(digits, monkeypatch, capsys):
    monkeypatch.chdir(digits)
    assert main(["classifier", "train", "digits.data", "cfg/yolov4-tiny-digits.cfg", "-nogpu", "-quiet"]) == 1
    assert "detector train" in capsys.readouterr().err


# --- targets -------------------------------------------------------------------------------------------------------


def test_a_picture_has_every_class_that_its_path_names(caplog):
    truth = Truth(["cat", "dog", "car"])
    assert truth.of("pets/dog1.jpg").tolist() == [0, 1, 0]
    assert truth.of("pets/dog_and_cat.jpg").tolist() == [1, 1, 0]
    assert truth.of("pets/bird.jpg").tolist() == [0, 0, 0]
    np.testing.assert_allclose(Truth(["cat", "dog", "car"], 0.1).of("dog.jpg"), [0.05, 0.9, 0.05], rtol=1e-6)


def test_ancestors_are_true_and_other_groups_left_out():
    tree = Tree()
    for name, parent in (("animal", -1), ("thing", -1), ("dog", 0), ("cat", 0), ("cup", 1), ("car", 1)):
        tree.add(name, parent)
    truth = Truth(tree.names, tree=tree)
    assert truth.of("x/cat7.jpg").tolist() == [1, 0, 0, 1, IGNORED, IGNORED]
    assert truth.of("x/thing.jpg").tolist() == [0, 1, IGNORED, IGNORED, IGNORED, IGNORED]
    assert truth.of("x/9.jpg").tolist() == [IGNORED] * 6
    with pytest.raises(ConfigError, match="label_smooth_eps"):
        Truth(tree.names, 0.1, tree)


# --- batches -------------------------------------------------------------------------------------------------------


def test_an_upright_view_of_the_whole_picture_is_the_picture():
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    np.testing.assert_allclose(rotate_crop(image, View(), 24), image.transpose(2, 0, 1) / 255, atol=1e-6)
    placed = View.placed(48, 24, 24, aspect=1.0, side=24, degrees=0.0, u=1.0, v=1.0)
    assert (placed.scale, placed.dx, placed.dy) == (1.0, 12.0, 0.0)


def data_of(digits: Path, mode: int, **options) -> ClassificationData:
    paths = [str(digits / path) for path in (digits / "train.list").read_text().split()[:40]]
    views = Views(16, 24, angle=10.0, aspect=0.75, hue=0.1, saturation=1.5, exposure=1.5, mode=mode, **options)
    labels = [f"digit{i}" for i in range(10)]
    return ClassificationData(paths, Truth(labels), views, seed=3, cache=make_cache(None, paths, 3))


@pytest.mark.parametrize("mode", SOURCES)
def test_targets_of_mixed_pictures_sum_to_one(digits, mode):
    data = data_of(digits, mode)
    batches = [data.batch(Request(i, 0, 20, 20, 4)) for i in range(6)]
    truth = np.concatenate([batch.truth for batch in batches])
    np.testing.assert_allclose(truth.sum(1), 1, rtol=1e-5)
    mixed = (truth.max(1) < 0.999).mean()
    assert mixed == 0 if mode == NONE else mixed > 0.1
    images = np.concatenate([batch.images for batch in batches])
    assert images.shape == (24, 3, 20, 20)
    assert 0 <= images.min() < images.max() <= 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked")
@pytest.mark.parametrize("mode", [MIXUP, CUTMIX, MOSAIC, BOTH])
def test_loader_processes_make_the_same_batches(digits, mode):
    wanted = [Request(i, 0, 20, 20, 5) for i in range(4)]
    with Loader(data_of(digits, mode, blur=3), 2) as loader:
        found = [loader.turn([wanted[i]], [[later] for later in wanted[i + 1 : i + 3]])[0] for i in range(4)]
    alone = data_of(digits, mode, blur=3)
    for batch, request in zip(found, wanted, strict=True):
        expected = alone.batch(request)
        np.testing.assert_array_equal(batch.images, expected.images)
        np.testing.assert_array_equal(batch.truth, expected.truth)


def test_pairs_of_contrastive_training_show_the_same_picture(digits):
    batch = data_of(digits, NONE, contrastive=True).batch(Request(0, 0, 20, 20, 6))
    assert batch.paths[0::2] == batch.paths[1::2]
    assert len(set(batch.paths)) > 1
    assert (batch.images[0::2] != batch.images[1::2]).any()


def test_an_unreadable_picture_is_replaced(digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = data_of(digits, NONE)
    (tmp_path / "digit3.png").write_bytes(b"no picture")
    data.pictures.paths[:20] = [str(tmp_path / "digit3.png")] * 20
    paths = {path for i in range(4) for path in data.batch(Request(i, 0, 20, 20, 4)).paths}
    assert str(tmp_path / "digit3.png") not in paths
    assert Path("bad.list").read_text().split() == [str(tmp_path / "digit3.png")]


# --- docs/classify.md ------------------------------------------------------------------------------------------------


@pytest.fixture
def pets(tmp_path, monkeypatch) -> str:
    """The page, and the working directory that it speaks of."""
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    names = [f"pictures/{kind}_{i}.jpg" for kind in ("cat", "dog") for i in range(3)]
    for i, name in enumerate(names):
        cv2.imwrite(name, picture(i))
    for part in ("train", "valid"):
        Path(f"{part}.list").write_text("".join(f"{name}\n" for name in names))
    Path("labels.list").write_text("cat\ndog\n")
    cfg = (
        CFG.replace("output=10", "output=2").replace("max_batches=200", "max_batches=2").replace("batch=32", "batch=8")
    )
    Path("pets.cfg").write_text(cfg)
    text = (TESTS.parent / "docs" / "classify.md").read_text()
    Path("pets.data").write_text(re.search(r"`pets.data`:\n\n```\n(.+?)```", text, re.S)[1])
    return text


def test_the_pages_commands_and_code_run(pets, capsys):
    commands = dict(re.findall(r"<!-- command: (\w+) -->\n```\n(.+?)\n```", pets, re.S))
    assert list(commands) == ["train", "predict", "valid"]
    for command in commands.values():
        assert main([*command.split()[1:], "-quiet", "-nogpu"]) == 0, command
    out = capsys.readouterr().out
    assert " accuracy top2 = 1.000000 " in out
    assert re.search(r"dog_1.jpg: Predicted in .*\n(cat|dog): [01]\.\d+\n(cat|dog): [01]\.\d+\n", out)
    code = re.search(r"```python\n(.+?)```", pets, re.S)[1]
    exec(compile(code, "classify.md", "exec"), {})
    assert "2 1.0" in capsys.readouterr().out


def test_augmented_pictures_are_shown(pets):
    assert main(["classifier", "train", "pets.data", "pets.cfg", "-show_imgs", "-quiet", "-nogpu"]) == 0
    shown = list(Path("augmented").glob("aug_*.jpg"))
    assert len(shown) == 16
    assert cv2.imread(str(shown[0])).shape == (20, 20, 3)


def test_how_to_compute_is_heeded(pets, monkeypatch, capsys):
    """`-precision`, `-checkpointing` and `-subdivisions` reach the trainings of classifiers."""
    seen = []

    class Watched(Learner):
        def __init__(self, network, *rest):
            super().__init__(network, *rest)
            seen.append((self.policy.precision, network.checkpointing, network.structure.net.subdivisions))

    monkeypatch.setattr("darknetpy.training.run.Learner", Watched)
    words = ["classifier", "train", "pets.data", "pets.cfg", "-quiet", "-nogpu", "-no_rehearsal"]
    assert main([*words, "-precision", "bf16", "-checkpointing", "-subdivisions", "4"]) == 0
    assert seen == [("bf16", True, 4)]
    assert main([*words, "-subdivisions", "auto"]) == 1
    assert "-subdivisions must be a number here" in capsys.readouterr().err
