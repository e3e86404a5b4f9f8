"""Random numbers of the loader: what they depend on and how they are distributed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from conftest import golden
from small import CFG, data_set

from darknetpy.data.detection import Batch
from darknetpy.data.draws import MOSAIC, NONE, Augmentation, draw
from darknetpy.data.loader import Loader
from darknetpy.data.sampling import Request, Sampler, sequence_index
from darknetpy.training import train

RICH = Augmentation(
    jitter=0.3, resize=1.5, hue=0.1, saturation=1.5, exposure=1.4, blur=7, noise=20, mode=MOSAIC, classes=2
)  # fmt: skip
REQUEST = Request(iteration=7, chunk=1, width=96, height=64, count=8)


def indexes(sampler: Sampler, request: Request, row: int, passes: int = 1) -> list[int]:
    return [next(choice) for choice in sampler.choices(request, row, passes)]


def drawn(sampler: Sampler, request: Request, row: int) -> str:
    return repr((sampler.draws(request, row, NONE, [3]), sampler.cut(request, row), indexes(sampler, request, row, 4)))


def test_draws_depend_on_seed_iteration_and_row_alone():
    sampler = Sampler(100, RICH, seed=3)
    assert drawn(sampler, REQUEST, 2) == drawn(Sampler(100, RICH, seed=3), REQUEST, 2)
    wider = replace(REQUEST, width=REQUEST.width, chunk=0, count=16)
    assert drawn(sampler, REQUEST, 2) == drawn(sampler, wider, 10), "row 2 of mini-batch 1 of 8 is row 10 of the turn"
    others = [drawn(Sampler(100, RICH, seed=4), REQUEST, 2), drawn(sampler, replace(REQUEST, iteration=8), 2)]
    others += [drawn(sampler, replace(REQUEST, chunk=0), 2), drawn(sampler, REQUEST, 3)]
    assert len({drawn(sampler, REQUEST, 2), *others}) == 5


def test_half_of_the_mini_batches_are_mosaics():
    sampler = Sampler(100, RICH)
    modes = Counter(sampler.mode(replace(REQUEST, iteration=i // 4, chunk=i % 4)) for i in range(2000))
    assert 900 < modes[MOSAIC] < 1100
    assert modes[MOSAIC] + modes[NONE] == 2000


def test_cut_lies_between_one_and_four_fifths():
    cuts = np.array([Sampler(9, RICH).cut(replace(REQUEST, iteration=i), 0) for i in range(3000)])
    assert (cuts.min(0).tolist(), cuts.max(0).tolist()) == ([19, 12], [76, 51])


def test_draws_have_darknets_ranges():
    rng = np.random.default_rng(0)
    draws = [draw(rng, RICH, True, 4) for _ in range(3000)]
    assert Counter(d.blur for d in draws).keys() == {0, 1, 7}
    assert Counter(d.noise for d in draws).keys() == {0, 20}
    assert -0.1 <= min(d.dhue for d in draws) < -0.099 < 0.099 < max(d.dhue for d in draws) <= 0.1
    for values, most in (([d.dsat for d in draws], 1.5), ([d.dexp for d in draws], 1.4)):
        assert 1 / most - 1e-6 <= min(values) < max(values) <= most + 1e-6
        assert 1300 < sum(v > 1 for v in values) < 1700
    for name in ("flip", "move"):
        assert 1300 < sum(getattr(d, name) for d in draws) < 1700
    assert {len(d.shuffle) for d in draws} == {4}
    assert {int(j) for d in draws for j in d.shuffle} == {0, 1, 2, 3}


def test_what_is_off_is_not_drawn():
    rng = np.random.default_rng(0)
    for _ in range(50):
        d = draw(rng, Augmentation(flip=False), False, 0)
        assert (d.flip, d.move, d.dhue, d.dsat, d.dexp, d.blur, d.noise, d.shuffle) == (0, 0, 0, 1, 1, 0, 0, None)


# --- sequences and pairs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["19_track", "28_mosaic_blur_track"])
def test_pictures_of_a_sequence_are_darknets(name):
    cases = {case["name"]: case for case in json.loads(golden("augment", "end_to_end", "cases.json").read_text())}
    case = cases[name]
    timelines = case["options"]["mini_batch"]
    for one_pass in case["passes"]:
        expected = one_pass["path_indexes"]
        found = [
            sequence_index(expected[:timelines], one_pass["speed"], i, len(case["paths"])) for i in range(len(expected))
        ]
        assert found == expected


def test_a_sequence_runs_through_its_mini_batches_with_the_same_draws():
    options = Augmentation(jitter=0.3, hue=0.1, track=True, speed=3, time_steps=4)
    sampler = Sampler(1000, options, seed=1)
    requests = [Request(0, chunk, 64, 64, count=8, span=2) for chunk in range(4)]
    for first, second in (requests[:2], requests[2:]):
        both = [(first, row) for row in range(8)] + [(second, row) for row in range(8)]
        pictures = [indexes(sampler, request, row)[0] for request, row in both]
        for timeline in (0, 1):
            steps = {(b - a) % 1000 for a, b in zip(pictures[timeline::2], pictures[timeline + 2 :: 2], strict=False)}
            assert len(steps) == 1
            assert steps <= {1, 2, 3}
        draws = [sampler.draws(request, row, NONE, [0])[0] for request, row in both]
        assert len({repr((d.q, d.r, d.flip, d.dhue)) for d in draws}) == 1
    assert sampler.draws(requests[0], 0, NONE, [0])[0].r != sampler.draws(requests[2], 0, NONE, [0])[0].r


@pytest.mark.parametrize(
    ("keys", "span"), [("", 1), ("sequential_subdivisions=1", 2), ("sequential_subdivisions=9", 1)]
)
def test_sequences_of_a_training_stretch_over_its_sub_batches(tmp_path, monkeypatch, keys, span):
    """Darknet cuts a batch in `sequential_subdivisions` chunks, each with timelines of its own."""
    monkeypatch.chdir(
        data_set(tmp_path, cfg=CFG.replace("channels=3", f"channels=3\ntrack=1\naugment_speed=1\n{keys}"))
    )
    turns: list[list[Batch]] = []
    turn = Loader.turn

    def watched(self, *requests):
        turns.append(turn(self, *requests))
        return turns[-1]

    monkeypatch.setattr(Loader, "turn", watched)
    train("obj.data", "tiny.cfg", workers=0, rehearse=False, sinks=[])
    assert {batch.request.span for batches in turns for batch in batches} == {span}
    for first, second in turns:
        begun = [int(path[4:-4]) for path in first.paths]
        then = [int(path[4:-4]) for path in second.paths]
        assert len(begun) == len(then) == 2
        assert span == 1 or [(a + 1) % 6 for a in begun] == then


@pytest.mark.parametrize("jitter", [False, True])
@pytest.mark.parametrize("color", [False, True])
def test_contrastive_pairs_share_the_picture_and_what_they_are_not_asked_to_differ_in(jitter, color):
    options = replace(RICH, contrastive=True, contrastive_jit_flip=jitter, contrastive_color=color)
    sampler = Sampler(1000, options)
    pairs = [(row, row + 1) for row in range(0, 8, 2)]
    for first, second in pairs:
        assert indexes(sampler, REQUEST, first, 4) == indexes(sampler, REQUEST, second, 4)
        a, b = (sampler.draws(REQUEST, row, NONE, [3])[0] for row in (first, second))
        assert (a.r == b.r) is not jitter
        assert ((a.dhue, a.dsat, a.dexp) == (b.dhue, b.dsat, b.dexp)) is not color
        assert a.q != b.q
    assert len({tuple(indexes(sampler, REQUEST, first, 4)) for first, _ in pairs}) == len(pairs)


def test_there_are_always_other_pictures_to_try():
    for choice in Sampler(10, RICH).choices(REQUEST, 0, 4):
        assert set(islice(choice, 200)) == set(range(10))
