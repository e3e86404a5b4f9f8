"""What several replicas can be told: shares, common batch statistics, comparisons, profiles; and what they say."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import TESTS
from small import CFG, data_set
from test_replicas import train
from together import free_port, machines, together

from darknetpy.errors import UsageError
from darknetpy.parallel import Averaging, Single
from darknetpy.parallel.advice import arithmetic, risk
from darknetpy.parallel.shares import read_shares, split

PLAIN = CFG.replace("batch_normalize=1\n", "")


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return data_set(tmp_path, cfg=CFG)


# --- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "shares", "unit", "parts"),
    [
        (16, (1, 3), 1, [4, 12]),
        (256, (1, 3, 3, 3), 1, [25, 77, 77, 77]),
        (8, (1, 3, 3, 3), 1, [1, 3, 2, 2]),
        (4, (1, 3, 3, 3), 1, [1, 1, 1, 1]),
        (100, (1, 99, 1), 1, [1, 98, 1]),
        (32, (1, 3), 8, [8, 24]),
        (12, (1, 1, 1), 1, [4, 4, 4]),
    ],
)
def test_parts_are_whole_and_none_is_empty(total, shares, unit, parts):
    assert split(total, shares, unit) == parts


def test_shares_are_read():
    assert read_shares("1,3, 3", 3) == (1, 3, 3)
    assert read_shares("2,2", 2) == read_shares(None, 2) == ()


@pytest.mark.parametrize("text", ["1", "1,2,3", "1,0", "1,-2", "1,x", "1,2.5", ","])
def test_odd_shares_are_refused(text):
    with pytest.raises(UsageError, match="-gpu_share takes a whole number above 0 for each of the 2 replicas"):
        read_shares(text, 2)


def requests(size: int, shares: tuple[int, ...], *overrides: str) -> list[list]:
    """What each of `size` replicas asks its loader for in one turn."""
    from darknetpy.data.detection import DetectionData
    from darknetpy.data.draws import Augmentation
    from darknetpy.data.loader import Loader
    from darknetpy.network import Network
    from darknetpy.training.feed import Feed
    from darknetpy.training.learner import Learner

    found = []
    for rank in range(size):
        replica = Single()
        replica.rank, replica.size, replica.shares = rank, size, shares
        network = Network("tiny.cfg", training=True, overrides=overrides)
        options = Augmentation.of(network.net, network.structure.heads[-1])
        loader = Loader(DetectionData(Path("list.txt").read_text().split(), options))
        found.append(Feed(loader, Learner(network, replicas=replica), 0)._requests(0))
    return found


@pytest.mark.parametrize("shares", [(1, 3), (5, 1), (1, 1)])
def test_a_turn_has_the_same_pictures_however_they_are_shared(place, shares):
    equal = requests(2, ())
    parts = requests(2, shares)
    numbers = [[r.number(row) for r in mine for row in range(r.count)] for mine in parts]
    assert sorted(number for mine in numbers for number in mine) == list(range(8))
    assert [len(mine) for mine in numbers] == split(8, shares)
    assert max(r.count for mine in parts for r in mine) <= 2, "no mini-batch is larger than before"
    chunks = [r.chunk for mine in parts for r in mine]
    assert chunks == list(range(len(chunks)))
    if shares == (1, 1):
        assert parts == equal


def test_sequences_stay_together(place):
    parts = requests(2, (1, 3), "net.track=1", "net.time_steps=2")
    assert [[r.count for r in mine] for mine in parts] == [[4], [4, 4, 4]]


def learners(replicas, cfg: str, batch: int, subdivisions: int):
    """A replica's learner, and one that takes what all of them take, with the same weights."""
    import torch

    from darknetpy.network import Network
    from darknetpy.training.learner import Learner

    torch.manual_seed(1)
    Path(f"{replicas.rank}.cfg").write_text(cfg)
    network = Network(f"{replicas.rank}.cfg", training=True)
    words = [f"net.batch={batch}", f"net.subdivisions={subdivisions}", "net.learning_rate=.002"]
    alone = Network(f"{replicas.rank}.cfg", training=True, overrides=words)
    alone.load_state_dict(network.state_dict())
    return Learner(network, replicas=replicas), Learner(alone)


