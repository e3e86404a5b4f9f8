"""How fast a network is on this machine."""

from __future__ import annotations

import sys
import time

import torch
from tqdm import tqdm

from darknetpy.network import Network
from darknetpy.runtime import synchronize


def seconds_of(network: Network, passes: int) -> float:
    """Seconds that this many passes of one picture take, a first one not counted."""
    net = network.net
    shape = (net.channels, net.height, net.width) if net.channels else (net.inputs,)
    x = torch.zeros(1, *shape, device=network.device)
    network.predict(x)
    synchronize(network.device)
    began = time.perf_counter()
    for _ in tqdm(range(passes), unit="pass", disable=not sys.stderr.isatty(), leave=False):
        network.predict(x)
    synchronize(network.device)
    return time.perf_counter() - began
