"""The `.pt` form of a network: plain tensors, the cfg text and the header, readable with `weights_only=True`.

{"format": "darknetpy", "version": 1, "cfg": str, "header": [major, minor, revision, seen],
 "tensors": {"0.biases": Tensor, ...}, "names": [str, ...]}

`names` are those of the classes, and may be missing.

A file from elsewhere is looked through before torch sees it: `weights_only` keeps it from running anything, but not
from filling the memory.
"""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from darknetpy.errors import MissingFileError, WeightsError
from darknetpy.files import atomic_write
from darknetpy.lazy import torch
from darknetpy.weights import Block, Header, WeightsFile, not_finite

FORMAT, VERSION = "darknetpy", 1

_MOST_BYTES, _MOST_STEPS = 16 << 20, 1_000_000
"""Bounds of a file's description, which holds the cfg text and some 300 bytes (40 steps) a tensor."""
_MOST_NAMES = 100_000
_END_BYTES = 22
"""Length of the record that ends a zip archive without a comment."""
_TENSOR, _PARAMETER = "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"
_EMPTY_DICT = "collections OrderedDict"
_ITEM = {
    "torch FloatStorage": 4, "torch DoubleStorage": 8, "torch HalfStorage": 2, "torch BFloat16Storage": 2,
    "torch LongStorage": 8, "torch IntStorage": 4, "torch ShortStorage": 2, "torch CharStorage": 1,
    "torch ByteStorage": 1, "torch BoolStorage": 1,
}  # fmt: skip
"""Bytes of one number of a storage."""
_NAMES = {_TENSOR, _PARAMETER, _EMPTY_DICT, *_ITEM}
"""All that the description of plain tensors names."""
_OPCODES = {
    "PROTO", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND",
    "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "GLOBAL", "REDUCE", "BUILD",
    "BINPERSID",
}  # fmt: skip
"""The steps that torch.save writes for them."""
STATE_DICT = "a whole model is code, which is not run: save its tensors, torch.save(model.state_dict(), ...)"
_MARK, _ANY, _AGAIN = object(), object(), object()


def is_pt(path: str | os.PathLike) -> bool:
    """Whether a name means a PyTorch file."""
    return os.fspath(path).lower().endswith((".pt", ".pth"))


def write_pt(
    path: str | os.PathLike, cfg_text: str, header: Header, tensors: dict[str, Any], names: Sequence[str] = ()
) -> None:
    """Write network, weights, header and class names, if there are any; to a temporary file first.

    Raises WeightsError for inf and nan.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "cfg": _unicode(cfg_text),
        "header": [header.major, header.minor, header.revision, header.seen],
        "tensors": {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
    }
    if names:
        content["names"] = [_unicode(name) for name in names]
    for name, tensor in content["tensors"].items():
        if not torch.isfinite(tensor).all():
            raise WeightsError(f"is not written: tensor {name} holds inf or nan", file=path)
    with atomic_write(path) as stream:
        torch.save(content, stream)


def _unicode(text: str) -> str:
    """Text without bytes of another encoding."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def load_pt(path: str | os.PathLike) -> dict[str, Any]:
    """The content of a `.pt` file, without running anything in it.

    Raises MissingFileError, or WeightsError where it is no such file.
    """
    name = os.fspath(path)
    content = load_plain(name, mapped=True)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise WeightsError(
            "is a PyTorch file, but not one of darknetpy's", file=name,
            remedy="`darknetpy export CFG FILE.pt OUT.weights` turns the tensors of a port of that cfg into weights",
        )  # fmt: skip
    _check_content(name, content)
    return content


