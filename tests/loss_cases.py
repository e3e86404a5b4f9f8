"""Reference cases of golden/train/loss, run head by head on Darknet's own outputs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from conftest import TESTS

from darknetpy.layers import ForwardContext, Layer
from darknetpy.losses import HeadLoss, LossContext, head_loss
from darknetpy.network import Network

CASES = TESTS / "golden" / "train" / "loss"
NUMBER = re.compile(r"-?nan|-?\d+\.?\d*(?:e[-+]?\d+)?")


def names(prefix: str) -> list[str]:
    """Cases whose name begins so."""
    return sorted(path.name for path in CASES.glob(f"{prefix}*"))


@dataclass
class MiniBatch:
    """Results and expected values of one mini-batch: deltas and costs by layer, and the printed text."""

    heads: list[Layer]
    losses: dict[int, HeadLoss]
    deltas: dict[int, np.ndarray]
    costs: dict[int, float]
    printed: str


@dataclass
class Case:
    """One folder of the collection."""

    name: str
    device: str = "cpu"
    network: Network = field(init=False)

    def __post_init__(self):
        self.folder: Path = CASES / self.name
        self.network = Network(
            str(self.folder / "net.cfg"),
            str(self.folder / "init.weights"),
            training=True,
            strict=True,
            device=self.device,
        )
        with np.load(self.folder / "expected.npz") as stored:
            self.expected = dict(stored)
        with np.load(self.folder / "data.npz") as stored:
            self.truth = torch.from_numpy(stored["truth"]).to(self.device)
            self.images = torch.from_numpy(stored["X_u8"].astype(np.float32) / np.float32(255)).to(self.device)

    def mini_batches(self, around: type | None = None) -> Iterator[MiniBatch]:
        """Every subdivision, with the memory that heads and network keep between them. Losses are computed inside a
        context made by `around`."""
        net, rows, seen = self.network.net, self.network.net.mini_batch, int(self.expected["seen_before"])
        states: dict[int, dict] = {}
        net_state: dict = {}
        for k in range(net.subdivisions):
            seen += rows
            result = MiniBatch([], {}, {}, {}, str(self.expected["printed"][k]))
            for head in self.network.structure.heads:
                output = self._stored(k, head.index, "output")
                if output is None:
                    continue
                context = LossContext(
                    net_w=net.width,
                    net_h=net.height,
                    net=net,
                    max_batches=net.max_batches,
                    seen=seen,
                    batch=rows,
                    strict=True,
                    state=states.setdefault(head.index, {}),
                    net_state=net_state,
                    losses=result.losses,
                    input=self._input(k, head),
                )
                if head.type == "region":
                    output = output.reshape(rows, -1, *output.shape[1:3])
                result.heads.append(head)
                truth = self.truth[k * rows : (k + 1) * rows]
                truth = self._rows(truth)
                with around() if around else nullcontext():
                    result.losses[head.index] = head_loss(head, output, truth, context)
                result.deltas[head.index] = self._stored(k, head.index, "delta").cpu().numpy()
                if head.has_cost:
                    result.costs[head.index] = float(self.expected[f"s{k}/L{head.index}/cost"])
            yield result

    def _rows(self, truth: torch.Tensor) -> torch.Tensor:
        boxes = any(head.type in ("yolo", "Gaussian_yolo", "region") for head in self.network.structure.heads)
        return truth.reshape(len(truth), -1, 6) if boxes else truth

    def _input(self, k: int, head: Layer) -> torch.Tensor | None:
        """What a head that reads its input was given: stored for the first mini-batch, else from the network."""
        if head.type not in ("cost", "contrastive"):
            return None
        stored = self._stored(k, head.index - 1, "output")
        if stored is not None:
            return stored
        rows = self.network.net.mini_batch
        with torch.no_grad():
            passed = self.network.run(self.images[k * rows : (k + 1) * rows], ForwardContext(training=True))
        return passed.inputs[head.index]

    def _stored(self, k: int, layer: int, what: str) -> torch.Tensor | None:
        value = self.expected.get(f"s{k}/L{layer}/{what}")
        return None if value is None else torch.from_numpy(value).to(self.device)


def assert_same_text(actual: list[str], expected: str) -> None:
    """Equal words, and numbers equal up to float32 rounding of the largest number of the line (a line's numbers are
    differences of each other). Where Darknet prints nan for 0 / 0, 0 is printed here."""
    wanted = expected.split("\n")
    actual = [part for line in actual for part in line.split("\n")]
    if wanted and not wanted[-1]:
        wanted.pop()
    assert len(actual) == len(wanted), (actual, wanted)
    for mine, theirs in zip(actual, wanted, strict=True):
        assert NUMBER.sub("#", mine) == NUMBER.sub("#", theirs)
        ours = [float(n) for n in NUMBER.findall(mine)]
        numbers = [0.0 if "nan" in n else float(n) for n in NUMBER.findall(theirs)]
        np.testing.assert_allclose(ours, numbers, rtol=1e-5, atol=1.5e-6 + 1e-6 * max(map(abs, numbers), default=0))
