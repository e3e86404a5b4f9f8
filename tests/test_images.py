"""Pictures: what is decoded and what is refused, Darknet's resize and letterbox, and the look of its boxes."""

from __future__ import annotations

import base64
import os
import struct
import zlib

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import picture

from darknetpy.detections import Detections
from darknetpy.errors import DataError, ImageError
from darknetpy.images import (
    class_color,
    crop_image,
    decode,
    decode_image,
    draw_detections,
    draw_frame,
    encode_image,
    flip_image,
    letterbox_image,
    load_image,
    read_image,
    resize_image,
    resize_max,
    resize_min,
    save_image,
    to_bytes,
    to_planar,
)
from darknetpy.images.decode import declared_size

CMYK = base64.b64decode(
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwAQCwwODAoQDg0OEhEQExgoGhgWFhgxIyUdKDozPTw5Mzg3QEhcTkBEV0U3OFBtUVdfYmdoZz5NcXlw"
    "ZHhcZWdj/8AAFAgACAAQBEMRAE0RAFkRAEsRAP/EABYAAQEBAAAAAAAAAAAAAAAAAAcACP/EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAOBEMA"
    "TQBZAEsAAD8APyAQCA0Az+k//9k="
)
"""A JPEG of printer's inks, 16 x 8: cyan on the left, magenta on the right."""


