"""`visualize` and `nightmare`: pictures of what is inside a network."""

from __future__ import annotations

import os
import sys

from darknetpy.cli.asked import load_picture
from darknetpy.cli.common import lay_out, load_weights, pick_device, show_table
from darknetpy.cli.parse import Line, files_of
from darknetpy.errors import ImageError, UsageError
from darknetpy.files import base_name, writable_folder


def visualize(line: Line, words: list[str]) -> int:
    """`visualize CFG [WEIGHTS] [IMAGE]`: the filters of every convolutional layer, and what they make of a picture."""
    files = files_of(words, ["cfg", "weights", "image"])
    network = _network(line, files, "visualize [cfg] [weights (optional)] [image (optional)]")
    picture = _picture(files["image"], network) if "image" in files else None

    import torch

    from darknetpy.images import filter_tiles, output_tiles, resize_image, save_image, show

    outputs = None
    if picture is not None:
        resized = resize_image(picture, network.net.width, network.net.height)
        outputs = network.layer_outputs(torch.from_numpy(resized)[None].to(network.device))
    for layer in network.layers:
        if layer.type != "convolutional":
            continue
        tensors = network.tensors_of(layer.index)
        drawn = {f"Layer {layer.index}": filter_tiles(tensors.get("weights").detach().float().cpu().numpy())}
        if outputs is not None:
            drawn[f"Layer {layer.index} Output"] = output_tiles(outputs[layer.index][0].float().cpu().numpy())
        for name, image in drawn.items():
            save_image(f"{name}.jpg", image, 95)
            print(f"{name}.jpg", file=sys.stderr)
            if _windows(line):
                show(name, image)
    return 0


def nightmare(line: Line, words: list[str]) -> int:
    """`nightmare CFG WEIGHTS IMAGE LAYER`: a picture in which the network sees more and more."""
    usage = "nightmare [cfg] [weights] [image] [layer]"
    if len(words) < 4 or not words[3].isdecimal():
        raise UsageError(f"usage: darknetpy {usage}")
    files = dict(zip(("cfg", "weights", "image"), words, strict=False))
    network = _network(line, files, usage)
    picture = _picture(files["image"], network)
    prefix = line.get("prefix") or ""
    if prefix:
        writable_folder(prefix, remedy="choose another -prefix")

    from darknetpy.images import save_image, show, to_bytes
    from darknetpy.inference.dream import Dream, Settings, start, turned

    network.requires_grad_(False)
    settings = Settings(
        line.number("range", 1), line.get("octaves"), line.get("rate"), bool(line.get("norm")), line.get("thresh", 1.0)
    )
    dream = Dream(network, int(words[3][:6]), settings, line.get("srand"))
    image = start(picture, network.device)
    base = f"{base_name(files['image'])}_{base_name(files['cfg'])}_{dream.layer}"
    for turn in range(max(1, line.get("rounds"))):
        print("Iteration: ", end="", file=sys.stderr)
        for i in range(max(1, line.get("iters"))):
            print(f"{i}, ", end="", file=sys.stderr, flush=True)
            image = dream.step(image)
        print("done", file=sys.stderr)
        name = f"{base}_{turn:06d}"
        print(f"{turn} {name}", flush=True)
        drawn = to_bytes(image[0].cpu().numpy())
        save_image(os.path.join(prefix, f"{name}.jpg"), drawn, 95)
        if _windows(line):
            show(name, drawn, wait=False)
        zoom, angle = line.get("zoom"), line.get("rotate")
        if zoom != 1 or angle:
            image = turned(image, zoom, angle)
    return 0


def _network(line: Line, files: dict[str, str], usage: str):
    if "cfg" not in files:
        raise UsageError(f"usage: darknetpy {usage}")
    structure = lay_out(files["cfg"], line)
    show_table(structure, line)

    from darknetpy.network import Network

    network = Network.from_structure(structure, pick_device(line))
    load_weights(network, files.get("weights"))
    return network


def _picture(path: str, network):
    picture, error = load_picture(path, network.net.channels, strict=False)
    if picture is None:
        raise ImageError(error)
    return picture


def _windows(line: Line) -> bool:
    from darknetpy.images import can_show

    return not line.get("dont_show") and can_show()
