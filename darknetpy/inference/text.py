"""Networks that read and write texts symbol by symbol (Darknet: `rnn`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from darknetpy.config import Cfg
from darknetpy.config.datafile import read_names
from darknetpy.errors import ConfigError, UsageError
from darknetpy.layers import Structure, read_structure
from darknetpy.network import Network

LEAST = 1e-4
"""Symbols less likely than this are never written."""
AT_ONCE = 256
"""Symbols that are read in one pass."""
BLANKS = b" \n\t"


@dataclass
class Perplexity:
    """How surprised a network was by a text so far: `count` symbols, `words` words, bits in all."""

    count: int = 0
    words: int = 1
    bits: float = 0.0

    @property
    def per_symbol(self) -> float:
        """Bits of a symbol (of a character: BPC)."""
        return self.bits / max(1, self.count)

    def line(self) -> str:
        """Darknet's line."""
        return (
            f"{self.count} BPC: {self.per_symbol:4.4f}   Perplexity: {_power(self.per_symbol):4.4f}    "
            f"Word Perplexity: {_power(self.bits / self.words):4.4f}"
        )


def _power(bits: float) -> float:
    return 2.0**bits if bits < 1000 else float("inf")


class TextNetwork:
    """A network whose inputs and outputs are symbols, with what it remembers of the text so far.

    Args:
        cfg: network file, or a Structure for inference that exists already; weights: `.weights` or `.pt`, None: random.
        temperature: divides what goes into [softmax]: lower is surer. device, strict, overrides: as for `Detector`.

    Raises ConfigError for a network that doesn't give as many numbers as it takes; whatever reads symbols raises
    UsageError for those that the network doesn't know.
    """

    def __init__(
        self,
        cfg: str | os.PathLike | Cfg | Structure,
        weights: str | os.PathLike | None = None,
        *,
        temperature: float | None = None,
        device: str | torch.device = "cpu",
        strict: bool = False,
        overrides: Iterable[str] = (),
    ):
        structure = cfg if isinstance(cfg, Structure) else read_structure(cfg, strict, overrides, batch=1)
        self.inputs = check_symbolic(structure)
        if temperature is not None:
            if not temperature > 0:
                raise UsageError(f"a temperature of {temperature:g} cannot divide", remedy="use -temp 0.7")
            for layer in structure.layers:
                if hasattr(layer, "temperature"):
                    layer.temperature = temperature
        self.network = Network.from_structure(structure, device)
        if weights is not None:
            self.network.load_weights(weights)
        self.network.train(False)
        self.output = [layer for layer in self.network.layers if layer.type != "cost"][-1].index

    def forget(self) -> None:
        """Begin a new text."""
        self.network.reset_state()

    def read(self, symbols: Sequence[int] | np.ndarray) -> np.ndarray:
        """Probabilities (n, inputs) of what follows each of the next symbols of the text."""
        symbols = np.asarray(symbols, np.int64)
        found = [self._pass(symbols[low : low + AT_ONCE]) for low in range(0, len(symbols), AT_ONCE)]
        return np.concatenate(found) if found else np.zeros((0, self.inputs), np.float32)

    def _pass(self, symbols: np.ndarray) -> np.ndarray:
        wrong = symbols[(symbols < 0) | (symbols >= self.inputs)]
        if len(wrong):
            raise UsageError(f"symbol {int(wrong[0])} is outside 0..{self.inputs - 1}, which the network knows")
        self.network.time_steps = len(symbols)
        x = torch.nn.functional.one_hot(torch.from_numpy(symbols), self.inputs).float().to(self.network.device)
        return self.network.predict(x).outputs[self.output].float().cpu().numpy().reshape(len(symbols), -1)

    def write(self, after: Sequence[int], length: int, seed: int | None = None) -> Iterator[int]:
        """Read `after`, then write `length` symbols, each drawn by its probability."""
        rng = np.random.default_rng(seed)
        probabilities = self.read(after)[-1] if len(after) else np.ones(self.inputs)
        for _ in range(length):
            kept = np.where(probabilities < LEAST, 0.0, probabilities).astype(np.float64)
            total = kept.sum()
            if total > 0 and np.isfinite(total):
                symbol = int(rng.choice(self.inputs, p=kept / total))
            else:
                symbol = int(np.nanargmax(np.nan_to_num(probabilities)))
            yield symbol
            probabilities = self.read([symbol])[-1]

    def perplexity(self, symbols: Sequence[int] | np.ndarray) -> Iterator[Perplexity]:
        """How well each symbol of a text was foreseen; the same object is given after every few hundred symbols."""
        symbols, result = np.asarray(symbols, np.int64), Perplexity()
        for low in range(0, len(symbols) - 1, AT_ONCE):
            following = symbols[low + 1 : low + 1 + AT_ONCE]
            found = self._pass(symbols[low : low + len(following)])
            likely = np.maximum(found[np.arange(len(following)), following], np.finfo(np.float32).tiny)
            result.bits -= float(np.log2(likely.astype(np.float64)).sum())
            result.count += len(following)
            result.words += int(np.isin(following, list(BLANKS)).sum())
            yield result


def check_symbolic(structure: Structure) -> int:
    """The number of symbols that a network takes and gives. Raises ConfigError where these differ."""
    outputs = next((layer.outputs for layer in reversed(structure.layers) if layer.type != "cost"), 0)
    inputs = structure.net.inputs
    if outputs != inputs:
        raise ConfigError(
            f"takes {inputs} symbols and gives {outputs}", file=structure.cfg.path,
            remedy="make inputs= of [net] and the outputs of the last layer equal",
        )  # fmt: skip
    return inputs


def read_tokens(path: str | os.PathLike) -> list[str]:
    """What stands for each symbol, a line each; `<NEWLINE>` is a line break."""
    return ["\n" if name == "<NEWLINE>" else name for name in read_names(path)]
