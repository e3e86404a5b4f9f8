"""Networks for texts: they learn, write, and say how surprised they are."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch

from darknetpy.cli.main import main
from darknetpy.data.sampling import Request
from darknetpy.data.text import TextData, read_symbols
from darknetpy.errors import ConfigError, DataError, UsageError
from darknetpy.inference.text import TextNetwork
from darknetpy.network import Network
from darknetpy.training.text import train_rnn

SENTENCE = "the cat sat on the mat. "
NET = """[net]
batch=8
subdivisions=1
time_steps=12
inputs=128
momentum=0.9
decay=0
learning_rate={rate}
policy=constant
max_batches={iterations}

{layer}

[connected]
output=128
activation=linear

[softmax]

[cost]
type=sse
"""
LAYERS = {
    "rnn": ("[rnn]\noutput=24\nhidden=24\nactivation=tanh", 0.5),
    "gru": ("[gru]\noutput=24", 2.0),
    "lstm": ("[lstm]\noutput=24", 1.0),
}
KNOWN = 0.5
"""Loss below which a net knows the sentence; it begins near 2.9."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(SENTENCE * 20)
    return tmp_path


def cfg(kind: str, iterations: int = 100) -> str:
    layer, rate = LAYERS[kind]
    name = f"{kind}.cfg"
    with open(name, "w") as stream:
        stream.write(NET.format(layer=layer, rate=rate, iterations=iterations))
    return name


LSTM = ["lstm.cfg", "backup/lstm_final.weights", "-quiet"]
LINE = re.compile(r"^(\d+): ([\d.]+), [\d.]+ avg, [\d.]+ rate, [\d.]+ seconds, ([\d.]+) epochs$", re.M)
PERPLEXITY = re.compile(r"^(\d+) BPC: ([\d.]+)   Perplexity: ([\d.]+)    Word Perplexity: ([\d.]+|inf)$", re.M)


class Losses(list):
    def __call__(self, event) -> None:
        if type(event).__name__ == "TurnDone":
            self.append(event.loss)


def run(capfd, words: list[str], status: int = 0) -> tuple[str, str]:
    capfd.readouterr()
    assert main(words) == status
    return tuple(capfd.readouterr())


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """Folder, losses of a run by command line, and what it printed."""
    folder = tmp_path_factory.mktemp("rnn")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "text.txt").write_text(SENTENCE * 20)
        log, out = io.StringIO(), io.StringIO()
        patch.setattr("sys.stderr", log)
        patch.setattr("sys.stdout", out)
        assert main(["rnn", "train", cfg("lstm"), "-file", "text.txt", "-srand", "1", "-no_rehearsal"]) == 0
    lines = re.findall(
        r"^(\d+): ([\d.]+), [\d.]+ avg, [\d.]+ rate, [\d.]+ seconds, ([\d.]+) epochs$", log.getvalue(), re.M
    )
    return folder, [(int(n), float(loss), float(epochs)) for n, loss, epochs in lines]


def test_darknets_lines_files_and_epochs(learnt) -> None:
    folder, lines = learnt
    assert [number for number, _, _ in lines] == list(range(1, 101))
    assert lines[-1][2] == pytest.approx(100 * 8 * 12 / (20 * len(SENTENCE)), abs=1e-5)
    assert (folder / "backup/lstm_final.weights").stat().st_size > 10_000
    assert Network(folder / "lstm.cfg", folder / "backup/lstm_final.weights").seen == 100 * 8 * 12


def test_lstm_learns_a_repeated_sentence(learnt) -> None:
    losses = [loss for _, loss, _ in learnt[1]]
    assert losses[0] > 2
    assert np.mean(losses[-10:]) < KNOWN


@pytest.mark.parametrize("kind", ["rnn", "gru"])
def test_rnn_and_gru_learn_it_too(place, kind) -> None:
    losses = Losses()
    train_rnn("text.txt", cfg(kind), rehearse=False, sinks=[losses], seed=1)
    assert losses[0] > 2
    assert np.mean(losses[-10:]) < KNOWN


