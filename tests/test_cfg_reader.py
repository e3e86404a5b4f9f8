"""The cfg grammar, line by line: what Darknet's reader does (strict) and where the default is kinder."""

from __future__ import annotations

import codecs
import math
import os

import pytest
from conftest import SHARED, shared

from darknetpy.config import NetOptions, parse_cfg, read_cfg, read_options
from darknetpy.config.cfg import MAX_BYTES, MAX_REMARKS
from darknetpy.config.numbers import INT_MAX, INT_MIN, atof, atoi, to_float32
from darknetpy.errors import ConfigError, DarknetpyError, MissingFileError, UsageError
from darknetpy.layers import read_structure, registry, table

NET = "[net]\nwidth=32\nheight=32\nchannels=3\n"
BOTH = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
CORPUS = SHARED / "corpus" / "cfg"


def lay_out(text: str | bytes, strict: bool = False, overrides=()):
    cfg = parse_cfg(text, "a.cfg", strict)
    cfg.override(overrides, registry.canonical)
    return read_structure(cfg, strict, batch=1)


def refused(text: str | bytes, strict: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        lay_out(text, strict)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- lines -------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("batch=64", [("batch", "64")]),
        ("  batch\t=  6 4 \r", [("batch", "64")]),
        ("anchors = 4,4, 8,8", [("anchors", "4,4,8,8")]),
        ("k = a = b", [("k", "a=b")]),
        ("K=1", [("K", "1")]),
        ("word", [("word", None)]),
        ("=1", [("", "1")]),
        ("\x0b=\x0c1", [("\x0b", "\x0c1")]),
        ("k=1\xa02", [("k", "1\xa02")]),
        ("# k=1", []),
        ("; k=1", []),
        (" \t#k=1", []),
        ("", []),
        (" \t\r", []),
        ("k=1#c", [("k", "1#c")]),
        ("k=1;c", [("k", "1;c")]),
        ("key=", []),
        ("key = \t", []),
    ],
)
def test_lines(line: str, pairs: list, strict: bool) -> None:
    cfg = parse_cfg(f"[net]\n{line}\n", strict=strict)
    assert [(option.key, option.value) for option in cfg.net.options] == pairs
    assert all(option.line == 2 for option in cfg.net.options)


@BOTH
@pytest.mark.parametrize("header", ["[net]", " [ net ] ", "[\tn e t]\r", "[network]"])
def test_headers(header: str, strict: bool) -> None:
    assert parse_cfg(f"\n# x\n{header}\nbatch=2", strict=strict).net.line == 3


@BOTH
@pytest.mark.parametrize(
    ("end", "last"), [("\n", "\n"), ("\n", ""), ("\r\n", "\r\n"), ("\r\n", ""), ("\r\r\n", ""), ("\n\n \n", "\t")]
)
def test_line_ends_and_a_missing_last_one(end: str, last: str, strict: bool) -> None:
    lines = ["[net]", "width=32", "height=32", "channels=3", "[conv]", "filters=7"]
    structure = lay_out((end.join(lines) + last).encode(), strict)
    assert [layer.out_c for layer in structure.layers] == [7]
    assert not structure.layers[0].notes.unused


@BOTH
def test_carriage_returns_alone_make_one_line(strict: bool) -> None:
    assert "First section must be [net] or [network]" in refused("[net]\rwidth=32\r[conv]\r", strict)


@BOTH
def test_the_first_of_equal_keys_wins_and_the_others_are_unused(strict: bool) -> None:
    structure = lay_out(f"{NET}width=64\n[conv]\nfilters=5\nfilters=6\nsize\nsize=3\n", strict)
    (layer,) = structure.layers
    assert (structure.net.width, layer.filters, layer.size) == (32, 5, 1), "a first line without value counts as absent"
    assert layer.notes.unused == [("filters", "6", 8), ("size", "3", 10)]
    assert structure.net_notes.unused == [("width", "64", 5)]


@BOTH
def test_a_key_without_a_value_is_dropped_and_said_in_darknets_words(strict: bool, caplog) -> None:
    cfg = parse_cfg("[net]\nbatch=\nbatch=4\n", "a.cfg", strict)
    assert cfg.notes == ["Config file error line 2, could parse: batch"]
    assert read_options(NetOptions, cfg.net).batch == 4
    said = cfg.notes if strict else ["a.cfg, line 2: batch= has no value and is ignored"]
    assert caplog.messages == said


