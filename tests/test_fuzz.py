"""Readers take any bytes: a value or a sentence, quickly; what asks for terabytes is refused before it gets them."""

from __future__ import annotations

import logging
import resource
import time

import pytest

from darknetpy.config import parse_cfg
from darknetpy.errors import ConfigError, DarknetpyError
from darknetpy.layers import read_structure, table
from darknetpy.network import Network
from tools.fuzz_readers import LARGEST, READERS, SLOWEST, fuzz

NET = "[net]\nwidth=16\nheight=16\nchannels=3\n"


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_are_read_or_refused(name, caplog):
    caplog.set_level(logging.CRITICAL, "darknetpy")
    fuzz(name, 80, same=True)


HEAD = "[convolutional]\nfilters=18\n[yolo]\nclasses=1\nmask=0,1,2\n"
CONV = "[convolutional]\nfilters=3\n"
MAX = 2**31
MONSTERS = {
    "weights": (f"{NET}[conv]\nfilters=2000000000\nsize=101\npad=1\n", "[conv] would hold 61208000000000 numbers"),
    "units": (f"{NET}[connected]\noutput={MAX}\n", "[connected] would hold 1651"),
    "size": (f"{NET}[conv]\nsize={MAX}\npad=1\n", "would hold"),
    "stride": (f"{NET}[upsample]\nstride={MAX}\n", "would hold"),
    "ever larger": (NET + "[upsample]\n" * 200, "layer 15, line 20: [upsample] would hold 3298534883328"),
    "ever wider, of no channel": (
        f"{NET}[reorg]\nstride=2\nreverse=1\n[upsample]\nstride=-9\n" + f"[upsample]\nstride={MAX}\n" * 9, "would hold"
    ),
    "frames": (f"{NET}[history]\nhistory_size={MAX}\n", "would hold"),
    "picture": (f"[net]\nwidth={MAX}\nheight={MAX}\nchannels=3\n{CONV}", "the input of 2147483647 x 2147483647 x 3"),
    "width": (NET.replace("width=16", f"width={MAX}") + CONV, None),
    "width and channels": (NET.replace("s=3", f"s={MAX}").replace("th=16", f"th={MAX}") + CONV, "is impossible"),
    "inputs": (NET + f"inputs={MAX}\n{CONV}", None),
    "anchors": (f"{NET}{HEAD}num={MAX}\n", "num=2147483647 anchors are more than any head has"),
    "anchors of every head": (f"{NET}[region]\nnum={MAX}\n", "num=2147483647 anchors are more than any head has"),
    "a list": (f"{NET}{HEAD}num=3\nanchors=" + "1," * 200_000, None),
    "a mask": (f"{NET}{HEAD}num=3\n".replace("0,1,2", "0," * 200_000), "filters=18, needs 1200006"),
    "a route": (f"{NET}{CONV}[max]\nstride=2\n[route]\nlayers=" + "0,-1," * 80_000, "are different: layer 0 is 16"),
    "one line": (NET + "[conv]\nfilters=" + "9" * 10_000_000, "is longer than 1048576 bytes, which no cfg is"),
    "one word": (NET + "[" + "x" * 900_000, "unknown section [xxx"),
    "one name": (NET + "[conv]\nactivation=" + "x" * 900_000, None),
    "one file": (NET + "[softmax]\ntree=" + "x" * 900_000, "cannot be read (File name too long)"),
    "an endless file": (NET + "[softmax]\ntree=/dev/zero", "tree=/dev/zero is no ordinary file"),
    "an endless map": (f"{NET}{HEAD}num=3\nmap=/dev/zero", "map=/dev/zero is no ordinary file"),
    "sections": (NET + "[empty]\n" * 100_000, "100000 layers are more than any network has"),
    "options": (NET + "[conv]\n" + "".join(f"k{i}=\n" for i in range(100_000)), None),
    "unknown options": (NET + "[conv]\n" + "".join(f"k{i}=1\n" for i in range(80_000)), None),
    "one option again and again": (NET + "[conv]\n" + "size=1\n" * 140_000, None),
    "shares with itself": (f"{NET}{CONV}share_index=0\n", "share_index=0 names layer 0, which does not come before"),
    "shares with a later one": (f"{NET}{CONV}share_index=1\n{CONV}", "share_index=1 names layer 1, which does not"),
    "shares with one too far": (f"{NET}{CONV}{CONV}share_index=-3\n", "share_index=-3 names layer -2"),
    "shares with another type": (f"{NET}[empty]\n{CONV}share_index=0\n", "layer 0, which is no convolutional layer"),
    "shares with another size": (f"{NET}{CONV}{CONV}size=3\npad=1\nshare_index=0\n", "its sizes differ from those"),
    "shares with sharers": (f"{NET}{CONV}" + f"{CONV}share_index=-1\n" * 300, None),
    "a route to itself": (f"{NET}{CONV}[route]\nlayers=1\n", "layers=1 names layer 1, which does not come before"),
    "routes in a ring": (f"{NET}{CONV}[route]\nlayers=2\n[route]\nlayers=1\n", "layers=2 names layer 2, which does"),
    "a route far back": (f"{NET}{CONV}[route]\nlayers=-{MAX}\n", "layers=-2147483648 names layer -2147483647"),
    "a shortcut to itself": (f"{NET}{CONV}[shortcut]\nfrom=1\n", "from=1 names layer 1, which does not come before it"),
    "an embedding of itself": (f"{NET}{HEAD}num=3\nembedding_layer=1\n", "embedding_layer=1 names layer 1"),
}  # fmt: skip
"""What a cfg asks for, and the sentence that refuses it; None where it is a network after all."""
ENDLESS = {
    "batch": (f"batch={MAX}\n", "a mini-batch of 2147483647 inputs is impossible; check batch="),
    "time_steps": (f"time_steps={MAX}\n", "a mini-batch of 2147483647 inputs is impossible"),
    "both": (f"batch={MAX}\ntime_steps={MAX}\n", "a mini-batch of 4611686014132420609 inputs is impossible"),
    "subdivisions": (f"batch={MAX}\nsubdivisions={MAX}\n", None),
    "negative": (f"batch=-{MAX}\nsubdivisions=-{MAX}\ntime_steps=-{MAX}\n", None),
}


