"""``eagle-chat doctor``: what is on this machine, and whether the engine computes correctly on it."""

from __future__ import annotations

import argparse
import dataclasses
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from eagle_core._version import __version__
from eagle_core.bench.provenance import cpu_name, package_versions
from eagle_core.catalog import CatalogEntry, WheelSource, default_entry
from eagle_core.cli.console import use_colour, write_json, write_line
from eagle_core.config import LoadConfig
from eagle_core.errors import EagleError

Status = Literal["ok", "warn", "fail"]

GB = 1e9
LITTLE_MEMORY_BYTES = 2 * GB
LITTLE_DISK_BYTES = 2 * GB
COLOURS: dict[Status, str] = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}
EXIT_FAILED = 1
# Float32 rounding stays below 1e-3 over dozens of layers; a wrong mask or position moves logits by 1.
MAX_DIFFERENCE = 1e-2
TINY_MODEL: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    status: Status
    detail: str
    hint: str = ""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "doctor",
        help="check this installation",
        description="Check this installation.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check everything, a line for each.

    Returns: 0, or 1 when a check failed.
    """
    checks = []
    for check in all_checks():
        checks.append(check)
        if not args.json:
            write_line(as_line(check, has_colour=use_colour(sys.stdout)))
    has_failed = any(check.status == "fail" for check in checks)
    if args.json:
        write_json(
            {
                "version": __version__,
                "status": "fail" if has_failed else "ok",
                "checks": [dataclasses.asdict(check) for check in checks],
            }
        )
    return EXIT_FAILED if has_failed else 0


def all_checks() -> Iterator[Check]:
    """Run the checks one after the other. One that cannot be made is a failed one."""
    yield from package_checks()
    yield _guarded("device", check_device)
    yield _guarded("kernels", check_kernels)
    yield _guarded("graphs", check_graphs)
    yield _guarded("memory", check_memory)
    yield _guarded("cache", check_cache)
    entry = default_entry()
    yield _guarded(entry.name, partial(check_model, entry))
    yield _guarded("engine", check_engine)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except EagleError as error:
        return Check(name, "fail", error.message, error.hint)
    except (ImportError, OSError, RuntimeError) as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}", "install the project again")


def as_line(check: Check, *, has_colour: bool) -> str:
    """A check for people."""
    mark = check.status.ljust(4)
    if has_colour:
        mark = f"{COLOURS[check.status]}{mark}\x1b[0m"
    line = f"{mark}  {check.name:<16}  {check.detail}"
    return f"{line}\n      {check.hint}" if check.hint else line


def package_checks() -> Iterator[Check]:
    """The machine, and the versions of what the project stands on."""
    yield Check("system", "ok", f"{platform.platform()}, {cpu_name()}")
    for name, version in package_versions().items():
        is_missing = version == "not installed"
        # A checkout on PYTHONPATH works without being installed.
        is_needed = name != "eagle-chat"
        status: Status = "ok" if not is_missing else "fail" if is_needed else "warn"
        yield Check(
            name, status, version, f"pip install {name}" if is_missing and is_needed else ""
        )


def check_device() -> Check:
    """The device that "auto" means."""
    import torch

    if torch.cuda.is_available():
        n_devices = torch.cuda.device_count()
        return Check("device", "ok", f"cuda: {torch.cuda.get_device_name(0)} ({n_devices} in all)")
    if torch.backends.mps.is_available():
        return Check("device", "ok", "mps")
    return Check(
        "device", "ok", f"cpu with {torch.get_num_threads()} threads; no accelerator found"
    )


def check_kernels() -> Check:
    """Whether the fast float32 layers for CPUs are compiled here; without them all is right, but slower."""
    from eagle_core.kernels.build import SWITCH, find_compiler, kernel_library

    if kernel_library() is not None:
        return Check("kernels", "ok", "compiled for this processor")
    compiler = find_compiler()
    if compiler is None:
        hint = "with g++ installed, float32 on this CPU decodes up to twice as fast"
        return Check("kernels", "warn", "not compiled: no g++ on this machine", hint)
    hint = f"{compiler} could not compile them, or {SWITCH} is off"
    return Check("kernels", "warn", "not compiled", hint)


def check_graphs() -> Check:
    """Whether a forward can be replayed as a CUDA graph here; else its operations are launched one by one."""
    import torch

    from eagle_core.kernels.cuda_graphs import graph_captures

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    captures = graph_captures(device)
    if captures is None:
        return Check("graphs", "ok", "none: CUDA graphs are for NVIDIA GPUs")
    n_steps, n_graphs = replay_steps(device, captures)
    if n_graphs:
        return Check(
            "graphs", "ok", "CUDA graphs: captured, and the same as the forwards themselves"
        )
    hint = "leave --cuda-graphs off, and report this"
    return Check("graphs", "warn", f"no CUDA graph came of {n_steps} forwards", hint)


def replay_steps(device: Any, captures: Any, n_steps: int = 6) -> tuple[int, int]:
    """Steps of a tiny random model on a device, and how many graphs came of them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from eagle_core.target import Target
    from eagle_core.tree import DraftTree

    model: Any = LlamaForCausalLM(LlamaConfig(**TINY_MODEL)).train(False)
    target = Target(model.to(device))
    target.use_graphs(captures)
    cache = target.new_cache(512)
    target.prefill_chunk(torch.arange(8), cache)
    for token in range(n_steps):
        target.forward_tree(DraftTree.single(torch.tensor(token)), cache)
        cache.advance(1)
    return n_steps, target.graphs.n_replayed() if target.graphs is not None else 0


