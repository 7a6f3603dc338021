"""A repository of the loopback Hub as the download tests know it, and what must hold after a fault."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from eagle_core.errors import (
    ModelNotFound,
)
from eagle_core.hub import fetch_repo, transfer

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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