@BOTH
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a.cfg: Config file has no sections; a network begins with [net]"),
        ("\n# only\n;comments\n", "a.cfg: Config file has no sections; a network begins with [net]"),
        ("batch=1\n[net]\n", "a.cfg, line 1: a line stands before the first section ('batch=1')"),
        ("\nword", "a.cfg, line 2: a line stands before the first section ('word')"),
        ("[conv]\n[net]\n", "a.cfg, line 1: First section must be [net] or [network] ('[conv]')"),
        ("[Net]\n", "a.cfg, line 1: First section must be [net] or [network] ('[Net]')"),
        ("[net\n", "a.cfg, line 1: First section must be [net] or [network] ('[net')"),
        (
            "[net]\n",
            "a.cfg, line 1: No input parameters supplied: width=0, height=0, channels=0; set all",
        ),
        (NET, "a.cfg: has only [net] and no layer"),
        ("[net]\0", "a.cfg: is not a text file; give the .cfg, not the .weights"),
        (" <html>", "a.cfg: is a web page (HTML), not a cfg; download the raw file"),
    ],
)
def test_files_that_are_no_network(text: str, sentence: str, strict: bool) -> None:
    assert refused(text.encode(), strict).startswith(sentence)


def test_paths_that_are_no_file(tmp_path) -> None:
    with pytest.raises(ConfigError, match="is a folder, not a cfg file"):
        read_cfg(tmp_path)
    for name in ("no.cfg", "a\0b"):
        with pytest.raises(MissingFileError, match="Couldn't open file"):
            read_cfg(name)


def test_a_file_longer_than_any_cfg_is_refused_unread(tmp_path) -> None:
    path = tmp_path / "a.cfg"
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    for name in (path, "/dev/zero"):
        with pytest.raises(ConfigError, match=f"is longer than {MAX_BYTES} bytes"):
            read_cfg(name)
    assert parse_cfg(NET + "#" * (MAX_BYTES - len(NET))).net.options


# --- encodings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")],
)
def test_byte_order_marks_are_understood_by_default(mark: bytes, encoding: str) -> None:
    data = mark + f"{NET}# größe\r\n[convolutional]\r\nfilters=9".encode(encoding)
    assert lay_out(data).layers[0].filters == 9
    want = "line 1: a line stands before the first section" if encoding == "utf-8" else "is not a text file"
    assert want in refused(data, strict=True)


@BOTH
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_wide_text_without_a_mark_is_no_text(encoding: str, strict: bool) -> None:
    assert "is not a text file" in refused(NET.encode(encoding), strict)


@BOTH
def test_a_torn_wide_file_is_refused(strict: bool) -> None:
    assert refused(codecs.BOM_UTF32_LE + NET.encode("utf-32-le"), strict)
    assert refused(codecs.BOM_UTF16_LE + b"[", strict)


@BOTH
def test_bytes_of_another_encoding_pass_through(strict: bool) -> None:
    cfg = parse_cfg(b"[net]\n# gr\xf6\xdfe\nname=gr\xf6\xdfe\n", strict=strict)
    assert os.fsencode(cfg.net.options[0].value) == b"gr\xf6\xdfe"


# --- numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "whole", "real"),
    [
        ("64#c", 64, 64.0), (".1", 0, 0.1), ("1e-3", 1, 0.001), ("1e3", 1, 1000.0), ("0x10", 0, 16.0),
        ("3.9", 3, 3.9), ("-2", -2, -2.0), ("+2", 2, 2.0), ("abc", 0, 0.0), ("true", 0, 0.0), ("yes", 0, 0.0),
        ("inf", 0, math.inf), ("-Infinity", 0, -math.inf), ("1_000", 1, 1.0), ("1,000", 1, 1.0), ("", 0, 0.0),
        ("-", 0, 0.0), ("+-1", 0, 0.0), ("8=9", 8, 8.0), ("\x0c18", 18, 18.0), ("\xa018", 0, 0.0), ("5.", 5, 5.0),
        ("1e", 1, 1.0), ("1e+", 1, 1.0), ("0x", 0, 0.0), ("0x.8p1", 0, 1.0), ("1e400", 1, math.inf),
        ("2147483647", INT_MAX, 2147483647.0), ("2147483648", INT_MAX, 2147483648.0),
        ("-9999999999", INT_MIN, -9999999999.0),
        ("0" * 40 + "7", 7, 7.0), ("-" + "0" * 40 + "7", -7, -7.0), ("٣", 0, 0.0), ("ınf", 0, 0.0), ("３", 0, 0.0),
    ],
)  # fmt: skip
def test_numbers_are_what_atoi_and_atof_make_of_them(text: str, whole: int, real: float) -> None:
    assert atoi(text) == whole
    assert atof(text) == real


