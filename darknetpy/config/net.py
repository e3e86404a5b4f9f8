"""`[net]`: the options of the whole network (Darknet: `parse_net_options`)."""

from __future__ import annotations

from dataclasses import dataclass

from darknetpy.config.numbers import to_float32
from darknetpy.config.options import key


def _policy(*names):
    return lambda o: o.policy in names


@dataclass
class NetOptions:
    """Every key of `[net]`. Sizes in pixels, rates per iteration."""

    max_batches: int = key(0, "iterations of training", loud=True)
    batch: int = key(1, "images per weight update", loud=True)
    learning_rate: float = key(0.001, "base learning rate", loud=True)
    learning_rate_min: float = key(0.00001, "floor of the sgdr policy")
    batches_per_class: int = key(0, "accepted, without effect")
    batches_cycle: int = key(0, "accepted, without effect")
    momentum: float = key(0.9, "momentum of SGD", loud=True)
    decay: float = key(0.0001, "weight decay (weights only)", loud=True)
    subdivisions: int = key(1, "a batch is worked off in this many mini-batches", loud=True)
    time_steps: int = key(1, "length of sequences; multiplies the rows of a mini-batch")
    track: int = key(0, "sequential loading of videos")
    augment_speed: int = key(2, "largest frame skip with track")
    init_sequential_subdivisions: int = key(
        lambda o: o.subdivisions, "parallel sequences with track", name="sequential_subdivisions"
    )
    try_fix_nan: int = key(0, "scrub non-finite numbers during training")
    weights_reject_freq: int = key(0, "re-randomise similar filters every N iterations")
    equidistant_point: int = key(0, "iteration after which small yolo deltas are zeroed")
    badlabels_rejection_percentage: float = key(0.0, "reject this share of the largest deltas late in training")
    num_sigmas_reject_badlabels: float = key(0.0, "reject deltas beyond so many standard deviations")
    ema_alpha: float = key(0.0, "moving average of the weights in the second half")
    label_smooth_eps: float = key(0.0, "label smoothing of classifiers")
    resize_step: float = key(32.0, "granularity of random sizes, pixels")
    attention: int = key(0, "show the attention of the adversarial step")
    adversarial_lr: float = key(0.0, "self-adversarial training: step on the image")
    max_chart_loss: float = key(20.0, "top of the chart's loss axis")
    adam: int = key(0, "1: Adam instead of SGD for convolutions")
    B1: float = key(0.9, "Adam: decay of the first moment", loud=True, when=lambda o: o.adam)
    B2: float = key(0.999, "Adam: decay of the second moment", loud=True, when=lambda o: o.adam)
    eps: float = key(0.000001, "Adam: epsilon", loud=True, when=lambda o: o.adam)
    height: int = key(0, "input height")
    width: int = key(0, "input width")
    channels: int = key(0, "input channels")
    inputs: int = key(lambda o: o.height * o.width * o.channels, "flat input length, for networks without images")
    max_crop: int = key(lambda o: o.width * 2, "classifier augmentation: largest crop")
    min_crop: int = key(lambda o: o.width, "classifier augmentation: smallest crop")
    flip: int = key(1, "random horizontal flip")
    blur: int = key(0, "augmentation: blur")
    gaussian_noise: int = key(0, "augmentation: noise amplitude, 0..127")
    mixup: int = key(0, "0 none, 1 mixup, 2 cutmix, 3 mosaic, 4 cutmix or mosaic")
    cutmix: int = key(0, "1: mixup=2")
    mosaic: int = key(0, "1: mixup=3")
    letter_box: int = key(0, "keep the aspect ratio and pad, instead of stretching")
    mosaic_bound: int = key(0, "1: clip each box to its mosaic tile")
    contrastive: int = key(0, "pairs of augmented images")
    contrastive_jit_flip: int = key(0, "pairs differ in jitter and flip")
    contrastive_color: int = key(0, "pairs differ in colour")
    unsupervised: int = key(0, "classifier training without labels")
    loss_scale: float = key(1.0, "loss scale of mixed precision")
    dynamic_minibatch: int = key(0, "enlarge the mini-batch when the random size shrinks")
    optimized_memory: int = key(0, "accepted, without effect")
    use_cuda_graph: int = key(0, "accepted, without effect")
    workspace_size_limit_MB: float = key(1024.0, "accepted, without effect")
    angle: float = key(0.0, "classifier augmentation: rotation, degrees")
    aspect: float = key(1.0, "classifier augmentation: aspect")
    saturation: float = key(1.0, "augmentation: saturation factor range")
    exposure: float = key(1.0, "augmentation: exposure factor range")
    hue: float = key(0.0, "augmentation: hue shift range, turns")
    power: float = key(4.0, "exponent of burn-in, poly and random")
    policy: str = key("constant", "learning-rate policy: constant step steps exp poly random sigmoid sgdr", loud=True)
    burn_in: int = key(0, "iterations of warm-up")
    step: int = key(1, "step, sigmoid: iterations", loud=True, when=_policy("step", "sigmoid"))
    scale: float = key(1.0, "step: factor", loud=True, when=_policy("step"))
    steps: list[int] | None = key(None, "steps: iterations", stop_at_hash=True, when=_policy("steps", "sgdr"))
    scales: list[float] | None = key(None, "steps: factors", when=_policy("steps", "sgdr"))
    seq_scales: list[float] | None = key(None, "factors of sequential_subdivisions", when=_policy("steps", "sgdr"))
    gamma: float = key(1.0, "exp, sigmoid: base", loud=True, when=_policy("exp", "sigmoid"))
    sgdr_cycle: int = key(lambda o: o.max_batches, "sgdr: first cycle", when=_policy("sgdr"))
    sgdr_mult: int = key(2, "sgdr: growth of cycles", when=_policy("sgdr"))
    show_receptive_field: float = key(0.0, "print the receptive field of each layer")

    def __post_init__(self):
        self.resize_step = to_float32(self.resize_step)

    @property
    def mini_batch(self) -> int:
        """Rows of one forward pass: Darknet's `net.batch` after parsing (integer division, at least 1 per step)."""
        steps = max(1, self.time_steps)
        return max(self.batch // max(1, self.subdivisions) * steps, steps, 1)

    @property
    def images_per_update(self) -> int:
        """Rows of one weight update: `net.batch * subdivisions`."""
        return self.mini_batch * max(1, self.subdivisions)

    @property
    def mixup_mode(self) -> int:
        """0 none, 1 mixup, 2 cutmix, 3 mosaic, 4 cutmix or mosaic: the flags override the number."""
        if self.cutmix and self.mosaic:
            return 4
        return 2 if self.cutmix else 3 if self.mosaic else self.mixup
