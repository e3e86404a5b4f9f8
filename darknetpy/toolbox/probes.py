"""What `doctor` tries in processes of its own: an import, a convolution, a sum over replicas.

Each probe says what it has found as it goes, one line of JSON for each stage, so that a crash or a hang is known to lie
behind the last line. Nothing is imported before the stage that tries it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
import time
import traceback

MARK = "doctor:"
LIBRARIES = re.compile(
    r"/(lib(cuda|cudart|cudnn|cublas|cublasLt|nccl|nvrtc|nvJitLink|cufft|curand|cusolver|cusparse|torch|c10|gomp|iomp5|"
    r"GL|EGL|stdc\+\+|avcodec|openblas)[\w+-]*(\.so)[\w.]*|cv2[\w.-]*\.so)$"
)
TOLERANCE = 1e-3
"""Of a convolution against double precision on the CPU, relative to the largest value."""
WORTH = 16 << 20
"""Numbers that replicas add up to measure their link."""


def main(words: list[str]) -> None:
    """Run the probe that the first word names; an exception becomes its last line."""
    name, *rest = words
    try:
        PROBES[name](*rest)
    except BaseException as error:
        say("error", text=f"{type(error).__name__}: {error}", trace=traceback.format_exc()[-2000:])
        sys.exit(1)
    say("end")
    sys.stdout.flush()
    os._exit(0)  # what has worked may still crash when it is taken down


def say(stage: str, **facts: object) -> None:
    """One line for the parent process."""
    print(MARK + json.dumps({"stage": stage, **facts}), flush=True)


def _import(name: str):
    """The module, after saying where it will come from."""
    try:
        spec = importlib.util.find_spec(name)
        say(f"finding {name}", origin=spec.origin if spec else None)
    except (ImportError, ValueError):
        pass
    return importlib.import_module(name)


def loaded_libraries() -> list[str]:
    """Files of the libraries that this process has really loaded, of those that matter here."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as stream:
            paths = {line.split(None, 5)[5].strip() for line in stream if line.count("/") > 1}
    except (OSError, IndexError):
        return []
    return sorted(path for path in paths if LIBRARIES.search(path))


def probe_modules(*names: str) -> None:
    """Versions of small modules."""
    for name in names:
        try:
            module = _import(name)
            say("module", name=name, version=getattr(module, "__version__", ""), file=getattr(module, "__file__", None))
        except Exception as error:
            say("module", name=name, error=f"{type(error).__name__}: {error}")


def probe_cv2() -> None:
    """OpenCV: version, what it was built with, a picture there and back."""
    cv2 = _import("cv2")
    build = cv2.getBuildInformation()
    say("cv2", version=cv2.__version__, file=cv2.__file__, gui=_built_with(build, "GUI"),
        ffmpeg=_built_with(build, "FFMPEG"), libraries=loaded_libraries())  # fmt: skip
    import numpy as np

    picture = np.full((16, 16, 3), 128, np.uint8)
    good, data = cv2.imencode(".jpg", picture)
    back = cv2.imdecode(data, cv2.IMREAD_COLOR) if good else None
    say("jpeg", works=back is not None and abs(int(back.mean()) - 128) < 3)


def _built_with(build: str, name: str) -> str:
    found = re.search(rf"^\s*{name}:[ \t]*(\S.*?)\s*$", build, re.MULTILINE)
    return found[1] if found else ""


def probe_torch(gpus: str) -> None:
    """PyTorch: versions, files, devices, and a convolution forward and backward on each; `gpus` is 0 for none."""
    torch = _import("torch")
    from darknetpy import runtime

    say("torch", version=torch.__version__, file=torch.__file__, cuda=torch.version.cuda, **runtime.cuda_versions())
    say("cpu", **_convolution(torch, "cpu"))
    if gpus == "0" or torch.version.cuda is None:
        say("libraries", libraries=loaded_libraries())
        return
    try:
        torch.cuda.init()
        count = torch.cuda.device_count()
        say("cuda", count=count, architectures=torch.cuda.get_arch_list())
    except (RuntimeError, AssertionError) as error:
        say("cuda", count=0, error=str(error).strip().splitlines()[0])
        count = 0
    for i in range(count):
        _device(torch, i)
    for i in range(count):
        reaches = [j for j in range(count) if j != i and torch.cuda.can_device_access_peer(i, j)]
        say("peers", device=i, reaches=reaches)
    say("libraries", libraries=loaded_libraries())


def _device(torch, i: int) -> None:
    properties = torch.cuda.get_device_properties(i)
    facts = {
        "device": i,
        "name": properties.name,
        "capability": list(torch.cuda.get_device_capability(i)),
        "uuid": str(getattr(properties, "uuid", "")),
        "total": properties.total_memory,
    }
    say("device", **facts)
    try:
        facts["free"] = torch.cuda.mem_get_info(i)[0]
        facts |= _convolution(torch, f"cuda:{i}")
    except RuntimeError as error:
        facts["error"] = str(error).strip().splitlines()[0]
    say("device", **facts)


def _convolution(torch, device: str) -> dict[str, object]:
    """Whether a convolution and its gradients are right, and the milliseconds of a second one."""
    from darknetpy import runtime

    runtime.set_parity()
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(4, 16, 52, 52, generator=generator)
    weights = torch.rand(32, 16, 3, 3, generator=generator) - 0.5

    def results(device: str, kind):
        a, b = (t.detach().to(device, kind).requires_grad_() for t in (x, weights))
        y = torch.nn.functional.conv2d(a, b, padding=1)
        y.square().sum().backward()
        return [t.detach().cpu().double() for t in (y, a.grad, b.grad)]

    expected, found = results("cpu", torch.float64), results(device, torch.float32)
    off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected, strict=True))
    began = time.perf_counter()
    results(device, torch.float32)
    return {"right": off < TOLERANCE, "off": off, "ms": 1e3 * (time.perf_counter() - began)}


def probe_member(device: str) -> None:
    """One of several replicas, as the environment says: adds up numbers with each other one in turn."""
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    say("met", rank=rank)
    count = WORTH if on_gpu else WORTH // 16
    for i in range(size):
        for j in range(i + 1, size):
            group = dist.new_group([i, j])
            if rank not in (i, j):
                continue
            say("trying", pair=[i, j])
            numbers = torch.full((count,), float(rank + 1), device=device)
            dist.all_reduce(numbers, group=group)
            right = bool((numbers == i + j + 2).all())
            began = time.perf_counter()
            dist.all_reduce(numbers, group=group)
            right = right and float(numbers[-1]) == 2 * (i + j + 2)
            say("pair", pair=[i, j], right=right, gbs=4e-9 * count / (time.perf_counter() - began))


PROBES = {"modules": probe_modules, "cv2": probe_cv2, "torch": probe_torch, "member": probe_member}
