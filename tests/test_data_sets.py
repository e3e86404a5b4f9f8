"""COCO, VOC and YOLO data sets: the same boxes as Darknet's label files, and one sentence for what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import data_set

from darknetpy.cli.main import main
from darknetpy.data import notes
from darknetpy.data.labels import labels_of
from darknetpy.data.sets import open_data
from darknetpy.data.sets.yaml import _Unusual, parse_yaml
from darknetpy.errors import DataError, MissingFileError

SIZE = {"width": 80, "height": 60}
BOX = [0.4375, 0.41666666, 0.375, 0.33333334]
"""The box of the small data set: pixels 20..50 by 15..35 of 80 x 60."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Six pictures `img/N.png` without label files, in the working directory."""
    monkeypatch.setattr(notes, "_told", set())
    monkeypatch.chdir(data_set(tmp_path))
    for label in (tmp_path / "img").glob("*.txt"):
        label.unlink()
    return tmp_path


def coco(images=range(6), folder="img/", **changes) -> dict:
    """A COCO file of the pictures; categories have ids 7 (cat) and 3 (dog), so that dog is class 0."""
    return {
        "images": [{"id": 100 + i, "file_name": f"{folder}{i}.png", **SIZE} for i in images],
        "annotations": [
            {"id": i, "image_id": 100 + i, "category_id": 3 if i % 2 else 7, "bbox": [20, 15, 30, 20]} for i in images
        ],
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
        **changes,
    }  # fmt: skip


def write(path: Path | str, content: object) -> str:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def voc_xml(name="cat", box=(20, 15, 50, 35), difficult=0, size=SIZE, extra="") -> str:
    """An annotation; VOC counts pixels from 1 and Darknet's script takes one from the centre only."""
    sides = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return (
        f"<annotation><filename>x.png</filename><size><width>{size['width']}</width><height>{size['height']}</height>"
        f"</size><object><name>{name}</name><difficult>{difficult}</difficult><part><name>head</name><bndbox>"
        f"<xmin>1</xmin></bndbox></part><bndbox>{sides}</bndbox></object>{extra}</annotation>"
    )


def seen(data, key="train") -> dict[str, list]:
    """What training reads: rows class, x, y, w, h by picture."""
    found = {}
    for path in data.listed(getattr(data, key) if key == "train" else data.valid(None)):
        labels = labels_of(path, annotations=data.annotations)
        found[os.path.basename(path)] = [
            [int(c), *map(float, b)] for c, b in zip(labels.classes, labels.boxes, strict=True)
        ]
    return found


def close(rows: list, expected: list) -> bool:
    return np.allclose(np.array(rows).reshape(-1, 5), np.array(expected).reshape(-1, 5), atol=1e-6)


# --- COCO --------------------------------------------------------------------------------------------------------


def test_coco_boxes_and_dense_classes(place):
    write("instances_train.json", coco(range(4)))
    write("instances_val.json", coco([4, 5], categories=[{"id": 1, "name": "dog"}, {"id": 7, "name": "cat"}]) | {
        "annotations": [{"image_id": 104, "category_id": 1, "bbox": [20, 15, 30, 20]}]})  # fmt: skip
    data = open_data("instances_train.json")
    assert data.class_names() == ["dog", "cat"]
    assert data.number("classes", 0) == 2
    assert data.backup == "backup"
    train, valid = seen(data), seen(data, "valid")
    assert list(train) == ["0.png", "1.png", "2.png", "3.png"]
    assert all(close(rows, [1 - i % 2, *BOX]) for i, rows in enumerate(train.values()))
    assert close(valid["4.png"], [0, *BOX])
    assert valid["5.png"] == []
    assert os.listdir(place / "img") == [f for f in os.listdir(place / "img") if f.endswith(".png")]


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("annotations/instances_train2017.json", "images/train2017"),
        ("annotations/instances_train2017.json", "images"),
        ("train/_annotations.coco.json", "train"),
        ("x.json", "images"),
        ("x.json", "x"),
    ],
)
def test_coco_pictures_are_found_where_people_keep_them(place, file, images):
    shutil.copytree("img", place / "set" / images)
    write(place / "set" / file, coco(folder=""))
    data = open_data(f"set/{file}")
    assert all(Path(path).parent == Path("set") / images for path in data.listed(data.train))
    if file != "x.json":
        assert open_data("set").listed(open_data("set").train) == data.listed(data.train)


