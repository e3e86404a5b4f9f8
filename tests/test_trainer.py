"""The run as a whole: it learns the same whatever interrupts, measures or disturbs it."""

from __future__ import annotations

import csv
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small import CFG, data_set

from darknetpy import training
from darknetpy.data import resize
from darknetpy.errors import DarknetpyError, DataError, WeightsError
from darknetpy.layers import constants, read_structure
from darknetpy.network import Network
from darknetpy.reporting import default_sinks
from darknetpy.reporting.chart import Chart
from darknetpy.reporting.darknet_lines import DarknetLines
from darknetpy.training import checkpoint, feed, rehearsal, similar
from darknetpy.training.events import Evaluated, Recovered, Resized, Saved, Started, TurnDone
from darknetpy.training.guard import Transaction
from darknetpy.training.learner import Learner
from darknetpy.training.measure import Measurement
from darknetpy.training.signals import Signals
from darknetpy.training.trainer import Trainer

AWKWARD = CFG.replace("[maxpool]\nsize=2\nstride=2\n", "[maxpool]\nsize=2\nstride=2\n\n[dropout]\nprobability=.3\n")
AWKWARD = AWKWARD.replace("random=0", "random=1\nresize=1.3").replace("burn_in=0", "burn_in=2\nmosaic=1\nema_alpha=.9")
"""Random sizes, dropout, mosaic and a moving average: everything that a run draws or remembers."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a small data set, where sizes change every third turn, to the last."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resize, "LAST", 0)
    monkeypatch.setattr(feed, "EVERY", 3)
    return data_set(tmp_path, cfg=AWKWARD)


def run(iterations: int = 14, weights: str | None = None, sinks=(), cfg: str = "tiny.cfg", **options):
    overrides = [f"net.max_batches={iterations}", *options.pop("overrides", ())]
    options = {"workers": 0, "rehearse": False, **options}
    return training.train("obj.data", cfg, weights, overrides=overrides, sinks=list(sinks), **options)


def weights_of(path: str = "backup/tiny_final.weights") -> bytes:
    return Path(path).read_bytes()


def rows_of_csv() -> list[dict[str, str]]:
    with open("results.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


class Interrupt:
    """Sends a signal to this process after so many iterations."""

    def __init__(self, iteration: int, number: int = signal.SIGINT):
        self.iteration, self.number = iteration, number

    def __call__(self, event) -> None:
        if isinstance(event, TurnDone) and event.iteration == self.iteration:
            os.kill(os.getpid(), self.number)


class Log(list):
    def __call__(self, event) -> None:
        self.append(event)

    def of(self, kind) -> list:
        return [event for event in self if isinstance(event, kind)]


def test_measuring_does_not_change_the_training(place):
    run()
    plain = weights_of()
    log = Log()
    result = run(evaluate=True, map_every=3, sinks=[log])
    assert len(result.history) >= 4
    assert len({event.size for event in log.of(Resized)}) > 1
    assert weights_of() == plain


def test_what_an_evaluation_has_made_serves_the_training(place):
    """Constants such as the blur's kernel are made once, whoever asks first; none may be an inference tensor."""
    Path("tiny.cfg").write_text(CFG.replace("filters=8", "filters=13\nantialiasing=1"))
    structure = read_structure("tiny.cfg")
    constants._kept.clear()
    Network.from_structure(structure).predict(torch.rand(1, 3, 64, 64))
    learner = Learner(Network.from_structure(structure))
    learner.accumulate_all([(torch.rand(2, 3, 64, 64), torch.zeros(2, 90, 6))])
    assert all(bool(torch.isfinite(gradient).all()) for gradient in learner.optimizer.gradients())


def test_the_rehearsal_leaves_no_trace(place):
    run()
    plain = weights_of()
    run(evaluate=True, rehearse=True)
    assert weights_of() == plain
    assert sorted(p.name for p in Path("backup").iterdir()) == ["tiny_best.weights", "tiny_final.weights"]


