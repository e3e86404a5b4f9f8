"""TorchScript files: they run without this package."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence

import torch

from darknetpy.export.module import Exported, facts_of
from darknetpy.network import Network

FACTS = "darknetpy.json"


def write_torchscript(network: Network, path: str, contents: str, names: Sequence[str] = ()) -> None:
    """Write a network for any number of pictures of its size; the metadata lie beside the code as `darknetpy.json`.

    The outputs are those of `Exported`, as a tuple.
    """
    module = Exported(network, contents)
    net = network.net
    example = torch.rand(2, net.channels, net.height, net.width, device=network.device)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.freeze(torch.jit.trace(module.eval(), (example,), check_trace=False))
        torch.jit.save(traced, path, {FACTS: json.dumps(facts_of(network, contents, names).strings())})