def largest_difference(a, b) -> float:
    pairs = zip(a.network.state_dict().values(), b.network.state_dict().values(), strict=True)
    return max(float((x - y).abs().max()) for x, y in pairs)


def shared_unequally(replicas) -> tuple[float, list[float]]:
    """Three turns of which the first replica takes a quarter, against one replica that takes everything."""
    import torch

    mine, one = learners(replicas, PLAIN, 8, 4)
    x, parts = torch.rand(4, 2, 3, 64, 64), [range(1), range(1, 4)][replicas.rank]
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0]], [[0.3, 0.4, 0.2, 0.3, 0, 0]]])
    for _ in range(3):
        mine.turn([(x[k], truth) for k in parts])
        one.iteration = mine.iteration - 1  # the schedule counts replicas
        one.turn([(part, truth) for part in x])
    tensor = torch.tensor([float(replicas.rank)])
    replicas.average([tensor])
    return largest_difference(mine, one), tensor.tolist()


def test_unequal_shares_weigh_by_their_pictures(place):
    for off, mean in together(2, shared_unequally, {"ddp": True, "shares": "1,3"}):
        assert off == pytest.approx(0, abs=1e-6)
        assert mean == [0.75]


def test_a_run_with_shares_and_everything_else(place):
    """The command's options at once: unequal shares, averaged statistics, comparisons, a profile."""
    options = {"shares": "1,3", "sync_statistics": True, "check_replicas": True, "profile": 2, "evaluate": True}
    results = together(2, train, 16, {**options, "map_every": 4})
    assert results[0][0] == 16 and len(results[0][1]) == 4
    assert results[0][1] == results[1][1]
    traces = [json.loads(Path(f"profile/tiny_{rank}.json").read_text())["traceEvents"] for rank in range(2)]
    assert all(len(trace) > 100 for trace in traces)
    assert "sync_seconds=0.0," not in "".join(results[0][2])


# --- batch statistics ------------------------------------------------------------------------------------------------


def normalised_together(replicas) -> float:
    """Three turns with common batch statistics, against one replica with mini-batches twice as large."""
    import torch

    mine, one = learners(replicas, CFG, 8, 2)
    x = torch.rand(2, 4, 3, 64, 64)
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0]], [[0.3, 0.4, 0.2, 0.3, 0, 0]]]).repeat(2, 1, 1)
    part = slice(2 * replicas.rank, 2 * replicas.rank + 2)
    for _ in range(3):
        mine.turn([(x[k][part], truth[part]) for k in range(2)])
        one.iteration = mine.iteration - 1
        one.turn([(x[k], truth) for k in range(2)])
    return largest_difference(mine, one)


def test_common_batch_statistics_are_those_of_the_whole_batch(place):
    for off in together(2, normalised_together, {"ddp": True, "sync_bn": True}):
        assert off == pytest.approx(0, abs=2e-6)
    for off in together(2, normalised_together, {"ddp": True}):
        assert off > 1e-4, "without it each replica normalises for itself"


def running_statistics(replicas, disturb: bool) -> tuple[list[float], list[float], list[str]]:
    """A statistic of each replica and of what is saved after an averaging, and what the comparison warned of."""
    import logging

    import torch

    mine, _ = learners(replicas, CFG, 8, 2)
    mine.check, said = True, []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("darknetpy").addHandler(handler)
    truth = torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0]]])
    mine.turn([(torch.rand(1, 3, 64, 64) * (replicas.rank + 1), truth) for _ in range(2)])
    if disturb and replicas.rank:
        average = replicas.average
        replicas.average = lambda tensors: (average(tensors), tensors[0].data.mul_(1.001))
    mine.synchronise()
    name = next(name for name in mine.network.state_dict() if "rolling_variance" in name)
    return [float(state[name].sum()) for state in (mine.network.state_dict(), mine.snapshot())] + [said]


def test_running_statistics_stay_apart_unless_asked_for(place):
    first, second = together(2, running_statistics, {"disturb": False})
    assert first[0] != second[0] and first[1] == second[1] == first[0], "saved are the first one's"
    first, second = together(2, running_statistics, {"disturb": False, "sync_statistics": True})
    assert first[0] == second[0] == first[1] == second[1]
    assert first[2] == []


def test_replicas_that_part_are_noticed(place):
    first, second = together(2, running_statistics, {"disturb": True})
    text = first[2][0]
    assert "parameters differ between replicas in 1 of" in text and "first in layer 0 [convolutional]" in text
    assert second[2] == []