class Clock:
    """Stands still but for what is put on it."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def rehearsed(monkeypatch, seconds: dict[str, float]) -> list[str]:
    """Names of the steps of a rehearsal whose steps take so long, in their order."""
    clock, done, original = Clock(), [], rehearsal._steps

    def steps(trainer):
        for step in original(trainer):

            def work(step=step):
                done.append(step.name)
                clock.now += next((value for part, value in seconds.items() if part in step.name), 0.0)

            yield replace(step, work=work)

    monkeypatch.setattr(rehearsal, "_steps", steps)
    monkeypatch.setattr(rehearsal, "time", clock)
    run(1, evaluate=True, rehearse=True)
    return done


def test_the_rehearsal_tries_everything_from_the_cheap_to_the_dear(place, monkeypatch, caplog):
    names = ["a save and a load", "a chart", "an evaluation of one picture", "training on one picture"]
    assert rehearsed(monkeypatch, {}) == [*names, "an evaluation", "training at 64x64", "training at 128x128"]
    assert "left out" not in caplog.text


@pytest.mark.parametrize(
    ("seconds", "left_out"),
    [
        ({"at 64x64": 4.5}, "training at 128x128"),
        ({"evaluation of one": 3.0, "at 64x64": 4.25}, "an evaluation, training at 128x128"),
        ({"training on one": 7.0}, "training at 64x64, training at 128x128"),
        (
            {"evaluation of one": 6.0},
            "training on one picture, an evaluation, training at 64x64, training at 128x128",
        ),
        (
            {"a save": 21.0},
            "a chart, an evaluation of one picture, training on one picture, an evaluation, training at 64x64, "
            "training at 128x128",
        ),
    ],
)
def test_the_rehearsal_leaves_out_what_would_take_too_long(place, monkeypatch, caplog, seconds, left_out):
    rehearsed(monkeypatch, seconds)
    total = sum(seconds.values())
    assert f"the rehearsal took {total:.0f} s and, to stay below 20 s, left out: {left_out}" in caplog.messages


def failing(original, wrong):
    """`original`, but an error where `wrong` says so of its arguments."""

    def call(*args, **kwargs):
        if wrong(*args):
            raise RuntimeError("it is broken")
        return original(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (checkpoint.Checkpoints, "save_last", lambda *args: True),
        (rehearsal, "read_state", lambda *args: True),
        (Network, "run", lambda network, x, *args: network.training and x.shape[2] == 128),
        (Network, "run", lambda network, x, *args: network.training and x.shape[2] == 64),
    ],
    ids=["save", "state", "large", "small"],
)
def test_what_fails_in_the_rehearsal_fails_before_the_first_turn(place, monkeypatch, owner, name, wrong):
    monkeypatch.setattr(owner, name, failing(getattr(owner, name), wrong))
    log = Log()
    with pytest.raises(RuntimeError, match="it is broken"):
        run(rehearse=True, sinks=[log])
    assert not log.of(TurnDone)
    assert list(Path("backup").glob("*.weights")) == []


def test_an_evaluation_or_a_chart_that_will_fail_is_said_at_the_start(place, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Chart, "save", refuse)
    monkeypatch.setattr(Measurement, "_run", failing(Measurement._run, lambda *args: True))
    log = Log()
    run(1, evaluate=True, rehearse=True, sinks=[Chart(), log])
    assert caplog.messages.count("evaluations will fail: it is broken") == 1
    assert "Chart: [Errno 28] No space left on device; it is tried again" in caplog.messages
    assert len(log.of(TurnDone)) == 1


def test_the_sizes_that_can_occur_are_said(place, capsys):
    log = Log()
    run(1, sinks=[log])
    assert log.of(Started)[0].advice == ("random sizes: 64x64 to 128x128, in steps of 32",)
    DarknetLines()(log.of(Started)[0])
    assert "random sizes: 64x64 to 128x128, in steps of 32\n" in capsys.readouterr().err


def test_a_turn_reads_the_device_once(place, monkeypatch):
    """For its log and to see that all is finite, before the update; for each read the host waits."""
    reads: list[str] = []

    def counted(name: str):
        original = getattr(torch.Tensor, name)

        def read(self, *args, **kwargs):
            reads.append(name)
            return original(self, *args, **kwargs)

        return read

    turn = Trainer._turn

    def watched(self) -> None:
        with monkeypatch.context() as patch:
            for name in ("tolist", "item", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"):
                patch.setattr(torch.Tensor, name, counted(name))
            turn(self)

    monkeypatch.setattr(Trainer, "_turn", watched)
    log = Log()
    run(6, sinks=[log, *default_sinks()])
    assert reads == ["tolist"] * 6
    assert all(event.losses.keys() == {"class_loss", "iou_loss", "total_loss"} for event in log.of(TurnDone))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_do_not_change_the_training(place, workers):
    run()
    plain = weights_of()
    run(workers=workers)
    assert weights_of() == plain


@pytest.mark.usefixtures("hears_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_goes_on_bit_for_bit(place, caplog, number):
    log = Log()
    whole = run(evaluate=True, map_every=3, sinks=[log])
    expected, rows = weights_of(), [e.avg_loss for e in log.of(TurnDone)]
    first = run(evaluate=True, map_every=3, sinks=[Interrupt(8, number)])
    assert first.stopped == signal.Signals(number).name
    assert first.iteration == 8
    assert "go on with backup/tiny_last.weights" in caplog.text
    log = Log()
    second = run(weights="backup/tiny_last.weights", evaluate=True, map_every=3, sinks=[log])
    assert weights_of() == expected
    assert [e.avg_loss for e in log.of(TurnDone)] == rows[8:]
    assert second.history == whole.history
    assert second.best_map == whole.best_map


@pytest.mark.usefixtures("hears_signals")
def test_a_signal_that_is_sent_twice_at_once_is_one_wish_and_a_later_one_is_another(monkeypatch):
    with Signals(immediate=False) as asked:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # by its default it would end this process
        signal.raise_signal(signal.SIGINT)
        assert asked.ending == "SIGHUP"
        monkeypatch.setattr("darknetpy.training.signals.ECHO", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_nohup_goes_on_when_the_terminal_is_closed():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals(immediate=False) as asked:
            signal.raise_signal(signal.SIGHUP)
            assert asked.ending is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_in_the_middle_of_a_turn_undoes_it(place, monkeypatch):
    run()
    expected = weights_of()
    original, count = Learner.accumulate, [0]

    def accumulate(self, *args, **kwargs):
        done = original(self, *args, **kwargs)
        count[0] += 1
        if count[0] == 13:  # the first of two mini-batches of the 7th turn
            os.kill(os.getpid(), signal.SIGINT)
        return done

    monkeypatch.setattr(Learner, "accumulate", accumulate)
    assert run().iteration == 6
    run(weights="backup/tiny_last.weights")
    assert weights_of() == expected


def test_a_run_stopped_before_its_first_iteration_writes_nothing(place, caplog, monkeypatch):
    """Forgetting the weights and pressing Ctrl-C must not cost the checkpoint of an earlier run."""
    run(sinks=[Interrupt(4)])
    before = {path.name: path.read_bytes() for path in Path("backup").iterdir()}
    monkeypatch.setattr(feed.Feed, "batches", lambda self: os.kill(os.getpid(), signal.SIGINT))
    assert run().stopped == "SIGINT"
    assert "stopped before its first iteration" in caplog.text
    assert {path.name: path.read_bytes() for path in Path("backup").iterdir()} == before


def test_a_request_to_save_saves_and_goes_on(place):
    log = Log()
    result = run(sinks=[Interrupt(5, signal.SIGUSR1), log])
    assert result.iteration == 14
    assert next((Path(e.path).name, e.iteration) for e in log.of(Saved)) == ("tiny_last.weights", 5)


def test_the_state_wins_over_weights_of_another_moment(place, caplog):
    """Killed between the two renames: the state is newer than the weights beside it."""
    run()
    expected = weights_of()
    run(sinks=[Interrupt(4)])
    older = weights_of("backup/tiny_last.weights")
    run(weights="backup/tiny_last.weights", sinks=[Interrupt(8)])
    Path("backup/tiny_last.weights").write_bytes(older)
    log = Log()
    run(weights="backup/tiny_last.weights", sinks=[log])
    assert "goes on from the state" in caplog.text
    assert log.of(TurnDone)[0].iteration == 9
    assert weights_of() == expected


def test_weights_alone_go_on_as_in_darknet(place):
    run(sinks=[Interrupt(8)])
    Path("backup/tiny_last.state.pt").unlink()
    log = Log()
    run(weights="backup/tiny_last.weights", sinks=[log])
    assert log.of(TurnDone)[0].iteration == 9


def test_clear_begins_again(place):
    run(sinks=[Interrupt(8)])
    log = Log()
    run(weights="backup/tiny_last.weights", clear=True, sinks=[log])
    assert log.of(TurnDone)[0].iteration == 1


def test_a_finished_run_is_told_so(place, caplog):
    run()
    before = Path("backup/tiny_final.weights").stat().st_mtime_ns
    assert run(weights="backup/tiny_final.weights").iteration == 14
    assert "nothing is left to train" in caplog.text
    assert Path("backup/tiny_final.weights").stat().st_mtime_ns == before


def test_a_run_killed_before_its_last_file_writes_it(place):
    """After the last iteration `_last` is written before `_final`: a run that ends between the two is not lost."""
    run(save_every=200)
    expected = weights_of()
    Path("backup/tiny_final.weights").unlink()
    Path("obj.data").write_text(Path("obj.data").read_text() + "savelast=7\n")
    run(save_every=200)
    Path("backup/tiny_final.weights").unlink()
    assert run(weights="backup/tiny_last.weights").iteration == 14
    assert weights_of() == expected


def test_a_state_of_another_network_is_refused(place):
    run(sinks=[Interrupt(4)])
    Path("tiny.cfg").write_text(AWKWARD.replace("filters=8", "filters=4", 1))
    with pytest.raises(WeightsError, match=r"does not fit tiny\.cfg"):
        run(weights="backup/tiny_last.weights")


def test_csv_and_history_survive_a_resume(place):
    from darknetpy.reporting.csv_log import CsvLog

    run(evaluate=True, map_every=3, sinks=[CsvLog("."), Interrupt(8)])
    rows = rows_of_csv()
    with open("results.csv", "a", encoding="utf-8") as stream:
        stream.write("9,9,9\n")  # a row of a turn that was lost with its process
    seen = []

    class Chart:
        def resume(self, rows):
            seen.extend(rows)

        def __call__(self, event): ...

    run(weights="backup/tiny_last.weights", evaluate=True, map_every=3, sinks=[CsvLog("."), Chart()])
    after = rows_of_csv()
    assert after[:8] == rows
    assert [int(row["iteration"]) for row in after] == list(range(1, 15))
    assert [row["iteration"] for row in seen] == list(range(1, 9))
    assert [row["iteration"] for row in seen if "map" in row] == [3, 6]


# --- what goes wrong on the way --------------------------------------------------------------------------------------


def poison(monkeypatch, turns: set[int], mini_batch: int = 1):
    """Make the loss of a mini-batch of some turns (counted from 1, by calls) NaN."""
    original, calls = Learner.accumulate_all, [0]

    def accumulate_all(self, batches):
        calls[0] += 1
        done = original(self, batches)
        if calls[0] in turns:
            head = max(done[mini_batch].heads)
            done[mini_batch].heads[head].cost.fill_(float("nan"))
            done[mini_batch].cost = done[mini_batch].cost * float("nan")
        return done

    monkeypatch.setattr(Learner, "accumulate_all", accumulate_all)


def test_a_non_finite_turn_is_undone_and_skipped(place, monkeypatch):
    original = Learner.accumulate_all

    def skipping(self, batches):
        """What a clean run does that leaves the turn out: nothing at all is accumulated."""
        if self.iteration != 5:
            return original(self, batches)
        transaction = Transaction(self)
        transaction.begin()
        done = original(self, batches)
        transaction.undo()
        for mini in done:
            mini.cost = mini.cost * float("nan")
        return done

    monkeypatch.setattr(Learner, "accumulate_all", skipping)
    run()
    expected = weights_of()
    monkeypatch.setattr(Learner, "accumulate_all", original)
    poison(monkeypatch, {6})
    log = Log()
    result = run(sinks=[log])
    assert result.iteration == 14
    message = log.of(Recovered)[0].message
    assert "mini-batch 1, layer" in message and "[yolo]" in message and "img/" in message and "rate" in message
    assert len(log.of(TurnDone)) == 13
    assert weights_of() == expected


def test_pictures_are_named_where_only_a_gradient_is_not_finite(place, monkeypatch):
    original = Learner.accumulate_all

    def accumulate_all(self, batches):
        done = original(self, batches)
        if self.iteration == 6:
            self.optimizer.gradients()[-1].fill_(float("nan"))
        return done

    monkeypatch.setattr(Learner, "accumulate_all", accumulate_all)
    log = Log()
    run(8, sinks=[log], overrides=["net.mosaic=0", "net.batch=6", "net.subdivisions=1"])
    assert re.search(
        r"the gradient of layer 4 \[convolutional\] \w+, images (img/\d.png, ){3}img/\d.png and 2 more \(rate 0.001, ",
        log.of(Recovered)[0].message,
    )


def test_an_undone_turn_leaves_statistics_and_random_numbers(place):
    torch.manual_seed(3)
    learner = Learner(Network("tiny.cfg", training=True))
    transaction = Transaction(learner)
    x, truth = torch.rand(2, 3, 64, 64), torch.tensor([[[0.5, 0.5, 0.3, 0.3, 1, 0]]] * 2)
    learner.accumulate(x, truth)
    learner.update()
    transaction.begin()
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    first = learner.accumulate(x, truth)
    assert any(not torch.equal(before[name], value) for name, value in learner.network.state_dict().items())
    transaction.undo()
    assert all(torch.equal(before[name], value) for name, value in learner.network.state_dict().items())
    again = learner.accumulate(x, truth)
    assert torch.equal(first.cost, again.cost)


def test_three_in_a_row_go_back_with_half_the_rate(place, monkeypatch):
    poison(monkeypatch, {7, 8, 9})
    log = Log()
    run(sinks=[log, Interrupt(5, signal.SIGUSR1)])
    assert "back to iteration 5" in log.of(Recovered)[-1].message
    rates = {}
    for event in log.of(TurnDone):
        rates.setdefault(event.iteration, []).append(event.rate)
    assert rates[6][1] == pytest.approx(rates[6][0] / 2)
    assert all(np.isfinite(np.frombuffer(weights_of()[20:], np.float32)))


def test_going_back_has_an_end(place, monkeypatch):
    """A lower rate does not help against pictures or a network that give nothing finite at all."""
    sentence = r"\[yolo\].*again after 5 returns to iteration 4, at last with 0.03125 times .*; look at the pictures"
    poison(monkeypatch, set(range(5, 99)))
    log = Log()
    with pytest.raises(DarknetpyError, match=sentence):
        run(30, sinks=[log, Interrupt(4, signal.SIGUSR1)])
    assert sum("back to iteration 4" in event.message for event in log.of(Recovered)) == 5
    assert np.isfinite(np.frombuffer(weights_of("backup/tiny_last.weights")[20:], np.float32)).all()
    factor = checkpoint.read_state("backup/tiny_last.weights")["replicas"][0]["factor"]
    assert factor == 1, "whoever lowers the rate and goes on gets the rate that he sets"


@pytest.mark.parametrize("lost", [["state.pt"], ["state.pt", "weights"]], ids=["state", "both"])
def test_without_its_state_a_run_goes_back_to_the_weights_alone(place, monkeypatch, caplog, lost):
    poison(monkeypatch, {7, 8, 9})

    def remove(event) -> None:
        if isinstance(event, TurnDone) and event.iteration == 6 and len(log.of(TurnDone)) == 6:
            for suffix in lost:
                Path(f"backup/tiny_last.{suffix}").unlink()

    log = Log()
    sinks = [log, Interrupt(5, signal.SIGUSR1), remove]
    if "weights" in lost:
        with pytest.raises(DarknetpyError, match=r"tiny_last.weights: .* and what to go back to is gone; look at"):
            run(sinks=sinks)
        return
    result = run(evaluate=True, map_every=3, sinks=sinks)
    message = "backup/tiny_last.state.pt is gone: the run goes on from backup/tiny_last.weights alone, without its"
    assert message in caplog.text
    assert "back to iteration 5, going on with 0.5 times" in log.of(Recovered)[-1].message
    assert [event.iteration for event in log.of(TurnDone)] == [*range(1, 7), *range(6, 15)]
    assert [iteration for iteration, _ in result.history] == [3, 6, 9, 12, 14]
    assert np.isfinite(np.frombuffer(weights_of()[20:], np.float32)).all()


@pytest.mark.parametrize("saved", [False, True])
def test_a_signal_after_an_update_that_is_not_finite_leaves_what_was_good(place, monkeypatch, caplog, saved):
    """The signal comes in the middle of the next turn, before its loss has told."""
    original, accumulate = Learner.update, Learner.accumulate

    def update(self, *args):
        rate = original(self, *args)
        if self.iteration == 8:
            next(iter(self.network.parameters())).data.fill_(float("inf"))
        return rate

    def interrupted(self, *args, **kwargs):
        if self.iteration == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return accumulate(self, *args, **kwargs)

    monkeypatch.setattr(Learner, "update", update)
    monkeypatch.setattr(Learner, "accumulate", interrupted)
    log = Log()
    result = run(sinks=[log, *([Interrupt(5, signal.SIGUSR1)] if saved else [])])
    assert result.iteration == (5 if saved else 0)
    assert f"the weights are not finite: back to iteration {result.iteration}" in log.of(Recovered)[-1].message
    if saved:
        assert "stopped at iteration 5 (SIGINT); go on with backup/tiny_last.weights" in caplog.text
        assert np.isfinite(np.frombuffer(weights_of("backup/tiny_last.weights")[20:], np.float32)).all()
    else:
        assert list(Path("backup").iterdir()) == []
        assert "nothing is written" in caplog.text


def test_a_skipped_last_turn_costs_neither_evaluation_nor_files(place, monkeypatch):
    from darknetpy.reporting.csv_log import CsvLog

    poison(monkeypatch, {14})
    log = Log()
    result = run(evaluate=True, save_every=7, sinks=[log, CsvLog(".")])
    assert rows_of_csv()[-1]["iteration"] == "13" and "undone and skipped" in rows_of_csv()[-1]["note"]
    assert [iteration for iteration, _ in result.history] == [14]
    assert [event.iteration for event in log.of(TurnDone)][-1] == 13
    assert {path.name for path in Path("backup").glob("*.weights")} >= {
        "tiny_best.weights", "tiny_7.weights", "tiny_14.weights", "tiny_final.weights"
    }  # fmt: skip


def test_an_end_that_is_not_finite_is_made_again(place, monkeypatch):
    original, broken = Learner.update, []

    def update(self, *args):
        rate = original(self, *args)
        if self.iteration == 14 and not broken:
            broken.append(True)
            next(iter(self.network.parameters())).data.fill_(float("inf"))
        return rate

    monkeypatch.setattr(Learner, "update", update)
    log = Log()
    result = run(evaluate=True, sinks=[log, Interrupt(10, signal.SIGUSR1)])
    assert "the weights are not finite: back to iteration 10" in log.of(Recovered)[-1].message
    assert [event.iteration for event in log.of(TurnDone)][-5:] == [14, 11, 12, 13, 14]
    assert result.iteration == 14 and len(result.history) == 1
    for name in ("final", "best"):
        assert np.isfinite(np.frombuffer(weights_of(f"backup/tiny_{name}.weights")[20:], np.float32)).all()


def test_strict_keeps_non_finite_turns_as_darknet(place, monkeypatch):
    poison(monkeypatch, {6})
    log = Log()
    run(sinks=[log], strict=True)
    assert len(log.of(TurnDone)) == 14


def test_short_memory_splits_the_mini_batches(place, monkeypatch):
    original, calls = Network.run, [0]

    def limited(self, x, *args, **kwargs):
        calls[0] += 1
        if calls[0] == 2 and len(x) > 1:  # the second mini-batch of the first turn
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, x, *args, **kwargs)

    monkeypatch.setattr(Network, "run", limited)
    log = Log()
    run(sinks=[log], overrides=["net.mosaic=0"])
    retried = weights_of()
    assert "worked off in 2 parts" in log.of(Recovered)[0].message
    monkeypatch.setattr(Network, "run", original)
    run(overrides=["net.mosaic=0", "net.subdivisions=4"])
    assert weights_of() == retried


def test_an_engine_failure_is_answered_by_other_settings(place, monkeypatch):
    original, calls = Network.run, [0]

    def failing(self, x, *args, **kwargs):
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM")
        return original(self, x, *args, **kwargs)

    before = torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    run()
    expected = weights_of()
    monkeypatch.setattr(Network, "run", failing)
    log = Log()
    try:
        run(sinks=[log])
    finally:
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark = before
    assert ["cuDNN is switched off" in e.message for e in log.of(Recovered)] == [True]
    assert weights_of() == expected


def test_a_failing_evaluation_is_retried_then_skipped(place, monkeypatch):
    original = Measurement._run

    def failing(self, images, batch):
        if batch != 1 or len(seen.of(Evaluated)) == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, images, batch)

    monkeypatch.setattr(Measurement, "_run", failing)
    seen = Log()
    from darknetpy.reporting.csv_log import CsvLog

    result = run(evaluate=True, map_every=3, sinks=[seen, CsvLog(".")])
    assert result.iteration == 14
    assert [point[0] for point in result.history] == [3]
    assert "the evaluation failed and is skipped" in seen.of(Recovered)[0].message
    notes = {row["iteration"]: row["note"] for row in rows_of_csv()}
    assert "evaluation failed" in notes["6"]


def test_a_full_disk_is_waited_for(place, monkeypatch):
    import errno

    original, full = os.fsync, [True]

    def fsync(handle):
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)

    class Emptied(Log):
        def __call__(self, event):
            super().__call__(event)
            if isinstance(event, TurnDone) and event.iteration == 9:
                full[0] = False

    log = Emptied()
    run(sinks=[log, Interrupt(5, signal.SIGUSR1)], save_every=6)
    assert ["No space left" in e.message for e in log.of(Recovered)] == [True, True]
    saved = {Path(e.path).name: e.iteration for e in log.of(Saved)}
    assert saved["tiny_6.weights"] >= 9 and saved["tiny_last.weights"] >= 9
    assert not [p for p in Path("backup").iterdir() if p.name.startswith(".")]
    monkeypatch.setattr(os, "fsync", original)
    sixth = weights_of("backup/tiny_6.weights")
    run(save_every=6)
    assert weights_of("backup/tiny_6.weights") == sixth


def test_weights_that_are_not_finite_are_not_written(place, monkeypatch):
    original = Learner.update

    def update(self, images=None):
        rate = original(self, images)
        if self.iteration == 6 and not hasattr(self, "broken"):
            self.broken = True
            with torch.no_grad():
                next(self.network.parameters()).view(-1)[0] = float("inf")
        return rate

    monkeypatch.setattr(Learner, "update", update)
    log = Log()
    run(sinks=[log], save_every=6)
    assert any("the weights are not finite: back to iteration 0" in e.message for e in log.of(Recovered))
    assert all(np.isfinite(np.frombuffer(weights_of("backup/tiny_6.weights")[20:], np.float32)))


def test_an_error_saves_what_was_learned(place, monkeypatch):
    original = Learner.update

    def update(self, images=None):
        if self.iteration == 6:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return original(self, images)

    run()
    expected = weights_of()
    monkeypatch.setattr(Learner, "update", update)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run()
    monkeypatch.setattr(Learner, "update", original)
    run(weights="backup/tiny_last.weights")
    assert weights_of() == expected


# --- reasons to stop, and the lock -----------------------------------------------------------------------------------


def test_reasons_to_stop(place):
    assert run(evaluate=True, map_every=2, stop_map=0.0).stopped == "map"
    result = run(evaluate=True, map_every=2, patience=2)
    assert result.stopped == "patience" and result.final and result.iteration < 14
    timed = run(hours=0.0)
    assert timed.stopped == "time" and timed.final is None and Path("backup/tiny_last.state.pt").exists()


def test_a_second_run_is_refused_and_a_dead_one_taken_over(place, caplog):
    from darknetpy.training import lock

    Path("backup").mkdir()
    with lock.RunLock("backup", "tiny"):
        lock.PATIENCE, patience = 0.0, lock.PATIENCE
        try:
            with pytest.raises(DataError, match=rf"a run by process {os.getpid()} on .* is writing its checkpoints"):
                run()
        finally:
            lock.PATIENCE = patience
    Path("backup/.tiny.lock").write_text("process 123456 on elsewhere\n")
    leftover = Path("backup/.tiny_last.weights.abcd")
    leftover.write_bytes(b"half")
    run()
    assert "taken over from process 123456 on elsewhere" in caplog.text
    assert not leftover.exists() and not Path("backup/.tiny.lock").exists()


def test_evaluations_at_the_very_end(place):
    """`max_batches=10 steps=8,9 burn_in=0 -map` ends with one evaluation."""
    result = run(
        10, evaluate=True, overrides=["net.burn_in=0", "net.policy=steps", "net.steps=8,9", "net.scales=.1,.1"]
    )
    assert [point[0] for point in result.history] == [10]


# --- keys of [net] that change the loop ------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["adversarial_lr=1", "dynamic_minibatch=1", "adam=1", "try_fix_nan=1"])
def test_keys_of_net_train_and_go_on(place, key):
    options = {"overrides": [f"net.{key}", "net.burn_in=1"]}
    log = Log()
    run(sinks=[log], **options)
    expected = weights_of()
    run(overrides=["net.burn_in=1"])
    assert weights_of() != expected or key == "try_fix_nan=1", "the key has no effect"
    run(sinks=[Interrupt(7)], **options)
    run(weights="backup/tiny_last.weights", **options)
    assert weights_of() == expected
    assert all(np.isfinite(e.loss) for e in log.of(TurnDone))
    if key == "dynamic_minibatch=1":
        assert {event.batch for event in log.of(Resized)} > {2}


def test_the_last_head_with_boxes_rules_a_network_that_ends_in_another(place, capfd):
    """[contrastive] at the end: `random`, `jitter`, `max` and classes are those of [yolo], as in Darknet."""
    body, head = AWKWARD.split("[convolutional]\nsize=1\n")
    embedding = "[convolutional]\nsize=1\nfilters=12\nactivation=linear\n\n[route]\nlayers=-2\n\n"
    last = "\nembedding_layer=4\n\n[route]\nlayers=4\n\n[contrastive]\nclasses=2\nyolo_layer=-2\n"
    cfg = body.replace("burn_in", "contrastive=1\nburn_in") + embedding + "[convolutional]\nsize=1\n" + head + last
    Path("pairs.cfg").write_text(cfg.replace("mosaic=1\n", ""))
    log = Log()
    run(8, cfg="pairs.cfg", evaluate=True, sinks=[log])
    assert len({event.size for event in log.of(Resized)}) > 1
    assert [kind for _, kind in log.of(Started)[0].heads] == ["yolo"]
    assert len(log.of(Evaluated)) == 1
    assert all(np.isfinite(event.loss) for event in log.of(TurnDone))


def test_the_seed_draws_random_rates(place):
    """`policy=random`; a run that goes on keeps its own seed."""

    def rates(seed: int, until: int | None = None, weights: str | None = None) -> list[float]:
        log = Log()
        run(6, weights, sinks=[log], seed=seed, until=until, overrides=["net.policy=random", "net.burn_in=0"])
        return [event.rate for event in log.of(TurnDone)]

    one = rates(1)
    assert one != rates(2)
    assert rates(1, until=4) + rates(3, weights="backup/tiny_last.weights") == one


def test_similar_filters_are_parted(place):
    """Of the most similar pair the first filter is drawn anew, if they are alike; all others stay."""
    head = CFG.index("[convolutional]\nsize=1")
    more = "[convolutional]\nbatch_normalize=1\nfilters=6\nsize=3\npad=1\nactivation=leaky\n\n" * 2
    Path("deep.cfg").write_text(CFG[:head] + more + CFG[head:])
    network = Network.from_structure(read_structure("deep.cfg"))
    weights = network.tensors_of(2).weights
    with torch.no_grad():
        weights.copy_(torch.eye(8).view(8, 8, 1, 1).expand(8, 8, 3, 3))
        weights[2] = weights[5] * 3 + weights[2] * 0.1
    before = {name: value.clone() for name, value in network.state_dict().items()}
    similar.replace_similar_filters(network, 3)
    changed = [name for name, value in network.state_dict().items() if not torch.equal(before[name], value)]
    assert changed == ["slots.2.weights"], "the first layer and those next to the head are left alone"
    rows = [i for i in range(8) if not torch.equal(before["slots.2.weights"][i], weights[i])]
    assert rows == [2]
    assert weights[2].abs().max() <= (2 / 72) ** 0.5
    again = weights.clone()
    similar.replace_similar_filters(network, 3)
    assert torch.equal(again, weights), "nothing is alike any more"


@pytest.mark.slow
def test_killed_runs_end_like_undisturbed_ones(tmp_path):
    from tools.soak_resume import soak

    assert soak(tmp_path, kills=3, iterations=60, seed=5) >= 1