def load_plain(path: str | os.PathLike, mapped: bool = False) -> Any:
    """What a PyTorch file holds, on the CPU: dicts, lists, numbers, text and tensors, nothing that runs.

    `mapped`: tensors are views of the mapped file, which take no memory until they are read: for content that is
    copied at once, since the file must stay as it is so long.
    Raises MissingFileError, or WeightsError for a file that is damaged or holds anything else.
    """
    name = os.fspath(path)
    if os.path.exists(name) and not os.path.isfile(name):
        raise WeightsError("is no ordinary file", file=name)
    try:
        _check_description(name, *_description(name))
        return torch.load(name, map_location="cpu", weights_only=True, mmap=mapped)
    except WeightsError:
        raise
    except FileNotFoundError as error:
        raise MissingFileError(name) from error
    except Exception as error:  # zipfile, pickletools and torch raise many kinds for damaged or hostile files
        first = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise WeightsError(
            f"is no plain-tensor PyTorch file: {first}", file=name,
            remedy="is it one of `darknetpy export`, copied completely?",
        ) from error  # fmt: skip


def _description(name: str) -> tuple[bytes, dict[str, int]]:
    """The pickle in a file and the sizes of its storages, if it is a zip archive as torch.save writes it.

    That is one whose parts are stored, without ambiguity.
    """
    with open(name, "rb") as stream:
        magic = stream.read(4)
        stream.seek(max(0, os.path.getsize(name) - _END_BYTES))
        end = stream.read(4)
    if magic != b"PK\x03\x04":
        raise WeightsError("is no PyTorch file (not a zip archive)", file=name)
    if end != b"PK\x05\x06":
        raise WeightsError("is cut off or followed by something else: the zip archive does not end it", file=name)
    with zipfile.ZipFile(name) as archive:
        entries = archive.infolist()
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > os.path.getsize(name) or any(entry.compress_type for entry in entries):
            raise WeightsError(f"claims to unpack to {unpacked} bytes, which is refused", file=name)
        names = [entry.filename.lower() for entry in entries]  # torch's reader takes any case
        found = [i for i, entry in enumerate(names) if entry.endswith("data.pkl")]
        if len(set(names)) < len(names) or len(found) != 1:
            raise WeightsError("is no PyTorch file (its parts are not those of one)", file=name)
        if entries[found[0]].file_size > _MOST_BYTES:
            raise WeightsError("has a description longer than that of any network", file=name)
        pickled = entries[found[0]]
        folder = f"{pickled.filename.removesuffix('data.pkl')}data/"
        sizes = {e.filename.removeprefix(folder): e.file_size for e in entries if e.filename.startswith(folder)}
        return archive.read(pickled), sizes


def _check_description(name: str, data: bytes, sizes: dict[str, int]) -> None:
    """Raise WeightsError unless a pickle builds plain containers and tensors, each over a storage of the file.

    Its stack is followed step by step with the names, text, numbers and tuples that stand on it; a container that the
    pickle comes back to is `_AGAIN`, any other value `_ANY`.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for count, (step, argument, _) in enumerate(pickletools.genops(data)):
        kind = step.name
        if kind not in _OPCODES or count > _MOST_STEPS:
            raise WeightsError(f"is no plain-tensor PyTorch file (step {count}: {kind})", file=name)
        if kind == "GLOBAL" and argument not in _NAMES:
            what = str(argument)[:80].replace(" ", ".")
            raise WeightsError(f"is no plain-tensor PyTorch file: it names {what}", file=name, remedy=STATE_DICT)
        if kind == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if not (function in (_TENSOR, _PARAMETER) or (function == _EMPTY_DICT and arguments == ())):
                raise WeightsError("is no plain-tensor PyTorch file: it calls what torch.save does not", file=name)
            stack.append(_ANY)
        elif kind == "BUILD":
            if stack.pop() is _AGAIN:  # each such step would copy it
                raise WeightsError("is no plain-tensor PyTorch file: it copies a container", file=name)
        elif kind == "BINPERSID":
            _check_storage(name, stack.pop(), sizes)
            stack.append(_ANY)
        elif kind in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1] if isinstance(stack[-1], str) or stack[-1] == () else _AGAIN
        elif kind in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        else:
            _follow(stack, step, argument)


def _check_storage(name: str, described: Any, sizes: dict[str, int]) -> None:
    """Raise WeightsError unless a tensor's storage is a part of the file, by its exact name and of its exact size."""
    whole = isinstance(described, tuple) and len(described) == 5 and isinstance(described[2], str)
    if not whole or described[1] not in _ITEM or sizes.get(described[2]) != described[4] * _ITEM[described[1]]:
        raise WeightsError("has a tensor whose storage is missing or of another size", file=name)


