"""ONNX files, by PyTorch's tracing exporter: quick, and free in the number of pictures and their size."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from darknetpy.errors import UsageError
from darknetpy.export.module import INPUT, Exported, facts_of
from darknetpy.network import Network

OPSET = 18
MISSING = "pip install -e '.[export]' in the clone of darknetpy"
MOST_PER_CLASS = 300
"""Boxes that suppression keeps of a class in a picture."""


def write_onnx(
    network: Network, path: str, contents: str, names: Sequence[str] = (), dynamic_size: bool = False
) -> None:
    """Write a network for any number of pictures, with `dynamic_size` of any size that its strides divide.

    `contents` is `raw` or `boxes`. Raises UsageError where the library is missing or the network holds what ONNX has
    no word for.
    """
    onnx = _library()
    module, net = Exported(network, contents), network.net
    example = torch.rand(2, net.channels, net.height, net.width, device=network.device)
    axes = {INPUT: {0: "batch", **({2: "height", 3: "width"} if dynamic_size else {})}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(
                module, (example,), path, dynamo=False, opset_version=OPSET, input_names=[INPUT],
                output_names=module.output_names, dynamic_axes=axes | {n: {0: "batch"} for n in module.output_names},
            )  # fmt: skip
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError) as error:
            first = str(error).strip().splitlines()[0][:160]
            raise UsageError(f"this network cannot be written as ONNX: {first}", value=path) from error
    model = onnx.load(path)
    for key, value in facts_of(network, contents, names).strings().items():
        model.metadata_props.add(key=key, value=value)
    model.producer_name = "darknetpy"
    onnx.checker.check_model(model)
    onnx.save(model, path)


def append_suppression(source: str, path: str, contents: str, thresh: float, overlap: float) -> None:
    """Turn a file with boxes and scores into one with `detections` (M, 7): rows picture, class, confidence, x, y, w, h,
    relative to the input. Suppression is ONNX' own NonMaxSuppression: hard, class by class.

    Args:
        source: the file that is read, path: that is written.
        contents: what the metadata call it; thresh: least confidence; overlap: the largest that two boxes may have.
    """
    onnx = _library()
    import numpy as np

    model = onnx.load(source)
    graph, node, tensor = model.graph, onnx.helper.make_node, onnx.numpy_helper.from_array
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
    kept = ["boxes", "nms_scores", "nms_most", "nms_overlap", "nms_thresh"]
    graph.node.extend(
        [
            node("Transpose", ["scores"], ["nms_scores"], perm=[0, 2, 1]),
            node("NonMaxSuppression", kept, ["nms_kept"], center_point_box=1),
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
    graph.output.append(onnx.helper.make_tensor_value_info("detections", onnx.TensorProto.FLOAT, ["found", 7]))
    for entry in model.metadata_props:
        if entry.key == "contents":
            entry.value = contents
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _library():
    try:
        import onnx
    except ImportError as error:
        raise UsageError("ONNX needs the package onnx", remedy=MISSING) from error
    return onnx