def test_it_writes_the_sentence(learnt, monkeypatch, capfd) -> None:
    monkeypatch.chdir(learnt[0])
    words = [
        "rnn",
        "generate",
        "lstm.cfg",
        "backup/lstm_final.weights",
        "-quiet",
        "-seed",
        "the cat sat ",
        "-srand",
        "3",
    ]
    out, error = run(capfd, [*words, "-len", "36", "-temp", "0.1"])
    assert out == (SENTENCE * 3)[: 12 + 36] + "\n"
    assert "lstm\n" in error
    assert run(capfd, [*words, "-len", "60", "-temp", "3"])[0] == run(capfd, [*words, "-len", "60", "-temp", "3"])[0]
    assert run(capfd, [*words, "-len", "0"])[0] == "the cat sat \n"


def test_perplexity_tells_what_was_learnt_from_what_was_not(learnt, monkeypatch, capfd) -> None:
    monkeypatch.chdir(learnt[0])
    values = []
    for text in (SENTENCE * 15, SENTENCE[::-1] * 15):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        out, _ = run(capfd, ["rnn", "valid", *LSTM, "-seed", "the"])
        *_, last = re.findall(
            r"^(\d+) BPC: ([\d.]+)   Perplexity: ([\d.]+)    Word Perplexity: ([\d.]+|inf)$", out, re.M
        )
        assert int(last[0]) == len(text) - 1
        assert float(last[2]) == pytest.approx(2 ** float(last[1]), abs=1e-3 * float(last[2]))
        values.append(float(last[2]))
    assert values[0] < 2
    assert values[1] > 20


def test_generatetactic_goes_on_with_standard_input(learnt, monkeypatch, capfd) -> None:
    monkeypatch.chdir(learnt[0])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat sat on")))
    out, _ = run(capfd, ["rnn", "generatetactic", *LSTM, "-len", "9", "-temp", ".1", "-srand", "1"])
    assert out == " the mat.\n"


def test_symbols_have_names(learnt, monkeypatch, capfd) -> None:
    monkeypatch.chdir(learnt[0])
    with open("names.txt", "w") as stream:
        stream.write("".join("<NEWLINE>\n" if i == 5 else f"w{i}\n" for i in range(128)))
    words = ["rnn", "generate", *LSTM, "-tokens", "names.txt", "-len", "4"]
    out, _ = run(capfd, [*words, "-seed", "w7 w9"])
    assert re.fullmatch(r"w7 w9 (w\d+ |\n ){4}\n", out)
    _, error = run(capfd, [*words, "-seed", "w7 dog"], 1)
    assert "`dog` is none of the -tokens" in error


def test_strict_learns_nothing_as_darknet(place) -> None:
    """Darknet never updates these layers."""
    train_rnn("text.txt", cfg("gru", 3), rehearse=False, sinks=[], strict=True)
    torch.manual_seed(0)
    fresh = Network("gru.cfg", strict=True)
    trained = Network("gru.cfg", "backup/gru_final.weights", strict=True)
    for (_, spec, a), (_, _, b) in zip(fresh.named_tensors(), trained.named_tensors(), strict=True):
        assert torch.equal(a, b), spec.name


def test_a_run_in_two_parts_is_the_same_run(place) -> None:
    train_rnn("text.txt", cfg("lstm", 6), sinks=[], backup="whole")
    train_rnn("text.txt", "lstm.cfg", sinks=[], until=3)
    train_rnn("text.txt", "lstm.cfg", "backup/lstm_last.weights", sinks=[])
    assert (place / "whole/lstm_final.weights").read_bytes() == (place / "backup/lstm_final.weights").read_bytes()


# --- the text ----------------------------------------------------------------------------------------------------


def request(iteration: int, chunk: int = 0, count: int = 24) -> Request:
    return Request(iteration, chunk, 0, 0, count)


