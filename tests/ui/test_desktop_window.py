"""The window itself, on a display of its own: opened, used, closed, opened again. Run with ``-m browser``."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def missing() -> str:
    """What this machine lacks for a window, "" if nothing."""
    if sys.platform != "linux" or shutil.which("Xvfb") is None:
        return "needs Xvfb"
    if importlib.util.find_spec("webview") is None:
        return "needs pywebview"
    if importlib.util.find_spec("gi") is None and importlib.util.find_spec("qtpy") is None:
        return "needs GTK or Qt for Python"
    return ""


@pytest.fixture
def display() -> Iterator[str]:
    if reason := missing():
        pytest.skip(reason)
    read_end, write_end = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write_end), "-screen", "0", "1280x900x24", "-nolisten", "tcp"],
        pass_fds=[write_end],
        stderr=subprocess.DEVNULL,
    )
    os.close(write_end)
    with os.fdopen(read_end) as file:
        number = file.readline().strip()
    yield f":{number}"
    server.terminate()
    server.wait(60)


def open_and_use(display: str, data: Path) -> dict[str, Any]:
    environment = {
        **os.environ, "DISPLAY": display, "EAGLE_DATA": str(data), "PYTHONPATH": str(ROOT),
        "QTWEBENGINE_DISABLE_SANDBOX": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.window_driver"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_the_window_is_opened_used_closed_and_finds_its_things_again(
    display: str, tmp_path: Path
) -> None:
    first = open_and_use(display, tmp_path)
    assert "problem" not in first
    assert first["answer"].startswith("Hello")
    assert first["n_colored"] > 0
    assert first["n_chats"] == 1
    code, said, complaint = first["second"]
    assert (code, complaint) == (0, "")
    assert said.endswith("its window comes to the front.\n")
    if "file" in first:  # GTK, whose dialog can be answered
        assert (first["file"], first["n_saved"]) == ("chats.json", 1)
    assert first["n_closed"] == 1
    assert first["threads"] == ["MainThread"]
    assert not (tmp_path / "desktop" / "instance.json").exists()
    again = open_and_use(display, tmp_path)
    assert "problem" not in again
    assert (first["kept before"], again["kept before"]) == (None, "kept")
    assert again["n_chats"] == 2
