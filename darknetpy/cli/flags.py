"""Every flag, as data: spelling, what follows it, and what it does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """`kind` is what follows: nothing (`switch`), `int`, `float`, `str`, `words` (all `section.key=value` words), or
    `optional` (a folder, "" where none follows); `str or none` is "" at the end and before other flags. A `share` is
    no more than 1."""

    name: str
    kind: str
    help: str
    default: object = None
    aliases: tuple[str, ...] = ()
    share: bool = False


FLAGS = [
    Flag(
        "thresh",
        "float",
        "detections need more than this confidence (0.25; detect: 0.24)",
        aliases=("threshold",),
        share=True,
    ),
    Flag("hier", "float", "threshold of class trees", 0.5, share=True),
    Flag("iou_thresh", "float", "overlap that counts as found", 0.5, share=True),
    Flag("points", "int", "recall points of AP: 0 (area), 11 or 101", 0),
    Flag(
        "nms",
        "float or none",
        "overlap above which the weaker box goes; export: ONNX with suppression inside",
        0.45,
        aliases=("nms_thresh",),
        share=True,
    ),
    Flag("images", "files", "verify: pictures to compare on"),
    Flag("outputs", "str", "export: `raw` heads or decoded `boxes`", "raw"),
    Flag("dynamic_size", "switch", "export: ONNX for pictures of any size"),
    Flag("ext_output", "switch", "print box coordinates"),
    Flag("out", "str", "test: JSON file; valid: name of the results"),
    Flag("out_dir", "str", "write each picture with its boxes into this folder, too"),
    Flag("save_labels", "switch", "write a label file beside each image"),
    Flag("dont_show", "switch", "open no window", aliases=("noshow",)),
    Flag("letter_box", "switch", "keep the aspect ratio and pad"),
    Flag("map", "switch", "evaluate mAP during training"),
    Flag("topk", "switch", "evaluate top-k accuracy during training"),
    Flag("map_every", "int", "iterations between two evaluations"),
    Flag("mAP_epochs", "int", "epochs between two evaluations", 4),
    Flag("clear", "switch", "start counting at iteration 0"),
    Flag("gpus", "str", "devices, as 0,1,2; all; idle; with -nogpu as many replicas on the CPU"),
    Flag("ddp", "switch", "several devices: share gradients at every update instead of averaging weights"),
    Flag("gpu_share", "str", "shares of the images of a turn, as 1,3,3 (default: equal)"),
    Flag("sync_bn", "switch", "with -ddp: normalise batches by the statistics of all devices"),
    Flag("sync_bn_stats", "switch", "average the running statistics of batch normalisation, too"),
    Flag("check_replicas", "switch", "warn where devices differ after a synchronisation"),
    Flag("profile", "int", "write what torch's profiler sees of N turns to `profile`", 0),
    Flag("burn_in_single", "str", "train the first N iterations (auto) on one device, then on all"),
    Flag("max_restarts", "int", "start again so often when a GPU has to be reset", 3),
    Flag("nccl_debug", "optional", "NCCL's logs of each replica into this folder (nccl)"),
    Flag("subdivisions", "str", "instead of the cfg's; auto: the largest mini-batch that fits into the GPU"),
    Flag("precision", "str", "of convolutions: fp32, bf16 or fp16", "fp32"),
    Flag("tf32", "int", "1: NVIDIA's shortened float32", 0),
    Flag("cudnn_benchmark", "int", "1: cuDNN times its algorithms for every size; 0: it does not (as by itself)"),
    Flag("deterministic", "switch", "the same numbers on every run of the same machine"),
    Flag("checkpointing", "switch", "less memory: outputs of layers are computed twice instead of kept"),
    Flag("until", "int", "stop at this iteration, to go on later"),
    Flag("i", "int", "device to use", aliases=("gpu", "gpu_index")),
    Flag("nogpu", "switch", "use the CPU"),
    Flag("strict", "switch", "exactly Darknet, quirks included"),
    Flag("set", "words", "change the cfg: section[#n].key=value ..."),
    Flag("seed", "str", "seed of all random draws, a number; for rnn: the text to begin with"),
    Flag("srand", "int", "rnn, nightmare: seed of all random draws"),
    Flag("file", "str", "the text", "data/shakespeare.txt"),
    Flag("tokenized", "switch", "the text is a list of whole numbers"),
    Flag("tokens", "str", "file with what stands for each symbol, a line each"),
    Flag("len", "int", "symbols to write", 1000),
    Flag("temp", "float", "temperature of the softmax: lower is surer", 0.7),
    Flag("t", "int", "classes to show or to count as right (default: top= of the data file)"),
    Flag("workers", "int", "loader processes"),
    Flag("cache", "str", "keep decoded pictures: ram, disk or none"),
    Flag("cache_dir", "str", "folder of -cache disk"),
    Flag("prefetch", "int", "iterations made ready ahead", 2),
    Flag("close_mosaic", "int", "iterations at the end without mosaic and mixup", 0),
    Flag("batch", "int", "images of one evaluation batch"),
    Flag("save_every", "int", "iterations between two numbered checkpoints", aliases=("save_weights",)),
    Flag("patience", "int", "stop after so many evaluations without a better mAP"),
    Flag("time", "float", "stop after so many hours"),
    Flag("stop_map", "float", "stop at this mAP, in percent"),
    Flag("no_rehearsal", "switch", "do not try everything once before the first iteration"),
    Flag("chart", "str", "go on drawing this chart"),
    Flag("show_details", "switch", "print Darknet's line of each head", aliases=("verbose",)),
    Flag("tensorboard", "optional", "log for TensorBoard to this folder (runs)"),
    Flag("sink", "str", "Python file with a @sink of your own"),
    Flag("table", "switch", "a table of all classes, by VOC's and COCO's measures"),
    Flag("coco", "switch", "COCO's numbers, with AP over overlaps .5 to .95"),
    Flag("json", "str or none", "write everything that was found here; for doctor without a file: print it"),
    Flag("plots", "optional", "draw curves and the confusion matrix into this folder (plots)"),
    Flag("show_imgs", "switch", "write the first augmented pictures with boxes to `augmented`"),
    Flag("quiet", "switch", "do not print the layer table"),
    Flag("trace", "switch", "show the traceback of an error"),
    Flag("num_of_clusters", "int", "anchors to compute", 5),
    Flag("width", "int", "network width for anchors", -1),
    Flag("height", "int", "network height for anchors", -1),
    Flag("show", "switch", "draw the anchors"),
    Flag("c", "int", "index of the camera", aliases=("camera",)),
    Flag("w", "int", "width to ask a camera for"),
    Flag("fps", "int", "frames a second to ask a camera for"),
    Flag("out_filename", "str", "write the video here"),
    Flag("prefix", "str", "demo: write each frame as TEXT_00000001.jpg; nightmare: folder of the pictures"),
    Flag("json_file_output", "str", "write the detections of all frames here"),
    Flag("json_port", "int", "serve detections as JSON on this port"),
    Flag("mjpeg_port", "int", "serve pictures for browsers on this port"),
    Flag("http_post_host", "str", "post found objects to this host/path"),
    Flag("bind", "str", "address that ports listen on (default: all)"),
    Flag("time_limit_sec", "int", "end after so many seconds"),
    Flag("benchmark", "switch", "measure: one frame again and again, nothing drawn"),
    Flag("dontdraw_bbox", "switch", "neither draw nor print objects"),
    Flag("s", "int", "frames left out between two that the window shows"),
    Flag("avgframes", "int", "accepted; boxes are not averaged, as in Darknet", aliases=("avg",)),
    Flag("rounds", "int", "nightmare: pictures to write", 1),
    Flag("iters", "int", "nightmare: steps between two pictures", 10),
    Flag("range", "int", "nightmare: so many layers around the named one take turns", 1),
    Flag("octaves", "int", "nightmare: so many sizes of the picture take turns", 4),
    Flag("rate", "float", "nightmare: size of a step", 0.04),
    Flag("norm", "int", "nightmare: 0: steps as large as the gradient", 1),
    Flag("zoom", "float", "nightmare: part of the picture that is left after each round", 1.0),
    Flag("rotate", "float", "nightmare: turn by so many radians after each round", 0.0),
    Flag("help", "switch", "print this", aliases=("h",)),
    Flag("version", "switch", "print the version"),
]

WITHOUT_EFFECT = [
    Flag("benchmark_layers", "switch", ""),
    Flag("fullscreen", "switch", ""),
    Flag("cuda_debug_sync", "switch", ""),
    Flag("mAP_clear", "switch", ""),
    Flag("dontuse_opencv", "switch", ""),
    Flag("nocolour", "switch", "", aliases=("nocolor", "colour", "color")),
    Flag("log", "str", ""),
    Flag("random", "switch", ""),
    Flag("heatmaps", "switch", ""),
    Flag("skip_classes", "str", ""),
    Flag("smooth", "int", ""),
    *(Flag(name, "float", "") for name in ("momentum", "lambda", "cpuct", "resign")),
    *(Flag(name, "switch", "") for name in ("reconstruct", "multi", "fuse", "dontfuse", "boxes")),
    *(Flag(name, "switch", "") for name in ("noboxes", "fp16", "fp32")),
]
"""Flags of some Darknet generation that no command here has a use for yet: accepted, said once, value consumed."""


CAMERA_HEIGHT = Flag("h", "int", "height to ask a camera for")
"""Found by the parser itself, since `-h` alone asks for help."""


def plain(word: str) -> str:
    """A flag name without dashes and underscores: `-dont_show`, `--dont-show` and `dontshow` are the same."""
    return word.replace("-", "").replace("_", "").lower() if len(word.lstrip("-_")) > 1 else word.lstrip("-_")


BY_NAME: dict[str, Flag] = {
    plain(spelling): flag for flag in [*WITHOUT_EFFECT, *FLAGS] for spelling in (flag.name, *flag.aliases)
}