def test_not_a_number_is_a_float() -> None:
    assert math.isnan(atof("nan"))
    assert atoi("nan") == 0


@pytest.mark.parametrize("digits", ["9", "0", "1e9", "0x9"])
def test_megabytes_of_digits_are_read_at_once(digits: str) -> None:
    text = digits + "9" * MAX_BYTES
    assert atoi(text) in (0, 1, INT_MAX)
    assert to_float32(atof(text)) == math.inf


@BOTH
def test_typed_values_of_a_section(strict: bool) -> None:
    text = f"{NET}momentum=.9x\npolicy=steps\nsteps=10,,3.7,9#1,2\nscales=.1,,1e-1,0x1\n[conv]\nfilters=0x10\n"
    assert "filters=0 must be at least 1" in refused(text, strict)
    net = lay_out(text.replace("0x10", "4 # x"), strict).net
    assert (net.momentum, net.steps) == (to_float32(0.9), [10, 0, 3, 9])
    assert net.scales == [to_float32(0.1), 0.0, to_float32(0.1), 1.0]


@BOTH
def test_lists_stop_at_a_hash_only_where_darknets_do(strict: bool) -> None:
    conv = "[conv]\n[conv]\n[route]\nlayers=-1,-2#x,0\n"
    assert lay_out(NET + conv, strict).layers[2].layers == [1, 0, 0]
    head = "[conv]\nfilters=12\n[yolo]\nclasses=1\nnum=3\nanchors=1,1,2,2,3,3\nmask=0,1#,2\n"
    assert lay_out(NET + head, strict).layers[1].mask == [0, 1]
    assert lay_out(NET + head.replace("1#,2", "1 #,2"), strict).layers[1].mask == [0, 1]


# --- sections ----------------------------------------------------------------------------------------------------

ALIASES = {
    "conv": "convolutional", "conn": "connected", "max": "maxpool", "avg": "avgpool", "local_avg": "local_avgpool",
    "lrn": "normalization", "soft": "softmax", "silence": "empty",
}  # fmt: skip
MAIN = [
    "convolutional", "connected", "local", "maxpool", "avgpool", "local_avgpool", "reorg3d", "reorg", "route",
    "shortcut", "scale_channels", "sam", "activation", "upsample", "dropout", "normalization", "batchnorm", "softmax",
    "contrastive", "cost", "crop", "detection", "region", "yolo", "Gaussian_yolo", "rnn", "gru", "lstm", "crnn",
    "conv_lstm", "history", "implicit", "empty",
]  # fmt: skip


def test_every_section_name_of_darknet_is_known() -> None:
    assert set(MAIN) <= set(registry.all_types())
    assert {name: registry.canonical(name) for name in ALIASES} == ALIASES
    for name in ("deconv", "deconvolutional", "xnor", "l2norm", "logistic", "iseg", "gaussian_yolo", "net", "Yolo"):
        assert registry.find(name) is None, name


