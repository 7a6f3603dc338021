"""A Hub that says no, or not now: each answer has its error, and each error its next step."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from eagle_core.errors import (
    DownloadError,
    EagleError,
    GatedRepo,
    ModelNotFound,
    RateLimited,
)
from eagle_core.hub import fetch_repo, transfer
from tests.support.hub_files import WEIGHTS, assert_clean
from tests.support.hub_server import HubServer, Repo


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


@pytest.mark.parametrize(
    ("status", "kind", "hint"),
    [
        (401, GatedRepo, "hf auth login"),
        (403, GatedRepo, "hf auth login"),
        (404, DownloadError, "start again"),
        (451, DownloadError, "start again"),
    ],
)
def test_a_refusal_in_the_middle(
    server: HubServer, tmp_path: Path, status: int, kind: type[EagleError], hint: str
) -> None:
    server.repos["org/model"].failures["model.safetensors"] = [status]
    with pytest.raises(kind) as caught:
        fetch_repo("org/model")
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    assert_clean(tmp_path)
    fetch_repo("org/model")


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
