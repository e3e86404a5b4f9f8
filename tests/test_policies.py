"""How a training computes: half precision, layers computed twice, subdivisions that fit, and cuDNN's switches."""

from __future__ import annotations

import gc
import os
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from small import CFG, data_set
from together import together

from darknetpy import training
from darknetpy.data import resize
from darknetpy.errors import UsageError
from darknetpy.layers import read_structure
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.passes import _groups
from darknetpy.runtime import Policy
from darknetpy.training import feed, fitting
from darknetpy.training.events import Recovered, TurnDone
from darknetpy.training.learner import Learner

DROPPING = CFG.replace("[maxpool]\nsize=2\nstride=2\n", "[maxpool]\nsize=2\nstride=2\n\n[dropout]\nprobability=.3\n")
CONVOLUTION = "[convolutional]\nbatch_normalize=1\nfilters=8\nsize=3\npad=1\nactivation=mish\n\n"
RESIDUAL = (CONVOLUTION * 2 + "[shortcut]\nfrom=-3\nactivation=leaky\n\n") * 3
DEEP = CFG.replace(
    "[maxpool]\nsize=2\nstride=2\n",
    "[maxpool]\nsize=2\nstride=2\n\n" + RESIDUAL
    + "[dropout]\ndropblock=1\ndropblock_size_abs=3\nprobability=.5\n\n[route]\nlayers=-1,-4,3\n\n"
    + CONVOLUTION.replace("batch_normalize=1", "batch_normalize=1\ncbn=1") + CONVOLUTION
    + "[avgpool]\n\n[scale_channels]\nfrom=-2\n\n[upsample]\nstride=2\n\n[maxpool]\nsize=2\nstride=2\n",
)  # fmt: skip
"""Residual blocks, routes far back, DropBlock, `cbn`, squeeze and excitation."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resize, "LAST", 0)
    monkeypatch.setattr(feed, "EVERY", 3)
    return data_set(tmp_path, cfg=DROPPING)


@pytest.fixture
def switches():
    """torch's switches as they were, afterwards."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    yield cudnn
    cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32 = before
    torch.use_deterministic_algorithms(False)
    if workspace is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def run(iterations: int = 6, weights: str | None = None, **options):
    log: list = []
    overrides = [f"net.max_batches={iterations}", *options.pop("overrides", ())]
    options = {"workers": 0, "rehearse": False, "sinks": [log.append], **options}
    training.train("obj.data", "tiny.cfg", weights, overrides=overrides, **options)
    return log


def final() -> bytes:
    return Path("backup/tiny_final.weights").read_bytes()


def losses(log: list) -> np.ndarray:
    return np.array([event.loss for event in log if isinstance(event, TurnDone)])


def learner(cfg: Path | str, **policy) -> Learner:
    torch.manual_seed(5)
    return Learner(Network.from_structure(read_structure(cfg)), policy=Policy(**policy))


def pictures(rows: int = 2, size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0], [0.2, 0.3, 0.1, 0.2, 0, 0]]] * rows)
    return torch.rand(rows, 3, size, size, generator=generator), truth


# --- layers computed twice -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cfg", [DROPPING, DEEP], ids=["dropout", "deep"])
@pytest.mark.parametrize("more", ["", "stopbackward=1\n", "adversarial"])
def test_layers_computed_twice_change_nothing(place, cfg, more):
    """Gradients, running statistics, random numbers and weights are the same to the last bit."""
    if more == "adversarial":
        cfg = cfg.replace("[net]\n", "[net]\nadversarial_lr=.1\n", 1)
    elif more:
        cfg = cfg.replace("[maxpool]\n", f"{more}\n[maxpool]\n", 1)
    Path("tiny.cfg").write_text(cfg)
    found = []
    for twice in (False, True):
        one = learner("tiny.cfg", checkpointing=twice)
        assert any(len(group) > 1 for group in _groups(one.network.layers, False))
        for name, statistics in one.network.named_buffers():
            statistics.fill_(float("variance" in name))  # the adversarial pass divides by them
        torch.manual_seed(7)
        seen = []
        for _ in range(3):
            one.accumulate_all([pictures(), pictures(4)])
            seen += [gradient.clone() for gradient in one.optimizer.gradients()]
            one.update()
        seen += [tensor.clone() for tensor in one.network.state_dict().values()]
        found.append([*seen, torch.rand(3)])
    assert len(found[0]) == len(found[1])
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found[0])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_groups_hold_every_layer_once_and_leave_some_alone(place):
    Path("tiny.cfg").write_text(DEEP)
    layers = read_structure("tiny.cfg").layers
    groups = _groups(layers, False)
    assert [layer.index for group in groups for layer in group] == list(range(len(layers)))
    for group in groups:
        for layer in group:
            alone = layer.is_head or (layer.type == "convolutional" and layer.options.cbn)
            assert not alone or len(group) == 1
            assert not layer.reuses_input or layer is not group[0], "a layer that writes over the one before"


