"""The vectorised region loss against the slow reference, on random outputs, truths, options and with a class tree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_region import RegionReference

from darknetpy.losses import HeadLoss, LossContext, head_loss, printed
from darknetpy.network import Network

CLASSES, ANCHORS, H, W = 6, (1, 1.5, 2, 1, 3, 2.5), 3, 5
TREE = "thing -1\nplace -1\ncat 0\ndog 0\ntabby 2\nblack 2\n"
"""Groups: thing, place; cat, dog; tabby, black."""


def make_head(tmp_path, tree: bool = False, **options):
    """A network of one region head on a 5 x 3 grid, and its head."""
    if tree:
        (tmp_path / "tree.txt").write_text(TREE)
        options["tree"] = "tree.txt"
    if "map" in options:
        (tmp_path / "map.list").write_text("\n".join(map(str, options["map"])))
        options["map"] = "map.list"
    lines = "\n".join(f"{name}={value}" for name, value in options.items())
    path = tmp_path / "net.cfg"
    path.write_text(
        f"[net]\nbatch=4\nwidth={8 * W}\nheight={8 * H}\nchannels=3\n"
        f"[convolutional]\nfilters={3 * (CLASSES + 5)}\nsize=1\nstride=8\nactivation=linear\n"
        f"[region]\nclasses={CLASSES}\nnum=3\ncoords=4\nanchors={','.join(map(str, ANCHORS))}\nmax=9\n{lines}\n"
    )
    network = Network(str(path), training=True)
    return network, network.structure.heads[0]


def make_scene(seed: int):
    """Random activated output (B, H, W, n, 5 + classes) and truths; some truths share a cell."""
    rng = np.random.default_rng(seed)
    out = rng.normal(0, 0.7, (2, H, W, 3, 5 + CLASSES))
    out[..., 4:] = rng.uniform(0.02, 0.98, out[..., 4:].shape)
    truth = np.zeros((2, 9, 6))
    for b in range(2):
        for m in range(6):
            truth[b, m, :5] = [*rng.uniform(0.05, 0.95, 2), *rng.uniform(0.1, 0.9, 2), rng.integers(CLASSES)]
            if m and rng.random() < 0.5:
                truth[b, m, :4] = truth[b, rng.integers(m), :4]
        truth[b, 3, 4] = CLASSES
        truth[b, 7, :4] = 0.5
    for b, (x, y, w, h, *_) in enumerate(truth[:, 0]):  # one prediction close to a truth
        i, j, k = int(x * W), int(y * H), b + 1
        size = np.log([w * W / ANCHORS[2 * k], h * H / ANCHORS[2 * k + 1]])
        inside = np.array([x * W - i, y * H - j])
        out[b, j, i, k, :4] = [*np.log(inside / (1 - inside)), *size]
    return out, truth


def run(network, head, out, truth, seen: int = 0) -> HeadLoss:
    output = torch.from_numpy(out.reshape(len(out), -1, H, W).copy())
    context = LossContext(net_w=8 * W, net_h=8 * H, net=network.net, batch=len(out), seen=seen)
    return head_loss(head, output, torch.from_numpy(truth), context)


def random_options(seed: int) -> tuple[dict, int]:
    rng = np.random.default_rng(seed + 500)

    def some(*values):
        return values[rng.integers(len(values))]

    options = {
        "tree": bool(rng.random() < 0.5), "classfix": some(-1, 0, 1, 2), "bias_match": some(0, 1),
        "rescore": some(0, 1), "focal_loss": some(0, 1), "thresh": some(0.3, 0.6), "coord_scale": some(1, 2),
        "object_scale": some(1, 5), "noobject_scale": some(1, 0.5), "class_scale": some(1, 0.7),
    }  # fmt: skip
    if rng.random() < 0.3:
        options["map"] = (5, 0, 1, 2, 2, 3)
    return options, some(0, 20000)


def compare(network, head, out, truth, seen: int) -> RegionReference:
    loss, reference = run(network, head, out, truth, seen), RegionReference(head, out, truth, seen)
    np.testing.assert_allclose(loss.delta.numpy().reshape(out.shape), reference.delta, rtol=1e-9, atol=1e-12)
    assert float(loss.cost) == pytest.approx((reference.delta**2).sum())
    stats, c = loss.numbers(), reference.counts
    many, classes = max(1, c["count"]), max(1, c["class_count"])
    assert stats == pytest.approx(
        {
            "avg_iou": c["iou"] / many,
            "class": c["likely"] / classes,
            "obj": c["obj"] / many,
            "no_obj": c["no_obj"] / out[..., 4].size,
            "recall": c["recall"] / many,
            "count": c["count"],
        }
    )
    return reference


@pytest.mark.parametrize("seed", range(60))
def test_delta_and_statistics_are_the_references(tmp_path, seed):
    options, seen = random_options(seed)
    out, truth = make_scene(seed)
    assert compare(*make_head(tmp_path, **options), out, truth, seen).counts["count"] >= 8


@pytest.mark.parametrize("classfix", [0, 1])
def test_an_image_with_a_class_but_no_box_trains_one_cell(tmp_path, classfix):
    network, head = make_head(tmp_path, tree=True, classfix=classfix)
    out, truth = make_scene(1)
    truth[1, 1] = [999999, 999999, 999999, 999999, 4, 0]
    reference = compare(network, head, out, truth, 0)
    assert not reference.delta[1, ..., :5].any()
    assert np.count_nonzero(reference.delta[1].any(-1)) == 1


def test_second_class_of_a_tree_keeps_the_groups_of_the_first(tmp_path):
    network, head = make_head(tmp_path, tree=True, bias_match=1)
    out, truth = make_scene(2)
    truth[:] = 0
    truth[0, :2, :4] = 0.5
    truth[0, :2, 4] = [4, 1]  # tabby, then place: the roots' group is written anew, the others stay
    delta = compare(network, head, out, truth, 20000).delta[0, 1, 2]
    written = np.abs(delta[:, 5:]).max(0)
    assert (written > 0).all()
    assert delta[:, 5 + 1].max() > 0 > delta[:, 5].min()


def test_nothing_to_divide_by_prints_zeros(tmp_path):
    network, head = make_head(tmp_path)
    out, truth = make_scene(1)
    loss = run(network, head, out, truth * 0)
    text = printed([head], {head.index: loss})
    assert text[0].startswith("Region Avg IOU: 0.000000, Class: 0.000000, Obj: 0.000000, No Obj: 0.")
    assert text[0].endswith("Avg Recall: 0.000000,  count: 0")