@BOTH
@pytest.mark.parametrize(("alias", "name"), [(a, n) for a, n in ALIASES.items() if n not in ("softmax",)])
def test_aliases_give_the_same_layer(alias: str, name: str, strict: bool) -> None:
    one, two = (lay_out(f"{NET}[{header}]\n", strict).layers[0] for header in (alias, name))
    assert type(one) is type(two)
    assert one.row() == two.row()


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ("[foo]", "a.cfg, line 5: layer 0: unknown section [foo]; no layer type looks like it"),
        ("[maxpol]", "unknown section [maxpol]; did you mean [maxpool]?"),
        ("[MaxPool]", "unknown section [MaxPool]; did you mean [maxpool]?"),
        ("[yolo", "unknown section [yolo; did you mean [yolo]?"),
        ("[yolo]#3", "unknown section [yolo]#3; did you mean [yolo]?"),
        ("[yolo]]", "unknown section [yolo]]; did you mean [yolo]?"),
        ("[gaussian_yolo]", "did you mean [Gaussian_yolo]?"),
        ("[net]", "unknown section [net]"),
        ("[", "unknown section [; no layer"),
        ("[]", "unknown section []; no layer"),
    ],
)
def test_an_unknown_section_is_an_error_by_default_and_an_empty_layer_in_strict(header: str, sentence: str) -> None:
    assert sentence in refused(f"{NET}{header}\n")
    structure = lay_out(f"{NET}{header}\nk=1\n", strict=True)
    (layer,) = structure.layers
    assert layer.notes.lines == [f"Type not recognized: {header}"]
    assert (layer.type, layer.out_w, layer.out_h, layer.out_c) == ("convolutional", 0, 0, 0)
    assert f"   0 Type not recognized: {header}" in table(structure)
    assert "must output image" in refused(f"{NET}{header}\n[conv]\n", strict=True)
    with pytest.raises(ConfigError, match="is unknown and cannot run"):
        layer.forward(None, None)


@pytest.mark.parametrize("end", [" # head", "\t#", " #]", " ## x [y]"])
def test_a_blank_and_hash_end_a_section_name_by_default(end: str) -> None:
    text = f"{NET}[avgpool]{end}\n"
    assert lay_out(text).layers[0].type == "avgpool"
    assert lay_out(text, strict=True).layers[0].notes.lines[0].startswith("Type not recognized: [avgpool]#")


@pytest.mark.parametrize(
    ("line", "default", "strict"),
    [
        ("activation=leaky # x", "leaky", "leaky#x"),
        ("activation = leaky\t#x # y", "leaky", "leaky#x#y"),
        ("activation=leaky#x", "leaky#x", "leaky#x"),
        ("activation=a b#c", "ab#c", "ab#c"),
        ("activation=leaky ; x", "leaky;x", "leaky;x"),
        ("activation#=1", None, None),
    ],
)
def test_a_blank_and_hash_end_a_value_by_default(line: str, default: str | None, strict: str | None) -> None:
    for want, mode in ((default, False), (strict, True)):
        option = parse_cfg(f"[net]\n{line}\n", strict=mode).net.find("activation")
        assert (option and option.value) == want


def test_a_comment_alone_is_no_value(caplog) -> None:
    cfg = parse_cfg("[net]\nbatch= # none\n", "a.cfg")
    assert cfg.net.options == []
    assert caplog.messages == ["a.cfg, line 2: batch= has no value and is ignored"]
    assert parse_cfg("[net]\nbatch= # none\n", strict=True).net.options[0].value == "#none"


@BOTH
def test_an_unknown_activation_is_relu_with_a_message(strict: bool, caplog) -> None:
    structure = lay_out(f"{NET}[conv]\nactivation=silly\n[conv]\nactivation=silly\n", strict)
    assert [layer.activation for layer in structure.layers] == ["relu", "relu"]
    assert table(structure).count("Couldn't find activation function silly, going with ReLU") == 2
    said = [] if strict else ["a.cfg, line 6: activation=silly is unknown, relu is used instead of it"]
    assert caplog.messages == said


@BOTH
def test_unused_keys_are_said_once_with_line_and_nearest_key(strict: bool, caplog) -> None:
    text = f"{NET}widht=3\nseen=1\n[conv]\nfilter=4\nfilters=4\nfilters=5\nSize=3\nzzz\n"
    shown = table(lay_out(text, strict))
    unused = ["filter = 4", "filters = 5", "Size = 3", "zzz = (null)"]
    assert [line for line in shown.split("\n") if "Unused" in line] == [f"Unused field: '{u}'" for u in unused]
    said = [
        "a.cfg, line 5: widht=3 is not used by [net]; did you mean width=?",
        "a.cfg, line 6: seen=1 is not used by [net]",
        "a.cfg, line 8: filter=4 is not used by [conv]; did you mean filters=?",
        "a.cfg, line 10: filters=5 is not used by [conv]",
        "a.cfg, line 11: Size=3 is not used by [conv]; did you mean size=?",
        "a.cfg, line 12: zzz is not used by [conv]",
    ]
    assert caplog.messages == ([] if strict else said)


