"""Why `import torch` or `import cv2` fails, in words."""

from __future__ import annotations

import re

HEADLESS = "pip uninstall -y opencv-python; pip install opencv-python-headless; or install the package that has it"
PACKAGES = {"cv2": "opencv-python"}
CAUSES = [
    (r"No module named '?{name}'?$", "is not installed in this Python", "pip install {package}"),
    (r"lib(cud|cublas|nccl|cufft|curand|cusparse|cusolver|nvrtc|nvJit|cupti|nvToolsExt)[\w.+-]*: cannot open",
     "this build needs {library} of CUDA, which is not here",
     "install {package} again with pip in this environment, which brings CUDA's libraries along, and unset "
     "LD_LIBRARY_PATH; for a machine without GPU take the CPU build"),
    (r"lib(GL|EGL|OpenGL|gthread|glib|SM|ICE|Xext|Xrender|X11|xcb)[\w.+-]*: cannot open",
     "it needs {library} of a desktop, which servers and containers mostly lack", HEADLESS),
    (r"(wrong ELF class|invalid ELF header|Exec format error|not a valid Win32)",
     "this build is for another kind of processor", "install {package} again with pip on this machine"),
    (r"GLIBC(XX)?_[\d.]+' not found|CXXABI_",
     "this build needs a newer system than this one",
     "take an older version of {package}, or install it with conda, which brings its own C++ library"),
    (r"undefined symbol|symbol lookup error|version `\S+' not found",
     "libraries of different versions are mixed", "unset LD_LIBRARY_PATH and LD_PRELOAD, install {package} again"),
    (r"_ARRAY_API|numpy\.core\.multiarray|numpy\._core|compiled using NumPy|numpy\.dtype size changed",
     "it was built for another NumPy", "pip install -U {package} numpy"),
    (r"cannot open shared object file", "it needs {library}, which is not here",
     "install the system's package that has it, or {package} again"),
    (r"killed by SIGILL", "the processor lacks instructions that this build uses", "take another build of {package}"),
    (r"killed by SIG", "it crashes", "install {package} again in a fresh environment"),
    (r"no answer within", "it hangs", "look for a network folder or a driver that does not answer"),
    (r"partially initialized|has no attribute|cannot import name",
     "another file of that name seems to be in the way ({origin})", "rename that file"),
]  # fmt: skip


def explain_import(name: str, error: str, origin: str | None) -> tuple[str, str]:
    """What an import's failure means, and the remedy.

    Args:
        name: of the module; error: the exception's text; origin: file that was found for it.
    """
    library = re.search(r"(lib[\w.+-]+\.(so|dylib|dll)[\w.]*|[\w-]+\.dll)", error)
    words = {
        "name": name,
        "package": PACKAGES.get(name, name),
        "library": library[1] if library else "a library",
        "origin": origin or "no file",
    }
    for pattern, cause, remedy in CAUSES:
        if re.search(pattern.replace("{name}", re.escape(name)), error):
            return cause.format(**words), remedy.format(**words)
    return "it fails", f"install {words['package']} again in this environment"
