"""[softmax], [cost], [detection] and [contrastive]: rules that the reference cases leave open."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from darknetpy.errors import ConfigError
from darknetpy.losses import LossContext, head_loss, printed, propagated
from darknetpy.losses.base import HeadLoss
from darknetpy.network import Network


def network_of(tmp_path, *sections: str, size=(4, 4), channels=3, net=""):
    path = tmp_path / "net.cfg"
    path.write_text(
        f"[net]\nbatch=2\nwidth={size[0]}\nheight={size[1]}\nchannels={channels}\n{net}\n" + "\n".join(sections)
    )
    return Network(str(path), training=True)


def context(network, **values) -> LossContext:
    return LossContext(net_w=4, net_h=4, net=network.net, batch=2, **values)


def test_factors_that_go_back_are_darknets(tmp_path):
    conv = "[convolutional]\nfilters=6\nsize=1\nstride=1\nactivation=linear\n"
    network = network_of(
        tmp_path, conv, "[yolo]\nclasses=1\nnum=1\nanchors=2,2\ndelta_normalizer=0.5\n",
        "[route]\nlayers=-2\n[convolutional]\nfilters=10\nsize=1\nactivation=linear\n",
        "[Gaussian_yolo]\nclasses=1\nnum=1\nanchors=2,2\ndelta_normalizer=0.5\n",
        "[route]\nlayers=-2\n[softmax]\n[cost]\nscale=3\n", net="loss_scale=8",
    )  # fmt: skip
    factors = {layer.type: propagated(layer, network.net) for layer in network.structure.heads}
    assert factors == {"yolo": 4.0, "Gaussian_yolo": 0.5, "softmax": 8.0, "cost": 3.0}


def test_a_head_that_only_goes_forward_has_no_loss(tmp_path):
    conv = "[convolutional]\nfilters=6\nsize=1\nstride=1\nactivation=linear\n"
    network = network_of(tmp_path, conv, "[yolo]\nclasses=1\nnum=1\nanchors=2,2\nonlyforward=1\n")
    head = network.structure.heads[0]
    truth = torch.tensor([[[0.5, 0.5, 0.5, 0.5, 0, 1]]]).repeat(2, 1, 1)
    loss = head_loss(head, torch.rand(2, 6, 4, 4), truth, context(network))
    assert not loss.delta.any() and not loss.cost
    assert printed([head], {head.index: loss}) == []


def test_softmax_never_gives_an_infinite_cost(tmp_path):
    network = network_of(tmp_path, "[softmax]", size=(1, 1), channels=3)
    head = network.structure.heads[0]
    output, truth = torch.tensor([[0.0, 0.25, 0.75], [0.5, 0.5, 0.0]]), torch.tensor([[1.0, 0, 0], [0.0, 0.3, 0]])
    loss = head_loss(head, output, truth, context(network))
    torch.testing.assert_close(loss.delta, truth - output)
    assert float(loss.cost) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny) - math.log(0.5))


def test_targets_that_say_nothing_are_left_out(tmp_path):
    network = network_of(tmp_path, "[cost]\ntype=masked\n", size=(1, 1), channels=3)
    head = network.structure.heads[0]
    x, truth = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, -1234.0, 4.0]])
    loss = head_loss(head, x, truth, context(network, input=x))
    assert loss.delta.tolist() == [[-0.5, 0.0, 1.0]]
    assert float(loss.cost) == pytest.approx(1.25)


# --------------------------------------------------------------------------------------------------------- detection

DETECTION = (
    "[detection]\nclasses=2\ncoords=4\nnum=2\nside=1\nobject_scale=1\nnoobject_scale=.5\nclass_scale=1\ncoord_scale=5\n"
)


def detect(tmp_path, extra: str, boxes, truth, seen=0):
    network = network_of(tmp_path, DETECTION + extra, size=(1, 1), channels=12)
    head = network.structure.heads[0]
    output = torch.tensor([[0.2, 0.7, 0.4, 0.6, *boxes[0], *boxes[1]]])
    given = LossContext(net_w=1, net_h=1, net=network.net, batch=1, seen=seen)
    return head_loss(head, output, torch.tensor([truth]), given).delta[0]


TRUTH = [1.0, 0, 1, 0.5, 0.5, 0.4, 0.4]


def test_the_box_with_the_best_overlap_is_responsible(tmp_path):
    delta = detect(tmp_path, "", [(0.1, 0.1, 0.2, 0.2), (0.5, 0.5, 0.3, 0.4)], TRUTH)
    expected = [-0.2, 0.3, -0.2, 0.4, 0, 0, 0, 0, 0, 0, 0.5, 0]
    np.testing.assert_allclose(delta, expected, atol=1e-6)


def test_without_overlap_the_nearest_box_is_responsible(tmp_path):
    delta = detect(tmp_path, "", [(0.1, 0.1, 0.1, 0.1), (0.9, 0.9, 0.02, 0.02)], TRUTH)
    assert delta[4:8].any() and not delta[8:].any()


@pytest.mark.parametrize(("side", "box"), [(0.2, 1), (0.4, 0)])
def test_forced_gives_small_truths_to_the_second_box(tmp_path, side, box):
    truth = [*TRUTH[:5], side, side]
    delta = detect(tmp_path, "forced=1\n", [(0.5, 0.5, 0.3, 0.3), (0.5, 0.5, 0.31, 0.31)], truth)
    assert bool(delta[4:8].any()) == (box == 0) and bool(delta[8:].any()) == (box == 1)


def test_boxes_far_away_still_have_a_responsible_one(tmp_path):
    delta = detect(tmp_path, "", [(90.0, 0, 0.1, 0.1), (80.0, 0, 0.1, 0.1)], TRUTH)
    assert not delta[4:8].any() and delta[8:].any()


def test_chance_chooses_only_in_the_first_images(tmp_path):
    boxes = [(0.5, 0.5, 0.4, 0.4), (0.1, 0.1, 0.1, 0.1)]
    torch.manual_seed(0)
    chosen = {bool(detect(tmp_path, "random=1\n", boxes, TRUTH)[8:].any()) for _ in range(20)}
    assert chosen == {True, False}
    assert not any(detect(tmp_path, "random=1\n", boxes, TRUTH, seen=64000)[8:].any() for _ in range(10))


# ------------------------------------------------------------------------------------------------------- contrastive


def reference_pushes(z, label, class_id, step, temperature, limit):
    """Deltas and accuracy, position by position (layers.md 7.6)."""
    n, length = len(z), np.linalg.norm(z, axis=1)
    cosine = z @ z.T / np.outer(length, length)
    pairs = {(i, j) for i in range(n) for j in range(n) if i != j and class_id[i] == class_id[j] and step[i] == step[j]}
    likely = {}
    for i, j in pairs:
        total = sum(math.exp(cosine[k, j] / temperature) for k in range(n) if k != i and (k, j) in pairs)
        value = math.exp(cosine[i, j] / temperature) / total if total else 0.9999
        likely[i, j] = 0.0 if len(pairs) <= 2 else 0.9999 if value > 1 else value
    delta = np.zeros_like(z)
    for i in range(n):
        friends = [j for j in range(n) if j != i and label[j] == label[i]]
        if not friends:
            continue
        factor = 1 / (len(friends) * temperature * length[i])
        for j in friends:
            if (i, j) in pairs:
                delta[i] -= factor * (cosine[i, j] * z[i] - z[j]) * (1 - likely[i, j])
        queue = [k for j in friends for k in range(n) if label[k] != label[i] and class_id[k] == class_id[j]]
        for place, k in enumerate(queue, 1):
            if (i, k) in pairs:
                delta[i] -= factor * (z[k] - cosine[i, k] * z[i]) * likely[i, k]
                if place >= limit:
                    break
    return delta


def contrastive_network(tmp_path, **options):
    lines = "\n".join(f"{name}={value}" for name, value in options.items())
    return network_of(
        tmp_path, "[convolutional]\nfilters=8\nsize=1\nactivation=linear\n",
        "[convolutional]\nfilters=14\nsize=1\nactivation=linear\n",
        "[yolo]\nclasses=2\nnum=2\nanchors=2,2, 3,3\nembedding_layer=0\n",
        f"[route]\nlayers=0\n[contrastive]\nyolo_layer=2\n{lines}\n",
    )  # fmt: skip


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("limit", [0, 1, 3, 7, 1000])
@pytest.mark.parametrize("positions", [0, 1, 2, 3, 12])
def test_contrastive_deltas_are_the_references(tmp_path, positions, limit, steps):
    network = contrastive_network(tmp_path, temperature=0.7, contrastive_neg_max=limit, cls_normalizer=0.5)
    head = network.structure.heads[-1]
    network.net.time_steps = steps
    rng = np.random.default_rng(positions + limit)
    x = rng.normal(size=(4, 2, 4, 4, 4))  # image, anchor, embedding, row, column
    labels, classes = -np.ones((2, 4, 2, 4, 4))
    cells = rng.permutation(labels.size)[:positions]
    labels.flat[cells] = rng.integers(0, 4, positions)
    classes.flat[cells] = labels.flat[cells] % 2  # a track has one class
    yolo = HeadLoss(torch.zeros(()), torch.zeros(()), {}, torch.from_numpy(labels), torch.from_numpy(classes))
    given = context(network, input=torch.from_numpy(x.reshape(4, 8, 4, 4)), losses={2: yolo})
    loss = head_loss(head, torch.zeros(4, 128), torch.zeros(4, 9, 6), given)
    where = np.nonzero(labels >= 0)
    expected = np.zeros((4, 2, 4, 4, 4))
    moved = np.moveaxis(expected, 2, -1)
    z = np.moveaxis(x, 2, -1)[where]
    step, temperature = where[0] // (4 // steps), head.options.temperature
    moved[where] = 0.5 * reference_pushes(z, labels[where], classes[where], step, temperature, limit)
    np.testing.assert_allclose(loss.delta.numpy(), expected.reshape(4, 8, 4, 4), rtol=1e-9, atol=1e-12)
    assert float(loss.cost) == pytest.approx((expected**2).sum())


def test_an_embedding_of_length_zero_is_not_pushed(tmp_path):
    network = contrastive_network(tmp_path)
    head = network.structure.heads[-1]
    labels = -torch.ones(2, 2, 4, 4)
    labels[0, 0, 0, :3] = torch.tensor([1.0, 1.0, 2.0])
    yolo = HeadLoss(torch.zeros(()), torch.zeros(()), {}, labels, torch.where(labels < 0, -1.0, 0.0))
    x = torch.randn(2, 8, 4, 4)
    x[0, :, 0, 0] = 0
    loss = head_loss(head, torch.zeros(2, 128), torch.zeros(2, 9, 6), context(network, input=x, losses={2: yolo}))
    assert torch.isfinite(loss.delta).all() and not loss.delta[0, :4, 0, 0].any()
    assert loss.delta[0, :4, 0, 1].any()


def test_without_positions_the_accuracy_reads_minus_one(tmp_path):
    network = contrastive_network(tmp_path)
    head = network.structure.heads[-1]
    nothing = -torch.ones(2, 2, 4, 4)
    yolo = HeadLoss(torch.zeros(()), torch.zeros(()), {}, nothing, nothing)
    given = context(network, input=torch.randn(2, 8, 4, 4), losses={2: yolo})
    loss = head_loss(head, torch.zeros(2, 128), torch.zeros(2, 9, 6), given)
    assert printed([head], {head.index: loss})[0] == (
        " Contrast accuracy = -1.000000 %, all = 0, good = 0, same = 0, diff = 0 "
    )


def test_embeddings_must_be_those_of_the_yolo_layer(tmp_path):
    sections = (
        "[convolutional]\nfilters=14\nsize=1\nactivation=linear\n[yolo]\nclasses=2\nnum=2\nanchors=2,2, 3,3\n",
        "[route]\nlayers=0\n[contrastive]\nyolo_layer=1\n",
    )
    with pytest.raises(ConfigError, match="embeddings have 7 numbers here and 0 in layer 1"):
        network_of(tmp_path, *sections)