def test_common_batch_statistics_need_common_gradients(place):
    with pytest.raises(AssertionError, match="-sync_bn needs -ddp"):
        together(2, train, 4, {"sync_bn": True})


# --- advice ----------------------------------------------------------------------------------------------------------


def of(size: int, kind=Averaging) -> Single:
    replica = kind.__new__(kind)
    replica.rank, replica.size = 0, size
    return replica


def test_the_arithmetic_is_said():
    from darknetpy.config import NetOptions

    net = NetOptions(batch=64, subdivisions=8, learning_rate=0.00261, burn_in=1000, max_batches=10000)
    text = "\n".join(arithmetic(net, of(4), [64] * 4))
    assert "4 replicas train: each takes 64 images a turn, 256 together, and a turn counts as 4 iterations" in text
    assert "max_batches=10000 are 2500 turns, burn_in=1000 are 250" in text
    assert "0.00261 x 4 = 0.01044" in text
    assert "after every turn and before every save" in text
    assert "after every 4 turns" in "\n".join(arithmetic(net, of(3), [64] * 3))
    assert "they take 25, 77, 77, 77 images" in arithmetic(net, of(4), [25, 77, 77, 77])[0]
    assert "multiple of 4" in "\n".join(arithmetic(net, of(3), [64] * 3, strict=True))
    assert arithmetic(net, Single(), [64]) == []


def test_a_short_burn_in_is_warned_of():
    from darknetpy.config import NetOptions

    net = NetOptions(learning_rate=0.00261, burn_in=1000)
    text = risk(net, 4)
    assert "is 250 updates" in text and "-burn_in_single auto trains the first 1000 iterations on one device" in text
    assert "net.learning_rate=0.0006525 net.burn_in=4000" in text
    assert risk(net, 1) is None and risk(net, 3) is None
    assert "train on one device first, with -until 1000, -set" in risk(net, 4, here=False)
    assert "net.learning_rate=0.001305 net.burn_in=600 makes" in risk(replace(net, burn_in=0), 2)


# --- where the default differs from strict ---------------------------------------------------------------------------

MIXED = """[net]
batch=2
subdivisions=1
width=32
height=32
channels=3
learning_rate=0.001
burn_in=100
policy=constant
[convolutional]
batch_normalize=1
filters=4
size=3
pad=1
activation=leaky
[convolutional]
filters=4
size=3
pad=1
activation=leaky
[shortcut]
from=-2
weights_type=per_channel
weights_normalization=relu
activation=linear
[batchnorm]
[connected]
batch_normalize=1
output=4
activation=linear
[softmax]
[cost]
"""


def one_of(rank: int, size: int, cfg: str, strict: bool):
    """A learner that believes to be one of several."""
    from darknetpy.network import Network
    from darknetpy.training.learner import Learner

    Path("mixed.cfg").write_text(cfg)
    replica = of(size)
    replica.rank, replica.average, replica.total = rank, lambda tensors: None, lambda *values: list(values)
    return Learner(Network("mixed.cfg", training=True, strict=strict), strict, replica)


@pytest.mark.parametrize(("size", "turns"), [(2, 2), (3, 4), (4, 1), (6, 2), (8, 1)])
def test_averaging_does_not_depend_on_where_a_run_begins(place, size, turns):
    due = {}
    for strict in (False, True):
        learner = one_of(0, size, CFG, strict)
        learner.iteration = learner.clock = 1
        due[strict] = [learner.averaging_due(turn) for turn in range(1, 13) if learner._count(1, 4) is None]
    assert due[False] == [turn % turns == 0 for turn in range(1, 13)]
    assert any(due[True]) == (size % 2 == 1), "Darknet's rule is never met from an odd iteration by an even number"


def test_all_that_is_trained_is_averaged(place):
    named = {}
    for strict in (False, True):
        learner = one_of(0, 2, MIXED, strict)
        averaged = {id(tensor) for tensor in learner._averaged()}
        named[strict] = {(layer.type, s.role) for layer, s, t in learner.network.named_tensors() if id(t) in averaged}
    convolutional = {("convolutional", role) for role in ("weight", "bias", "scale")}
    assert named[True] == convolutional | {("connected", "weight"), ("connected", "bias")}
    more = {("shortcut", "weight"), ("batchnorm", "bias"), ("batchnorm", "scale"), ("connected", "scale")}
    assert named[False] == named[True] | more


