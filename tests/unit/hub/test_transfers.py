"""Transfers that break, crawl, lie or are stopped: they go on where they were, and the cache stays clean."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eagle_core.errors import (
    Cancelled,
    CheckpointMismatch,
    DiskFull,
    DownloadError,
    ModelNotFound,
)
from eagle_core.events import DownloadProgress, Event
from eagle_core.hub import cache, fetch_repo, transfer
from tests.support.hub_files import FILES, SHA256, WEIGHTS, assert_clean
from tests.support.hub_server import HubServer


def test_a_cut_transfer_goes_on_where_it_stopped(server: HubServer) -> None:
    server.repos["org/model"].cuts["model.safetensors"] = 2
    events: list[Event] = []
    folder = fetch_repo("org/model", on_event=events.append)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    half = len(WEIGHTS) // 2
    assert server.ranges("model.safetensors") == [None, f"bytes={half}-", f"bytes={half * 3 // 2}-"]
    assert server.bytes_sent["model.safetensors"] == len(WEIGHTS), "no byte twice"
    assert events[-1] == DownloadProgress("org/model", len(WEIGHTS) + 4, len(WEIGHTS) + 4)


def test_a_connection_that_keeps_breaking_is_an_error_and_a_later_start_goes_on(
    server: HubServer, tmp_path: Path
) -> None:
    # The small files first: the breaking one ends other transfers wherever they are.
    fetch_repo("org/model", allow_patterns=["*.json"])
    server.repos["org/model"].cuts["model.safetensors"] = 10**6
    with pytest.raises(DownloadError, match="what arrived is kept"):
        fetch_repo("org/model")
    assert_clean(tmp_path)
    sent = server.bytes_sent["model.safetensors"]
    assert 0 < sent < len(WEIGHTS)
    server.repos["org/model"].cuts.clear()
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "config.json").exists()
    assert server.n_transfers["config.json"] == 1, "a file that arrived is not fetched again"
    assert server.bytes_sent["model.safetensors"] == len(WEIGHTS), "nor is a byte"


def test_a_server_that_knows_no_ranges_starts_over(server: HubServer) -> None:
    server.repos["org/model"].cuts["model.safetensors"] = 1
    server.repos["org/model"].no_ranges = True
    events: list[Event] = []
    folder = fetch_repo("org/model", on_event=events.append)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    done = [event.done_bytes for event in events if isinstance(event, DownloadProgress)]
    assert done == sorted(done)
    assert done[-1] == len(WEIGHTS) + 4


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_refused_and_removed(
    server: HubServer, tmp_path: Path, name: str
) -> None:
    server.repos["org/model"].corrupt.add(name)
    with pytest.raises(CheckpointMismatch, match="SHA-256" if name.startswith("m") else "git id"):
        fetch_repo("org/model")
    assert_clean(tmp_path)
    server.repos["org/model"].corrupt.clear()
    folder = fetch_repo("org/model")
    assert (folder / name).read_bytes() == FILES[name]


def test_a_damaged_beginning_from_an_earlier_try_is_fetched_anew(server: HubServer) -> None:
    blobs = cache.repo_folder("org/model") / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (SHA256 + transfer.PARTIAL)).write_bytes(b"something else")
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not list(blobs.glob(f"*{transfer.PARTIAL}"))


def test_a_file_damaged_on_the_disk_is_fetched_anew(server: HubServer) -> None:
    folder = fetch_repo("org/model")
    (folder / "model.safetensors").resolve().write_bytes(b"short")
    server.repos["org/model"].failures["model.safetensors"] = [404]
    with pytest.raises(DownloadError):
        fetch_repo("org/model")
    with pytest.raises(ModelNotFound):
        fetch_repo("org/model", offline=True)  # the damaged one is gone at once
    again = fetch_repo("org/model")
    assert (again / "model.safetensors").read_bytes() == WEIGHTS


def test_stopping_a_slow_download_and_going_on(server: HubServer, tmp_path: Path) -> None:
    server.repos["org/model"].trickles["model.safetensors"] = (1 << 12, 0.01)  # 2.6 s in all
    cancel, events = threading.Event(), list[Event]()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, DownloadProgress) and event.done_bytes > 1 << 14:
            cancel.set()

    start_s = time.monotonic()
    with pytest.raises(Cancelled, match="go on where it stopped"):
        fetch_repo("org/model", on_event=listen, cancel=cancel)
    assert time.monotonic() - start_s < 2
    assert_clean(tmp_path)
    arrived = transfer.partial_bytes(cache.repo_folder("org/model") / "blobs" / SHA256)
    assert 1 << 14 <= arrived < len(WEIGHTS)
    server.repos["org/model"].trickles.clear()
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges("model.safetensors")[-1] == f"bytes={arrived}-"


def test_a_connection_that_falls_silent_is_taken_up_again(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "READ_TIMEOUT_S", 0.2)
    server.repos["org/model"].trickles["model.safetensors"] = (len(WEIGHTS) // 4, 0.5)
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert len(server.ranges("model.safetensors")) == 4


def test_stopping_before_it_starts(server: HubServer) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        fetch_repo("org/model", cancel=cancel)
    assert server.log == []


def test_a_killed_download_goes_on_in_the_next_process(server: HubServer, tmp_path: Path) -> None:
    trickles = server.repos["org/model"].trickles
    trickles["model.safetensors"] = (1 << 14, 0.05)  # 3.2 s in all
    code = "from eagle_core.hub import fetch_repo; fetch_repo('org/model', on_event=print)"
    child = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(re.findall(r"done_bytes=(\d+)", line)[0]) > 1 << 15:
            break
    child.kill()
    child.wait()
    child.stdout.close()
    partial = cache.repo_folder("org/model") / "blobs" / (SHA256 + transfer.PARTIAL)
    arrived = partial.stat().st_size
    assert 1 << 15 < arrived < len(WEIGHTS)
    assert_clean(tmp_path)
    trickles.clear()
    before = server.bytes_sent["model.safetensors"]
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges("model.safetensors")[-1] == f"bytes={arrived}-"
    assert server.bytes_sent["model.safetensors"] - before <= len(WEIGHTS) - arrived + (1 << 14)


def test_stopping_from_the_event_handler_stops_the_download(server: HubServer) -> None:
    def stop(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_repo("org/model", on_event=stop)
    assert server.n_transfers.total() == 0


def test_too_little_disk_space(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DiskFull, match="1 MB free"):
        fetch_repo("org/model")
    assert server.n_transfers.total() == 0


def test_a_disk_that_fills_up(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer.os, "replace", full)
    with pytest.raises(DiskFull, match="HF_HOME"):
        fetch_repo("org/model")
    monkeypatch.undo()
    assert not list((tmp_path / "hub").rglob("snapshots/*/*"))
