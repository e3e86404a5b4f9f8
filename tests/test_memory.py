"""What a detection costs in memory, in a fresh process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import shared

LIMIT = 1200
"""Megabytes over what importing torch and cv2 takes."""
_PEAK = "import resource; print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"


def _peak(code: str, folder) -> int:
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_PEAK}"], cwd=folder, capture_output=True, text=True, check=True
    )
    return int(result.stdout.rsplit("PEAK", 1)[1])


@pytest.mark.slow
def test_yolov4_at_608_stays_small(tmp_path) -> None:
    """Outputs that no later layer reads are freed, and weights are mapped, not copied twice."""
    cfg, image = shared("corpus", "cfg", "alexeyab", "yolov4.cfg"), shared("images", "dog.jpg")
    (tmp_path / "c.names").write_text("".join(f"{i}\n" for i in range(80)))
    (tmp_path / "c.data").write_text("names = c.names\n")
    _peak(f"from darknetpy import Network; Network({str(cfg)!r}).save_weights('y.weights')", tmp_path)
    base = _peak("import torch, cv2", tmp_path)
    words = ["detector", "test", "c.data", str(cfg), "y.weights", str(image), "-quiet", "-dont_show"]
    assert _peak(f"from darknetpy.cli.main import main; assert main({words!r}) == 0", tmp_path) - base < LIMIT
