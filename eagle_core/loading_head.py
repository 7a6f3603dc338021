"""Heads from published checkpoints: strict about keys and shapes, and never running code that came with them.

The layout is that of the published EAGLE and EAGLE-2 heads (the same weights): fc, one decoder layer, and
often a frozen copy of the base's embedding, which is not used. Biases and shapes are taken from the tensors;
config.json only tells what tensors cannot, such as the RoPE base.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, load
from transformers import PreTrainedModel

from eagle_core import catalog
from eagle_core.assets import asset_path
from eagle_core.config import LoadConfig
from eagle_core.convert_gguf import first_line
from eagle_core.errors import CheckpointMismatch, IncompatibleHead, ModelNotFound
from eagle_core.events import LoadProgress
from eagle_core.folders import OnEvent, ignore_event
from eagle_core.heads.eagle1 import Eagle1Head
from eagle_core.sources import head_folder, read_json


def head_source(config: LoadConfig) -> str | Path | None:
    """The head to load for ``config``: the one it names, else the one known for the base, else None.

    Raises: ModelNotFound when the bundled head is missing from the installation.
    """
    if config.head is not None:
        return config.head
    entry = catalog.lookup(config.base)
    if entry is None or entry.head is None:
        return None
    return asset_path(entry.head) if entry.has_bundled_head else entry.head


def load_head(
    source: str | Path,
    base: PreTrainedModel,
    on_event: OnEvent = ignore_event,
    *,
    offline: bool = False,
) -> Eagle1Head:
    """Load the head at ``source`` and check that it fits ``base``.

    Args:
        source: a folder with config.json and model.safetensors or pytorch_model.bin, or a Hub id.
        base: the base model that the head shall draft for.
        on_event: gets DownloadProgress and LoadProgress.
        offline: do not fetch.
    Returns: the head on the CPU, in the dtype of its file, in evaluation mode.
    Raises: ModelNotFound; IncompatibleHead for another kind of head or another base; CheckpointMismatch
        naming the keys that are missing, too many or misshapen; the errors of a download.
    """
    folder = head_folder(source, on_event, offline)
    on_event(LoadProgress(f"loading the head {folder.name}"))
    hints = read_json(folder / "config.json")
    state = read_head_tensors(folder)
    head = Eagle1Head.from_state(state, hints).to(state["fc.weight"].dtype)
    check_head_fits(head, base, state)
    head.train(False)
    head.requires_grad_(False)
    return head


def read_head_tensors(folder: Path) -> dict[str, Tensor]:
    """A head's tensors: from model.safetensors, else from pytorch_model.bin without running what it holds.

    Raises: ModelNotFound when neither is there, CheckpointMismatch when it cannot be read.
    """
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        if safe.is_file():
            return load_file(safe)
        if pickled.is_file():
            state = load(pickled, map_location="cpu", weights_only=True)
        else:
            raise ModelNotFound(
                f"{folder} holds no head",
                expected="model.safetensors or pytorch_model.bin",
                hint="name a folder that holds config.json and one of these files",
            )
    except (
        SafetensorError,
        pickle.UnpicklingError,
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
    ) as error:
        raise CheckpointMismatch(
            f"the head's weights in {folder} cannot be read",
            expected="intact safetensors, or tensors only in a .bin file",
            got=first_line(error),
            hint="fetch the head again",
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointMismatch(
            f"{pickled} is no head",
            expected="a mapping of names to tensors",
            got=type(state).__name__,
        )
    return state


def check_head_fits(head: Eagle1Head, base: PreTrainedModel, state: Mapping[str, Tensor]) -> None:
    """Check that the head was made for a base of this width and vocabulary.

    Raises: IncompatibleHead naming what differs.
    """
    embedding = base.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    vocab_size, hidden_size = int(embedding.shape[0]), int(embedding.shape[1])
    differing: list[tuple[str, int, int]] = []
    if head.config.hidden_size != hidden_size:
        differing.append(("hidden size", hidden_size, head.config.hidden_size))
    copy = state.get("embed_tokens.weight")
    if copy is not None and copy.shape[0] != vocab_size:
        differing.append(("vocabulary", vocab_size, int(copy.shape[0])))
    ids = head.draft_vocabulary
    if ids is not None and (int(ids.max()) >= vocab_size or int(ids.min()) < 0):
        differing.append(("highest token id", vocab_size - 1, int(ids.max())))
    if differing:
        raise IncompatibleHead(
            "the head was made for another base model",
            expected=", ".join(f"{what} {own}" for what, own, _ in differing),
            got=", ".join(str(other) for _, _, other in differing),
            hint="choose a head that was trained for this base",
        )


__all__ = ["head_source", "load_head"]
