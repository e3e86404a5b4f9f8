"""A data set that was read from another format, with the face of a `.data` file."""

from __future__ import annotations

from dataclasses import dataclass, field

from darknetpy.config.datafile import DataConfig
from darknetpy.data.sets.annotations import Annotations
from darknetpy.errors import warn


@dataclass
class DataSet(DataConfig):
    """`values` name files and folders as a `.data` file does; what they list is known already.

    Attributes:
        lists: image paths by the value of `train=` and `valid=`; class_list: names of the classes.
        boxes: of the pictures, None where they lie in label files.
    """

    lists: dict[str, list[str]] = field(default_factory=dict)
    class_list: list[str] = field(default_factory=list)
    boxes: Annotations | None = None

    @classmethod
    def of(
        cls, path: str, strict: bool, train: str, valid: str | None, lists: dict[str, list[str]], names: list[str],
        boxes: Annotations | None = None,
    ) -> DataSet:  # fmt: skip
        """A data set whose pictures for evaluation, if it has none of its own, are those of training."""
        if valid is None:
            valid = train
            warn(f"{path}: has no pictures for validation, those for training are taken (Darknet's default for valid=)")
        values = {"classes": str(len(names)), "train": train, "valid": valid, "names": path}
        return cls(path, strict, {**values, "backup": "backup", "results": "results"}, {}, lists, names, boxes)

    @property
    def annotations(self) -> Annotations | None:
        return self.boxes

    def listed(self, path: str) -> list[str]:
        return self.lists[path] if path in self.lists else super().listed(path)

    def class_names(self) -> list[str]:
        return list(self.class_list)

    def file(self, key: str, default: str | None = None) -> str | None:
        """Values are paths already; nothing is looked for elsewhere."""
        return self.get(key, default)
