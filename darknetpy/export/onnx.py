"""ONNX files, by PyTorch's exporter."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from darknetpy.errors import UsageError
from darknetpy.export.module import BOXES, INPUT, NMS, Exported, facts_of
from darknetpy.network import Network

OPSET = 18
MISSING = "pip install -e '.[export]' in the clone of darknetpy"
MOST_PER_CLASS = 300
"""Boxes that suppression keeps of a class in a picture."""


def write_onnx(
    network: Network,
    path: str,
    contents: str,
    names: Sequence[str] = (),
    dynamic_size: bool = False,
    thresh: float = 0.25,
    nms: float = 0.45,
) -> None:
    """Write a network for any number of pictures, with `dynamic_size` of any size that its strides divide.

    Args:
        contents: `raw`, `boxes`, or `nms`: `detections` (M, 7) rows picture, class, confidence, x, y, w, h, relative to
            the input; thresh, nms: least confidence and largest overlap of these.

    Raises UsageError where the libraries are missing or the network holds what ONNX has no word for.
    """
    onnx = _library()
    module = Exported(network, BOXES if contents == NMS else contents)
    net = network.net
    example = torch.zeros(2, net.channels, net.height, net.width, device=network.device)
    axes: dict[int, Any] = {0: torch.export.Dim("batch", min=1)}
    if dynamic_size:
        axes |= {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    with warnings.catch_warnings(), _quiet(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                module, (example,), dynamo=True, opset_version=OPSET, dynamic_shapes=(axes,), input_names=[INPUT],
                output_names=module.output_names, external_data=False, verbose=False, optimize=True,
            )  # fmt: skip
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError) as error:
            first = str(error).strip().splitlines()[0][:160]
            raise UsageError(f"this network cannot be written as ONNX: {first}", value=path) from error
    model = program.model_proto
    if contents == NMS:
        _append_suppression(onnx, model, thresh, nms)
    for key, value in facts_of(network, contents, names).strings().items():
        model.metadata_props.add(key=key, value=value)
    model.producer_name = "darknetpy"
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _library():
    try:
        import onnx
        import onnxscript  # noqa: F401 - the exporter's own need, asked for here with a better sentence
    except ImportError as error:
        raise UsageError(f"ONNX needs the package {error.name}", remedy=MISSING) from error
    return onnx


class _quiet:
    """The exporter logs what it lacks and does not need."""

    def __enter__(self):
        self.logger = logging.getLogger("torch.onnx")
        self.level = self.logger.level
        self.logger.setLevel(logging.ERROR)

    def __exit__(self, *_):
        self.logger.setLevel(self.level)


def _append_suppression(onnx, model, thresh: float, overlap: float) -> None:
    """Boxes and scores to detections, by ONNX' own NonMaxSuppression (hard, class by class)."""
    graph, helper = model.graph, onnx.helper
    tensor = onnx.numpy_helper.from_array
    import numpy as np

    constants = {
        "nms_most": np.array([MOST_PER_CLASS], np.int64),
        "nms_overlap": np.array([overlap], np.float32),
        "nms_thresh": np.array([thresh], np.float32),
        "nms_box": np.array([0, 2], np.int64),
        "nms_score": np.array([0, 2, 1], np.int64),
        "nms_class": np.array([0, 1], np.int64),
        "nms_last": np.array([1], np.int64),
    }
    graph.initializer.extend(tensor(value, name) for name, value in constants.items())
    node = helper.make_node
    graph.node.extend(
        [
            node("Transpose", ["scores"], ["nms_scores"], perm=[0, 2, 1]),
            node(
                "NonMaxSuppression",
                ["boxes", "nms_scores", "nms_most", "nms_overlap", "nms_thresh"],
                ["nms_kept"],
                center_point_box=1,
            ),
            node("Gather", ["nms_kept", "nms_box"], ["nms_at"], axis=1),
            node("GatherND", ["boxes", "nms_at"], ["nms_boxes"]),
            node("Gather", ["nms_kept", "nms_score"], ["nms_at_score"], axis=1),
            node("GatherND", ["scores", "nms_at_score"], ["nms_flat"]),
            node("Unsqueeze", ["nms_flat", "nms_last"], ["nms_confidence"]),
            node("Gather", ["nms_kept", "nms_class"], ["nms_ids"], axis=1),
            node("Cast", ["nms_ids"], ["nms_labels"], to=onnx.TensorProto.FLOAT),
            node("Concat", ["nms_labels", "nms_confidence", "nms_boxes"], ["detections"], axis=1),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("detections", onnx.TensorProto.FLOAT, ["found", 7]))
