"""A training step on this machine: darknetpy against plain PyTorch modules made of the same layers, in one run.

    python tools/bench_training.py [CFG ...] [--device cpu] [--batch 8] [--seconds 20] [--size 416]

Prints images a second of both, and from torch.profiler the share of the CPU's time that our step spends outside of
ATen's operators (Python, autograd's bookkeeping), which must not exceed 5 % where the CPU does the arithmetic.

Our step is all of it: Darknet's losses on 8 boxes a picture, backward pass, update. The plain network is eager
`nn.Conv2d`, `nn.BatchNorm2d` and `nn.LeakyReLU` modules with `torch.optim.SGD`, and for want of a YOLO loss the mean
square of its outputs: less work than a real port does, so the ratio flatters it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tabulate import tabulate
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from darknetpy import Network  # noqa: E402
from darknetpy.runtime import set_parity  # noqa: E402
from darknetpy.training.learner import Learner  # noqa: E402
from tools.bench_inference import Plain, measure  # noqa: E402

BOXES = 8
MOST_OUTSIDE = 0.05


def our_step(cfg: str, device: str, batch: int, words: Sequence[str]) -> tuple[Callable, Network]:
    """A function that trains on a batch of pictures, and its network."""
    network = Network(cfg, device=device, training=True, overrides=[f"net.batch={batch}", "net.subdivisions=1", *words])
    learner = Learner(network)
    classes = network.structure.heads[-1].options.classes
    random = torch.Generator().manual_seed(0)
    truth = torch.zeros(batch, 200, 6)
    truth[:, :BOXES, :2] = torch.rand(batch, BOXES, 2, generator=random) * 0.8 + 0.1
    truth[:, :BOXES, 2:4] = torch.rand(batch, BOXES, 2, generator=random) * 0.3 + 0.02
    truth[:, :BOXES, 4] = torch.randint(0, classes, (batch, BOXES), generator=random)
    truth = truth.to(device)
    return lambda x: learner.turn([(x, truth)]), network


def plain_step(network: Network, device: str) -> Callable:
    """The same layers as a user of PyTorch would train them."""
    plain = Plain(network, fold=False).to(device).train()
    net = network.net
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-6, momentum=net.momentum, weight_decay=net.decay)

    def step(x):
        loss = sum((out**2).mean() for out in plain(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def outside(step: Callable, x, times: int = 3) -> tuple[float, list[list]]:
    """Share of the CPU's time outside of ATen's operators, and the largest parts by name, in percent."""
    synchronise = torch.cuda.synchronize if x.is_cuda else lambda: None
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        synchronise()
        began = time.perf_counter()
        for _ in range(times):
            step(x)
        synchronise()
        whole = (time.perf_counter() - began) * 1e6
    averages = profiler.key_averages()
    inside = sum(e.self_cpu_time_total for e in averages if e.key.startswith("aten::"))
    largest = sorted(averages, key=lambda e: -e.self_cpu_time_total)[:12]
    return 1 - inside / whole, [[e.key[:60], 100 * e.self_cpu_time_total / whole, e.count // times] for e in largest]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cfg", nargs="*", default=[str(ROOT / "cfg" / "yolov4-tiny.cfg")])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=416)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--parts", action="store_true", help="show where the CPU's time goes")
    a = parser.parse_args()
    set_parity()
    rows, failed = [], False
    for cfg in a.cfg:
        step, network = our_step(cfg, a.device, a.batch, [f"net.width={a.size}", f"net.height={a.size}"])
        x = torch.rand(a.batch, network.net.channels, a.size, a.size, device=a.device)
        seconds = measure({"ours": step, "plain": plain_step(network, a.device)}, x, a.seconds)
        share, parts = outside(step, x)
        failed |= a.device == "cpu" and share > MOST_OUTSIDE
        speed = {name: a.batch / value for name, value in seconds.items()}
        rows.append([Path(cfg).stem, speed["ours"], speed["plain"], speed["ours"] / speed["plain"], 100 * share])
        if a.parts:
            print(tabulate(parts, [Path(cfg).stem, "% of the time", "a step"], floatfmt=".2f"), "\n")
    headers = ["network", "darknetpy images/s", "plain images/s", "ratio", "outside ATen %"]
    print(f"{a.device}, {torch.get_num_threads()} threads, batch {a.batch}, {a.size}x{a.size}")
    print(tabulate(rows, headers, floatfmt=".2f"))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
