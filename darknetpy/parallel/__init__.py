"""Several devices: one process each, that average weights as Darknet does or add up gradients."""

from darknetpy.parallel.devices import choose_devices
from darknetpy.parallel.replicas import Averaging, Ddp, Single, join

__all__ = ["Averaging", "Ddp", "Single", "choose_devices", "join"]
