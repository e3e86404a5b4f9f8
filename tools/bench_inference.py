"""Inference at batch 1 on this machine: darknetpy against plain PyTorch modules made of the same layers, in one run.

    python tools/bench_inference.py [CFG [WEIGHTS]] [--device cpu] [--seconds 5]

Prints the median time of each and the ratio. The plain network is eager `nn.Conv2d`, `nn.BatchNorm2d` and
`nn.LeakyReLU` modules in eval mode, once as they are and once with batch normalisation folded into the convolutions.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from darknetpy import Network  # noqa: E402

ACTIVATIONS = {
    "linear": nn.Identity, "leaky": lambda: nn.LeakyReLU(0.1, inplace=True), "relu": lambda: nn.ReLU(inplace=True),
    "mish": lambda: nn.Mish(inplace=True), "swish": lambda: nn.SiLU(inplace=True), "logistic": nn.Sigmoid,
}  # fmt: skip


class Plain(nn.Module):
    """The same layers as a user of PyTorch would write them."""

    def __init__(self, network: Network, fold: bool):
        super().__init__()
        self.layers = network.layers
        self.parts = nn.ModuleList(self._module(layer, network, fold) for layer in network.layers)

    @staticmethod
    def _module(layer, network: Network, fold: bool) -> nn.Module:
        if layer.type == "convolutional":
            t, bn = network.tensors_of(layer.index), bool(layer.batch_normalize)
            conv = nn.Conv2d(
                layer.c, layer.filters, layer.size, (layer.stride_y, layer.stride_x), layer.pad * layer.dilation,
                layer.dilation, layer.groups, bias=fold or not bn,
            )  # fmt: skip
            with torch.no_grad():
                if bn and fold:
                    fused = layer.fuse(t)
                    conv.weight.copy_(fused.weights), conv.bias.copy_(fused.biases)
                else:
                    conv.weight.copy_(t.weights)
                    if not bn:
                        conv.bias.copy_(t.biases)
            parts = [conv]
            if bn and not fold:
                norm = nn.BatchNorm2d(layer.filters)
                norm.load_state_dict(
                    {"weight": t.scales, "bias": t.biases, "running_mean": t.rolling_mean,
                     "running_var": t.rolling_variance, "num_batches_tracked": torch.tensor(0)}
                )  # fmt: skip
                parts.append(norm)
            return nn.Sequential(*parts, ACTIVATIONS[layer.activation]())
        if layer.type == "maxpool":
            pad = nn.ConstantPad2d(layer._margins(torch.empty(1, 1, layer.h, layer.w)), float("-inf"))
            return nn.Sequential(pad, nn.MaxPool2d(layer.size, (layer.stride_y, layer.stride_x)))
        if layer.type == "upsample":
            return nn.Upsample(scale_factor=layer.stride)
        return nn.Identity()

    def forward(self, x):
        outputs = []
        for layer, part in zip(self.layers, self.parts, strict=True):
            if layer.type == "route":
                sources = [outputs[i] for i in layer.layers]
                if layer.groups > 1:
                    sources = [s.chunk(layer.groups, 1)[layer.group_id] for s in sources]
                x = torch.cat(sources, 1)
            elif layer.type == "shortcut":
                x = outputs[layer.source_layers[0]] + x
            elif layer.type == "yolo":
                maps = x.view(len(x), layer.n, -1, *x.shape[2:])
                x = torch.cat([maps[:, :, :2].sigmoid(), maps[:, :, 2:4], maps[:, :, 4:].sigmoid()], 2).view_as(x)
            else:
                x = part(x)
            outputs.append(x)
        return [out for layer, out in zip(self.layers, outputs, strict=True) if layer.is_head]


def measure(candidates: dict, x, seconds: float) -> dict[str, float]:
    """Median seconds of each candidate, taken in turns so that the machine's moods meet all alike."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        for _ in range(3):
            run(x)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in candidates.items():
            _synchronise(x)
            began = time.perf_counter()
            run(x)
            _synchronise(x)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def _synchronise(x) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def bench(cfg: str, weights: str | None, device: str, seconds: float) -> list:
    """One row: names and ratios."""
    network = Network(cfg, weights, device)
    if weights is None:
        with torch.no_grad():  # an untrained network has running variances of 0
            for _, spec, tensor in network.named_tensors():
                if spec.role == "variance":
                    tensor.fill_(1.0)
    plain, folded = (Plain(network, fold).to(device).eval() for fold in (False, True))
    x = torch.rand(1, network.net.channels, network.net.height, network.net.width, device=device)
    with torch.inference_mode():
        ours = [out for out in network.predict(x).outputs if out is not None and out.dim() == 4]
        error = max(float((a - b).abs().max()) for a, b in zip(ours, plain(x), strict=False))
        times = measure({"ours": network.predict, "plain": plain, "folded": folded}, x, seconds)
    ms = {name: 1000 * value for name, value in times.items()}
    return [Path(cfg).stem, f"{ms['ours']:.2f}", f"{ms['plain']:.2f}", f"{ms['folded']:.2f}",
            f"{ms['plain'] / ms['ours']:.2f}", f"{ms['folded'] / ms['ours']:.2f}", f"{error:.1e}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cfg", nargs="*", default=[str(ROOT / "cfg" / "yolov4-tiny.cfg")])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0)
    a = parser.parse_args()
    pairs = []
    for name in a.cfg:
        if name.endswith(".cfg"):
            beside = Path(name).with_suffix(".weights")
            pairs.append((name, str(beside) if beside.is_file() else None))
    rows = [bench(cfg, weights, a.device, a.seconds) for cfg, weights in pairs]
    headers = ["network", "darknetpy ms", "plain ms", "plain folded ms", "plain/ours", "folded/ours", "difference"]
    print(tabulate(rows, headers))


if __name__ == "__main__":
    main()