def test_fewer_outputs_are_kept(place):
    """What autograd saves of a pass, in bytes."""
    Path("tiny.cfg").write_text(DEEP)
    kept = []
    for twice in (False, True):
        one, saved = learner("tiny.cfg", checkpointing=twice), {}

        def pack(tensor, saved=saved):
            saved[tensor.data_ptr()] = tensor.nbytes
            return tensor

        x, truth = pictures()
        one.network.train()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            one.network.run(x, one._forward_context(one._rows(truth), 0))
        kept.append(sum(saved.values()))
    assert kept[1] < 0.6 * kept[0]


def test_a_pass_that_fails_leaves_no_outputs_behind(place, monkeypatch):
    """Memory that ran short in the middle is free again at once, when it is needed for the next attempt."""
    Path("tiny.cfg").write_text(DEEP)
    one, (x, truth) = learner("tiny.cfg", checkpointing=True), pictures()
    kept = []

    def short(x, context):
        kept.append(weakref.ref(x))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    several = [group for group in _groups(one.network.layers, False) if len(group) > 1]
    monkeypatch.setattr(several[1][0], "forward", short)
    gc.disable()
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            one.accumulate_all([(x, truth)])
        assert len(kept) == 1
        assert kept[0]() is None
    finally:
        gc.enable()


def test_short_memory_ends_with_layers_computed_twice(place, monkeypatch):
    """After mini-batches of one picture; the result is that of one picture at a time."""
    original, failures = Network.run, [0]

    def limited(self, x, *args, **kwargs):
        if self.training and not self.checkpointing and failures[0] < 9:
            failures[0] += 1
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, x, *args, **kwargs)

    run(overrides=["net.subdivisions=4"])
    expected = final()
    monkeypatch.setattr(Network, "run", limited)
    said = [event.message for event in run() if isinstance(event, Recovered)]
    assert ["2 parts" in said[0], "computed twice instead of kept" in said[1], len(said)] == [True, True, 2]
    assert final() == expected


