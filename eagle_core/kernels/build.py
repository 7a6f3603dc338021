"""Compiles the C++ kernels on the machine that runs them: once, into the cache folder, in a few seconds.

The units are compiled side by side, and while a model is found and fetched (:func:`build_ahead`); attention
for the head sizes that occur.

A machine without a C++ compiler, or where compiling fails, goes without: everything has a plain path.
``EAGLE_KERNELS=off`` switches them off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from eagle_core.errors import EagleError
from eagle_core.folders import build_folder, cache_folder

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
UNITS = ("int8_products", "float_products", "scores", "attention", "program", "products")
ATTEND = "attend"  # a library of its own for each head size
HEAD_STEP, WIDEST_HEAD = 16, 256  # head sizes that the attention kernel can be compiled for
LIBRARY_NAME, ATTEND_NAME = "rows.so", "attend.so"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC")
COMPILE_TIMEOUT_S = 300
SWITCH = "EAGLE_KERNELS"


def must_compile() -> bool:
    """Whether the first use of the kernels will compile them; for whoever shows progress."""
    compiler = find_compiler()
    if not _is_on() or compiler is None:
        return False
    try:
        return not (_folder(compiler) / LIBRARY_NAME).is_file()
    except (OSError, subprocess.SubprocessError):
        return False


def expects_kernels() -> bool:
    """Whether there are kernels here, or a compiler to make them with; compiles nothing."""
    return _is_on() and find_compiler() is not None


def expects_fast_int8() -> bool:
    """Whether the kernels multiply bytes faster than floats here; compiles nothing."""
    return expects_kernels() and "avx512_vnni" in _processor()


@lru_cache(maxsize=1)
def kernel_library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they are switched off or cannot be made."""
    return _library(LIBRARY_NAME, UNITS)


@lru_cache(maxsize=32)
def attention_library(head_dim: int) -> ctypes.CDLL | None:
    """The attention of heads of ``head_dim`` numbers, or None where there is none for that size."""
    return _library(ATTEND_NAME, (ATTEND,), _size(head_dim)) if _is_head(head_dim) else None


def build_ahead(head_dim: int | None = None) -> threading.Thread:
    """Compile in the background what will be needed, if it is not there; whoever needs it waits for it.

    Nothing is loaded: this serves before PyTorch is imported, too.
    Args: head_dim: the size of the model's heads, if it is known.
    """

    def build_now() -> None:
        is_built = _built(LIBRARY_NAME, UNITS) is not None
        if is_built and head_dim is not None and _is_head(head_dim):
            _built(ATTEND_NAME, (ATTEND,), _size(head_dim))

    thread = threading.Thread(target=build_now, name="kernels", daemon=True)
    thread.start()
    return thread


def _is_head(head_dim: int) -> bool:
    return head_dim % HEAD_STEP == 0 and 0 < head_dim <= WIDEST_HEAD


def _size(head_dim: int) -> str:
    return f"-DHEAD_DIM={head_dim}"


def _library(name: str, units: Sequence[str], *defines: str) -> ctypes.CDLL | None:
    file = _built(name, units, *defines)
    try:
        return None if file is None else ctypes.CDLL(str(file))
    except OSError as error:
        logger.warning("the kernels cannot be loaded, plain layers are used: %s", error)
        return None


def _built(name: str, units: Sequence[str], *defines: str) -> Path | None:
    """The compiled file; None where the kernels are switched off or cannot be made."""
    if not _is_on():
        return None
    compiler = find_compiler()
    if compiler is None:
        logger.info("no g++ found: the plain linear layers are used")
        return None
    try:
        folder = build_folder(
            _folder(compiler, *defines),
            lambda folder: (folder / name).is_file(),
            lambda folder: compile_library(compiler, folder / name, units, *defines),
        )
        return folder / name
    except (EagleError, OSError, subprocess.SubprocessError) as error:
        logger.warning("the kernels cannot be compiled, plain layers are used: %s", error)
        return None


def _is_on() -> bool:
    return os.environ.get(SWITCH, "on").lower() not in ("off", "0", "no")


def _folder(compiler: str, *defines: str) -> Path:
    return cache_folder() / "kernels" / library_key(compiler, *defines)


def find_compiler() -> str | None:
    """A GNU C++ compiler: ``CXX`` if set, else ``g++``; None where there is none."""
    if sys.platform != "linux":
        return None
    return shutil.which(os.environ.get("CXX") or "g++")


def library_key(compiler: str, *defines: str) -> str:
    """Changes with the sources, the flags, the compiler and the processor."""
    parts = (
        *(source.read_bytes() for source in sorted([*HERE.glob("*.cpp"), *HERE.glob("*.h")])),
        " ".join([*FLAGS, *defines]).encode(),
        _version_of(compiler),
        _processor().encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@lru_cache(maxsize=4)
def _version_of(compiler: str) -> bytes:
    return subprocess.run(
        [compiler, "--version"], capture_output=True, check=True, timeout=COMPILE_TIMEOUT_S
    ).stdout


def compile_library(compiler: str, path: Path, units: Sequence[str] = UNITS, *defines: str) -> None:
    """Compile the units side by side and link them to ``path``.

    Raises: subprocess.SubprocessError when the compiler refuses.
    """
    objects = [path.with_name(f"{unit}.o") for unit in units]

    def compile_unit(unit: str, found: Path) -> None:
        _run(compiler, *FLAGS, *defines, "-c", str(HERE / f"{unit}.cpp"), "-o", str(found))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(compile_unit, units, objects))
    _run(compiler, *FLAGS, "-shared", *map(str, objects), "-o", str(path))
    for found in objects:
        found.unlink()


def _run(*command: str) -> None:
    try:
        subprocess.run(
            command, capture_output=True, check=True, text=True, timeout=COMPILE_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        logger.debug("%s", error.stderr)
        raise


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


__all__ = [
    "SWITCH",
    "attention_library",
    "build_ahead",
    "compile_library",
    "expects_fast_int8",
    "expects_kernels",
    "find_compiler",
    "kernel_library",
    "library_key",
    "must_compile",
]