def _follow(stack: list, step: Any, argument: Any) -> None:
    """Apply a step's effect on the stack."""
    before, items = [item.name for item in step.stack_before], []
    if "mark" in before:
        while (item := stack.pop()) is not _MARK:
            items.append(item)
        before = before[: before.index("mark")]
    for _ in before:
        items.append(stack.pop())
    if step.name.startswith("BININT") or step.name in ("LONG1", "GLOBAL", "BINUNICODE"):
        stack.append(argument)
    elif step.name in ("TUPLE", "EMPTY_TUPLE"):
        stack.append(tuple(reversed(items)))
    else:
        stack.extend(_MARK if step.name == "MARK" else _ANY for _ in step.stack_after)


def _check_content(name: str, content: dict[str, Any]) -> None:
    header, tensors = content.get("header"), content.get("tensors")
    whole = isinstance(header, list) and len(header) == 4 and all(type(n) is int for n in header)
    if whole:
        wide = Header(*header).wide
        whole = all(-(2**31) <= n < 2**31 for n in header[:3]) and 0 <= header[3] < 2 ** (64 if wide else 32)
    plain = isinstance(tensors, dict) and all(
        isinstance(key, str) and type(value) is torch.Tensor for key, value in tensors.items()
    )
    names = content.get("names", [])
    named = isinstance(names, list) and len(names) <= _MOST_NAMES and all(isinstance(n, str) for n in names)
    if not whole or not plain or not named or not isinstance(content.get("cfg"), str):
        raise WeightsError("is a darknetpy file with parts missing or damaged", file=name)


def read_pt(path: str | os.PathLike, layout: Sequence[Block]) -> WeightsFile:
    """Map a `.pt` file onto a layout.

    Raises WeightsError where a tensor is missing, too many, of another shape, no float, or holds inf or nan.
    """
    name = os.fspath(path)
    content = load_pt(name)
    tensors = content["tensors"]
    result = WeightsFile(
        Header(*content["header"]), layers=layout[-1].layer + 1 if layout else 0, names=content.get("names", [])
    )
    known = {f"{block.layer}.{tensor}" for block in layout for tensor in block.passed_over}
    for block in layout:
        for tensor, shape in block.tensors:
            key = f"{block.layer}.{tensor}"
            known.add(key)
            result.arrays[block.layer, tensor] = _array(name, key, tensors.get(key), block, shape)
    if extra := next((key for key in tensors if key not in known), None):
        raise WeightsError(
            f"has a tensor {extra[:60]} that has no place in this cfg",
            file=name,
            remedy="use the cfg that it was made with",
        )
    if damage := not_finite(result.arrays):
        raise WeightsError(damage, file=name)
    return result


def _array(name: str, key: str, value: Any, block: Block, shape: tuple[int, ...]) -> np.ndarray:
    if value is None:
        raise WeightsError(f"has no tensor {key} for layer {block.layer} [{block.kind}] of this cfg", file=name)
    if tuple(value.shape) != tuple(shape):
        raise WeightsError(
            f"tensor {key} is {tuple(value.shape)}, this cfg needs {tuple(shape)}",
            file=name,
            remedy="use the cfg that it was made with",
        )
    if not value.is_floating_point():
        kind = re.sub(r"^torch\.", "", str(value.dtype))
        raise WeightsError(f"tensor {key} holds {kind}, not floating-point numbers", file=name)
    return np.asarray(value.detach().to(torch.float32).numpy())
