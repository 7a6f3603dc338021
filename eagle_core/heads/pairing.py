"""Whether a head can draft for a base, told by their two config.json alone: before anything is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle_core.errors import IncompatibleHead
from eagle_core.heads.layouts import BaseShape, flat_hints
from eagle_core.heads.refused import check_config_is_known

# What transformers writes where nobody chose: of no weight as a sign.
DEFAULT_SPECIALS = frozenset({0, 1, 2})


def base_shape(config: Mapping[str, Any]) -> BaseShape | None:
    """The shape of a base model by its config.json; None when the config does not tell."""
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, Mapping) else config
    hidden = text.get("hidden_size") or text.get("n_embd")
    vocabulary, layers = (
        text.get("vocab_size"),
        text.get("num_hidden_layers") or text.get("n_layer"),
    )
    if not hidden or not vocabulary or not layers:
        return None
    return BaseShape(int(hidden), int(vocabulary), int(layers))


def check_pair(base_config: Mapping[str, Any], head_config: Mapping[str, Any]) -> None:
    """Compare what two configs say of hidden size, vocabulary and tokenizer.

    What one of them leaves out is not compared; the tensors are, once they are there.

    Raises: IncompatibleHead, naming what differs, or the kind of draft model that is not loaded.
    """
    check_config_is_known(head_config)
    head = flat_hints(head_config)
    base = base_shape(base_config)
    if base is None:
        return
    differing: list[tuple[str, object, object]] = []
    width = head.get("target_hidden_size") or head.get("hidden_size")
    if width and int(width) != base.hidden_size:
        differing.append(("hidden size", base.hidden_size, width))
    # Some configs hold the size of the draft vocabulary in this place.
    vocabulary = head.get("vocab_size")
    is_draft = vocabulary == head.get("draft_vocab_size")
    if vocabulary and not is_draft and int(vocabulary) != base.vocab_size:
        differing.append(("vocabulary", base.vocab_size, vocabulary))
    ours, theirs = special_ids(base_config), special_ids(head)
    if ours and theirs and not ours & theirs:
        differing.append(("special tokens", sorted(ours), sorted(theirs)))
    if differing:
        raise IncompatibleHead(
            "the head was made for another base model",
            expected=", ".join(f"{what} {own}" for what, own, _ in differing),
            got=", ".join(str(other) for _, _, other in differing),
            hint=_hint(head),
        )


def special_ids(config: Mapping[str, Any]) -> frozenset[int]:
    """Ids of the tokens that begin and end a text, as far as somebody chose them: a tokenizer's mark."""
    nested = config.get("text_config")
    text = {**config, **nested} if isinstance(nested, Mapping) else config
    found: set[int] = set()
    for key in ("bos_token_id", "eos_token_id"):
        value = text.get(key)
        values = value if isinstance(value, (list, tuple)) else [value]
        found |= {int(item) for item in values if isinstance(item, int)}
    return frozenset() if found <= DEFAULT_SPECIALS else frozenset(found)


def _hint(head: Mapping[str, Any]) -> str:
    made_for = head.get("speculators_config")
    verifier = made_for.get("verifier") if isinstance(made_for, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    if name:
        return f"this head was trained for {name}"
    return "choose a head that was trained for this base"


__all__ = ["base_shape", "check_pair", "special_ids"]