def test_a_key_that_is_read_conditionally_is_unused_where_the_condition_fails(caplog) -> None:
    lay_out(f"{NET}policy=poly\nsteps=1\n[conv]\nangle=3\n")
    assert caplog.messages == [
        "a.cfg, line 6: steps=1 is not used by [net]", "a.cfg, line 8: angle=3 is not used by [conv]",
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["k{}=1", "k{}="])
def test_a_flood_of_odd_lines_is_not_listed_to_its_end(line: str, caplog) -> None:
    lay_out(NET + "[conv]\n" + "\n".join(line.format(i) for i in range(5000)))
    assert MAX_REMARKS <= len(caplog.messages) <= MAX_REMARKS + 1


# --- -set --------------------------------------------------------------------------------------------------------

THREE = f"{NET}[conv]\nfilters=1\n[avgpool]\n[convolutional]\n[conv]\nfilters=3\n"


@BOTH
@pytest.mark.parametrize(
    ("words", "filters"),
    [
        (["convolutional.filters=9"], [9, 9, 9]),
        (["conv.filters=9"], [9, 9, 9]),
        (["conv#0.filters=9"], [9, 1, 3]),
        (["convolutional#1.filters=9"], [1, 9, 3]),
        (["conv[2].filters=9", "conv[#1].filters=8"], [1, 8, 9]),
        (["conv.filters=9", "conv#2.filters=7"], [9, 9, 7]),
        (["conv.filters= 1 2 "], [12, 12, 12]),
        (["network.width=64", "net.filters=9"], [1, 1, 3]),
    ],
)
def test_overrides_reach_all_sections_or_the_nth(words: list[str], filters: list[int], strict: bool) -> None:
    structure = lay_out(THREE, strict, words)
    assert [layer.filters for layer in structure.layers if layer.type == "convolutional"] == filters
    assert structure.net.width == (64 if "width" in words[0] else 32)


