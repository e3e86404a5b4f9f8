"""The table of output formats, by suffix, and the one way through it: written, verified, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from darknetpy.errors import DataError, UsageError, WeightsError
from darknetpy.export.module import BOXES, CONTENTS, NMS, RAW
from darknetpy.export.onnx import append_suppression, write_onnx
from darknetpy.export.safetensors import pairs_of_safetensors, write_safetensors
from darknetpy.export.torchscript import write_torchscript
from darknetpy.export.verify import Comparison, Pairs, check_suppression, check_tensors, pairs_of_weights, verify
from darknetpy.network import Network


@dataclass
class Options:
    """How to write a file.

    Attributes:
        contents: `raw`, `boxes` or `nms` (ONNX only); names: of the classes, for the metadata; none: the network's.
        dynamic_size: any size of pictures (ONNX); thresh, nms: of the suppression inside.
        verify: compare what was written with the network before it gets its name.
    """

    contents: str = RAW
    names: Sequence[str] = field(default_factory=list)
    dynamic_size: bool = False
    thresh: float = 0.25
    nms: float = 0.45
    verify: bool = True


@dataclass(frozen=True)
class Format:
    """`write` takes network, path and options; `contents` are those that it can hold; `pairs`: how the tensors of a
    file that cannot be run are read back, beside the network's."""

    write: Callable[[Network, str, Options], None]
    contents: tuple[str, ...] = (RAW,)
    pairs: Callable[[Network, str], Pairs] | None = None


FORMATS: dict[str, Format] = {
    ".weights": Format(lambda network, path, o: network.save_weights(path), pairs=pairs_of_weights),
    ".pt": Format(lambda network, path, o: network.save_weights(path, names=o.names)),
    ".safetensors": Format(
        lambda network, path, o: write_safetensors(network, path, o.names), pairs=pairs_of_safetensors
    ),
    ".onnx": Format(
        lambda network, path, o: write_onnx(
            network, path, BOXES if o.contents == NMS else o.contents, o.names, o.dynamic_size
        ),
        CONTENTS,
    ),
    ".torchscript": Format(
        lambda network, path, o: write_torchscript(network, path, o.contents, o.names), (RAW, BOXES)
    ),
}


def export_file(network: Network, path: str | os.PathLike, options: Options | None = None) -> Comparison | None:
    """Write `network` in the format that the suffix of `path` names.

    What can be run is first compared with the network, of anything else the tensors; only a file that gives the same
    gets its name. Returns the comparison, None where there was nothing to run.
    Raises UsageError for an unknown suffix or contents, WeightsError for a file that does not compute or hold the same.
    """
    name, options = os.fspath(path), options or Options()
    options = replace(options, names=options.names or network.names)
    wanted = format_of(name, options.contents)
    try:
        folder = tempfile.TemporaryDirectory(prefix=".export", dir=os.path.dirname(name) or ".")
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", file=name) from error
    with folder as place:
        fresh = os.path.join(place, os.path.basename(name))
        wanted.write(network, fresh, options)
        comparison = _checked(network, fresh, wanted, name) if options.verify else None
        if options.contents == NMS:
            decoded = os.path.join(place, "decoded.onnx")
            os.replace(fresh, decoded)
            append_suppression(decoded, fresh, NMS, options.thresh, options.nms)
            if options.verify and (wrong := check_suppression(decoded, fresh, options.thresh, options.nms)):
                raise WeightsError(f"is not written: {wrong}", file=name)
        os.replace(fresh, name)
    return comparison


def _checked(network: Network, fresh: str, wanted: Format, name: str) -> Comparison | None:
    """The comparison with what can be run. Raises WeightsError where a file is not what the network is."""
    if wanted.pairs is None:
        comparison = verify(network, fresh)
        if not comparison.same:
            raise WeightsError(f"is not written: {comparison.sentence()}", file=name)
        return comparison
    if wrong := check_tensors(wanted.pairs, network, fresh):
        raise WeightsError(f"is not written: {wrong}", file=name)
    return None


def format_of(name: str, contents: str = RAW) -> Format:
    """The format that a file's name asks for. Raises UsageError or DataError where it cannot be written so, or there,
    which is known before anything is computed."""
    suffix = os.path.splitext(name)[1].lower()
    wanted = FORMATS.get(suffix)
    if wanted is None:
        raise UsageError(
            f"no format has the suffix {suffix or '(none)'}", value=name, remedy=f"use {', '.join(FORMATS)}"
        )
    if contents not in wanted.contents:
        what = "with suppression inside" if contents == NMS else f"with {contents} as outputs"
        raise UsageError(f"a {suffix} file cannot be written {what}", remedy="write .onnx")
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        raise DataError("cannot be written: there is no such folder", file=name, remedy=f"make it: mkdir -p {folder}")
    if os.path.isdir(name) or not os.access(folder, os.W_OK):
        what = "it is a folder" if os.path.isdir(name) else f"{folder} takes no files from you"
        raise DataError(f"cannot be written: {what}", file=name, remedy="name another file")
    return wanted