def test_rows_are_time_major_and_targets_the_symbols_that_follow() -> None:
    data = TextData(np.arange(50), 50, steps=6)
    batch = data.batch(request(4))
    symbols, following = batch.images.argmax(1).reshape(6, 4), batch.truth.argmax(1).reshape(6, 4)
    assert (batch.images.sum(1) == 1).all()
    assert ((symbols[1:] - symbols[:-1]) % 50 == 1).all()
    assert ((following - symbols) % 50 == 1).all()


def test_streams_go_on_where_they_were_until_they_jump() -> None:
    data = TextData(np.arange(1000), 1000, steps=6, subdivisions=2, seed=5)
    batches = [data.batch(request(i, chunk)) for i in range(60) for chunk in (0, 1)]
    begins = np.array([batch.images.argmax(1)[:4] for batch in batches])
    ends = np.array([batch.truth.argmax(1)[-4:] for batch in batches])
    fresh = np.array([batch.fresh for batch in batches])
    assert fresh[0].all()
    assert (begins[1:] == ends[:-1])[~fresh[1:]].all()
    assert 0.05 < fresh[1:].mean() < 0.16  # one in ten
    other = TextData(np.arange(1000), 1000, steps=6, subdivisions=2, replicas=2, seed=5)
    assert (other.batch(request(0, 2)).images != other.batch(request(0, 0)).images).any()


def test_streams_that_jumped_are_forgotten(place) -> None:
    network = Network(cfg("lstm"), training=True)
    x = torch.nn.functional.one_hot(torch.arange(96) % 128, 128).float()
    network.run(x)
    before = network.states[0]["state"][0].clone()
    network.forget(torch.tensor([True, False] * 4))
    after = network.states[0]["state"][0]
    assert torch.equal(after[1::2], before[1::2])
    assert not after[0::2].any()


def test_texts_that_cannot_be_learnt(place) -> None:
    (place / "one.txt").write_text("a")
    (place / "numbers.txt").write_text("1 2 3\n4 200")
    (place / "words.txt").write_text("1 two 3")
    (place / "high.txt").write_bytes(b"abc\xff")
    assert read_symbols("numbers.txt", 256, True).tolist() == [1, 2, 3, 4, 200]
    with pytest.raises(DataError, match=r"symbol 200 at place 4 is outside 0\.\.127"):
        read_symbols("numbers.txt", 128, True)
    with pytest.raises(DataError, match="symbol 255 at place 3"):
        read_symbols("high.txt", 128)
    with pytest.raises(DataError, match="is no list of whole numbers"):
        read_symbols("words.txt", 128, True)
    with pytest.raises(DataError, match="too short"):
        read_symbols("one.txt", 128)


def test_networks_that_are_not_for_texts(place, capfd) -> None:
    (place / "odd.cfg").write_text("[net]\ninputs=10\n\n[connected]\noutput=4\n\n[softmax]\n")
    with pytest.raises(ConfigError, match="takes 10 symbols and gives 4"):
        TextNetwork("odd.cfg")
    with pytest.raises(UsageError, match="temperature"):
        TextNetwork(cfg("rnn"), temperature=0)
    with pytest.raises(UsageError, match=r"symbol 128 is outside 0\.\.127"):
        TextNetwork("rnn.cfg").read([127, 128])
    _, error = run(capfd, ["rnn", "train", "rnn.cfg", "-quiet"], 1)
    assert "Couldn't open file: data/shakespeare.txt" in error


def test_how_to_compute_is_heeded(place, capfd) -> None:
    """Other numbers of subdivisions are other numbers of symbols in a row; half precision is near, not equal."""
    words = ["rnn", "train", cfg("lstm", 3), "-file", "text.txt", "-srand", "1", "-no_rehearsal", "-quiet"]
    plain = LINE.findall(run(capfd, words)[1])
    half = LINE.findall(run(capfd, [*words, "-precision", "bf16"])[1])
    assert plain != half
    for one, other in zip(plain, half, strict=True):
        assert float(one[1]) == pytest.approx(float(other[1]), rel=0.05)
    assert "-subdivisions must be a number here" in run(capfd, [*words, "-subdivisions", "auto"], 1)[1]