def test_crowds_and_odd_boxes_are_left_out_and_said_once_each(place, caplog):
    content = coco(range(2))
    for change in ({"iscrowd": 1}, {"iscrowd": 1}, {"bbox": [1, 2, 3]}, {"bbox": [1, 2, None, 4]}, {"bbox": "x"},
                   {"image_id": 5}, {"category_id": 99}, {"bbox": [1e999, 1, 1, 1]}):  # fmt: skip
        content["annotations"].append({**content["annotations"][0], **change})
    write("a.json", content)
    assert {name: len(rows) for name, rows in seen(open_data("a.json")).items()} == {"0.png": 1, "1.png": 1}
    assert [m.removeprefix("a.json: ") for m in caplog.messages if "left out" in m] == [
        "4 boxes that are not four numbers are left out (annotations[4]: [1, 2, 3])",
        "1 boxes of a picture that `images` lacks are left out (annotations[7]: image_id 5)",
        "1 boxes of an unknown category are left out (annotations[8]: category_id 99)",
        "2 crowds (iscrowd=1) are left out",
    ]


def test_a_category_that_only_groups_others_is_no_class(place):
    groups = [{"id": 0, "name": "pets", "supercategory": "none"}]
    groups += [{"id": i, "name": name, "supercategory": "pets"} for i, name in ((3, "dog"), (7, "cat"), (9, "cow"))]
    write("a.json", coco(categories=groups))
    assert open_data("a.json").class_names() == ["dog", "cat", "cow"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"images": [],\n "annotations": [}', "a.json, line 2: is no JSON: Expecting value; save it again"),
        ("[" * 100_000, "a.json: is no JSON that can be read: maximum recursion depth"),
        ("[1, 2]", "a.json: is no COCO file of objects: `images` is not a list of objects; give the file"),
        ({"images": [], "annotations": []}, "`categories` is not a list of objects"),
        (coco(categories=[{"id": 1}]), "a.json: categories[0] needs an `id` and a `name` (\"{'id': 1}\"); add them"),
        (coco(images=[]), "a.json: has no images or no categories"),
        (coco(folder="no/such/"), "a.json: none of its 6 pictures is found ('no/such/0.png'); put them into"),
        (coco() | {"images": [{"id": 1, "file_name": "img/0.png"}]}, "has no picture with id, file_name, width and"),
        (coco() | {"images": [{"id": 10**400, "file_name": "img/0.png", **SIZE}]}, "has no picture with id"),
        (coco() | {"images": [{"id": 1, "file_name": "img/0.png", "width": 0, "height": -1}]}, "has no picture with"),
    ],
)
def test_a_damaged_coco_file_is_one_sentence(place, content, sentence):
    write("a.json", content)
    with pytest.raises(DataError) as caught:
        open_data("a.json")
    assert sentence in str(caught.value)


def test_a_class_of_the_second_file_that_the_first_lacks_is_an_error(place):
    write("a_train.json", coco(range(4)))
    write("a_val.json", coco([4, 5], categories=[{"id": 3, "name": "dog"}, {"id": 7, "name": "yak"}]))
    with pytest.raises(DataError, match=r"a_val.json: annotations\[0\] has a category that a_train.json doesn't name"):
        open_data("a_train.json")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["images", "annotations", "categories", "id", "file_name", "bbox", "name", "width", "height",
                 "image_id", "category_id", "iscrowd"]
            ), inner, max_size=4),
        max_leaves=12,
    )
)  # fmt: skip
def test_any_json_gives_a_data_set_or_a_clear_error(place, content):
    base = coco()
    write("a.json", {**base, **content} if isinstance(content, dict) else content)
    try:
        open_data("a.json")
    except DataError as error:
        assert "a.json" in str(error)


