"""Where figures come from: code, versions, machine. Benchmarks compare only where these agree."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PACKAGES = ("eagle-chat", "torch", "transformers", "tokenizers", "safetensors", "huggingface-hub",
            "gradio", "numpy")  # fmt: skip

READ_BYTES = 512 * 2**20
N_READS = 5


def package_versions() -> dict[str, str]:
    """Installed versions by distribution name, without importing anything."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """The processor's name, as exact as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_state() -> dict[str, Any] | None:
    """Commit of the source tree and whether it was changed since; None outside a git checkout."""
    folder = Path(__file__).parent
    try:
        sha, status = (
            subprocess.run(
                ["git", *arguments],  # noqa: S607 - git comes from the user's own PATH
                cwd=folder, capture_output=True, text=True, check=True, timeout=10,
            ).stdout.strip()
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", "."])
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return {"sha": sha, "is_dirty": bool(status)}


def read_bandwidth_bytes_s(device: str) -> float:
    """Bytes a second that the device reads from its memory: the best of a few sums over a tensor.

    Plain decoding reads every weight once for each token, so weights / bandwidth bounds its rate.
    """
    import torch

    values = torch.ones(READ_BYTES // 4, dtype=torch.float32, device=device)
    best_s = float("inf")
    for _ in range(N_READS):
        start_s = time.perf_counter()
        values.sum().item()  # item() waits for an accelerator
        best_s = min(best_s, time.perf_counter() - start_s)
    return READ_BYTES / best_s


def peak_process_bytes() -> int:
    """The largest resident size of this process so far; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def provenance(device: str) -> dict[str, Any]:
    """The header's part that is the same for all benchmarks on this machine and commit."""
    import torch

    has_cuda = device.startswith("cuda")
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git": git_state(),
        "versions": package_versions(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "accelerator": torch.cuda.get_device_name(device) if has_cuda else None,
        "n_threads": torch.get_num_threads(),
        "read_bandwidth_bytes_s": read_bandwidth_bytes_s(device),
    }


__all__ = [
    "cpu_name",
    "git_state",
    "package_versions",
    "peak_process_bytes",
    "provenance",
    "read_bandwidth_bytes_s",
]