def check_memory() -> Check:
    """Main memory, all of it and what is free."""
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / GB:.1f} of {memory.total / GB:.1f} GB free"
    if memory.available < LITTLE_MEMORY_BYTES:
        return Check("memory", "warn", detail, "close other programs, or use a smaller model")
    return Check("memory", "ok", detail)


def check_cache() -> Check:
    """The folder of the converted models: where, how large, how much room is left."""
    from eagle_core.folders import cache_folder, make_cache_folder

    folder = cache_folder()
    make_cache_folder(folder)
    free_bytes = shutil.disk_usage(folder).free
    detail = f"{folder}, {folder_bytes(folder) / GB:.2f} GB, {free_bytes / GB:.1f} GB free"
    if free_bytes < LITTLE_DISK_BYTES:
        return Check("cache", "warn", detail, "set EAGLE_CACHE to a folder on another disk")
    return Check("cache", "ok", detail)


def folder_bytes(folder: Path) -> int:
    """Size of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_model(entry: CatalogEntry) -> Check:
    """Whether a known model and its head are on this machine."""
    if entry.head is not None and entry.has_bundled_head:
        from eagle_core.assets import asset_path

        asset_path(entry.head)
    is_here = cached_folder(entry) is not None
    if is_here:
        return Check(entry.name, "ok", f"{entry.title} is on this machine")
    return Check(
        entry.name,
        "warn",
        f"{entry.title} is not on this machine yet",
        "the first start fetches it, and needs a network then",
    )


def cached_folder(entry: CatalogEntry) -> Path | None:
    """Folder of a known model that is already here; None when it would have to be fetched."""
    if not isinstance(entry.source, WheelSource):
        return None
    from eagle_core.convert_gguf import is_converted
    from eagle_core.default_model import converted_folder

    folder = converted_folder(entry.name, entry.source)
    return folder if is_converted(folder) else None


def check_engine() -> Check:
    """Whether a tree and a sequence give the same logits, on the default model if it is here."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from eagle_core.loading import load_base
    from eagle_core.target import Target, self_check

    entry = default_entry()
    if cached_folder(entry) is not None:
        # float32: the check is about the computation, not about rounding.
        model = load_base(LoadConfig(base=entry.name, dtype="float32", offline=True)).model
        what = entry.title
    else:
        model = LlamaForCausalLM(LlamaConfig(**TINY_MODEL)).train(False)
        what = "a tiny random model"
    difference = self_check(Target(model), seed=0, n_drafted=8)
    detail = f"logits of a tree and of its paths differ by {difference:.0e} at most on {what}"
    if difference > MAX_DIFFERENCE:
        hint = (
            "drafted answers may differ from plain ones here: use --drafter none, and report this"
        )
        return Check("engine", "fail", detail, hint)
    return Check("engine", "ok", detail)


__all__ = ["Check", "add_parser", "all_checks", "as_line", "run"]
