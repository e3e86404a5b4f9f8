"""What users of Darknet and its ports have reported, and the right behaviour in its place."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small import CFG, data_set

from darknetpy import Network, evaluate, runtime, train
from darknetpy.cli.main import main
from darknetpy.data.draws import MOSAIC, NONE
from darknetpy.data.sampling import Sampler
from darknetpy.layers.convolutional import Convolutional
from darknetpy.training import feed
from darknetpy.training.events import Evaluated, Recovered, TurnDone
from darknetpy.training.learner import Learner

TRAIN = [
    "detector",
    "train",
    "obj.data",
    "tiny.cfg",
    "-nogpu",
    "-workers",
    "0",
    "-quiet",
    "-no_rehearsal",
    "-dont_show",
]


def conv(filters: int, stride: int = 1, size: int = 3, linear: bool = False) -> str:
    """A convolutional section; `linear` ones come before heads."""
    kind = "activation=linear\n" if linear else "batch_normalize=1\nactivation=leaky\n"
    return f"[convolutional]\nfilters={filters}\nsize={size}\nstride={stride}\npad=1\n{kind}\n"


def net(width: int, height: int, iterations: int, more: str = "") -> str:
    return (
        f"[net]\nbatch=4\nsubdivisions=1\nwidth={width}\nheight={height}\nchannels=3\nburn_in=10\n"
        f"max_batches={iterations}\npolicy=steps\nsteps={iterations * 7 // 10}\nscales=.1\n{more}\n"
    )


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return data_set(tmp_path)


def events(cfg: str = "tiny.cfg", **options) -> list:
    log: list = []
    train("obj.data", cfg, workers=0, rehearse=False, sinks=[log.append], **options)
    return log


def losses(log: list) -> np.ndarray:
    return np.array([event.loss for event in log if isinstance(event, TurnDone)])


# --- heads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", [(3, 3), (4, 3, 2), (4, 2, 3, 9), (9, 9)], ids=str)
def test_heads_of_any_number_and_uneven_masks_are_evaluated_between_sizes(place, monkeypatch, masks):
    """Random sizes, an evaluation after each turn or so; each mAP is that of `map` on the file saved then."""
    monkeypatch.setattr(feed, "EVERY", 2)
    count = sum(masks)
    anchors = ",".join(f"{8 + 4 * i},{10 + 3 * i}" for i in range(count))
    text, first = net(64, 64, 7, "resize_step=32\n").replace("burn_in=10", "burn_in=0") + conv(8, 4), 0
    for stage, size in enumerate(masks):
        mask = ",".join(map(str, range(first, first + size)))
        text += conv(8, 2 if stage < 2 else 1) + conv(7 * size, size=1, linear=True)
        text += f"[yolo]\nmask={mask}\nanchors={anchors}\nnum={count}\nclasses=2\nrandom=1\n\n[route]\nlayers=-3\n\n"
        first += size
    Path("heads.cfg").write_text(text.rsplit("[route]", 1)[0])
    results, copies = [], []

    def keep(event) -> None:
        if isinstance(event, Evaluated):
            results.append(event.result)
        if isinstance(event, TurnDone):
            copies.append(event.loss)

    train(
        "obj.data", "heads.cfg", evaluate=True, map_every=2, thresh=0.001, save_every=2, workers=0, rehearse=False,
        sinks=[keep],
    )  # fmt: skip
    assert len(copies) == 7 and np.isfinite(copies).all()
    assert len(results) == 4
    for iteration, inside in zip(("2", "4", "6", "final"), results, strict=True):
        alone = evaluate("obj.data", "heads.cfg", f"backup/heads_{iteration}.weights", thresh=0.001)
        assert (alone.map, alone.detections_count, alone.classes) == (
            inside.map, inside.detections_count, inside.classes,
        )  # fmt: skip
        assert inside.detections_count > 0


OVERFIT = {
    "yolo, 608x416": (
        (608, 416), 250, "0.01", (4, 8, 16, 16, 32),
        "[yolo]\nmask=0,1,2\nanchors=100,80, 150,120, 220,170\nclasses=2\nnum=3\niou_loss=ciou\niou_normalizer=0.07\n"
        "random=0\njitter=0\n",
    ),
    "region, random sizes": (
        (160, 160), 400, "0.002", (4, 8, 16, 16, 32),
        "[region]\nanchors=1,1, 1.3,1.3, 2,2\nclasses=2\nnum=3\ncoords=4\nbias_match=1\nsoftmax=1\njitter=0\n"
        "rescore=1\nobject_scale=5\nabsolute=1\nthresh=.6\nrandom=1\n",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", OVERFIT)
def test_four_pictures_are_learnt_by_heart(place, kind):
    """Neither a size that is no square nor a [region] head of changing size misses an object in the end."""
    (w, h), iterations, rate, filters, head = OVERFIT[kind]
    body = "".join(conv(count, 2) for count in filters) + conv(32) + conv(21, size=1, linear=True)
    Path("tiny.cfg").write_text(net(w, h, iterations, f"adam=1\nlearning_rate={rate}\n") + body + head)
    for i, (x, y) in enumerate([(0.16, 0.19), (0.49, 0.48), (0.57, 0.14), (0.13, 0.52)]):
        image = np.random.default_rng(i).integers(0, 60, (h, w, 3), dtype=np.uint8)
        image[int(y * h) :, int(x * w) :][: h // 4, : w // 4] = (0, 200, 220) if i % 2 else (220, 100, 0)
        cv2.imwrite(f"img/{i}.png", image)
        Path(f"img/{i}.txt").write_text(f"{i % 2} {x + 0.125} {y + 0.125} .25 .25\n")
    Path("list.txt").write_text("".join(f"img/{i}.png\n" for i in range(4)))
    log = events(evaluate=True, map_every=iterations)
    result = next(event.result for event in reversed(log) if isinstance(event, Evaluated))
    assert (result.recall, result.fn) == (1, 0)
    assert result.map > 0.99


def test_every_size_goes_through_odd_maxpools(place):
    """Sizes 320 to 608: forward, loss and backward, with windows that do not fit evenly."""
    odd = "[maxpool]\nsize=5\nstride=1\n\n[maxpool]\nsize=3\nstride=2\npadding=1\n"
    Path("odd.cfg").write_text(CFG.replace("[maxpool]\nsize=2\nstride=2\n", odd))
    learner = Learner(Network("odd.cfg", training=True))
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 1]]])
    for size in range(320, 609, 32):
        turn = learner.turn([(torch.rand(1, 3, size, size), truth)])
        assert torch.isfinite(turn.loss)
        assert all(torch.isfinite(gradient).all() for gradient in learner.optimizer.gradients())


def test_half_the_labels_empty_and_small_boxes_stay_finite(place):
    for i in range(6):
        Path(f"img/{i}.txt").write_text("" if i % 2 else "0 .5 .5 .02 .02\n1 .3 .7 .03 .016\n")
    log = events(overrides=["net.max_batches=500"])
    assert len(losses(log)) == 500 and np.isfinite(losses(log)).all()
    assert not [event for event in log if isinstance(event, Recovered)]


# --- counters --------------------------------------------------------------------------------------------------------


def test_stopbackward_n_means_the_first_n_iterations(place):
    Path("tiny.cfg").write_text(CFG.replace("[maxpool]", "[maxpool]\nstopbackward=5", 1))
    Network("tiny.cfg").save_weights("start.weights")

    def first_layer(path: str) -> torch.Tensor:
        return Network("tiny.cfg", path).state_dict()["slots.0.weights"]

    train(
        "obj.data", "tiny.cfg", "start.weights", workers=0, rehearse=False, save_every=1, sinks=[],
        overrides=["net.max_batches=7", "net.decay=0"],
    )  # fmt: skip
    still = [torch.equal(first_layer(f"backup/tiny_{n}.weights"), first_layer("start.weights")) for n in range(1, 7)]
    assert still == [True] * 5 + [False]


def test_a_part_of_a_trained_file_begins_at_iteration_0(place, capfd):
    assert main(TRAIN) == 0
    assert main(["partial", "tiny.cfg", "backup/tiny_final.weights", "tiny.conv.3", "3"]) == 0
    log = events(weights="tiny.conv.3")
    assert [event.iteration for event in log if isinstance(event, TurnDone)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("batch", "subdivisions", "sentence"),
    [(64, 22, "use subdivisions=16"), (32, 64, "batch=32 is less than subdivisions=64")],
)
def test_no_picture_is_left_out_of_a_batch_in_silence(place, capfd, batch, subdivisions, sentence):
    assert main([*TRAIN, "-set", f"net.batch={batch}", f"net.subdivisions={subdivisions}"]) == 1
    assert sentence in capfd.readouterr().err


# --- memory and processors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_memory_that_ends_at_a_layer_repeats_the_turn(place, monkeypatch, layer, way):
    """The end is that of a clean run with as many subdivisions."""
    original, left = Convolutional.forward, [1]

    def fail() -> None:
        left[0] -= 1
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def forward(self, x, context):
        y = original(self, x, context)
        if self.index == layer and context.training and context.iteration == 1 and left[0] and len(x) == 2:
            if way == "forward":
                fail()
            y.register_hook(lambda _: fail() if left[0] else None)
        return y

    with monkeypatch.context() as patch:
        patch.setattr(Convolutional, "forward", forward)
        log = events(overrides=["net.max_batches=6"], until=2)
    told = [event.message for event in log if isinstance(event, Recovered)]
    assert len(told) == 1 and "worked off in 2 parts" in told[0]
    assert left == [0]
    retried = Network("tiny.cfg", "backup/tiny_last.weights").state_dict()
    events(overrides=["net.max_batches=6"], until=1)
    events(weights="backup/tiny_last.weights", overrides=["net.max_batches=6", "net.subdivisions=4"], until=2)
    clean = Network("tiny.cfg", "backup/tiny_last.weights").state_dict()
    assert all(torch.equal(clean[name], retried[name]) for name in clean)


def test_processors_are_those_that_the_process_may_use(monkeypatch):
    files: dict[str, str] = {}

    def read(name: str) -> str:
        if name not in files:
            raise FileNotFoundError(name)
        return files[name]

    monkeypatch.setattr(runtime.os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.setattr(runtime, "_cgroup", read)
    assert runtime.cpu_count() == 12
    for limits, count in (
        ({"cpu.max": "350000 100000\n"}, 3),
        ({"cpu.max": "max 100000\n"}, 12),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 12),
    ):
        files.clear()
        files.update(limits)
        assert runtime.cpu_count() == count
    assert (runtime.default_workers("cuda:0"), runtime.default_workers("cpu")) == (11, 1)
    monkeypatch.setenv("WORLD_SIZE", "24")
    for name, here in (("SLURM_TASKS_PER_NODE", "4(x6)"), ("LOCAL_WORLD_SIZE", "12")):
        monkeypatch.setenv(name, here)
        assert runtime.default_workers("cuda:0") == {"4(x6)": 2, "12": 1}[here], "replicas elsewhere have their own"
    assert runtime.default_workers("cpu") == 0


def test_close_mosaic_is_heeded_at_the_end_of_a_run(place, monkeypatch):
    original, modes = Sampler.mode, {}

    def mode(self, request):
        modes.setdefault(request.iteration, set()).add(found := original(self, request))
        return found

    monkeypatch.setattr(Sampler, "mode", mode)
    assert main([*TRAIN, "-close_mosaic", "3", "-set", "net.mosaic=1", "net.max_batches=10"]) == 0
    assert all(modes[iteration] == {NONE} for iteration in (7, 8, 9))
    assert MOSAIC in set().union(*(modes[iteration] for iteration in range(7)))