# --- VOC ---------------------------------------------------------------------------------------------------------


def voc(place, parts=None) -> Path:
    """`voc` in VOC's layout: cats and dogs in turn; the last picture also has a difficult dog."""
    root = place / "voc"
    shutil.copytree("img", root / "JPEGImages")
    extra = voc_xml("dog", difficult=1).split("</size>")[1].removesuffix("</annotation>")
    for i in range(6):
        write(root / f"Annotations/{i}.xml", voc_xml(("cat", "dog")[i % 2], extra=extra if i == 5 else ""))
    for name, lines in (parts or {}).items():
        write(root / f"ImageSets/Main/{name}.txt", lines)
    return root


def test_voc_layout_with_lists(place):
    voc(place, {"train": "0\n1\r\n2 1\n\n", "val": "4\n5\n", "cat_train": "0 1\n1 -1\n"})
    data = open_data("voc")
    assert data.class_names() == ["cat", "dog"]
    expected = [(20 + 50) / 2 - 1, (15 + 35) / 2 - 1, 30, 20] / np.array([80, 60, 80, 60])
    train = seen(data)
    assert list(train) == ["0.png", "1.png", "2.png"]
    assert all(close(rows, [i % 2, *expected]) for i, rows in enumerate(train.values()))
    assert [len(rows) for rows in seen(data, "valid").values()] == [1, 1]
    difficult = [len(data.annotations.difficult_labels(path)) for path in data.listed(data.valid(None))]
    assert difficult == [0, 1]


def test_trainval_goes_with_test_and_not_with_its_own_val(place):
    voc(place, {"trainval": "0\n1\n2\n", "val": "2\n", "test": "3\n"})
    data = open_data("voc")
    assert (list(seen(data)), list(seen(data, "valid"))) == (["0.png", "1.png", "2.png"], ["3.png"])


def test_xml_beside_pictures_and_parts_as_folders(place, caplog):
    shutil.copytree("img", "flat")
    write("flat/0.xml", voc_xml("zebra"))
    write("flat/1.xml", voc_xml("ant"))
    write("flat/lost.xml", voc_xml("ant").replace("x.png", "gone.png"))
    data = open_data("flat")
    assert (data.class_names(), list(seen(data))) == (["ant", "zebra"], ["0.png", "1.png"])
    assert data.valid(None) == data.train
    assert "1 XML files without a picture are left out (flat/lost.xml)" in caplog.text
    assert "those for training are taken" in caplog.text
    for part in ("train", "valid"):
        shutil.copytree("flat", f"parts/{part}")
    assert open_data("parts").valid(None) == "parts/valid"


def test_a_names_file_gives_the_order_of_classes(place):
    write(voc(place) / "classes.txt", "dog\ncat\n")
    assert open_data("voc").class_names() == ["dog", "cat"]
    write("voc/classes.txt", "cat\n")
    with pytest.raises(DataError, match=r"voc/classes.txt: lacks a class that the XML files use \('dog'\); add it"):
        open_data("voc")


