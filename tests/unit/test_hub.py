"""Downloads from the Hub, against a loopback server that speaks its API."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub import file_download as library

from eagle_core import hub
from eagle_core.config import LoadConfig
from eagle_core.errors import CheckpointMismatch, DiskFull, DownloadError, GatedRepo, ModelNotFound
from eagle_core.events import DownloadProgress, Event
from eagle_core.hub import choose_files, fetch_repo
from eagle_core.loading import load_base
from eagle_core.sources import base_folder, head_folder
from tests.support.hub_server import HubServer, Repo
from tests.support.tiny_models import save_llama

WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
FILES = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"[]",  # not the same as config.json: equal files share one blob in the cache
    "pytorch_model.bin": b"pickle",
    "README.md": b"# read me",
    "code.py": b"raise SystemExit",
    "onnx/model.safetensors": b"another format",
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with ``org/model``, and an empty cache."""
    with HubServer({"org/model": Repo(dict(FILES))}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(library.time, "sleep", lambda s: None)  # its pause before a retry
        yield server


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_fetches_what_can_be_loaded_and_nothing_else(server: HubServer) -> None:
    events: list[Event] = []
    folder = fetch_repo("org/model", on_event=events.append)
    assert names(folder) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    total = len(WEIGHTS) + 4
    assert events[0] == DownloadProgress("org/model", 0, total)
    assert events[-1] == DownloadProgress("org/model", total, total)
    done = [event.done_bytes for event in events if isinstance(event, DownloadProgress)]
    assert done == sorted(done)


def test_a_second_start_transfers_nothing_and_needs_no_network(server: HubServer) -> None:
    folder = fetch_repo("org/model")
    n_transfers = server.n_transfers.total()
    events: list[Event] = []
    assert fetch_repo("org/model", on_event=events.append) == folder
    n_requests = len(server.log)
    assert fetch_repo("org/model", offline=True) == folder
    assert len(server.log) == n_requests
    server.repos.clear()
    assert server.n_transfers.total() == n_transfers
    assert events == []


def test_without_a_network_what_was_fetched_is_used(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch_repo("org/model")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on port 9
    assert fetch_repo("org/model") == folder
    with pytest.raises(DownloadError, match="check the network"):
        fetch_repo("org/other")


def test_offline_without_a_finished_download(server: HubServer) -> None:
    with pytest.raises(ModelNotFound, match="start once with a network"):
        fetch_repo("org/model", offline=True)
    fetch_repo("org/model", allow_patterns=["config.json"])
    with pytest.raises(ModelNotFound, match="or only a part of it"):
        fetch_repo("org/model", offline=True)
    assert names(fetch_repo("org/model", allow_patterns=["config.json"], offline=True)) == [
        "config.json"
    ]


def test_a_cut_transfer_goes_on_where_it_stopped(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what a cut loses at most
    server.repos["org/model"].cuts["model.safetensors"] = 2
    events: list[Event] = []
    folder = fetch_repo("org/model", on_event=events.append)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    half = len(WEIGHTS) // 2
    assert server.ranges("model.safetensors") == [None, f"bytes={half}-", f"bytes={half * 3 // 2}-"]
    assert events[-1] == DownloadProgress("org/model", len(WEIGHTS) + 4, len(WEIGHTS) + 4)


def test_a_connection_that_keeps_breaking_is_an_error_and_a_later_start_goes_on(
    server: HubServer, tmp_path: Path
) -> None:
    server.repos["org/model"].cuts["model.safetensors"] = 10**6
    with pytest.raises(DownloadError, match="the files that arrived are kept"):
        fetch_repo("org/model")
    assert not list((tmp_path / "hub").rglob("*.incomplete"))
    server.repos["org/model"].cuts.clear()
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert (folder / "config.json").exists()
    assert server.n_transfers["config.json"] == 1, "a file that arrived is not fetched again"


def test_a_damaged_file_is_refused_and_removed(server: HubServer) -> None:
    server.repos["org/model"].corrupt.add("model.safetensors")
    with pytest.raises(CheckpointMismatch, match="SHA-256"):
        fetch_repo("org/model")
    server.repos["org/model"].corrupt.clear()
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_pickles_only_where_there_is_no_safetensors(server: HubServer) -> None:
    del server.repos["org/model"].files["model.safetensors"]
    assert "pytorch_model.bin" in names(fetch_repo("org/model"))


@pytest.mark.parametrize(
    ("listing", "chosen"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (["a/model.safetensors", "model.gguf", "modeling.py"], []),
        (["merges.txt", "vocab.txt", "notes.txt"], ["merges.txt", "vocab.txt"]),
        (
            ["pytorch_model-00001-of-00002.bin", "training_args.bin"],
            ["pytorch_model-00001-of-00002.bin"],
        ),
    ],
)
def test_choice_of_files(listing: list[str], chosen: list[str]) -> None:
    assert choose_files(listing) == chosen


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (401, "GatedRepo", GatedRepo, "accept it on the page"),
        (403, "GatedRepo", GatedRepo, "accept it on the page"),
        (403, "", GatedRepo, "hf auth login"),
        (401, "RepoNotFound", ModelNotFound, "check the spelling"),
        (404, "RepoNotFound", ModelNotFound, "check the spelling"),
        (500, "", DownloadError, "wait a little"),
    ],
)
def test_refusals(
    server: HubServer, status: int, code: str, kind: type[Exception], hint: str
) -> None:
    repo = server.repos["org/model"]
    repo.refuse, repo.refuse_code = status, code
    with pytest.raises(kind, match=hint):
        fetch_repo("org/model")


@pytest.mark.parametrize("name", ["org/absent", "not//an id"])
def test_repositories_that_are_not_there(server: HubServer, name: str) -> None:
    with pytest.raises(ModelNotFound, match="no Hub repository"):
        fetch_repo(name)


def test_an_unknown_revision_and_a_repository_without_weights(server: HubServer) -> None:
    with pytest.raises(ModelNotFound, match="no revision 'old'"):
        fetch_repo("org/model", "old")
    server.repos["org/text"] = Repo({"README.md": b"nothing"})
    with pytest.raises(ModelNotFound, match=r"no files that can be loaded.*README\.md"):
        fetch_repo("org/text")


def test_too_little_disk_space(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DiskFull, match="1 MB free"):
        fetch_repo("org/model")
    assert server.n_transfers.total() == 0


def test_a_disk_that_fills_up(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub, "snapshot_download", full)
    with pytest.raises(DiskFull, match="HF_HOME"):
        fetch_repo("org/model")


def test_stopping_from_the_event_handler_stops_the_download(server: HubServer) -> None:
    def stop(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_repo("org/model", on_event=stop)
    assert server.n_transfers.total() == 0


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub.cache_dir() == tmp_path / "hub"
    monkeypatch.delenv("HF_HOME")
    assert hub.cache_dir() is None
    assert hub.existing_parent(tmp_path / "not" / "yet") == tmp_path


def test_a_base_and_a_head_load_by_hub_id(server: HubServer, tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    server.repos["org/llama"] = Repo({p.name: p.read_bytes() for p in folder.iterdir()})
    loaded = load_base(LoadConfig(base="org/llama@main", dtype="float32", device="cpu"))
    assert loaded.context_length == 128
    assert base_folder(LoadConfig(base="org/llama", offline=True)).is_dir()
    assert names(head_folder("org/model@main")) == ["config.json", "model.safetensors"]
