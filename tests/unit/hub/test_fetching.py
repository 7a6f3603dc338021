"""Fetching a repository: what is chosen, which commit, with which token, once only."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle_core import hub
from eagle_core.config import LoadConfig
from eagle_core.errors import (
    BadToken,
    ModelError,
    ModelNotFound,
    NoNetwork,
)
from eagle_core.events import DownloadProgress, Event, LoadProgress
from eagle_core.hub import cache, choose_files, fetch_repo
from eagle_core.loading import load_base
from eagle_core.outputs import existing_parent
from eagle_core.sources import base_folder, head_folder
from tests.support.hub_files import WEIGHTS, names
from tests.support.hub_server import COMMIT, HubServer, Repo
from tests.support.tiny_models import save_llama


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


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "hub"
    monkeypatch.delenv("HF_HOME")
    assert cache.cache_dir() is None
    assert existing_parent(tmp_path / "not" / "yet") == tmp_path


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
