"""No test may reach the network, the user's own cache of models, or the user's chats."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core.kernels import build

# Set before any test module imports huggingface_hub, which reads it once.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="eagle-tests-hf-")
# The user's own pairs are none of the tests' business.
os.environ["EAGLE_CONFIG"] = tempfile.mkdtemp(prefix="eagle-tests-config-")
os.environ["EAGLE_DATA"] = tempfile.mkdtemp(prefix="eagle-tests-data-")

# Compiled once, and kept from run to run.
build.cache_folder = lambda: Path(__file__).parent.parent / ".pytest_cache" / "eagle-chat"

# The tests' models are tiny: more threads only wait for each other, and badly so on a busy machine.
torch.set_num_threads(1)


def _is_local(address: Any) -> bool:
    if not isinstance(address, tuple):  # a Unix socket's path
        return True
    host = address[0]
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond this machine fail, except in tests marked ``network``."""
    if request.node.get_closest_marker("network"):
        return
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, original: Any = original) -> Any:
            if not _is_local(address):
                raise OSError(f"tests may not connect to {address}")
            return original(self, address)

        monkeypatch.setattr(socket.socket, name, guarded)


@pytest.fixture(scope="module")
def _gradio_cleans_up() -> Iterator[None]:
    """Gradio leaves sockets and event loops to the collector, which warns; one loop stays this thread's."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.set_event_loop(None)
        gc.collect()