def test_an_override_takes_the_place_of_the_first_of_equal_keys() -> None:
    structure = lay_out(f"{NET}[conv]\nfilters\nfilters=5\n", overrides=["conv.filters=9", "conv.filters=8"])
    assert structure.layers[0].filters == 8


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("yollo.classes=3", "-set names a section that a.cfg does not have ('yollo.classes=3')"),
        ("conv#3.filters=1", "does not have ('conv#3.filters=1'); it has 3 [convolutional] sections, counted from 0"),
        (f"conv#{'9' * 5000}.filters=1", "it has 3 [convolutional] sections, counted from 0"),
        ("conv.filters", "-set takes section.key=value or section#n.key=value ('conv.filters')"),
        ("conv.filters=", "-set takes section.key=value"),
        ("conv.filters= \t", "-set takes section.key=value"),
        ("filters=1", "-set takes section.key=value"),
        (".filters=1", "-set takes section.key=value"),
        ("conv#x.filters=1", "-set takes section.key=value"),
        ("conv#-1.filters=1", "-set takes section.key=value"),
        ("", "-set takes section.key=value or section#n.key=value (''); for example net.width=416"),
    ],
)
def test_overrides_that_meet_nothing(word: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        lay_out(THREE, overrides=[word])
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 3000


def test_an_override_with_a_wrong_key_is_said_with_its_words(caplog) -> None:
    lay_out(THREE, overrides=["conv#1.filter=9"])
    said = "a.cfg, -set conv#1.filter=9: filter=9 is not used by [convolutional]; did you mean filters=?"
    assert caplog.messages == [said]


# --- the corpus --------------------------------------------------------------------------------------------------

TEXT_DIFFERS = {
    "alexeyab/cspx-p7-mish": ("180", "180###P6"),
    "alexeyab/cspx-p7-mish_hp": ("180", "180###P6"),
    "alexeyab/efficientnet-lite3": ("40", "40#32"),
    "handmade/bom": (None, "line 1: a line stands before the first section"),
    "handmade/inline_comment_section": ("[yolo]", "[yolo]#head"),
    "handmade/inline_comment_string": ("leaky", "leaky#slope0.1"),
    "mobilenet-yolo/yoloface-500k-SE@2fde4dd": ("0.00025", "0.00025#2*gpulr=2*0.00025=0.001"),
}
"""Files of which the two modes read another text: the first difference (default, strict)."""
SIZES, UNKNOWN = "the sizes of a shortcut differ", "unknown section"
LAYOUT_DIFFERS = {
    "alexeyab/msr_34@e8dd9dd": (None, SIZES), "alexeyab/resnet101": (None, SIZES), "alexeyab/resnet152": (None, SIZES),
    "alexeyab/resnet152_yolo": (None, SIZES), "alexeyab/resnet50": (None, SIZES), "csp/resnet10": (None, SIZES),
    "alexeyab/resnet50_yolo": (None, SIZES), "alexeyab/resnext152-32x4d": (None, SIZES),
    "pjreddie/resnet18": (None, SIZES), "pjreddie/resnet34": (None, SIZES), "pjreddie/resnext50": (None, SIZES),
    "pjreddie/resnext101-32x4d": (None, SIZES), "pjreddie/resnext152-32x4d@f86901f": (None, SIZES),
    "handmade/shortcut_size_mismatch": (None, SIZES),
    "csp/csresnext50-elastic-panet-spp": ("width and height of the input layers are different", SIZES),
    "handmade/bom": (None, "before the first section"),
    "handmade/inline_comment_section": (None, None),
    "handmade/unclosed_section": (UNKNOWN, None), "handmade/unknown_section_last": (UNKNOWN, None),
    "handmade/upper_section": (UNKNOWN, None),
    "darkflow/person-bottle": (UNKNOWN, "needs 588"), "darkflow/yolo-tiny-extract": (UNKNOWN, "must output image"),
    "pytorch-yolov4/yolov4-tiny": (UNKNOWN, "must output image"),
    "spurslipu/yolov3-ghost-coco": (UNKNOWN, "must output image"),
    "spurslipu/yolov3-mobilenet-coco": (UNKNOWN, "must output image"),
}  # fmt: skip
"""Files of which the two modes lay out another network: part of what each says, None where it lays it out."""


def _outcome(work) -> tuple[object, str | None]:
    try:
        return work(), None
    except DarknetpyError as error:
        return None, str(error)


def _text(path, strict: bool) -> list[str | None]:
    sections = read_cfg(path, strict).sections
    return [text for s in sections for text in (s.header, *(t for o in s.options for t in (o.key, o.value)))]


def _layers(path, strict: bool) -> list[tuple]:
    layers = read_structure(path, strict, batch=1).layers
    return [(layer.type, layer.out_w, layer.out_h, layer.out_c, layer.parameters_stored) for layer in layers]


def _differing(read) -> dict[str, tuple]:
    shared("corpus", "cfg")
    found = {}
    for path in sorted(CORPUS.glob("*/*.cfg")):
        default, strict = (_outcome(lambda p=path, mode=mode: read(p, mode)) for mode in (False, True))
        if default != strict:
            found[str(path.relative_to(CORPUS).with_suffix(""))] = default, strict
    return found


def test_corpus_files_whose_text_differs_between_default_and_strict() -> None:
    found = _differing(_text)
    assert set(found) == set(TEXT_DIFFERS)
    for name, ((default, _), (strict, sentence)) in found.items():
        want = TEXT_DIFFERS[name]
        if sentence:
            assert want[1] in sentence
        else:
            assert next(pair for pair in zip(default, strict, strict=True) if pair[0] != pair[1]) == want


def test_corpus_files_whose_layout_differs_between_default_and_strict(tmp_path, monkeypatch) -> None:
    (tmp_path / "data").symlink_to(shared("corpus", "data", "alexeyab"))
    monkeypatch.chdir(tmp_path)
    found = _differing(_layers)
    assert set(found) == set(LAYOUT_DIFFERS)
    for name, ((_, default), (_, strict)) in found.items():
        for said, want in zip((default, strict), LAYOUT_DIFFERS[name], strict=True):
            assert (said is None) if want is None else (want in said), (name, said)
