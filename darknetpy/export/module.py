"""A network as other programs see it: pictures in, heads or boxes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from darknetpy.errors import UsageError
from darknetpy.network import Network

RAW, BOXES, NMS = "raw", "boxes", "nms"
CONTENTS = (RAW, BOXES, NMS)
INPUT = "images"


@dataclass(frozen=True)
class Facts:
    """What a file says of the network inside.

    Attributes:
        contents: `raw` (one output a head, or the last layer's), `boxes` (decoded), or `nms` (detections).
        cfg: its text; names: of the classes; width, height, channels: of the input; letter_box: how to fit pictures.
        heads: type, classes and anchors of each detection head, in order.
    """

    contents: str
    cfg: str
    names: tuple[str, ...]
    width: int
    height: int
    channels: int
    letter_box: bool
    heads: tuple[dict, ...] = ()

    def strings(self) -> dict[str, str]:
        """As a file's metadata holds them: text by key."""
        return {
            "darknetpy": "1",
            "contents": self.contents,
            "cfg": self.cfg,
            "names": json.dumps(list(self.names)),
            "size": json.dumps([self.width, self.height, self.channels]),
            "letter_box": json.dumps(self.letter_box),
            "heads": json.dumps(list(self.heads)),
        }

    @classmethod
    def read(cls, strings: dict[str, str], file: str) -> Facts:
        """What `strings` gave. Raises UsageError for a file that this program has not written."""
        try:
            width, height, channels = json.loads(strings["size"])
            return cls(
                strings["contents"], strings["cfg"], tuple(json.loads(strings["names"])), int(width), int(height),
                int(channels), bool(json.loads(strings["letter_box"])), tuple(json.loads(strings["heads"])),
            )  # fmt: skip
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError("has no metadata of darknetpy", value=file, remedy="export it again") from error


def facts_of(network: Network, contents: str = RAW, names: Sequence[str] = ()) -> Facts:
    """What to write beside a network's outputs."""
    net = network.net
    heads = tuple(
        {"type": head.type, "layer": head.index, "classes": head.options.classes, "anchors": own_anchors(head)}
        for head in network.structure.detectors
    )
    text = network.structure.cfg.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return Facts(contents, text, tuple(names), net.width, net.height, net.channels, bool(net.letter_box), heads)


def own_anchors(head) -> list[float]:
    """The anchors that a head uses, width and height by turns."""
    mask = getattr(head, "mask", None) or range(getattr(head, "n", 0))
    return [side for k in mask for side in head.anchors[2 * k : 2 * k + 2]] if hasattr(head, "anchors") else []


class Exported(nn.Module):
    """Fused inference of a network.

    Args:
        network: with its weights; contents: `raw` or `boxes`.

    `raw` returns the activated output of each detection head (B, n (5 + classes), H, W), or of the last layer where
    there is none. `boxes` returns boxes (B, N, 4), x, y, w, h relative to the input, and scores (B, N, classes).
    """

    def __init__(self, network: Network, contents: str = RAW):
        super().__init__()
        self.network, self.contents = network.train(False), contents
        self.train()
        self.network.fuse()
        self.heads = network.structure.detectors
        if contents != RAW:
            bare = [head.type for head in self.heads if not hasattr(head, "decode_scores")]
            if bare or not self.heads:
                what = f"[{bare[0]}] has" if bare else "this network has"
                raise UsageError(f"{what} no boxes that another program could decode", remedy="use -outputs raw")

    def train(self, mode: bool = True) -> Exported:
        """Always inference, whatever an exporter asks for: the folded weights stay as they are."""
        self.training = False
        return self

    @property
    def output_names(self) -> list[str]:
        if self.contents != RAW:
            return ["boxes", "scores"]
        return [f"head_{head.index}" for head in self.heads] or ["output"]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        outputs = self.network.run(images, fused=True).outputs
        if not self.heads:
            final = [layer.index for layer in self.network.layers if layer.type != "cost"][-1]
            return (outputs[final],)
        raw = [outputs[head.index] for head in self.heads]
        if self.contents == RAW:
            return tuple(raw)
        return boxes_and_scores(self.heads, raw, images.shape[3], images.shape[2])


def boxes_and_scores(heads: Sequence, raw: Sequence[Tensor], width: int, height: int) -> tuple[Tensor, Tensor]:
    """Boxes (B, N, 4), relative to the input, and scores (B, N, classes) of all heads, cell by cell.

    Args:
        raw: the heads' activated outputs; width, height: of the input.
    """
    found = [head.decode_scores(output, width, height) for head, output in zip(heads, raw, strict=True)]
    return torch.cat([boxes for boxes, _ in found], 1), torch.cat([scores for _, scores in found], 1)
