"""`.data` files, name files, lists, and the way from an image to its labels."""

from __future__ import annotations

import json
import os

import pytest
from conftest import golden

from darknetpy.config.datafile import label_path, read_data, read_list, read_names
from darknetpy.errors import DataError, MissingFileError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory `here`, beside which other folders can be made."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return tmp_path


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


# --- label paths -------------------------------------------------------------------------------------------------


def test_label_paths_and_messages_are_darknets(caplog):
    for case in json.loads(golden("augment", "labels_path", "table.json").read_text()):
        caplog.clear()
        found = label_path(case["image"], strict=True)
        said = "".join(f"{record.getMessage()}\n" for record in caplog.records)
        assert (found, said) == (case["label"], case["stderr"]), case["image"]


def test_existing_labels_at_darknets_place_are_taken(folder):
    image = folder / "set" / "images" / "a.jpg"
    write(image.with_suffix(".txt"), "")
    write(folder / "set" / "labels" / "a.txt", "")
    assert label_path(str(image)) == str(image.with_suffix(".txt"))


def test_generic_labels_folder_is_a_fallback(folder):
    image = folder / "images" / "set" / "images" / "deep" / "a.jpg"
    labels = write(folder / "images" / "set" / "labels" / "deep" / "a.txt", "")
    assert label_path(str(image)) == labels
    assert label_path(str(image), strict=True) == str(image.with_suffix(".txt"))


def test_generic_labels_folder_of_a_relative_path(folder):
    write(folder / "here" / "labels" / "a.txt", "")
    assert label_path("images/a.png") == "labels/a.txt"


def test_labels_beside_the_image_where_darknet_looks_elsewhere(folder):
    image = folder / "JPEGImages" / "a.jpg"
    labels = write(image.with_suffix(".txt"), "")
    assert label_path(str(image)) == labels


@pytest.mark.parametrize("name", ["a.webp", "a.Jpg", "a.tif", "a.b.gif"])
def test_other_suffixes_have_labels_too_unless_strict(folder, name, caplog):
    assert label_path(f"data/{name}") == f"data/{name.rsplit('.', 1)[0]}.txt"
    assert not caplog.records
    assert label_path(f"data/{name}", strict=True) == f"data/{name}"
    assert "Failed to infer label file name" in caplog.text


# --- .data files -------------------------------------------------------------------------------------------------


def test_data_file_keys(folder):
    path = write(
        folder / "here" / "a.data", "# comment\n; too\n\nclasses = 3\r\ntrain=t.txt\ntrain = other.txt\nnames=n=1\n"
    )
    data = read_data(path)
    assert (data.number("classes", 1), data.train, data.names) == (3, "t.txt", "n=1")


def test_defaults_are_said_once(folder, caplog):
    data = read_data(write(folder / "here" / "a.data", "train = t.txt\n"))
    values = [data.names, data.names, data.backup, data.results, data.number("savelast", 100), data.valid(None)]
    assert values == ["data/names.list", "data/names.list", "/backup/", "results", 100, None]
    assert caplog.messages == [
        "names: Using default 'data/names.list'",
        "backup: Using default '/backup/'",
        "results: Using default 'results'",
        "savelast: Using default '100'",
    ]


def test_a_key_without_equals_or_value_is_absent(folder, caplog):
    data = read_data(write(folder / "here" / "a.data", "backup\nresults=\nresults=out\n"))
    assert (data.backup, data.results) == ("/backup/", "out")
    assert "Config file error line 2, could parse: results" in caplog.messages


def test_blanks_inside_a_value_are_kept_unless_strict(folder):
    path = write(folder / "here" / "a.data", " train =  my pictures/train.txt \n")
    assert read_data(path).get("train") == "my pictures/train.txt"
    assert read_data(path, strict=True).get("train") == "mypictures/train.txt"


def test_paths_are_looked_for_beside_the_data_file_but_first_in_the_working_directory(folder):
    write(folder / "set" / "train.txt", "x")
    path = write(folder / "set" / "a.data", "train = train.txt\n")
    assert read_data(path).train == str(folder / "set" / "train.txt")
    assert read_data(path, strict=True).train == "train.txt"
    write(folder / "here" / "train.txt", "x")
    assert read_data(path).train == "train.txt"


# --- lists and names ---------------------------------------------------------------------------------------------


def test_list_without_carriage_returns_and_blank_lines(folder):
    path = write(folder / "here" / "l.txt", b"\xef\xbb\xbfa b.jpg\r\n\r\n  \nd/c.jpg \nlast.jpg")
    assert read_list(path) == ["a b.jpg", "d/c.jpg", "last.jpg"]


def test_list_entries_are_found_in_cwd_beside_the_list_and_beside_the_data_file(folder):
    write(folder / "here" / "one" / "a.jpg", "")
    write(folder / "lists" / "two" / "b.jpg", "")
    write(folder / "set" / "three" / "c.jpg", "")
    absolute = write(folder / "four" / "d.jpg", "")
    path = write(
        folder / "lists" / "l.txt", f"{absolute}\none/a.jpg\ntwo/missing.jpg\ntwo/b.jpg\nthree/c.jpg\nnone/e.jpg\n"
    )
    assert read_list(path, str(folder / "set")) == [
        absolute,
        "one/a.jpg",
        str(folder / "lists" / "two" / "missing.jpg"),
        str(folder / "lists" / "two" / "b.jpg"),
        str(folder / "set" / "three" / "c.jpg"),
        "none/e.jpg",
    ]


def test_list_written_for_the_root_of_its_project_is_understood_elsewhere(folder):
    image = write(folder / "project" / "data" / "set" / "a.jpg", "")
    path = write(folder / "project" / "data" / "lists" / "l.txt", "data/set/a.jpg\n")
    assert read_list(path) == [image]


def test_names_of_which_blank_last_lines_are_none(folder):
    assert read_names(write(folder / "n", "cat\r\n\ndog\t\n\n\n")) == ["cat", "", "dog"]


def test_utf16_names(folder):
    assert read_names(write(folder / "n", "кот\nпёс\n".encode("utf-16"))) == ["кот", "пёс"]
    assert len(read_names(write(folder / "odd", "кот\n".encode("utf-16") + b"\xd8"))) == 2


def test_names_in_another_encoding_survive_a_round_trip(folder):
    (name,) = read_names(write(folder / "n", b"caf\xe9\n"))
    assert os.fsencode(name) == b"caf\xe9"


@pytest.mark.parametrize("read", [read_data, read_names, read_list])
def test_missing_file_is_darknets_sentence(folder, read):
    with pytest.raises(MissingFileError, match=r"^Couldn't open file: no/such\.file$"):
        read("no/such.file")


@pytest.mark.parametrize("read", [read_data, read_names, read_list])
def test_binary_files_folders_and_endless_files_are_refused(folder, read, monkeypatch):
    with pytest.raises(DataError, match="is not a text file"):
        read(write(folder / "b", b"\x89PNG\0\0"))
    with pytest.raises(DataError, match="is a folder"):
        read(str(folder))
    monkeypatch.setattr("darknetpy.config.datafile._PIPE_BYTES", 1000)
    with pytest.raises(DataError, match="far longer than any list"):
        read("/dev/zero")


def test_empty_list_is_an_error(folder):
    with pytest.raises(DataError, match="lists no image"):
        read_list(write(folder / "l", "\r\n \n"))


def test_reading_these_files_does_not_import_torch_or_opencv():
    import subprocess
    import sys

    code = "import sys, darknetpy.config.datafile; sys.exit(any(m in sys.modules for m in ('torch._C', 'cv2')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
