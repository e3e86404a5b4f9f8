"""A window, where there is a display to open it on. Never blocks and never dies where there is none."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import cv2
import numpy as np

ESCAPE, ENTER = 27, (10, 13)
_PROBE = "import cv2; cv2.namedWindow('darknetpy'); cv2.destroyAllWindows()"


@functools.lru_cache(maxsize=1)
def can_show() -> bool:
    """True where OpenCV opens windows. A display that is named but not there ends the process that tries it."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def show(title: str, image: np.ndarray, wait: bool = True) -> int:
    """Show uint8 (H, W, 3) RGB. With `wait` until a key is pressed or the window is closed.

    Returns the key's code, -1 for none.
    """
    cv2.imshow(title, np.ascontiguousarray(image[:, :, ::-1]))
    key = cv2.waitKey(1)
    while wait and key < 0 and cv2.getWindowProperty(title, cv2.WND_PROP_VISIBLE) > 0:
        key = cv2.waitKey(50)
    return key if key < 0 else key & 0xFF
