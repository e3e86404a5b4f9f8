"""What several replicas can be told: shares, common batch statistics, comparisons, profiles; and what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small import CFG, data_set
from test_replicas import train
from together import together

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
