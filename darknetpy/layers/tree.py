"""Class trees: `name parent` lines (Darknet: `tree.c`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from darknetpy.lazy import torch

IGNORED = -1234.0
"""A target of this value takes no part in the loss (Darknet: SECRET_NUM)."""


@dataclass
class Tree:
    """Classes in file order.

    Attributes:
        names: class names; parents: index of each parent, -1 for roots.
        groups: group of each class; a new group starts where the parent changes from one line to the next.
        sizes, offsets: length and first class of each group.
    """

    names: list[str] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    _tables: dict = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def size(self) -> int:
        return len(self.names)

    def add(self, name: str, parent: int) -> None:
        if not self.names or parent != self.parents[-1]:
            self.offsets.append(len(self.names))
            self.sizes.append(0)
        self.names.append(name)
        self.parents.append(parent)
        self.groups.append(len(self.sizes) - 1)
        self.sizes[-1] += 1

    def paths(self) -> list[list[int]]:
        """For each class, itself and its ancestors up to the root."""
        result: list[list[int]] = []
        for i, parent in enumerate(self.parents):
            result.append([i, *(result[parent] if parent >= 0 else [])])
        return result

    def tables(self, device) -> tuple:
        """Paths of all classes (classes, depth), padded with the number of classes, and the group of each class."""
        if device not in self._tables:
            paths = self.paths()
            depth = max(len(path) for path in paths)
            padded = [path + [self.size] * (depth - len(path)) for path in paths]
            with torch.inference_mode(False):
                self._tables[device] = torch.tensor(padded, device=device), torch.tensor(self.groups, device=device)
        return self._tables[device]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_tables": {}}

    def softmax(self, x):
        """Softmax over each group along the last axis, all groups at once."""
        group = self.tables(x.device)[1].expand(x.shape)
        zeros = x.new_zeros(*x.shape[:-1], len(self.sizes))
        high = torch.full_like(zeros, -torch.inf).scatter_reduce(-1, group, x, "amax")
        powers = torch.exp(x - high.gather(-1, group))
        return powers / zeros.scatter_add(-1, group, powers).gather(-1, group)

    def preferred(self, x):
        """Whether each class, and every ancestor of it, is the likeliest of its group (the first of equals)."""
        paths, group = self.tables(x.device)
        group = group.expand(x.shape)
        high = x.new_zeros(*x.shape[:-1], len(self.sizes)).scatter_reduce(-1, group, x, "amax", include_self=False)
        order = torch.arange(self.size, device=x.device).expand(x.shape)
        candidates = torch.where(x == high.gather(-1, group), order, self.size)
        first = torch.full_like(high, self.size, dtype=torch.long).scatter_reduce(-1, group, candidates, "amin")
        best = order == first.gather(-1, group)
        best = torch.nn.functional.pad(best, (0, 1), value=True)  # paths are padded with one class more
        result = best[..., :-1]
        for ancestors in paths[:, 1:].unbind(1):
            result = result & best[..., ancestors]
        return result

    def probabilities(self, x):
        """Conditional probabilities multiplied down the tree (Darknet: `hierarchy_predictions`)."""
        result = list(x.unbind(-1))
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                result[i] = result[i] * result[parent]
        return torch.stack(result, -1)


def read_tree(path: str, context) -> Tree:
    """Read a tree file, relative to the working directory or the cfg's folder. Raises ConfigError."""
    tree = Tree()
    for number, line in enumerate(context.read_lines(path, "tree"), 1):
        words = line.split()
        if not words:
            continue
        try:
            parent = int(words[1])
        except (IndexError, ValueError):
            raise context.error(f"tree={path}, line {number}: `{' '.join(words)[:60]}` is not `name parent`") from None
        if not -1 <= parent < tree.size:
            raise context.error(f"tree={path}, line {number}: parent {parent} does not come before it")
        tree.add(words[0], parent)
    return tree
