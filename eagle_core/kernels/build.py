"""Compiles the C++ kernels on the machine that runs them: once, into the cache folder, in a few seconds.

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
from functools import lru_cache
from pathlib import Path

from eagle_core.errors import EagleError
from eagle_core.folders import build_folder, cache_folder

logger = logging.getLogger(__name__)

SOURCES = tuple(Path(__file__).with_name(name) for name in ("rows.cpp", "program.cpp"))
LIBRARY_NAME = "rows.so"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
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
    if not _is_on():
        return None
    compiler = find_compiler()
    if compiler is None:
        logger.info("no g++ found: the plain linear layers are used")
        return None
    try:
        folder = build_folder(
            _folder(compiler),
            lambda folder: (folder / LIBRARY_NAME).is_file(),
            lambda folder: compile_library(compiler, folder / LIBRARY_NAME),
        )
        return ctypes.CDLL(str(folder / LIBRARY_NAME))
    except (EagleError, OSError, subprocess.SubprocessError) as error:
        logger.warning("the kernels cannot be compiled, plain layers are used: %s", error)
        return None


def _is_on() -> bool:
    return os.environ.get(SWITCH, "on").lower() not in ("off", "0", "no")


def _folder(compiler: str) -> Path:
    return cache_folder() / "kernels" / library_key(compiler)


def find_compiler() -> str | None:
    """A GNU C++ compiler: ``CXX`` if set, else ``g++``; None where there is none."""
    if sys.platform != "linux":
        return None
    return shutil.which(os.environ.get("CXX") or "g++")


def library_key(compiler: str) -> str:
    """Changes with the sources, the flags, the compiler and the processor."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, check=True, timeout=COMPILE_TIMEOUT_S
    ).stdout
    parts = (
        *(source.read_bytes() for source in SOURCES),
        " ".join(FLAGS).encode(),
        version,
        _processor().encode(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def compile_library(compiler: str, path: Path) -> None:
    """Compile the sources to ``path``.

    Raises: subprocess.SubprocessError when the compiler refuses.
    """
    try:
        subprocess.run(
            [compiler, *FLAGS, *map(str, SOURCES), "-o", str(path)],
            capture_output=True, check=True, text=True, timeout=COMPILE_TIMEOUT_S,
        )  # fmt: skip
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
    "compile_library",
    "expects_fast_int8",
    "expects_kernels",
    "find_compiler",
    "kernel_library",
    "library_key",
    "must_compile",
]