def test_a_size_that_is_missing_is_taken_from_the_picture(place, caplog):
    write(voc(place) / "Annotations/0.xml", voc_xml(size={"width": 0, "height": 0}))
    train = seen(open_data("voc"))
    assert close(train["0.png"], train["2.png"])
    assert "without the size of the picture" in caplog.text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (voc_xml().replace("</bndbox></object>", "</object>"), "0.xml, line 1: is no XML: mismatched tag; save"),
        ("", "0.xml, line 1: is no XML: no element found; save it again"),
        ("<html>\n</html>", "0.xml, line 1: is no VOC annotation ('<html>'); the outermost element is <annotation>"),
        (voc_xml(box=("a", 1, 2, 3)), "line 1: <xmin> is no number ('a'); write pixels"),
        (voc_xml(box=("nan", 1, 2, 3)), "line 1: <xmin> is no number ('nan'); write pixels"),
        (voc_xml(box=("1e99", 1, 2, 3)), "line 1: <xmin> is no number ('1e99'); write pixels"),
        (voc_xml().replace("<ymax>35</ymax>", ""), "an object has no <ymax> ('cat'); add it or remove the object"),
        (voc_xml(name=""), "an object has no <name>; add it or remove the object"),
        ('<?xml version="1.0" encoding="klingon"?><annotation/>', "0.xml"),
        ('<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>\n<annotation>&b;</annotation>',
         "0.xml, line 2: declares a document type, which annotations have no need of; remove <!DOCTYPE ...>"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_xml_is_one_sentence(place, content, sentence):
    write(voc(place) / "Annotations/0.xml", content)
    with pytest.raises(DataError) as caught:
        open_data("voc")
    assert sentence in str(caught.value)


def test_a_document_type_is_refused_in_any_encoding(place):
    hostile = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY b "c">]><annotation/>'
    (voc(place) / "Annotations/0.xml").write_bytes(hostile.encode("utf-16"))
    with pytest.raises(DataError, match="declares a document type"):
        open_data("voc")


# --- YOLO --------------------------------------------------------------------------------------------------------


USUAL = """# train on COCO128
path: set   # dataset root
train: images/train
val: images/val
test:  # optional

# Classes
names:
  0: person
  1: "b: cd"   # quoted
  2: it's

download: |
  from x import y
  for d in z: print(d)
"""


def yolo(place, text: str, name: str = "set.yaml") -> str:
    for part, numbers in (("train", (0, 1, 2)), ("val", (3, 4))):
        for i in numbers:
            (place / f"set/images/{part}").mkdir(parents=True, exist_ok=True)
            shutil.copy(f"img/{i}.png", place / f"set/images/{part}/{i}.png")
            write(place / f"set/labels/{part}/{i}.txt", f"{i % 2} .5 .5 .25 .25\n")
    return write(place / name, text)


def test_yaml_of_the_usual_shape_without_pyyaml(place, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "yaml", None)
    data = open_data(yolo(place, USUAL))
    assert data.class_names() == ["person", "b: cd", "it's"]
    assert seen(data) == {f"{i}.png": [[i % 2, 0.5, 0.5, 0.25, 0.25]] for i in range(3)}
    assert list(seen(data, "valid")) == ["3.png", "4.png"]
    assert caplog.text.count("where Darknet looks") == 1


@pytest.mark.parametrize(
    "text",
    [
        "train: set/images/train\nval: set/images/val\nnc: 2\nnames: ['a', \"b\"]\n",
        "train: ../set/images/train\nval: ../set/images/val\nnames:\n- a\n- b\n",
        "{root}path: /nowhere\ntrain: {here}/set/images/train\nval: {here}/set/images/val\nnames: {{0: a, 1: b}}\n",
        "path: ./set\ntrain: train.txt\nval: [images/val]\nnames: [a,\n  b]  # two lines\n",
        "---\npath: set\r\ntrain:\r\n  - images/train\r\nval: 'images/val'\r\nnames: [ a , b, ]\r\n",
    ],
)
def test_shapes_of_yaml(place, text):
    write("set/train.txt", "./images/train/0.png\n./images/train/1.png\nimages/train/2.png\n")
    data = open_data(yolo(place, text.format(here=place, root="") if "{here}" in text else text))
    assert data.class_names() == ["a", "b"]
    assert list(seen(data)) == ["0.png", "1.png", "2.png"]
    assert [rows[0][0] for rows in seen(data).values()] == [0, 1, 0]
    assert list(seen(data, "valid")) == ["3.png", "4.png"]


