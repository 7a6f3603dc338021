"""Heads from published checkpoints: strict about keys and shapes, and never running code that came with them.

``heads.layouts`` says what a checkpoint holds, ``head_files`` reads it; here the two become a module that
fits its base. A head that cannot fit is refused by the two configs alone, before anything large is fetched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from eagle_core import catalog
from eagle_core.assets import asset_path
from eagle_core.config import LoadConfig
from eagle_core.errors import CheckpointMismatch, IncompatibleHead
from eagle_core.events import LoadProgress
from eagle_core.folders import OnEvent, ignore_event
from eagle_core.head_files import read_frequent_tokens, read_head_tensors
from eagle_core.heads.base import VOCABULARY_KEY, DraftHead
from eagle_core.heads.eagle1 import Eagle1Config
from eagle_core.heads.families import make_head
from eagle_core.heads.layouts import BaseShape, HeadLayout, describe
from eagle_core.heads.pairing import base_shape, check_pair
from eagle_core.sources import base_config, head_config, head_folder, read_json

logger = logging.getLogger(__name__)


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


def check_before_download(config: LoadConfig, on_event: OnEvent = ignore_event) -> None:
    """Compare the configs of the base and the head that ``config`` names; fetches no more than these two.

    A base whose config is inside something else (a .gguf file, a wheel) is compared when it is loaded.
    Raises: IncompatibleHead; ModelNotFound, DownloadError or GatedRepo for what cannot be fetched.
    """
    source = head_source(config)
    base = base_config(config, on_event) if source is not None else None
    if source is not None and base is not None:
        check_pair(base, head_config(source, on_event, config.offline))


def load_head(
    source: str | Path,
    base: PreTrainedModel,
    on_event: OnEvent = ignore_event,
    *,
    offline: bool = False,
) -> DraftHead:
    """Load the head at ``source`` and check that it fits ``base``.

    Args:
        source: a folder with config.json and the weights, or a Hub id.
        base: the base model that the head shall draft for.
        on_event: gets DownloadProgress and LoadProgress.
        offline: do not fetch.
    Returns: the head on the CPU, in the dtype of its file, in evaluation mode.
    Raises: ModelNotFound; IncompatibleHead for another kind of head or another base; CheckpointMismatch
        naming the keys that are missing, too many or misshapen; the errors of a download.
    """
    description = base.config.to_dict()
    check_pair(description, head_config(source, on_event, offline))
    folder = head_folder(source, on_event, offline)
    on_event(LoadProgress(f"loading the head {folder.name}"))
    head = read_head(folder, shape_of(base))
    head.train(False)
    head.requires_grad_(False)
    return head


def read_head(folder: Path, base: BaseShape | None = None) -> DraftHead:
    """The head in a folder, in the dtype of its file.

    Args: base: checked against; None: only an EAGLE head that says everything itself can be read.
    Raises: ModelNotFound, IncompatibleHead or CheckpointMismatch.
    """
    hints = read_json(folder / "config.json")
    state = read_head_tensors(folder)
    layout = describe({key: tuple(value.shape) for key, value in state.items()}, hints, base)
    logger.info("%s is an %s head", folder.name, layout.name)
    if base is not None:
        check_head_fits(layout, base, state)
    tensors = {ours: state[name] for name, ours in layout.keys.items()}
    ids = _draft_vocabulary(layout, state)
    if ids is None and base is not None and layout.config.draft_vocab_size == 0:
        ids = _frequent_tokens(folder, layout, base)
    if ids is not None:
        tensors[VOCABULARY_KEY] = ids
        layout = replace(layout, config=replace(layout.config, draft_vocab_size=len(ids)))
    return build_head(layout, tensors)


def build_head(layout: HeadLayout, tensors: Mapping[str, Tensor]) -> DraftHead:
    """A head from its tensors, by our names, strictly: a key too many or too few is an error.

    Raises: CheckpointMismatch naming the keys.
    """
    with torch.device("meta"):  # no time for weights that are replaced below
        head = make_head(layout.config)
    _check_keys(head, tensors, layout)
    dtype = tensors["fc.weight"].dtype
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in tensors.items()}
    head.load_state_dict(state, strict=True, assign=True)
    head.reset_rotary()
    return head


def _check_keys(head: DraftHead, state: Mapping[str, Tensor], layout: HeadLayout) -> None:
    """Raises: CheckpointMismatch naming, as the checkpoint does, what is missing, too many or misshapen."""
    wanted = {_spelled(k, layout): tuple(v.shape) for k, v in head.state_dict().items()}
    found = {_spelled(k, layout): tuple(v.shape) for k, v in state.items()}
    differing = sorted(k for k in wanted.keys() | found.keys() if wanted.get(k) != found.get(k))
    if differing:
        raise CheckpointMismatch(
            f"the head's tensors do not fit together: {', '.join(differing)}",
            expected=", ".join(f"{k} {list(wanted[k])}" for k in differing if k in wanted)
            or "nothing more",
            got=", ".join(f"{k} {list(found[k])}" for k in differing if k in found) or "nothing",
            hint="the file is damaged or is another kind of head",
        )


def _spelled(key: str, layout: HeadLayout) -> str:
    """One of our names as the checkpoint spells it, or would."""
    first = "layers.0."
    for name, ours in layout.keys.items():
        if ours == key:
            return name
    for name, ours in layout.keys.items():
        if ours.startswith(first) and key.startswith(first):
            return name.removesuffix(ours.removeprefix(first)) + key.removeprefix(first)
    return key


def _draft_vocabulary(layout: HeadLayout, state: Mapping[str, Tensor]) -> Tensor | None:
    """Token ids [V'] i64 that an EAGLE-3 head scores, by ``d2t``; None when it scores all, or has no d2t.

    ``d2t`` holds offsets: row i scores token i + d2t[i]. Where ``t2d`` shows that it holds ids instead, they
    are taken as they are.
    Raises: CheckpointMismatch when a token comes twice.
    """
    if isinstance(layout.config, Eagle1Config) or layout.config.draft_vocab_size == 0:
        return None
    offsets = next(value for key, value in state.items() if key.removeprefix("model.") == "d2t")
    offsets = offsets.long()
    ids = offsets + torch.arange(len(offsets))
    known = next((v for k, v in state.items() if k.removeprefix("model.") == "t2d"), None)
    if known is not None:
        scored = known.bool().nonzero().flatten()
        if not torch.equal(ids.sort().values, scored) and torch.equal(
            offsets.sort().values, scored
        ):
            ids = offsets
    if (n_doubles := len(ids) - len(set(ids.tolist()))) > 0:
        raise CheckpointMismatch(
            "the head's draft vocabulary holds a token twice",
            expected="d2t with offsets that lead to different tokens",
            got=f"{n_doubles} doubles",
            hint="fetch the head again",
        )
    return ids


def _frequent_tokens(folder: Path, layout: HeadLayout, base: BaseShape) -> Tensor | None:
    """An FR-Spec vocabulary beside a head that would score everything through the base's LM head."""
    config = layout.config
    if not isinstance(config, Eagle1Config) and config.own_lm_head:
        return None
    return read_frequent_tokens(folder, base.vocab_size)


def shape_of(base: PreTrainedModel) -> BaseShape:
    """What a loaded base looks like to a head: the vocabulary is that of its embedding."""
    embedding = base.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    text: Any = base.config.get_text_config()
    found = base_shape(text.to_dict())
    return BaseShape(
        hidden_size=int(text.hidden_size),
        vocab_size=int(embedding.shape[0]),
        n_layers=found.n_layers if found is not None else int(text.num_hidden_layers),
    )


def check_head_fits(layout: HeadLayout, base: BaseShape, state: Mapping[str, Tensor]) -> None:
    """Check by its tensors that the head was made for a base of this width and vocabulary.

    Raises: IncompatibleHead naming what differs.
    """
    config = layout.config
    differing: list[tuple[str, int, int]] = []
    if isinstance(config, Eagle1Config):
        width, ids = config.hidden_size, state.get(VOCABULARY_KEY)
        copy = next((v for k, v in state.items() if k.endswith("embed_tokens.weight")), None)
        vocab_size = len(copy) if copy is not None else base.vocab_size
    else:
        width, ids = config.target_hidden_size, _draft_vocabulary(layout, state)
        vocab_size = config.vocab_size
        shares = not (config.own_embedding and config.own_lm_head)
        if shares and config.hidden_size != base.hidden_size:
            differing.append(("embedding's width", base.hidden_size, config.hidden_size))
    if width != base.hidden_size:
        differing.append(("hidden size", base.hidden_size, width))
    if vocab_size != base.vocab_size:
        differing.append(("vocabulary", base.vocab_size, vocab_size))
    if ids is not None and (int(ids.max()) >= base.vocab_size or int(ids.min()) < 0):
        differing.append(("highest token id", base.vocab_size - 1, int(ids.max())))
    if differing:
        raise IncompatibleHead(
            "the head was made for another base model",
            expected=", ".join(f"{what} {own}" for what, own, _ in differing),
            got=", ".join(str(other) for _, _, other in differing),
            hint="choose a head that was trained for this base",
        )


__all__ = ["check_before_download", "head_source", "load_head", "read_head", "shape_of"]