def png(width: int, height: int, depth: int, kind: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand: `rows` are the packed samples, each row with its filter byte before it."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)), *chunks]
    parts += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg(image: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", image)[1].tobytes()


# ---------------------------------------------------------------------------------------------- decoding

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
PALETTE = (b"PLTE", bytes([*RED, *GREEN, *BLUE, *WHITE]))


@pytest.mark.parametrize(
    ("data", "pixels"),
    [
        (png(2, 1, 8, 2, bytes([0, *RED, *BLUE])), [RED, BLUE]),
        (png(2, 1, 8, 6, bytes([0, *RED, 0, *BLUE, 128])), [RED, BLUE]),  # alpha is dropped, not blended
        (png(4, 1, 2, 3, bytes([0, 0b00011011]), PALETTE), [RED, GREEN, BLUE, WHITE]),
        (png(2, 1, 8, 3, bytes([0, 2, 1]), PALETTE, (b"tRNS", bytes([255, 0, 0, 0]))), [BLUE, GREEN]),
        (png(2, 1, 8, 0, bytes([0, 10, 200])), [(10,) * 3, (200,) * 3]),
        (png(4, 1, 1, 0, bytes([0, 0b10100000])), [WHITE, (0,) * 3, WHITE, (0,) * 3]),
        (png(2, 1, 8, 4, bytes([0, 10, 0, 200, 255])), [(10,) * 3, (200,) * 3]),
        (png(1, 1, 16, 2, bytes([0, 0x80, 0x01, 0x40, 0x00, 0xFF, 0xFF])), [(0x80, 0x40, 0xFF)]),
        (png(1, 1, 16, 0, bytes([0, 0x80, 0x01])), [(0x80,) * 3]),
    ],
    ids=["rgb", "rgba", "palette", "palette with alpha", "grey", "bits", "grey with alpha", "deep", "deep grey"],
)
def test_kinds_of_png(data, pixels) -> None:
    image = decode_image(data)
    assert image.dtype == np.uint8
    assert image.tolist() == [[list(pixel) for pixel in pixels]]


def test_printers_inks_become_colours() -> None:
    image = decode_image(CMYK)
    assert image.shape == (8, 16, 3)
    assert np.abs(image[4, 2].astype(int) - (0, 255, 255)).max() <= 3
    assert np.abs(image[4, 13].astype(int) - (255, 0, 255)).max() <= 3


def test_one_channel_is_darknets_luma_or_opencvs() -> None:
    data = png(3, 1, 8, 2, bytes([0, *RED, *GREEN, *BLUE]))
    weights = [77, 150, 29]
    assert decode_image(data, 1)[0, :, 0].tolist() == [255 * w >> 8 for w in weights]
    assert np.abs(decode_image(data, 1, opencv_grey=True)[0, :, 0].astype(int) - [76, 150, 29]).max() <= 1


@pytest.mark.parametrize(("orientation", "turn"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_a_photo_is_seen_upright(tmp_path, orientation, turn) -> None:
    data = jpeg(picture())
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HH", orientation, 0) + b"\0\0\0\0"
    turned = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
    assert np.array_equal(decode_image(turned), np.rot90(decode_image(data), turn))


def test_load_image_is_planar_rgb_from_0_to_1(tmp_path) -> None:
    (tmp_path / "a.png").write_bytes(png(2, 1, 8, 2, bytes([0, *RED, 0, 51, 102])))
    image = load_image(tmp_path / "a.png")
    assert image.dtype == np.float32
    assert image.shape == (3, 1, 2)
    assert np.array_equal(image[:, 0, 1], np.float32([0, 51, 102]) / np.float32(255))


@pytest.mark.parametrize("name", ["ünïcødé.png", "図 面.png", "a'b\"c.png", "-dash.png", os.fsdecode(b"latin\xe9.png")])
def test_any_name_will_do(tmp_path, name) -> None:
    path = os.path.join(tmp_path, name)
    save_image(path, np.full((4, 6, 3), RED, np.uint8))
    assert read_image(path).tolist() == np.full((4, 6, 3), RED).tolist()


# ---------------------------------------------------------------------------------------------- refusing

WHOLE_JPEG = jpeg(picture(w=200, h=200))
WHOLE_PNG = cv2.imencode(".png", picture())[1].tobytes()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is empty"),
        (b"just text\n", "it is no picture that OpenCV knows"),
        (b"<html>404</html>", "it is no picture that OpenCV knows"),
        (b"\xff\xd8\xff", "the file is cut off"),
        (WHOLE_JPEG[: len(WHOLE_JPEG) // 2], "the file is cut off"),
        (WHOLE_PNG[: len(WHOLE_PNG) // 2], "the file is cut off"),
        (WHOLE_PNG[:20], "the file is cut off"),
        (png(100_000, 100_000, 8, 2, b""), "100000 x 100000 pixels are more than 268435456 allowed"),
    ],
    ids=["empty", "text", "page", "marker", "half a jpeg", "half a png", "png header", "vast png"],
)
def test_what_is_no_picture_is_said(tmp_path, content, sentence) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=f"Cannot load image .*x.jpg: {sentence}"):
        read_image(path)


def test_paths_that_lead_nowhere(tmp_path) -> None:
    for path, sentence in (
        (tmp_path / "no.jpg", "No such file"),
        (tmp_path, "Is a directory"),
        ("a\0b.jpg", "embedded null byte"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(ImageError, match=sentence):
            read_image(path)


def test_a_file_that_never_ends_is_not_read_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(decode, "MAX_BYTES", 1 << 16)
    with pytest.raises(ImageError, match="larger than 65536 bytes"):
        read_image("/dev/zero")


def vast(kind: str) -> bytes:
    """A small file whose header claims 60000 x 50000 pixels."""
    w, h = 60_000, 50_000
    small = np.zeros((8, 12, 3), np.uint8)
    if kind == "ppm":
        return b"P6 # a comment\n%d %d\n255\n" % (w, h)
    if kind == "pam":
        return b"P7\nWIDTH %d\nHEIGHT %d\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n" % (w, h)
    if kind == "gif":
        return b"GIF89a" + struct.pack("<HH", w, h) + bytes(20)
    if kind == "tiff":
        entries = struct.pack("<HHIIHHII", 256, 4, 1, w, 257, 4, 1, h)
        return b"II*\0" + struct.pack("<IH", 8, 2) + entries + bytes(4)
    data = bytearray(cv2.imencode(f".{kind}", small)[1].tobytes())
    if kind == "bmp":
        struct.pack_into("<ii", data, 18, w, -h)
    if kind == "jpg":
        struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, h, w)
    return bytes(data)


@pytest.mark.parametrize("kind", ["bmp", "gif", "jpg", "ppm", "pam", "tiff"])
def test_a_header_is_believed_before_anything_is_allocated(kind, monkeypatch) -> None:
    def decoder(*_):
        raise AssertionError("was given to the decoder")

    monkeypatch.setattr(cv2, "imdecode", decoder)
    with pytest.raises(ImageError, match="60000 x 50000 pixels are more than"):
        decode_image(vast(kind))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".gif", ".webp", ".tiff", ".ppm"])
def test_sizes_are_read_from_headers(suffix) -> None:
    for options in ([], [cv2.IMWRITE_WEBP_QUALITY, 50]) if suffix == ".webp" else ([],):
        data = cv2.imencode(suffix, np.zeros((8, 13, 3), np.uint8), options)[1].tobytes()
        assert declared_size(data) == (13, 8)
        for cut in range(len(data)):
            declared_size(data[:cut])  # never an exception


@given(st.sampled_from([b"", b"\xff\xd8", b"BM", b"GIF89a", b"RIFF....WEBP", b"II*\0", b"MM\0*", b"P6 "]), st.binary())
def test_no_header_makes_an_accident(start, rest) -> None:
    declared_size(start + rest)


def test_bytes_behind_the_end_of_a_picture_do_no_harm() -> None:
    for whole in (WHOLE_PNG, WHOLE_JPEG):
        assert np.array_equal(decode_image(whole + bytes(200)), decode_image(whole))


# ---------------------------------------------------------------------------------------------- resize


def scalar_resize(image: np.ndarray, w: int, h: int) -> np.ndarray:
    """One pixel after another, in double precision: corners aligned, columns before rows."""
    _, in_h, in_w = image.shape
    out = np.zeros((len(image), h, w))

    def taps(i, size, target):
        position = i * (size - 1) / (target - 1) if target > 1 else 0.0
        first = min(int(position + 1e-9), size - 1)
        return first, min(first + 1, size - 1), position - first

    for c in range(len(image)):
        for y in range(h):
            top, bottom, v = taps(y, in_h, h)
            for x in range(w):
                left, right, u = taps(x, in_w, w)
                upper, lower = ((1 - u) * image[c, row, left] + u * image[c, row, right] for row in (top, bottom))
                out[c, y, x] = (1 - v) * upper + v * lower
    return out


@pytest.mark.parametrize("size", [(5, 4), (9, 7), (4, 7), (9, 3), (1, 1), (17, 13), (2, 2)])
@pytest.mark.parametrize("source", [(9, 7), (1, 5), (6, 1), (2, 2)])
def test_resize_aligns_corners(source, size) -> None:
    image = np.random.default_rng(1).random((2, source[1], source[0]), np.float32)
    got = resize_image(image, *size)
    expected = scalar_resize(image, *size)
    assert got.dtype == np.float32
    # the last row may be off where float32 rounds its position above the last source row (Darknet's behaviour)
    assert np.allclose(got[:, : size[1] - 1], expected[:, : size[1] - 1], atol=1e-5)
    if size[0] > 1 and size[1] > 1:
        for a, b in ((0, 0), (0, -1)):
            assert np.allclose(got[:, a, b], image[:, a, b])


def test_resize_to_its_own_size_is_a_copy() -> None:
    image = np.random.default_rng(0).random((3, 4, 5), np.float32)
    same = resize_image(image, 5, 4)
    assert np.array_equal(same, image)
    assert same is not image


def test_letterbox_geometry() -> None:
    """200 x 100 in 64 x 64: 64 x 32, 16 grey rows above and below; upright pictures to the left and right."""
    wide = np.ones((3, 100, 200), np.float32)
    boxed = letterbox_image(wide, 64, 64)
    assert np.all(boxed[:, :16] == 0.5)
    assert np.all(boxed[:, 16:48] == 1)
    assert np.all(boxed[:, 48:] == 0.5)
    tall = letterbox_image(wide.transpose(0, 2, 1), 64, 48)
    assert np.all(tall[:, :, 20:44] == 1)
    assert tall[:, :, :20].max() == tall[:, :, 44:].max() == 0.5
    assert letterbox_image(np.ones((1, 1, 5000), np.float32), 32, 32).shape == (1, 32, 32)


def test_crop_repeats_the_border_and_flip_mirrors() -> None:
    image = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    assert crop_image(image, -1, 1, 3, 2).tolist() == [[[3, 3, 4], [3, 3, 4]]]
    assert flip_image(image).tolist() == [[[2, 1, 0], [5, 4, 3]]]


def test_resize_by_one_side() -> None:
    image = np.zeros((1, 30, 41), np.float32)
    assert resize_min(image, 10).shape == (1, 10, 13)
    assert resize_max(image, 20).shape == (1, 14, 20)
    assert resize_min(image, 30) is image


def test_bytes_and_planes() -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(to_bytes(to_planar(image)), image)
    assert to_bytes(np.float32([[[-1]], [[0.999]], [[2]]]))[0, 0].tolist() == [0, 254, 255]


# ---------------------------------------------------------------------------------------------- drawing


def detections(*rows, names=("cat", "dog", "dont_show_bird"), size=(200, 100)) -> Detections:
    """Rows of (x, y, w, h, probabilities), relative."""
    boxes = torch.tensor([row[:4] for row in rows]).reshape(-1, 4)
    probs = torch.tensor([row[4] for row in rows]).reshape(-1, len(names))
    return Detections(boxes, probs.amax(1), probs, list(names), size)


@pytest.mark.parametrize(
    ("class_id", "classes", "color"),
    [
        (0, 80, (255, 0, 255)),  # the wheel's first, magenta
        (16, 80, (255, 255, 0)),  # 16 * 123457 mod 80 = 32, two fifths of the wheel: cyan, components reversed
        (1, 2, (127, 255, 0)),  # half-way: position 2.5, cyan to green, (0, 1, .5), reversed (.5, 1, 0)
        (0, 1, (255, 0, 255)),
    ],
)
def test_class_colours(class_id, classes, color) -> None:
    assert class_color(class_id, classes) == color


def test_a_frame_grows_inward_and_a_label_stands_on_it() -> None:
    found = detections((0.5, 0.6, 0.5, 0.4, [0.9, 0.0, 0.0]))
    image = draw_detections(np.zeros((100, 200, 3), np.uint8), found)
    color = list(class_color(0, 3))
    for y, x in ((60, 50), (60, 150), (80, 100)):
        assert image[y, x].tolist() == color
    assert image[60, 51].tolist() == image[60, 49].tolist() == [0, 0, 0]
    bar = image[30:40, 51]  # seven tenths of the colour over black, above the box
    assert np.abs(bar.astype(int) - np.multiply(color, 0.7)).max() <= 1
    assert image[:20].max() == 0
    thick = draw_detections(np.zeros((1500, 200, 3), np.uint8), detections((0.5, 0.5, 0.5, 0.5, [0.9, 0.0, 0.0])))
    assert [thick[750, x].tolist() == color for x in range(49, 54)] == [False, True, True, True, False]


def test_a_label_without_room_above_goes_inside() -> None:
    image = draw_detections(np.zeros((100, 200, 3), np.uint8), detections((0.5, 0.25, 0.5, 0.5, [0.9, 0.0, 0.0])))
    assert image[3:10, 52].max() > 0


def test_the_strongest_is_on_top_and_hidden_classes_are_not_drawn() -> None:
    weak, strong = (0.5, 0.6, 0.5, 0.4, [0.3, 0.0, 0.0]), (0.5, 0.6, 0.5, 0.4, [0.0, 0.8, 0.9])
    for rows in ((weak, strong), (strong, weak)):
        image = draw_detections(np.zeros((100, 200, 3), np.uint8), detections(*rows))
        assert image[60, 50].tolist() == list(class_color(1, 3))
    hidden = draw_detections(np.zeros((100, 200, 3), np.uint8), detections((0.5, 0.6, 0.5, 0.4, [0.0, 0.0, 0.9])))
    assert hidden.max() == 0


def test_drawing_leaves_the_given_picture_alone_and_takes_all_kinds() -> None:
    found = detections((0.5, 0.6, 0.5, 0.4, [0.9, 0.2, 0.0]))
    for given_picture in (
        np.zeros((100, 200, 3), np.uint8),
        np.zeros((3, 100, 200), np.float32),
        np.zeros((1, 100, 200), np.float32),
    ):
        image = draw_detections(given_picture, found)
        assert (image.shape, image.dtype) == ((100, 200, 3), np.uint8)
        assert image.max() > 0
        assert given_picture.max() == 0


@pytest.mark.parametrize("draw", [draw_detections, draw_frame])
def test_boxes_of_any_kind_are_survived(draw) -> None:
    inf, nan = float("inf"), float("nan")
    values = [(nan, 0.5, 0.1, 0.1), (0.5, 0.5, inf, inf), (inf, 0.5, inf, 0.1), (-1e30, 2e30, 1e-30, 5.0)]
    values += [(0.0, 0.0, 0.0, 0.0), (0.5, 0.5, -0.2, -0.2), (0.99, 0.99, 0.5, 0.5), (0.5, 0.5, nan, 0.1)]
    found = detections(*[(*box, [0.9, 0.5, 0.0]) for box in values])
    for shape in ((100, 200, 3), (1, 1, 3), (3, 500, 3)):
        assert draw(np.zeros(shape, np.uint8), found).shape == shape


def test_pixels_and_relative_boxes_are_drawn_alike() -> None:
    found = detections((0.5, 0.6, 0.5, 0.4, [0.9, 0.0, 0.0]))
    blank = np.zeros((100, 200, 3), np.uint8)
    assert np.array_equal(draw_detections(blank, found), draw_detections(blank, found.to_pixels()))
    assert np.array_equal(draw_frame(blank.copy(), found), draw_frame(blank.copy(), found.to_pixels()))


def test_the_look_of_a_video_frame() -> None:
    """The bar above the box is as wide as the box at least and 3 + 18 h / 1000 high, in the class's colour (BGR)."""
    frame = draw_frame(np.zeros((1000, 2000, 3), np.uint8), detections((0.5, 0.5, 0.5, 0.5, [0.9, 0.0, 0.0])))
    color = list(class_color(0, 3)[::-1])
    assert frame[240, 1490].tolist() == color
    assert frame[500, 500].tolist() == color
    assert frame[226:].any()
    assert not frame[:225].any()
    assert (frame[230:250, 500:700] == 0).all(2).any()  # black letters


# ---------------------------------------------------------------------------------------------- writing


def test_pictures_are_written_whole_or_not_at_all(tmp_path) -> None:
    image = np.full((8, 8, 3), RED, np.uint8)
    with pytest.raises(ImageError, match=r"cannot be written as \.xyz; use \.jpg or \.png"):
        save_image(tmp_path / "a.xyz", image)
    with pytest.raises(DataError, match="cannot be written: No such file or directory"):
        save_image(tmp_path / "no/a.jpg", image)
    assert list(tmp_path.iterdir()) == []
    save_image(tmp_path / "plain", image)
    assert (tmp_path / "plain").read_bytes()[:2] == b"\xff\xd8"


def test_quality_is_darknets() -> None:
    image = picture()
    assert encode_image(image[:, :, ::-1]) == cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()
