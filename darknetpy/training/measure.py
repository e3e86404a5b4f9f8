"""Evaluation during training, by a network of its own that never touches the one in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from darknetpy.config.datafile import DataConfig
from darknetpy.data.evaluation import EvaluationImages
from darknetpy.evaluation import EvaluationResult, evaluation_images
from darknetpy.evaluation.average_precision import score
from darknetpy.evaluation.evaluator import collect, shared_out
from darknetpy.evaluation.matches import Matches
from darknetpy.inference import Detector
from darknetpy.layers import read_structure
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.parallel.replicas import ReplicaFailed, attempted, first_reason
from darknetpy.runtime import free_cached_memory
from darknetpy.training.tensors import untouched_random


class Measurement:
    """mAP of a snapshot of the weights, at the cfg's own size.

    Args:
        network: in training; only its layout and place are read.
        data: `.data` file with the pictures; names: of the classes; batch: pictures at once (0: chosen).
        thresh, iou_thresh: of the counts and of what is found.
    """

    def __init__(
        self, network: Network, data: DataConfig, names: Sequence[str], thresh: float, iou_thresh: float,
        batch: int = 0, replicas: Single | None = None,
    ):  # fmt: skip
        self.data, self.thresh, self.iou_thresh, self.batch = data, thresh, iou_thresh, batch
        self.replicas = replicas or Single()
        with untouched_random(network.device):
            structure = read_structure(network.structure.cfg, network.strict, batch=1)
            self.network = Network.from_structure(structure, network.device)
        self.detector = self._predictor(names)
        self._images: EvaluationImages | None = None

    def __call__(self, snapshot: Callable[[], dict[str, Tensor]], only: int | None = None) -> EvaluationResult:
        """Measure the tensors that `snapshot` gives (a network's `state_dict`), on the first `only` pictures or all.

        Each replica takes its share of the pictures, and all get the same result. What fails on whichever replica is
        tried once more picture by picture. Raises ReplicaFailed at all of them, or at one what it cannot go on after.
        """
        with untouched_random(self.network.device):
            for batch in (self.batch, 1):
                try:
                    return self._measured(snapshot(), only, batch)
                except ReplicaFailed as error:
                    reason = str(error)
                free_cached_memory()
            raise ReplicaFailed(reason)

    def _measured(self, tensors: dict[str, Tensor], only: int | None, batch: int) -> EvaluationResult:
        parts = shared_out(self.replicas, lambda: attempted(lambda: self._collect(tensors, only, batch)))
        mains = attempted(lambda: self._score_of_all(parts)) if self.replicas.main else None
        result, reason = self.replicas.share(mains)
        if reason:
            raise ReplicaFailed(reason)
        return result

    def _predictor(self, names: Sequence[str]) -> Detector:
        return Detector(self.network, names=names, strict=self.network.strict)

    def _collect(self, tensors: dict[str, Tensor], only: int | None, batch: int) -> Matches:
        """What this replica finds in its share."""
        self.network.load_state_dict(tensors)
        self.network.train(False)
        self.network.reset_state()
        return self._run(self._pictures(only), batch)

    def _run(self, images: EvaluationImages, batch: int) -> Matches:
        return collect(self.detector, images, batch, self.replicas.main, self.replicas)

    def _score_of_all(self, parts: list[tuple[Matches | None, str]]) -> EvaluationResult:
        """The result of what all replicas found. Raises ReplicaFailed where one found nothing for some reason."""
        if reason := first_reason([reason for _, reason in parts]):
            raise ReplicaFailed(reason)
        return self._score([found for found, _ in parts])

    def _score(self, found: list[Matches]) -> EvaluationResult:
        return score(found[0].merge(found[1:]), list(self.detector.names), self.iou_thresh, self.thresh, 0)

    def _listed(self) -> EvaluationImages:
        return evaluation_images(self.data, self.detector)

    def _pictures(self, only: int | None) -> EvaluationImages:
        if self._images is None:
            self._images = self._listed()
        return self._images if only is None else self._images.picked(range(min(only, len(self._images))))
