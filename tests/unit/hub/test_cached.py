"""What is in the Hub's cache: listing and removing it, and facts about models without their weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from eagle_core import hub
from eagle_core.errors import (
    CheckpointMismatch,
    DownloadError,
    ModelNotFound,
)
from eagle_core.hub import cache, describe_repo, fetch_repo, metadata
from eagle_core.sizes import read_size
from tests.support.hub_files import WEIGHTS, names
from tests.support.hub_server import COMMIT, HubServer, Repo
from tests.support.tiny_models import save_llama


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
