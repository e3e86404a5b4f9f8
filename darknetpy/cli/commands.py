"""The table of commands: the whole command line on one screen."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from darknetpy.cli.flags import FLAGS, Flag


@dataclass(frozen=True)
class Command:
    """`name` as typed, `arguments` as shown, the flags it heeds, and `module:function` that runs it.

    `beyond` names flags of it that are no shares, though they are those of other commands.
    """

    name: str
    arguments: str
    help: str
    run: str
    flags: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    def load(self) -> Callable:
        """The function; its module is imported only now."""
        module, _, function = self.run.partition(":")
        return getattr(importlib.import_module(f"darknetpy.cli.{module}"), function)


_EVERY = ("strict", "set", "i", "nogpu", "quiet", "trace")
_DETECT = ("gpus", "thresh", "nms", "hier", "ext_output", "out", "out_dir", "save_labels", "dont_show", "letter_box")
_RUN = (
    "gpus", "ddp", "gpu_share", "sync_bn", "sync_bn_stats", "check_replicas", "burn_in_single", "max_restarts",
    "nccl_debug", "profile", "subdivisions", "precision", "tf32", "cudnn_benchmark", "deterministic", "checkpointing",
    "clear", "save_every", "time", "until", "no_rehearsal", "chart", "dont_show", "tensorboard", "mjpeg_port", "bind",
    "sink",
)  # fmt: skip
_ON_PICTURES = (
    *_RUN, "map", "map_every", "seed", "workers", "cache", "cache_dir", "prefetch", "close_mosaic", "show_imgs",
    "batch", "patience", "stop_map",
)  # fmt: skip
_TRAIN = (*_ON_PICTURES, "mAP_epochs", "thresh", "iou_thresh", "show_details")
_DEMO = (
    "thresh", "nms", "hier", "ext_output", "dont_show", "letter_box", "batch", "c", "w", "h", "fps", "s", "avgframes",
    "benchmark", "dontdraw_bbox", "time_limit_sec", "out_filename", "prefix", "json_file_output", "json_port",
    "mjpeg_port", "http_post_host", "bind",
)  # fmt: skip

_VALID = ("t", "batch")
_TRAIN_CLASSES = ("topk", *_ON_PICTURES)
_RNN_TRAIN = (*_RUN, "file", "tokenized", "srand")
_RNN = ("seed", "len", "temp", "srand", "tokens")

COMMANDS = [
    Command("detector train", "DATA CFG [WEIGHTS]", "train a detector", "train:train", _TRAIN),
    Command(
        "detector test", "DATA CFG [WEIGHTS] [IMAGE]", "detect in a picture, a folder or a list", "detect:test", _DETECT
    ),
    Command(
        "detector map", "DATA CFG WEIGHTS", "mean average precision", "evaluate:map_",
        ("points", "iou_thresh", "thresh", "batch", "gpus", "table", "coco", "json", "plots"),
    ),
    Command("detector demo", "DATA CFG WEIGHTS [VIDEO]", "detect in a video, a camera or a stream", "demo:demo", _DEMO),
    Command("detector valid", "DATA CFG WEIGHTS", "write result files", "evaluate:valid", ("out", "batch", "gpus")),
    Command("detector recall", "DATA CFG WEIGHTS", "recall of boxes", "evaluate:recall", ()),
    Command(
        "detector calc_anchors", "DATA", "anchors for a data set", "evaluate:calc_anchors",
        ("num_of_clusters", "width", "height", "show", "seed"),
    ),
    Command("detect", "CFG [WEIGHTS] [IMAGE]", "detector test with cfg/coco.data", "detect:detect", _DETECT),
    Command("classifier train", "DATA CFG [WEIGHTS]", "train a classifier", "classify:train", _TRAIN_CLASSES),
    Command("classifier predict", "DATA CFG [WEIGHTS] [IMAGE]", "say what pictures show", "classify:predict", ("t",)),
    Command("classifier valid", "DATA CFG WEIGHTS", "top-1 and top-k accuracy", "classify:valid", _VALID),
    Command("classifier valid10", "DATA CFG WEIGHTS", "by ten windows of each picture", "classify:valid10", _VALID),
    Command("classifier validfull", "DATA CFG WEIGHTS", "by the whole picture", "classify:validfull", _VALID),
    Command("classifier validmulti", "DATA CFG WEIGHTS", "by five sizes", "classify:validmulti", _VALID),
    Command("classifier validcrop", "DATA CFG WEIGHTS", "by the stretched picture", "classify:validcrop", _VALID),
    Command("classifier test", "DATA CFG WEIGHTS", "all outputs, by the list test=", "classify:test", ("batch",)),
    Command("classifier label", "DATA CFG WEIGHTS", "the likeliest class, by test=", "classify:label", ("batch",)),
    Command(
        "classify", "CFG [WEIGHTS] [IMAGE]", "classifier predict with cfg/imagenet1k.data", "classify:classify", ("t",)
    ),
    Command("rnn train", "CFG [WEIGHTS]", "train on a text", "rnn:train", _RNN_TRAIN),
    Command("rnn generate", "CFG WEIGHTS", "write a text", "rnn:generate", _RNN),
    Command("rnn generatetactic", "CFG WEIGHTS", "go on with the text on standard input", "rnn:generatetactic", _RNN),
    Command("rnn valid", "CFG WEIGHTS", "perplexity of a text", "rnn:valid", ("file", "tokenized", "seed")),
    Command("partial", "CFG WEIGHTS OUT N", "keep the first N layers of a weights file", "weights:partial"),
    Command("average", "CFG OUT WEIGHTS ...", "mean of several weights files", "weights:average"),
    Command("normalize", "CFG WEIGHTS OUT", "add batch normalisation where there is none", "weights:normalize"),
    Command("denormalize", "CFG WEIGHTS OUT", "fold batch normalisation into the weights", "weights:denormalize"),
    Command("reset", "CFG WEIGHTS OUT", "fold batch normalisation, keep a neutral one", "weights:reset"),
    Command("rescale", "CFG WEIGHTS OUT", "from pixels in -1..1 to pixels in 0..1", "weights:rescale"),
    Command("rgbgr", "CFG WEIGHTS OUT", "exchange red and blue of the first layer", "weights:rgbgr"),
    Command("oneoff", "CFG WEIGHTS OUT", "start a [region] head from a classifier", "weights:oneoff"),
    Command("statistics", "CFG [WEIGHTS]", "numbers of every tensor", "weights:statistics"),
    Command(
        "visualize", "CFG [WEIGHTS] [IMAGE]", "draw filters, and what they make of a picture", "inside:visualize",
        ("dont_show",),
    ),
    Command(
        "nightmare", "CFG WEIGHTS IMAGE LAYER", "a picture in which a layer sees more and more", "inside:nightmare",
        (
            "range", "rounds", "iters", "octaves", "zoom", "rotate", "rate", "norm", "thresh", "prefix", "srand",
            "dont_show",
        ), beyond=("thresh",),
    ),
    Command("ops", "CFG", "count floating point operations", "weights:ops"),
    Command("speed", "CFG [TICS]", "time passes of one picture", "weights:speed"),
    Command(
        "export", "CFG WEIGHTS OUT [NAMES]", "convert to .pt .weights .onnx .torchscript .safetensors, by suffix",
        "export:export", ("outputs", "dynamic_size", "thresh", "nms"),
    ),
    Command("doctor", "", "examine this machine: libraries, GPUs, links, limits", "doctor:doctor", ("json",)),
    Command("verify", "A B [IMAGES]", "compare what two files compute", "export:verify", ("images",)),
]  # fmt: skip

_SAME = {"detector calcanchors": "detector calc_anchors"}


def find(words: list[str]) -> Command | None:
    """The command that the first one or two words name."""
    for count in (2, 1):
        name = " ".join(words[:count])
        for command in COMMANDS:
            if command.name == _SAME.get(name, name):
                return command
    return None


def family(word: str) -> list[Command]:
    """The commands whose first of two words this is, as `detector`."""
    return [command for command in COMMANDS if command.name.startswith(f"{word} ")]


def without_effect(command: Command, given: Iterable[str]) -> list[str]:
    """Flags among the given ones that a command accepts and does not heed."""
    return [name for name in given if name not in (*command.flags, *_EVERY)]


def usage(command: Command | None) -> str:
    """Help for one command, or the list of all."""
    if command is None:
        rows = [f"  darknetpy {c.name} {c.arguments}".ljust(58) + c.help for c in COMMANDS]
        rows += ["  darknetpy help [COMMAND]".ljust(58) + "flags of a command", "  darknetpy version"]
        return "\n".join(["Darknet, executed by PyTorch.", "", *rows])
    flags = [flag for flag in FLAGS if flag.name in (*command.flags, *_EVERY)]
    rows = [f"  {_spelled(flag)}".ljust(28) + flag.help + _default(flag) for flag in flags]
    return "\n".join([f"usage: darknetpy {command.name} {command.arguments}", f"  {command.help}", "", *rows])


_VALUES = {
    "switch": "", "int": " N", "float": " F", "str": " TEXT", "words": " section[#n].key=value ...",
    "files": " FILE ...", "float or none": " [F]", "optional": " [DIR]", "str or none": " [FILE]",
}  # fmt: skip


def _spelled(flag: Flag) -> str:
    value = _VALUES[flag.kind]
    return f"-{flag.name}{value}"


def _default(flag: Flag) -> str:
    return "" if flag.default in (None, -1) else f" (default {flag.default})"