def _outcome(text: str, strict: bool, batch: int | None) -> str | None:
    """The sentence that refuses a cfg, None where it is laid out; both soon and in little memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        structure = read_structure(parse_cfg(text, "a.cfg", strict), strict, batch=batch).check()
        table(structure)
        outcome = None
    except DarknetpyError as error:
        outcome = str(error)
        assert "\n" not in outcome
        assert len(outcome) < 2100
        assert outcome.startswith("a.cfg")
    assert time.process_time() - began < SLOWEST
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LARGEST
    return outcome


@pytest.mark.parametrize("name", MONSTERS)
def test_monsters_are_refused_in_one_sentence_at_once(name):
    text, sentence = MONSTERS[name]
    outcome = _outcome(text, False, 1)
    assert (outcome is None) if sentence is None else (sentence in (outcome or ""))
    _outcome(text, True, 1)


@pytest.mark.parametrize("name", ENDLESS)
def test_batches_without_end_cannot_be_trained_but_detect(name):
    lines, sentence = ENDLESS[name]
    text = NET + lines + CONV
    outcome = _outcome(text, False, None)
    assert (outcome is None) if sentence is None else (sentence in (outcome or ""))
    assert _outcome(text, False, 1) is None


def test_sharers_of_sharers_run():
    """Each shares with the one before; all of them compute with the first one's tensors."""
    network = Network(parse_cfg(MONSTERS["shares with sharers"][0]))
    assert sum(parameter.numel() for parameter in network.parameters()) == 3 + 9
    assert {layer.shares for layer in network.layers[1:]} == {0}


def test_a_network_that_this_machine_cannot_hold_is_refused_before_anything_is_allocated():
    layers = "[convolutional]\nfilters=1000000\n" * 2
    with pytest.raises(ConfigError, match=r"layer 1 \[convolutional\] needs \d{4} GiB, this machine has \d+ GiB"):
        Network(parse_cfg(NET + layers))
