"""Pictures: decoding, Darknet's resize and letterbox, drawing."""

from darknetpy.images.decode import decode_image, load_image, read_image, to_bytes, to_planar
from darknetpy.images.draw import class_color, draw_detections, draw_frame, encode_image, save_image
from darknetpy.images.resize import (
    crop_image,
    flip_image,
    letterbox_image,
    resize_image,
    resize_max,
    resize_min,
)
from darknetpy.images.tiles import filter_tiles, output_tiles
from darknetpy.images.window import can_show, show

__all__ = [
    "can_show", "class_color", "crop_image", "decode_image", "draw_detections", "draw_frame", "encode_image",
    "filter_tiles", "flip_image", "letterbox_image", "load_image", "output_tiles", "read_image", "resize_image",
    "resize_max", "resize_min", "save_image", "show", "to_bytes", "to_planar",
]  # fmt: skip
