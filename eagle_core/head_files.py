"""A head's tensors from the files that heads are published in; nothing that came with them is ever run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eagle_core.convert_gguf import first_line
from eagle_core.errors import CheckpointMismatch, ModelNotFound
from eagle_core.sources import read_json

SAFE_NAME, PICKLED_NAME = "model.safetensors", "pytorch_model.bin"
# FR-Spec (arXiv 2502.14856): token ids from the most frequent down, a file for each size.
FREQUENCIES = "freq_*.pt"
PREFERRED_FREQUENCIES = "freq_32768.pt"  # the size of the paper


def read_head_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a head: safetensors before .bin, one file or the shards of an index.

    Raises: ModelNotFound when there are none or a shard is missing; CheckpointMismatch for one that cannot
        be read.
    """
    readers: tuple[tuple[str, Callable[[Path], Any]], ...] = (
        (SAFE_NAME, load_file),
        (PICKLED_NAME, _load_pickled),
    )
    for name, read in readers:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return _read(folder / name, read)
        if index.is_file():
            return _read_shards(folder, index, read)
    raise ModelNotFound(
        f"{folder} holds no head",
        expected=f"{SAFE_NAME}, {PICKLED_NAME}, or an index with its shards",
        hint="name a folder that holds config.json and one of these files",
    )


def read_frequent_tokens(folder: Path, vocab_size: int) -> Tensor | None:
    """The draft vocabulary [V'] i64 that lies beside a head in FR-Spec's format, in rising order; None: none.

    Of several sizes the paper's is taken, else the largest.
    Raises: CheckpointMismatch when the file holds no token ids of this vocabulary.
    """
    files = sorted(folder.glob(FREQUENCIES), key=lambda path: (len(path.name), path.name))
    if not files:
        return None
    path = next((path for path in files if path.name == PREFERRED_FREQUENCIES), files[-1])
    found = _load(path, _load_pickled)
    ids = found.tolist() if isinstance(found, Tensor) else found
    is_ids = isinstance(ids, list) and bool(ids) and all(type(i) is int for i in ids)
    if not is_ids or min(ids) < 0 or max(ids) >= vocab_size:
        raise CheckpointMismatch(
            f"{path.name} holds no token ids of this vocabulary",
            expected=f"a list of ids below {vocab_size}",
            got=f"ids from {min(ids)} to {max(ids)}" if is_ids else type(found).__name__,
            hint="remove the file, or fetch the one that belongs to this head",
        )
    return torch.tensor(sorted(set(ids)))


def _read_shards(folder: Path, index: Path, read: Callable[[Path], Any]) -> dict[str, Tensor]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointMismatch(
            f"{index} lists no tensors", expected="a weight_map", hint="fetch the head again"
        )
    files = sorted({str(file) for file in names.values()})
    missing = [file for file in files if Path(file).name != file or not (folder / file).is_file()]
    if missing:
        raise ModelNotFound(
            f"{folder} lacks a part of the head",
            expected=", ".join(missing),
            hint="fetch the head again, all of its files included",
        )
    state: dict[str, Tensor] = {}
    for file in files:
        state |= _read(folder / file, read)
    lost = sorted(set(names) - set(state))
    if lost:
        raise CheckpointMismatch(
            f"the head's shards lack {', '.join(lost[:4])}",
            expected="every tensor that the index lists",
            got=f"{len(lost)} missing",
            hint="fetch the head again",
        )
    return state


def _read(path: Path, read: Callable[[Path], Any]) -> dict[str, Tensor]:
    state = _load(path, read)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointMismatch(
            f"{path} is no head",
            expected="a mapping of names to tensors",
            got=type(state).__name__,
            hint="name a folder with the head's weights",
        )
    return state


def _load(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
    ) as error:
        raise CheckpointMismatch(
            f"the head's weights in {path.parent} cannot be read",
            expected="intact safetensors, or tensors only in a .bin file",
            got=first_line(error),
            hint="fetch the head again",
        ) from error


def _load_pickled(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


__all__ = ["FREQUENCIES", "read_frequent_tokens", "read_head_tensors"]
