"""Evaluation during training, by a network of its own that never touches the one in training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from darknetpy.config.datafile import DataConfig
from darknetpy.data.evaluation import EvaluationImages
from darknetpy.errors import DarknetpyError
from darknetpy.evaluation import EvaluationResult, evaluation_images, run_evaluation
from darknetpy.inference import Detector
from darknetpy.layers import read_structure
from darknetpy.network import Network
from darknetpy.runtime import free_cached_memory, trouble_of
from darknetpy.training.tensors import untouched_random


class Measurement:
    """mAP of a snapshot of the weights, at the cfg's own size.

    Args:
        network: in training; only its layout and place are read.
        data: `.data` file with the pictures; names: of the classes; batch: pictures at once (0: chosen).
        thresh, iou_thresh: of the counts and of what is found.
    """

    def __init__(
        self, network: Network, data: DataConfig, names: Sequence[str], thresh: float, iou_thresh: float, batch: int = 0
    ):
        self.data, self.thresh, self.iou_thresh, self.batch = data, thresh, iou_thresh, batch
        with untouched_random(network.device):
            structure = read_structure(network.structure.cfg, network.strict, batch=1)
            self.network = Network.from_structure(structure, network.device)
        self.detector = Detector(self.network, names=names, strict=network.strict)
        self._images: EvaluationImages | None = None

    def __call__(self, snapshot: dict[str, Tensor], only: int | None = None) -> EvaluationResult:
        """Measure the tensors of a snapshot (a network's `state_dict`), on the first `only` pictures or all.

        What fails for want of memory or by cuDNN is tried once more picture by picture.
        Raises what then still fails.
        """
        with untouched_random(self.network.device):
            self.network.load_state_dict(snapshot)
            self.network.train(False)
            images = self._pictures(only)
            try:
                return self._run(images, self.batch)
            except (RuntimeError, MemoryError) as error:
                if isinstance(error, DarknetpyError) or trouble_of(error) is None:
                    raise
            free_cached_memory()
            return self._run(images, 1)

    def _run(self, images: EvaluationImages, batch: int) -> EvaluationResult:
        self.network.reset_state()
        return run_evaluation(self.detector, images, self.iou_thresh, self.thresh, 0, batch)

    def _pictures(self, only: int | None) -> EvaluationImages:
        if self._images is None:
            self._images = evaluation_images(self.data, self.detector)
        return self._images if only is None else self._images.picked(range(min(only, len(self._images))))