# --- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_nearly_the_same(place, precision):
    """Weights, statistics and losses are float32; the losses follow those of float32."""
    Path("tiny.cfg").write_text(DEEP)
    expected = losses(run())
    plain = final()
    found = losses(run(policy=Policy(precision)))
    assert final() != plain, "nothing was computed in half precision"
    assert found == pytest.approx(expected, rel=0.05)
    one = learner("tiny.cfg", precision=precision)
    x, truth = pictures()
    kinds = {}
    original = type(one.network.layers[0]).forward

    def forward(self, x, context):
        y = original(self, x, context)
        kinds[self.index] = y.dtype
        return y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(one.network.layers[0]), "forward", forward)
        done = one.accumulate_all([(x, truth)])
    assert kinds[0] == {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    assert {output.dtype for output in done[0].outputs if output is not None} == {torch.float32}
    assert all(loss.delta.dtype == torch.float32 for loss in done[0].heads.values())
    assert all(t.dtype == torch.float32 for t in [*one.network.buffers(), *one.optimizer.gradients()])


@pytest.mark.parametrize(("loss_scale", "first"), [(1, 128.0), (64, 1.0)])
def test_the_scale_of_fp16_begins_with_the_cfgs(place, loss_scale, first):
    """And changes no gradient but by rounding: held ones neither."""
    cfg = CFG.replace("[net]\n", f"[net]\nloss_scale={loss_scale}\n").replace("filters=21", "filters=21\ndont_update=9")
    Path("tiny.cfg").write_text(cfg)
    half, whole = learner("tiny.cfg", precision="fp16"), learner("tiny.cfg")
    assert (half.scale.factor, whole.scale.factor) == (first, 1.0)
    for _ in range(2):
        for one in (half, whole):
            one.turn([pictures(), pictures()])
    assert half.optimizer.held_gradients().keys() == whole.optimizer.held_gradients().keys() != set()
    for key, gradient in whole.optimizer.held_gradients().items():
        assert half.optimizer.held_gradients()[key] == pytest.approx(
            gradient, rel=0.1, abs=0.02 * float(gradient.abs().max())
        )


def test_an_overflow_of_fp16_lowers_the_scale_and_repeats_the_turn(place):
    """No picture is lost, the scale falls until gradients fit, and goes on with the run."""
    original = Learner.accumulate_all

    def accumulate_all(self, batches):
        done = original(self, batches)
        if self.iteration == 2 and self.scale.factor > 32:
            self.optimizer.gradients()[0].fill_(float("inf"))
        return done

    plain = losses(run(policy=Policy("fp16")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "accumulate_all", accumulate_all)
        log = run(policy=Policy("fp16"), until=4)
    said = [event.message for event in log if isinstance(event, Recovered)]
    assert [re.search(r"overflow: loss scale (\d+)", text)[1] for text in said] == ["64", "32"]
    assert losses(log) == pytest.approx(plain[:4], rel=0.02)
    state = torch.load("backup/tiny_last.state.pt", weights_only=True)
    assert state["replicas"][0]["scale"] == [32.0, 2]
    run(policy=Policy("fp16"), weights="backup/tiny_last.weights")


def test_the_scale_grows_again(monkeypatch):
    from darknetpy.training import scale

    monkeypatch.setattr(scale, "GROWS_AFTER", 3)
    one = scale.LossScale(True, 1.0)
    for _ in range(7):
        one.count()
    assert one.state == [512.0, 1]
    while one.lower():
        pass
    assert one.factor == scale.LEAST
    off = scale.LossScale(False, 1.0)
    off.count()
    assert not off.lower() and off.state == [1.0, 0]


def test_unknown_precision_is_one_sentence(place):
    with pytest.raises(UsageError, match=r"unknown precision \('fp8'\); use one of fp32, bf16, fp16"):
        run(policy=Policy("fp8"))


# --- subdivisions ----------------------------------------------------------------------------------------------------


def test_subdivisions_of_the_command_count(place):
    run(overrides=["net.subdivisions=4"])
    expected = final()
    run(subdivisions=4)
    assert final() == expected
    for wrong in (3, 0, 8, "many"):
        with pytest.raises(UsageError, match="must divide batch=4"):
            run(subdivisions=wrong)


@pytest.mark.parametrize(("most", "expected"), [(1, 16), (2, 8), (5, 4), (16, 1)])
def test_the_largest_mini_batch_that_fits_is_found(place, monkeypatch, most, expected):
    """At the largest random size, with momentum, leaving no trace; replicas agree."""
    Path("tiny.cfg").write_text(CFG.replace("batch=4", "batch=16").replace("random=0", "random=1"))
    original, tried = Network.run, []

    def limited(self, x, *args, **kwargs):
        tried.append(tuple(x.shape))
        if len(x) > most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, x, *args, **kwargs)

    monkeypatch.setattr(Network, "run", limited)
    structure, before = read_structure("tiny.cfg"), torch.get_rng_state()

    def fit(count: int) -> bool:
        return fitting.fits(fitting.divided(structure, count), "cpu", Policy())

    assert fitting.fewest(fitting.divisors(16), fit) == expected
    assert {shape[2:] for shape in tried} == {(128, 128)}
    assert torch.equal(torch.get_rng_state(), before)


def test_auto_keeps_the_cfgs_on_a_cpu(place, caplog):
    run(subdivisions="auto")
    assert "on the CPU 2 stay" in caplog.text


def test_other_errors_of_a_trial_are_not_taken_for_short_memory(place, monkeypatch):
    def broken(self, x, *args, **kwargs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Network, "run", broken)
    with pytest.raises(RuntimeError, match="mat1"):
        fitting.fits(read_structure("tiny.cfg"), "cpu", Policy())


# --- switches --------------------------------------------------------------------------------------------------------


def test_switches_of_cudnn(place, switches):
    Policy().apply()
    assert (switches.allow_tf32, switches.benchmark, torch.backends.cuda.matmul.allow_tf32) == (False, False, False)
    Policy(tf32=True, benchmark=True, deterministic=True).apply()
    assert (switches.allow_tf32, switches.benchmark, torch.backends.cuda.matmul.allow_tf32) == (True, True, True)
    assert switches.deterministic and torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"]


def test_engines_are_avoided_step_by_step(place, monkeypatch, switches):
    """Timing off, then cuDNN off, each said; the result is the same."""
    original, calls = Network.run, [0]

    def failing(self, x, *args, **kwargs):
        calls[0] += 1
        if calls[0] in (2, 4):
            raise RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM")
        return original(self, x, *args, **kwargs)

    run()
    expected = final()
    monkeypatch.setattr(Network, "run", failing)
    said = [event.message for event in run(policy=Policy(benchmark=True)) if isinstance(event, Recovered)]
    assert ["timing of algorithms is switched off" in said[0], "cuDNN is switched off" in said[1]] == [True, True]
    assert final() == expected


def test_checkpointing_and_common_statistics_exclude_each_other(place):
    replicas = Single()
    replicas.sync_bn = True
    with pytest.raises(UsageError, match="-checkpointing does not go with -sync_bn"):
        run(policy=Policy(checkpointing=True), replicas=replicas)


# --- logs of NCCL ----------------------------------------------------------------------------------------------------


def test_each_replica_has_a_log_of_its_own(place):
    logs = together(2, log_file, {})
    assert [Path(log).name for log in logs] == ["rank0.%h.%p.log", "rank1.%h.%p.log"]
    assert Path("logs").is_dir()


def log_file(replicas) -> str:
    from darknetpy.parallel.launch import log_nccl

    log_nccl("logs")
    assert os.environ["NCCL_DEBUG"] == "INFO"
    return os.environ["NCCL_DEBUG_FILE"]
