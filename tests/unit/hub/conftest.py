"""The Hub that every test here talks to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_files import FILES
from tests.support.hub_server import HubServer
from tests.support.loopback import serving


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with ``org/model``, and an empty cache."""
    with serving({"org/model": FILES}, tmp_path, monkeypatch) as server:
        yield server
