"""Evaluation during training, by a network of its own that never touches the one in training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from darknetpy.config.datafile import DataConfig
from darknetpy.data.evaluation import EvaluationImages
from darknetpy.errors import DarknetpyError
from darknetpy.evaluation import EvaluationResult, evaluation_images
from darknetpy.evaluation.average_precision import score
from darknetpy.evaluation.evaluator import collect, shared_out
from darknetpy.evaluation.matches import Matches
from darknetpy.inference import Detector
from darknetpy.layers import read_structure
from darknetpy.network import Network
from darknetpy.parallel import Single
from darknetpy.runtime import free_cached_memory
from darknetpy.training.tensors import untouched_random


class EvaluationFailed(RuntimeError):
    """Some replica could not measure its share."""


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

    def __call__(self, snapshot: dict[str, Tensor], only: int | None = None) -> EvaluationResult:
        """Measure the tensors of a snapshot (a network's `state_dict`), on the first `only` pictures or all.

        Each replica takes its share of the pictures, and all get the same result. What fails for want of memory or by
        cuDNN, on whichever replica, is tried once more picture by picture. Raises EvaluationFailed at all of them.
        """
        with untouched_random(self.network.device):
            self.network.load_state_dict(snapshot)
            self.network.train(False)
            images = self._pictures(only)
            for batch in (self.batch, 1):
                parts = shared_out(self.replicas, lambda batch=batch: self._collect(images, batch))
                result, failure = self.replicas.share(self._score(parts) if self.replicas.main else None)
                if result is not None:
                    return result
                free_cached_memory()
            raise EvaluationFailed(failure)

    def _predictor(self, names: Sequence[str]) -> Detector:
        return Detector(self.network, names=names, strict=self.network.strict)

    def _collect(self, images: EvaluationImages, batch: int) -> tuple[Matches | None, str]:
        """What this replica found in its share, or why not."""
        self.network.reset_state()
        try:
            return self._run(images, batch), ""
        except (DarknetpyError, RuntimeError, MemoryError, OSError) as error:
            return None, str(error) or type(error).__name__

    def _run(self, images: EvaluationImages, batch: int) -> Matches:
        return collect(self.detector, images, batch, self.replicas.main, self.replicas)

    def _score(self, parts: list[tuple[Matches | None, str]]) -> tuple[EvaluationResult | None, str]:
        """The result of what all replicas found, or the first reason why there is none."""
        found = [part for part, _ in parts]
        if any(part is None for part in found):
            return None, next(text for _, text in parts if text)
        return score(found[0].merge(found[1:]), list(self.detector.names), self.iou_thresh, self.thresh, 0), ""

    def _listed(self) -> EvaluationImages:
        return evaluation_images(self.data, self.detector)

    def _pictures(self, only: int | None) -> EvaluationImages:
        if self._images is None:
            self._images = self._listed()
        return self._images if only is None else self._images.picked(range(min(only, len(self._images))))