def snapshots(replicas) -> dict[bool, dict[str, tuple[float, float]]]:
    """For the default and for strict, by kind of tensor, the first number in the snapshot and, after it, in training,
    where all of a replica's tensors hold its rank."""
    import torch

    from darknetpy.network import Network
    from darknetpy.training.learner import Learner

    found: dict[bool, dict] = {}
    for strict in (False, True):
        learner = Learner(Network("mixed.cfg", training=True, strict=strict), strict, replicas)
        with torch.no_grad():
            for tensor in learner.network.state_dict().values():
                tensor.fill_(replicas.rank)
        taken, live = learner.snapshot(), learner.network.state_dict()
        kinds = {
            name.split(".")[-1]: (float(taken[name].flatten()[0]), float(live[name].flatten()[0])) for name in live
        }
        found[strict] = kinds
    return found


def test_what_is_measured_and_saved_as_best_is_averaged(place):
    """In a copy; strict takes the first replica's, and running statistics are always those."""
    Path("mixed.cfg").write_text(MIXED)
    for rank, found in enumerate(together(2, snapshots, {})):
        for strict, measured in ((False, 0.5), (True, 0.0)):
            assert {found[strict][name] for name in ("weights", "biases", "scales")} == {(measured, rank)}
            assert {found[strict][name] for name in ("rolling_mean", "rolling_variance")} == {(0.0, rank)}


def test_all_replicas_use_the_same_rate(place):
    import torch

    rates = {}
    for strict in (False, True):
        both = [one_of(rank, 2, MIXED.split("[shortcut]")[0] + "[softmax]\n[cost]\n", strict) for rank in (0, 1)]
        rates[strict] = [[], []]
        for turn in range(1, 7):
            for rank, learner in enumerate(both):
                learner.seen += 2
                learner.optimizer.slots[0].tensor.grad = torch.zeros_like(learner.optimizer.slots[0].tensor)
                rates[strict][rank].append(learner.update(2))
                if learner.averaging_due(turn):
                    learner.synchronise(4)
    assert rates[False][0] == rates[False][1]
    assert rates[True][0] != rates[True][1]


# --- docs/multi-gpu.md -----------------------------------------------------------------------------------------------

PAGE = (TESTS.parent / "docs" / "multi-gpu.md").read_text(encoding="utf-8")


def test_the_pages_flags_are_the_commands():
    from darknetpy.cli.commands import COMMANDS
    from darknetpy.cli.parse import parse

    known = next(command for command in COMMANDS if command.name == "detector train").flags
    rows = re.findall(r"^\| `(-\w+[^`]*)` \|", PAGE.split("## Flags")[1].split("## Several")[0], re.M)
    assert len(rows) >= 10
    for row in rows:
        assert set(parse(shlex.split(row.replace(" N", " 3"))).values) <= set(known), row


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrun", "slurm"])
def test_the_pages_commands_for_several_machines_run(place, name):
    """With one replica on each of two machines that are this one."""
    Path("my.cfg").write_text(CFG)
    line = re.search(rf"<!-- command: {name} -->\n```\n(.+?)\n```", PAGE, re.S)[1].splitlines()[-1]
    port, commands, environments = free_port(), [], []
    for node in range(2):
        words, env = shlex.split(line), {}
        if name == "torchrun":
            swap = {"4": "1", "node0": "127.0.0.1", "29500": port}
            words = [sys.executable, "-m", "torch.distributed.run", *(swap.get(word, word) for word in words[1:])]
            words[words.index("--node_rank") + 1] = str(node)
        else:
            words = [sys.executable, "-m", *words[words.index("darknetpy") :]]
            env = {"SLURM_PROCID": str(node), "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words += ["-nogpu", "-dont_show", "-no_rehearsal", "-workers", "0", "-burn_in_single", "4"]
        commands.append([*words, "-set", "net.max_batches=8"])
        environments.append(env)
    outputs = machines(commands, environments)
    assert "2 replicas train: each takes 4 images a turn" in "".join(outputs)
    assert "-burn_in_single has no effect where torchrun or SLURM starts the replicas" in "".join(outputs)
    assert Path("backup/my_final.weights").exists()
