"""Write the tables of docs/layers.md from the registry of layer types.

python tools/build_layer_docs.py            # rewrite the page
python tools/build_layer_docs.py --check    # exit status 1 where it is not current
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from darknetpy.config import parse_cfg
from darknetpy.config.options import kind_of, spelling
from darknetpy.layers import Layer, LayerOptions
from darknetpy.layers.registry import all_types, canonical, names_of
from darknetpy.training.optimizer import NEVER_TRAINED

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "layers.md"
INFERENCE, TRAINING = ("forward", "forward_gpu"), ("train/step", "train/loss", "train/resize")
NONE = "–"
COMMON = {item.name for item in dataclasses.fields(LayerOptions)}


def golden_cases(folders: tuple[str, ...]) -> Counter:
    """How many golden networks hold each type."""
    count: Counter = Counter()
    for folder in folders:
        for path in (ROOT / "tests" / "golden" / folder).glob("*/net.cfg"):
            cfg = parse_cfg(path.read_bytes(), str(path))
            count.update({canonical(section.type) for section in cfg.layers})
    return count


def table(headers: tuple[str, ...], rows: list[tuple]) -> list[str]:
    """A table in Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def sentence(cls: type[Layer]) -> str:
    """The first sentence of a class's docstring."""
    text = " ".join(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.)]) (?=[A-Z])", text)[0].rstrip(".")


def types() -> list[str]:
    """The overview."""
    seen, learned = golden_cases(INFERENCE), golden_cases(TRAINING)
    rows = []
    for name, cls in sorted(all_types().items(), key=lambda item: item[0].lower()):
        aliases = ", ".join(f"`[{alias}]`" for alias in names_of(cls)[1:]) or NONE
        weights = cls.tensors is not Layer.tensors
        darknet = ("no" if name in NEVER_TRAINED else "yes") if weights else NONE
        link = f"[`[{name}]`](#{name.lower()})"
        cases = seen[name] or NONE, learned[name] or NONE
        kind = "head" if cls.is_head else "layer"
        rows.append((link, aliases, kind, sentence(cls), *cases, darknet, "yes" if weights else NONE))
    headers = ("type", "also", "kind", "what it does", "golden inference", "golden training",
               "trained by Darknet, `-strict`", "trained by default")  # fmt: skip
    return table(headers, rows)


def keys() -> list[str]:
    """One table of keys a type, and one of those that all types take."""
    lines = ["## Keys of every type", "", *_keys_of(LayerOptions, set())]
    for name, cls in sorted(all_types().items(), key=lambda item: item[0].lower()):
        rows = _keys_of(cls.Options, COMMON)
        lines += ["", f"## {name}", "", *(rows or ["No keys of its own."])]
    return lines


def _keys_of(options: type, leave_out: set[str]) -> list[str]:
    rows = [
        (f"`{spelling(item)}`", kind_of(item).removesuffix(" | None"), _default(item), item.metadata["help"])
        for item in dataclasses.fields(options)
        if item.name not in leave_out
    ]
    return table(("key", "type", "default", "what it does"), rows) if rows else []


def _default(item: dataclasses.Field) -> str:
    value = item.metadata["default"]
    if callable(value):
        return "depends"
    if value is None or (isinstance(value, int) and value < -1_000_000):
        return NONE
    if isinstance(value, list):
        return ", ".join(map(str, value)) or NONE
    return f"{value:g}" if isinstance(value, float) else str(value)


def page(text: str) -> str:
    """The page with its two marked parts made anew."""
    for mark, lines in (("types", types()), ("keys", keys())):
        body = "\n".join(["", *lines, ""])
        text, count = re.subn(
            rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda m, b=body: m[1] + b + m[2], text, flags=re.S
        )
        if count != 1:
            raise ValueError(f"{PAGE} must have one part <!-- {mark} --> ... <!-- end -->")
    return text


def main() -> int:
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" in sys.argv[1:]:
        return int(old != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
