"""The vectorised yolo losses against the slow reference, on random outputs, truths and options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from reference_yolo import Box, Reference, box_gradient

from darknetpy.errors import ConfigError
from darknetpy.losses import HeadLoss, LossContext, head_loss, printed
from darknetpy.losses.box import iou_gradient
from darknetpy.network import Network

NET_W, NET_H, CLASSES, ANCHORS = 40, 24, 3, (4, 4, 7, 12, 14, 7, 20, 20, 30, 10)
NUM = len(ANCHORS) // 2


def make_head(tmp_path, section: str = "yolo", mask=(1, 3, 4), **options):
    """A network of one head on a 5 x 3 grid, and its head."""
    extra = 9 if section == "Gaussian_yolo" else 5
    if "map" in options:
        (tmp_path / "map.list").write_text("\n".join(map(str, options["map"])))
        options["map"] = "map.list"
    lines = "\n".join(f"{name}={value}" for name, value in options.items())
    path = tmp_path / "net.cfg"
    path.write_text(
        f"[net]\nbatch=4\nwidth={NET_W}\nheight={NET_H}\nchannels=3\nmax_batches=100\n"
        f"[convolutional]\nfilters={len(mask) * (CLASSES + extra)}\nsize=1\nstride=8\nactivation=linear\n"
        f"[{section}]\nclasses={CLASSES}\nnum={NUM}\nmask={','.join(map(str, mask))}\n"
        f"anchors={','.join(map(str, ANCHORS))}\nmax=9\n{lines}\n"
    )
    network = Network(str(path), training=True)
    return network, network.structure.heads[0]


def make_scene(head, seed: int, batch: int = 2):
    """Random activated output and truths: some share cells, anchors and classes, one has a bad class, and some
    predictions lie close to a truth."""
    rng = np.random.default_rng(seed)
    gauss, h, w = head.type == "Gaussian_yolo", 3, 5
    at = 8 if gauss else 4
    out = rng.uniform(0.02, 0.98, (batch, head.n, at + 1 + CLASSES, h, w))
    out[:, :, at + 1 :] **= rng.choice([1, 4], (batch, head.n, 1, h, w))  # some predictions without a likely class
    sizes = [4, 6] if gauss else [2, 3]
    if not getattr(head.options, "new_coords", 0):
        out[:, :, sizes] = rng.normal(0, 0.6, (batch, head.n, 2, h, w))
    truth = np.zeros((batch, 9, 6))
    for b in range(batch):
        count = rng.integers(4, 8) if b else 7
        for m in range(count):
            truth[b, m] = [*rng.uniform(0.02, 0.98, 2), *rng.uniform(0.08, 0.9, 2), rng.integers(CLASSES), m + 1]
            if m and rng.random() < 0.5:  # the same place and shape as one before
                truth[b, m, :4] = truth[b, rng.integers(m), :4] * rng.choice([1.0, 1.01])
        truth[b, 2, 4] = CLASSES + 2
        truth[b, 8] = [0.5, 0.5, 0.5, 0.5, 1, 9]  # behind the end of the list
    _imitate(head, out, truth, rng)
    return out, truth


def _imitate(head, out, truth, rng) -> None:
    gauss, h, w = head.type == "Gaussian_yolo", 3, 5
    for b in range(len(out)):
        for x, y, tw, th, *_ in truth[b, :3]:
            k, i, j = rng.integers(head.n), int(x * w), int(y * h)
            aw, ah = head.anchors[2 * head.mask[k]], head.anchors[2 * head.mask[k] + 1]
            ratio = np.array([tw * NET_W / aw, th * NET_H / ah]) * rng.uniform(0.9, 1.1, 2)
            size = np.sqrt(ratio / 4) if getattr(head.options, "new_coords", 0) else np.log(ratio)
            out[b, k, [0, 2, 4, 6] if gauss else [0, 1, 2, 3], j, i] = [x * w - i, y * h - j, *size]


def run(network, head, out, truth, **context) -> HeadLoss:
    output = torch.from_numpy(out.reshape(len(out), -1, *out.shape[3:]).copy())
    given = LossContext(
        net_w=NET_W, net_h=NET_H, net=network.net, max_batches=100, batch=len(out), strict=True, **context
    )
    return head_loss(head, output, torch.from_numpy(truth), given)


def random_options(seed: int, gauss: bool = False) -> dict:
    """Any combination of options."""
    rng = np.random.default_rng(1000 + seed)

    def some(*values):
        return values[rng.integers(len(values))]

    options = {
        "iou_loss": some("mse", "iou", "giou", "diou", "ciou"),
        "iou_thresh": some(1, 1, 0.35, 0.1),
        "iou_thresh_kind": some("iou", "giou", "diou", "ciou"),
        "ignore_thresh": some(0.2, 0.5, 0.7),
        "truth_thresh": some(1, 1, 0.6),
        "objectness_smooth": some(0, 1),
        "label_smooth_eps": some(0, 0.1),
        "iou_normalizer": some(0.07, 0.75, 2),
        "obj_normalizer": some(1, 0.4),
        "cls_normalizer": some(1, 0.5),
    }
    if rng.random() < 0.4:
        options["counters_per_class"] = "10,40,0"
    if rng.random() < 0.4:
        options["max_delta"] = 0.3
    if rng.random() < 0.3:
        options["map"] = (2, 0, 0)
    if gauss:
        return options | {"uc_normalizer": some(1, 0.3), "yolo_point": some("center", "left_top", "right_bottom")}
    return options | {"focal_loss": some(0, 0, 1), "new_coords": some(0, 1), "show_details": some(0, 1)}


def assert_same(loss: HeadLoss, reference: Reference) -> None:
    shape = reference.delta.shape
    np.testing.assert_allclose(loss.delta.numpy().reshape(shape), reference.delta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_yolo_delta_is_the_references(tmp_path, seed):
    network, head = make_head(tmp_path, **random_options(seed))
    out, truth = make_scene(head, seed)
    reference = Reference(head, out, truth, NET_W, NET_H)
    assert_same(run(network, head, out, truth), reference)
    assert reference.counts["count"] >= 1


@pytest.mark.parametrize("seed", range(60))
def test_yolo_statistics_are_the_references(tmp_path, seed):
    network, head = make_head(tmp_path, **random_options(seed))
    out, truth = make_scene(head, seed)
    loss, counts = run(network, head, out, truth), Reference(head, out, truth, NET_W, NET_H).counts
    stats, o, squares = loss.numbers(), head.options, loss.delta.view(2, head.n, -1, 3, 5) ** 2
    classes = o.obj_normalizer * float(squares[:, :, 4:].sum())
    assert stats["count"] == counts["count"]
    assert (stats["total_bbox"], stats["rewritten_bbox"]) == (counts["boxes"], counts["rewritten"])
    assert stats["avg_iou"] == pytest.approx(counts["iou"] / counts["count"])
    assert stats["class_loss"] == pytest.approx(classes / 2)
    assert stats["total_loss"] == pytest.approx(float(squares.sum()) / 2)
    mean = o.iou_normalizer * counts["distance"] / counts["count"]
    expected = float(squares.sum()) if o.iou_loss == "mse" or not o.show_details else mean + classes
    assert float(loss.cost) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(40))
def test_gaussian_delta_is_the_references(tmp_path, seed):
    network, head = make_head(tmp_path, "Gaussian_yolo", **random_options(seed, gauss=True))
    out, truth = make_scene(head, seed)
    reference = Reference(head, out, truth, NET_W, NET_H)
    loss = run(network, head, out, truth)
    assert_same(loss, reference)
    assert loss.numbers()["avg_iou"] == pytest.approx(reference.counts["iou"] / reference.counts["count"])


@pytest.mark.parametrize("section", ["yolo", "Gaussian_yolo"])
@pytest.mark.parametrize("truth_thresh", [1, 0.6])
def test_the_adversarial_pass_hides_what_is_seen(tmp_path, section, truth_thresh):
    network, head = make_head(tmp_path, section, truth_thresh=truth_thresh)
    out, truth = make_scene(head, 5)
    reference = Reference(head, out, truth * 0, NET_W, NET_H, adversarial=True)
    assert_same(run(network, head, out, truth * 0, adversarial=True), reference)
    assert (reference.delta[:, :, -CLASSES:] > 0).any() == (section == "yolo")


def test_labels_are_those_of_best_anchors_and_the_last_truth_wins(tmp_path):
    for seed in range(8):
        network, head = make_head(tmp_path, iou_thresh=0.1, map=(1, 1, 2), embedding_layer=0)
        out, truth = make_scene(head, seed)
        loss, reference = run(network, head, out, truth), Reference(head, out, truth, NET_W, NET_H)
        np.testing.assert_array_equal(loss.labels.numpy(), reference.labels)
        np.testing.assert_array_equal(loss.classes.numpy(), reference.classes)


def test_heads_count_boxes_together(tmp_path):
    network, head = make_head(tmp_path)
    out, truth = make_scene(head, 1)
    shared: dict = {}
    once = run(network, head, out, truth, net_state=shared).numbers()
    again = run(network, head, out, truth, net_state=shared)
    assert again.numbers()["total_bbox"] == 2 * once["total_bbox"]
    assert printed([head], {head.index: again})[-1].startswith(f" total_bbox = {2 * once['total_bbox']:.0f}, ")


def test_no_truth_pushes_every_objectness_down_and_nothing_else(tmp_path):
    network, head = make_head(tmp_path, iou_loss="ciou")
    out, truth = make_scene(head, 3)
    loss = run(network, head, out, truth * 0)
    delta = loss.delta.view(2, head.n, -1, 3, 5)
    torch.testing.assert_close(delta[:, :, 4], torch.from_numpy(-out[:, :, 4]))
    assert not delta[:, :, [0, 1, 2, 3, 5, 6, 7]].any()
    assert loss.numbers()["count"] == 1  # Darknet divides by at least 1, and prints that
    assert printed([head], {head.index: loss})[-1].startswith("v3 (iou loss")


@pytest.mark.parametrize("kind", ["mse", "ciou"])
def test_broken_numbers_give_finite_deltas(tmp_path, kind):
    network, head = make_head(tmp_path, iou_loss=kind)
    out, truth = make_scene(head, 3)
    out[0, :, :, 1] = np.nan
    out[1, :, 2:4, 1] = 1000.0  # a box of infinite size
    truth[1, 0, 2:4] = 0
    assert torch.isfinite(run(network, head, out, truth).delta[:, :, :, 1]).all()


def test_truths_on_the_far_border_stay_inside(tmp_path):
    network, head = make_head(tmp_path, iou_thresh=0.01)
    out, truth = make_scene(head, 3)
    truth[:] = 0
    truth[0, 0] = [1.0, 1.0, 0.3, 0.3, 0, 1]
    delta = run(network, head, out, truth).delta.view(2, head.n, -1, 3, 5)
    assert delta[0, :, :4, 2, 4].any()
    delta[0, :, :4, 2, 4] = 0
    assert not delta[:, :, :4].any()


@pytest.mark.parametrize("kind", ["iou", "giou", "diou", "ciou"])
def test_box_gradients_are_the_references(kind):
    rng = np.random.default_rng(0)
    pred, truth = rng.uniform(0.01, 1, (400, 4)), rng.uniform(0.01, 1, (400, 4))
    pred[:20, 2:] = 0
    pred[20:40, :2] += 3  # apart along both axes
    pred[40:60] = truth[40:60]
    actual = iou_gradient(torch.from_numpy(pred), torch.from_numpy(truth), kind)
    expected = [box_gradient(Box(*p), Box(*t), kind) for p, t in zip(pred.tolist(), truth.tolist(), strict=True)]
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_iou_gradient_is_the_true_one_for_centres_and_twice_it_for_sizes():
    from darknetpy.boxes import iou

    rng = np.random.default_rng(2)
    pred = torch.tensor(rng.uniform(0.3, 0.7, (50, 4)), requires_grad=True)
    truth = torch.tensor(rng.uniform(0.3, 0.7, (50, 4)))
    true = torch.autograd.grad(iou(pred, truth).sum(), pred)[0]
    push = iou_gradient(pred.detach(), truth, "iou")
    torch.testing.assert_close(push, true * torch.tensor([1, 1, 2, 2]))


def test_filters_that_do_not_fit_are_named_with_layer_line_and_sum(tmp_path):
    path = tmp_path / "bad.cfg"
    path.write_text(
        "[net]\nwidth=32\nheight=32\nchannels=3\n\n[convolutional]\nsize=1\n# a comment\nfilters=60\n\n"
        "[yolo]\nmask=0,1,2\nclasses=7\nnum=3\nanchors=1,1, 2,2, 3,3\n"
    )
    with pytest.raises(ConfigError, match=r"layer 0, line 9: filters=60, needs 36 = \(7\+5\)\*3"):
        Network(str(path))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("mask=0,1,9", "mask=9 is outside num=5 anchors"),
        ("counters_per_class=1,2", "counters_per_class= has 2 numbers for classes=3"),
        ("anchors=1,1,2,2", "anchors= has 4 numbers, num=5 needs 10"),
    ],
)
def test_options_that_do_not_fit_are_named(tmp_path, line, complaint):
    make_head(tmp_path)
    name = line.split("=")[0]
    text = (tmp_path / "net.cfg").read_text().splitlines()
    kept = [part for part in text if not part.startswith(f"{name}=")]
    (tmp_path / "net.cfg").write_text("\n".join([*kept, line]))
    with pytest.raises(ConfigError, match=complaint):
        Network(str(tmp_path / "net.cfg"))
