"""Head outputs to detections in picture coordinates (Darknet: `get_network_boxes`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from darknetpy.detections import Detections
from darknetpy.layers import Layer


def detections_of(
    heads: Sequence[Layer],
    outputs: Sequence[Tensor],
    net_size: tuple[int, int],
    sizes: Sequence[tuple[int, int]],
    thresh: float,
    hier: float = 0.5,
    relative: bool = True,
    letter_box: bool = False,
) -> list[Detections]:
    """Detections of each picture before NMS, heads in layer order.

    Args:
        heads: detection layers; outputs: outputs of all layers, indexed by layer.
        net_size: (width, height) that the network ran at; sizes: those of the original pictures.
        thresh: objectness and class confidence must both exceed this.
        hier: how likely a class of a head with a class tree must be; other heads have no use for it.
        relative: boxes relative to the picture, else in its pixels.
        letter_box: the pictures were letterboxed into the network's size.
    """
    per_head = [
        head.decode(outputs[head.index], thresh, *net_size, **({"hier": hier} if getattr(head, "tree", None) else {}))
        for head in heads
    ]
    return [
        Detections.cat(
            [
                _placed(head, decoded[image], size, net_size, relative, letter_box)
                for head, decoded in zip(heads, per_head, strict=True)
            ]
        )
        for image, size in enumerate(sizes)
    ]


def _placed(head: Layer, found: Detections, size, net_size, relative: bool, letter_box: bool) -> Detections:
    """Boxes in the picture. The YOLOv1 head gives pixels always, and its letterbox is not undone."""
    if head.type == "detection":
        return found.correct(size, net_size, False, relative=False)
    return found.correct(size, net_size, letter_box, relative)
