"""The product pointed at a loopback Hub, with an empty cache; and a tiny pair as a Hub would hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants

from eagle_core.hub import transfer
from tests.support.cli import save_head
from tests.support.hub_server import HubServer, Repo
from tests.support.tiny_models import save_llama

Files = Mapping[str, Mapping[str, bytes]]  # by repository, by name


def tiny_pair(folder: Path, base: str = "org/base", head: str = "org/head") -> Files:
    """The files of a tiny base and of a head for it. Args: base, head: names of the repositories."""
    base_folder = save_llama(folder / "base")
    head_folder = save_head(base_folder, folder / "head")
    return {
        name: {path.name: path.read_bytes() for path in place.iterdir()}
        for name, place in ((base, base_folder), (head, head_folder))
    }


@contextmanager
def serving(files: Files, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with these files; caches, own pairs and token lie in ``folder``, and retries do not wait."""
    with HubServer({name: Repo(dict(content)) for name, content in files.items()}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
        monkeypatch.setenv("EAGLE_CONFIG", str(folder / "config"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
        monkeypatch.setattr(transfer, "FIRST_PAUSE_S", 0.001)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield server


__all__ = ["Files", "serving", "tiny_pair"]
