"""Which devices there are, told without PyTorch as far as that goes."""

from __future__ import annotations

import importlib.machinery
import sys
from pathlib import Path

import pytest

from eagle_core import devices
from eagle_core.errors import ConfigError


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PyTorch of which nothing but the note on its version is there."""
    spec = importlib.machinery.ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(devices, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path / "version.py"


@pytest.mark.parametrize(
    ("note", "has_gpus"),
    [
        ("cuda = None\nhip = None\n", False),
        ("cuda: str | None = '12.8'\nhip = None\n", True),
        ("cuda = None\nhip = '6.2'\n", True),
        (None, True),  # importing it will tell
    ],
)
def test_the_note_on_its_version_says_what_pytorch_is_built_for(
    install: Path, note: str | None, has_gpus: bool
) -> None:
    if note is not None:
        install.write_text(note)
    assert devices.is_built_for_gpus() is has_gpus
    assert devices.is_surely_cpu("auto") is not has_gpus
    assert devices.is_surely_cpu("cpu")
    assert not devices.is_surely_cpu("cuda")
    devices.check_device("auto")
    devices.check_device("split")
    if has_gpus:
        devices.check_device("cuda:1")
        return
    with pytest.raises(ConfigError, match="does not have the device"):
        devices.check_device("cuda:1")


@pytest.mark.parametrize("name", ["", "toaster", "cuda:", "cuda:x", "cpu:-1", "cuda:0 "])
def test_what_is_no_device(name: str) -> None:
    with pytest.raises(ConfigError, match="device is not known"):
        devices.check_device(name)


def test_a_macs_gpu_is_on_a_mac(install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install.write_text("cuda = None\nhip = None\n")
    with pytest.raises(ConfigError, match="does not have the device"):
        devices.check_device("mps")
    monkeypatch.setattr(sys, "platform", "darwin")
    devices.check_device("mps")
    assert not devices.is_surely_cpu("auto")
