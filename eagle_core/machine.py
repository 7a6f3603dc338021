"""What this machine has free: on its accelerator and in main memory, a container's limit included."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil

from eagle_core.config import LoadConfig
from eagle_core.devices import resolve_device
from eagle_core.fit import Machine
from eagle_core.precision import PrecisionName

CGROUP = Path("/sys/fs/cgroup")


def this_machine(device: str | None = None) -> Machine:
    """The machine as a model would find it now.

    Args: device: as for loading; None: "auto".
    Raises: ConfigError for a device that is not there.
    """
    found = resolve_device(device if device is not None else LoadConfig().device)
    import torch

    from eagle_core.kernels.build import expects_fast_int8, expects_kernels

    free_ram = free_ram_bytes()
    lacks: list[PrecisionName] = [] if find_spec("bitsandbytes") is not None else ["nf4"]
    if found.type == "cuda":
        free = [int(torch.cuda.mem_get_info(i)[0]) for i in range(torch.cuda.device_count())]
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            lacks.append("bfloat16")
        if "nf4" in lacks:
            lacks.append("int8")
        return Machine(
            "cuda", free[found.index or 0], free_ram, torch.cuda.get_device_name(found), sum(free),
            tuple(lacks), expects_kernels(),
        )  # fmt: skip
    if found.type == "mps":  # shared memory; the driver allows a part of it
        allowed = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return Machine("mps", min(allowed, free_ram), free_ram, "Apple GPU")
    if not expects_fast_int8():
        lacks.append("int8")
    return Machine(
        "cpu", free_ram, free_ram, "processor", lacks=tuple(lacks), has_kernels=expects_kernels()
    )


def give_back_memory() -> None:
    """Collect what nothing refers to any more, a model that was let go say, and give its memory back."""
    gc.collect()
    torch = sys.modules.get("torch")  # without it no model was here
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def free_ram_bytes(cgroup: Path = CGROUP) -> int:
    """Main memory that is free for this process: the system's, or what its container's limit leaves."""
    free = psutil.virtual_memory().available
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        stats = (cgroup / "memory.stat").read_text(encoding="ascii").split()
        # Pages of files that were read count as used there, and are given back when memory is short.
        reclaimable = int(stats[stats.index("inactive_file") + 1])
        return free if limit == "max" else max(min(free, int(limit) - used + reclaimable), 0)
    except (OSError, ValueError, IndexError):
        return free


__all__ = ["free_ram_bytes", "give_back_memory", "this_machine"]
