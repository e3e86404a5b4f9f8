"""Readers take any bytes: a value or a sentence, quickly; what asks for terabytes is refused before it gets them."""

from __future__ import annotations

import logging
import resource
import time

import pytest

from darknetpy.config import parse_cfg
from darknetpy.errors import DarknetpyError
from darknetpy.layers import read_structure
from darknetpy.network import Network
from tools.fuzz_readers import READERS, fuzz

NET = "[net]\nwidth=16\nheight=16\nchannels=3\n"


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_are_read_or_refused(name, caplog):
    caplog.set_level(logging.CRITICAL, "darknetpy")
    fuzz(name, 120)


MONSTERS = {
    "terabytes of weights": NET + "[convolutional]\nfilters=2000000000\nsize=101\n",
    "terabytes of picture": "[net]\nwidth=2147483647\nheight=2147483647\nchannels=3\n[convolutional]\nfilters=1\n",
    "batches without end": NET.replace("[net]", "[net]\nbatch=2147483647\ntime_steps=2147483647") + "[maxpool]\n",
    "one line": NET + "[convolutional]\nfilters=" + "9" * 10_000_000,
    "a long list": NET + "[yolo]\nanchors=" + "1," * 2_000_000,
    "sections": NET + "[maxpool]\nsize=1\n" * 100_000,
    "shares with itself": NET + "[convolutional]\nfilters=3\nshare_index=0\n",
    "shares with a sharer": NET + "[convolutional]\nfilters=3\n" + "[convolutional]\nfilters=3\nshare_index=-1\n" * 500,
    "routes to itself": NET + "[route]\nlayers=0\n",
    "ever larger": NET + "[upsample]\nstride=2\n" * 200,
}


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_cost_neither_time_nor_memory(name):
    """Each is laid out, or refused in one sentence; nothing is allocated for it."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    try:
        structure = read_structure(parse_cfg(MONSTERS[name]), batch=1)
        Network.from_structure(structure.check())
    except DarknetpyError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
    assert time.perf_counter() - began < 20
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 600_000, f"{grown} KiB"
