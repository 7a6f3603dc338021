"""Downloads from the Hub, against a loopback server that speaks its API."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import constants
from transformers import LlamaForCausalLM

from eagle_core import hub
from eagle_core.config import LoadConfig
from eagle_core.errors import (
    BadToken,
    Cancelled,
    CheckpointMismatch,
    DiskFull,
    DownloadError,
    GatedRepo,
    ModelError,
    ModelNotFound,
    NoNetwork,
    RateLimited,
)
from eagle_core.events import DownloadProgress, Event, LoadProgress
from eagle_core.hub import cache, choose_files, describe_repo, fetch_repo, metadata, transfer
from eagle_core.loading import load_base
from eagle_core.sizes import read_size
from eagle_core.sources import base_folder, head_folder
from tests.support.hub_server import COMMIT, HubServer, Repo
from tests.support.tiny_models import save_llama

WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
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
        monkeypatch.setattr(transfer, "FIRST_PAUSE_S", 0.001)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
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
    with pytest.raises(NoNetwork, match="check the network"):
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


def assert_clean(tmp_path: Path) -> None:
    """Nothing in the cache counts as a model, and nothing is wrong with the cache."""
    with pytest.raises(ModelNotFound):
        fetch_repo("org/model", offline=True)
    assert not list((tmp_path / "hub").rglob("*.incomplete"))
    for blob in (tmp_path / "hub").rglob("blobs/*"):
        if blob.suffix != transfer.PARTIAL:
            digest = transfer.Content(blob.stat().st_size, None, blob.name)
            digest.add(blob.read_bytes())
            assert digest.found == blob.name or blob.name == SHA256, "a wrong content was kept"


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


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_hub_is_asked_again(server: HubServer, status: int) -> None:
    failures = server.repos["org/model"].failures
    failures["model.safetensors"], failures[""] = [status] * 3, [status] * 2
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_a_busy_hub_does_not_keep_what_is_here_from_being_used(server: HubServer) -> None:
    folder = fetch_repo("org/model")
    server.repos["org/model"].failures[""] = [503] * 100
    n_requests = len(server.log)
    assert fetch_repo("org/model") == folder
    assert len(server.log) == n_requests + 1, "no retries for what is here"


@pytest.mark.parametrize("place", ["", "model.safetensors"])
def test_a_hub_that_wants_fewer_requests(server: HubServer, tmp_path: Path, place: str) -> None:
    server.repos["org/model"].failures[place] = [429] * 100
    with pytest.raises(RateLimited, match="start again in some minutes"):
        fetch_repo("org/model")
    assert_clean(tmp_path)


def test_pauses_grow_and_follow_the_server() -> None:
    assert [transfer.pause_s(n) for n in range(4)] == [
        transfer.FIRST_PAUSE_S * 2**n for n in range(4)
    ]
    assert transfer.pause_s(20) == transfer.LONGEST_PAUSE_S
    assert transfer.pause_s(0, httpx2.Response(429, headers={"Retry-After": "7"})) == 7
    assert transfer.pause_s(0, httpx2.Response(429, headers={"Retry-After": "9999"})) == 30


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_in_the_middle(server: HubServer, tmp_path: Path, status: int) -> None:
    server.repos["org/model"].failures["model.safetensors"] = [status]
    with pytest.raises((GatedRepo, ModelNotFound, DownloadError)) as caught:
        fetch_repo("org/model")
    assert caught.value.hint
    assert_clean(tmp_path)
    fetch_repo("org/model")


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
        cwd=Path(__file__).parents[2],
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


def test_two_downloads_of_one_repository_take_turns(server: HubServer) -> None:
    events: list[Event] = []
    lock = cache.repo_lock("org/model")
    with ThreadPoolExecutor(1) as pool:
        with lock:
            waiting = pool.submit(fetch_repo, "org/model", on_event=events.append)
            while not events:
                time.sleep(0.01)
            assert events == [LoadProgress("another process is fetching org/model")]
            assert server.n_transfers.total() == 0
        assert (waiting.result() / "config.json").exists()


def test_a_name_is_resolved_to_a_commit_first_and_that_is_kept(server: HubServer) -> None:
    folder = fetch_repo("org/model")
    assert folder.name == COMMIT == hub.commit_of("org/model")
    assert all(COMMIT in path or path.startswith("/api/") for _, path, _ in server.log), (
        "a file was asked for by a branch"
    )
    server.repos["org/model"].commit = "f" * 40
    server.repos["org/model"].files["config.json"] = b"[1]"
    n_requests = len(server.log)
    assert fetch_repo("org/model", COMMIT) == folder
    assert len(server.log) == n_requests, "a commit that is here needs no Hub"
    assert fetch_repo("org/model", COMMIT, offline=True) == folder
    assert names(cache.repo_folder("org/model") / "refs") == ["main"]
    newer = fetch_repo("org/model")
    assert newer.name == "f" * 40 == hub.commit_of("org/model")
    assert (newer / "config.json").read_bytes() == b"[1]"
    assert (folder / "config.json").read_bytes() == b"{}"
    assert server.n_transfers["model.safetensors"] == 1
    assert fetch_repo("org/model", offline=True) == newer


def test_the_token_comes_from_the_environment_and_a_bad_one_is_named(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repos["org/model"].tokens = {"hf_right"}
    with pytest.raises(ModelNotFound, match="hf auth login"):
        fetch_repo("org/model")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(BadToken, match="does not accept your token") as caught:
        fetch_repo("org/model")
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert fetch_repo("org/model").is_dir()
    assert set(server.tokens) == {"", "hf_wrong", "hf_right"}


def test_the_token_does_not_follow_to_another_host(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights lie on other hosts than the Hub's; where they lie is none of the token's business."""
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    server.repos["org/model"].tokens = {"hf_right"}
    server.repos["org/model"].cuts["model.safetensors"] = 1
    server.redirects = True
    folder = fetch_repo("org/model")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    elsewhere = [
        token
        for (_, path, _), token in zip(server.log, server.tokens, strict=True)
        if path.startswith("/elsewhere/")
    ]
    assert len(elsewhere) == 4, "three files, one of them in two parts"
    assert set(elsewhere) == {""}
    assert server.ranges("model.safetensors")[-1] == f"bytes={len(WEIGHTS) // 2}-"


