"""Pictures shared out among replicas: what is found is what one finds alone, to the last digit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small import data_set
from together import together

COUNT = 7
"""Pictures: no multiple of any number of replicas tried here."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Pictures, `tiny.cfg`, and `tiny.weights` with random numbers that find much and reasonable boxes."""
    import torch

    from darknetpy.network import Network

    monkeypatch.chdir(tmp_path)
    data_set(tmp_path, COUNT)
    torch.manual_seed(3)
    network = Network("tiny.cfg")
    for _, spec, tensor in network.named_tensors():
        if spec.name == "rolling_variance":
            tensor.fill_(1.0)
    network.save_weights("tiny.weights")
    return tmp_path


def look(replicas, short: int | None = None) -> tuple[dict[str, np.ndarray], str, str] | None:
    """All that the replicas find: at the main one the columns of all detections, the report and the text of the result
    files. Memory is short for more than two pictures at replica `short`."""
    import torch

    from darknetpy.data.sets import open_data
    from darknetpy.evaluation import evaluation_images, report, run_evaluation
    from darknetpy.evaluation.evaluator import collect, shared_out
    from darknetpy.evaluation.valid import run_valid
    from darknetpy.inference import Detector

    data, detector = open_data("obj.data"), Detector("tiny.cfg", "tiny.weights", "obj.names")
    if replicas.rank == short:
        predict = detector.predict

        def refuse(batch, *rest):
            if len(batch) > 2:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            return predict(batch, *rest)

        detector.predict = refuse
    images = evaluation_images(data, detector)
    parts = shared_out(replicas, lambda: collect(detector, images, 3, False, replicas))
    text = report(run_evaluation(detector, images, batch=3, progress=False, replicas=replicas))
    files = run_valid(data, detector, f"{replicas.size}-{short}-", 3, replicas)
    replicas.close()
    if not replicas.main:
        return None
    table = parts[0].merge(parts[1:]).table()
    columns = {name: getattr(table, name) for name in ("image", "class_id", "prob", "overlap")}
    columns["place"] = table.boxes[table.box]
    return columns, text, "".join(Path(name).read_text() for name in files)


@pytest.mark.parametrize("count", [2, 3])
def test_replicas_find_what_one_finds(place, count):
    alone, several = together(1, look, {})[0], together(count, look, {})[0]
    assert len(alone[0]["prob"]) > COUNT and set(alone[0]["image"]) == set(range(COUNT))
    for name, column in alone[0].items():
        np.testing.assert_array_equal(several[0][name], column, name)
    assert several[1:] == alone[1:]


def test_an_unreadable_picture_is_missed_and_listed_once(place):
    Path("img/1.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    alone, several = together(1, look, {})[0], together(2, look, {})[0]
    assert several[1:] == alone[1:]
    assert Path("bad.list").read_text() == "img/1.png\n"


def test_short_memory_of_one_replica_changes_no_result(place):
    """Its batches are smaller then, so the last bits may differ."""
    several, short = together(2, look, {})[0], together(2, look, {"short": 1})[0]
    np.testing.assert_array_equal(short[0]["image"], several[0]["image"])
    np.testing.assert_allclose(np.sort(short[0]["prob"]), np.sort(several[0]["prob"]), rtol=1e-5)
    assert short[1] == several[1]


# --- the commands ----------------------------------------------------------------------------------------------------


def command(words: str, stdin: str = "", **files: str) -> tuple[str, str, int]:
    """Standard output without times, standard error without them, and the exit status."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "darknetpy", *words.split()], input=stdin, env=env, capture_output=True, text=True
    )
    out, err = (re.sub(r"(Predicted in|Detection Time:) .*", r"\1", text) for text in (done.stdout, done.stderr))
    return out, err, done.returncode


WORDS = "obj.data tiny.cfg tiny.weights -nogpu -quiet"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["map", "valid", "test"])
def test_the_commands_print_and_write_what_one_replica_does(place, name):
    paths = Path("list.txt").read_text()
    stdin = f"{paths}missing.png\n{paths}" if name == "test" else ""
    words = "-dont_show -ext_output -thresh .3 -out found.json -save_labels" if name == "test" else ""
    kept = ("found.json", "predictions.jpg", "img/0.txt", "results/comp4_det_test_cat.txt", "bad.list")
    seen = []
    for gpus in ("", "-gpus 0,1", "-gpus 0,1,2"):
        result = command(f"detector {name} {WORDS} {words} {gpus}", stdin)
        assert result[2] == 0, result[1]
        seen.append((result, {file: Path(file).read_bytes() for file in kept if Path(file).exists()}))
        for file in ("bad.list", "found.json"):
            Path(file).unlink(missing_ok=True)
    assert seen[0][0][0].strip()
    assert seen[1] == seen[0] and seen[2] == seen[0]
    assert len(seen[0][1]) == {"map": 1, "valid": 2, "test": 4}[name]


@pytest.mark.slow
def test_an_error_is_one_sentence(place):
    Path("tiny.weights").write_bytes(Path("tiny.weights").read_bytes()[:500])
    _, text, status = command(f"detector map {WORDS} -gpus 0,1")
    assert status == 1
    assert len([line for line in text.splitlines() if line.startswith("darknetpy: ")]) == 1, text
    Path("obj.names").write_text("cat\n")
    _, text, status = command(f"detector valid {WORDS} -gpus 0,1")
    assert status == 1 and "1 names, but classes=2" in text