def test_a_folder_with_a_data_yaml_and_several_parts(place):
    yolo(place, "train: [images/train, images/val]\nval: images/val\nnames: [a, b]\n", "set/data.yaml")
    data = open_data("set")
    assert (len(seen(data)), len(seen(data, "valid"))) == (5, 2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("val: set/images/val\nnames: [a]\n", "a.yaml: has no train:; add the folder or list"),
        (
            "train: set/images/train\n",
            "a.yaml: names: is neither a list nor a mapping of names; write names: [cat, dog]",
        ),
        ("train: set/images/train\nnames: {0: a, 2: b}\n", "a.yaml: names: has 2 entries, but no 1; count from 0 on"),
        ("train: set/images/train\nnc: 3\nnames: [a, b]\n", "a.yaml: has 2 names ('nc: 3'); make them equal"),
        ("train: set/nowhere\nnames: [a]\n", "a.yaml: train: names neither a folder nor a list ('set/nowhere')"),
        ("train: set/labels\nnames: [a]\n", "a.yaml: train: has no picture ('set/labels')"),
        ("train: [a,\n", "a.yaml, line 1: is written in a part of YAML that is not understood here; write"),
        ("a: &b 1\nc: *b\n", "a.yaml, line 1: is written in a part of YAML"),
        ("train: x\n  - y\n", "a.yaml, line 2: is written in a part of YAML"),
    ],
)
def test_an_unusable_yaml_is_one_sentence(place, text, sentence, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    yolo(place, text, "a.yaml")
    with pytest.raises(DataError) as caught:
        open_data("a.yaml")
    assert sentence in str(caught.value)


def test_what_the_subset_reads_pyyaml_reads_too():
    yaml = pytest.importorskip("yaml")
    for text in (USUAL, "names: [a, 'b''c', \"d\\\"e\"]\n", "a: b # c\nd: 'e # f'\ng: h#i\nj: http://x/y\n"):
        mine, theirs = parse_yaml(text), yaml.safe_load(text)
        for key, value in mine.items():
            if value != "":
                other = theirs[key]
                assert value == ({str(k): v for k, v in other.items()} if isinstance(other, dict) else other)


@settings(max_examples=300, deadline=None)
@given(st.text("ab01:-#[]{},'\"\\|>&* \n\t", max_size=60))
def test_any_text_is_read_or_left_to_the_library(text):
    try:
        found = parse_yaml(text)
    except _Unusual as unusual:
        assert 1 <= unusual.line <= text.count("\n") + 1
    else:
        assert all(isinstance(key, str) for key in found)


# --- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no.json", "no.yaml", "no.data"])
def test_a_missing_file_is_darknets_sentence(place, name):
    with pytest.raises(MissingFileError, match=f"^Couldn't open file: {name}$"):
        open_data(name)


def test_a_folder_without_a_data_set_says_what_is_taken(place):
    with pytest.raises(DataError, match=r"img: is a folder without a data set in it; DATA is a \.data file, COCO"):
        open_data("img")


QUIET = ["-nogpu", "-workers", "0", "-dont_show", "-quiet"]


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo"])
def test_commands_take_data_sets_in_place_of_a_data_file(place, kind, capfd):
    names = "[a, b]"
    given = {
        "coco": lambda: write("set.json", coco()),
        "voc": lambda: str(voc(place)),
        "yolo": lambda: yolo(place, f"path: set\ntrain: images/train\nval: images/val\nnames: {names}\n"),
    }[kind]()
    assert main(["detector", "train", given, "tiny.cfg", "-map", *QUIET]) == 0
    assert (place / "backup/tiny_best.weights").exists()
    assert main(["detector", "map", given, "tiny.cfg", "backup/tiny_final.weights", *QUIET[-1:], "-nogpu"]) == 0
    assert "mean average precision (mAP@0.50)" in capfd.readouterr().out
    assert main(["detector", "calc_anchors", given, "-num_of_clusters", "2", "-width", "64", "-height", "64"]) == 0
    assert not (place / "bad.list").exists()