# --- what is in the cache


def test_removing_keeps_what_others_use(server: HubServer, tmp_path: Path) -> None:
    server.repos["org/other"] = Repo({"config.json": b"{}", "model.safetensors": b"x" * 1000})
    fetch_repo("org/model")
    other = fetch_repo("org/other")
    there = hub.cached_repos()
    assert set(there) == {"org/model", "org/other"}
    assert there["org/model"].commits == (COMMIT,)
    assert there["org/model"].n_bytes == len(WEIGHTS) + 4
    assert [repo.repo_id for repo in hub.downloads(["org/model", "org/none"])] == ["org/model"]
    assert hub.remove_repo("org/model") == len(WEIGHTS) + 4
    assert hub.remove_repo("org/model") == 0
    assert set(hub.cached_repos()) == {"org/other"}
    assert (other / "model.safetensors").exists()
    assert not cache.repo_folder("org/model").exists()


def test_an_unfinished_download_is_listed_and_removed(server: HubServer) -> None:
    server.repos["org/model"].files = {"model.safetensors": WEIGHTS}
    server.repos["org/model"].cuts["model.safetensors"] = 10**6
    with pytest.raises(DownloadError):
        fetch_repo("org/model")
    found = hub.cached_repos()["org/model"]
    assert found.commits == ()
    assert found.n_bytes == hub.remove_repo("org/model") > 0
    assert hub.cached_repos() == {}


def test_what_is_being_fetched_is_not_removed(server: HubServer) -> None:
    fetch_repo("org/model")
    with cache.repo_lock("org/model"), pytest.raises(DownloadError, match="being downloaded"):
        hub.remove_repo("org/model")


# --- facts without a download


def test_facts_need_no_weights(server: HubServer, tmp_path: Path) -> None:
    model = save_llama(tmp_path / "llama")
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    server.repos["org/llama"] = Repo(files)
    facts = describe_repo("org/llama")
    here = metadata.describe_folder(model)
    assert facts.commit == COMMIT
    assert facts.tensors == here.tensors
    assert facts.config == here.config
    assert facts.weight_bytes == len(files["model.safetensors"])
    loaded = LlamaForCausalLM.from_pretrained(model)
    n_parameters = sum(parameter.numel() for parameter in loaded.parameters())
    size = read_size(facts.config, facts.tensors)
    assert size.n_parameters == n_parameters
    assert names(cache.repo_folder("org/llama") / "snapshots" / COMMIT) == ["config.json"]


def test_facts_ask_for_the_headers_only(server: HubServer) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [512, 1024], "data_offsets": [0, 2097152]}})
    data = len(header).to_bytes(8, "little") + header.encode() + bytes(2 << 20)
    server.repos["org/model"].files["model.safetensors"] = data
    assert describe_repo("org/model").tensors == {"w": (512, 1024)}
    assert server.bytes_sent["model.safetensors"] <= 100_001


@pytest.mark.parametrize(
    ("files", "error", "match"),
    [
        ({"model.safetensors": b"x" * 100}, ModelNotFound, "config.json"),
        (
            {"config.json": b"{}", "model.safetensors": b"\xff" * 100},
            CheckpointMismatch,
            "safetensors",
        ),
        ({"config.json": b"[]"}, CheckpointMismatch, "cannot be read"),
    ],
)
def test_facts_of_what_is_no_model(
    server: HubServer, tmp_path: Path, files: dict[str, bytes], error: type[Exception], match: str
) -> None:
    server.repos["org/odd"] = Repo(files)
    with pytest.raises(error, match=match):
        describe_repo("org/odd")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(error, match=match):
        metadata.describe_folder(tmp_path)


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
        (429, "", RateLimited, "some minutes"),
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


def test_stopping_from_the_event_handler_stops_the_download(server: HubServer) -> None:
    def stop(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_repo("org/model", on_event=stop)
    assert server.n_transfers.total() == 0


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "hub"
    monkeypatch.delenv("HF_HOME")
    assert cache.cache_dir() is None
    assert cache.existing_parent(tmp_path / "not" / "yet") == tmp_path


def test_a_model_that_needs_its_own_code_is_refused_before_its_weights(server: HubServer) -> None:
    config = {"model_type": "unheard-of", "auto_map": {"AutoModel": "code.Model"}}
    server.repos["org/model"].files["config.json"] = json.dumps(config).encode()
    with pytest.raises(ModelError, match="its own code, which is never run"):
        load_base(LoadConfig(base="org/model"))
    assert server.n_transfers == {"config.json": 1}


def test_a_base_and_a_head_load_by_hub_id(server: HubServer, tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "llama")
    server.repos["org/llama"] = Repo({p.name: p.read_bytes() for p in folder.iterdir()})
    loaded = load_base(LoadConfig(base="org/llama@main", dtype="float32", device="cpu"))
    assert loaded.context_length == 128
    assert base_folder(LoadConfig(base="org/llama", offline=True)).is_dir()
    assert names(head_folder("org/model@main")) == ["config.json", "model.safetensors"]
