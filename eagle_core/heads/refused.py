"""Layouts of other draft models, told by their config or their tensors' names, and what to do about each.

Pure functions: nothing is loaded here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eagle_core.errors import IncompatibleHead

EAGLE_INSTEAD = "choose an EAGLE, EAGLE-2 or EAGLE-3 head for this base"


@dataclass(frozen=True, slots=True)
class RefusedLayout:
    """A kind of draft model that is recognised and not loaded.

    Args:
        types: values of speculators_model_type or model_type.
        fields: keys of config.json (or of its ``eagle_config``) that only it has, with a true value.
        architecture, tensor: patterns searched in the architectures' and the tensors' names.
    """

    name: str
    why: str
    types: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()
    architecture: str = ""
    tensor: str = ""
    hint: str = EAGLE_INSTEAD


REFUSED = (
    RefusedLayout(
        "P-EAGLE",
        "it drafts all tokens at once from mask states",
        frozenset({"peagle", "p_eagle"}),
        frozenset({"parallel_drafting", "mask_hidden", "ptd_token_id"}),
        r"(?i)p_?eagle",
        r"(^|\.)mask_hidden",
    ),
    RefusedLayout(
        "DFlash",
        "it drafts blocks by diffusion",
        frozenset({"dflash", "dflash2", "dflare"}),
        frozenset({"dflash_config"}),
        r"(?i)dfla(sh|re)",
    ),
    RefusedLayout(
        "DSpark",
        "it drafts blocks with a confidence head",
        frozenset({"dspark", "dsv4_dspark"}),
        frozenset({"dspark_config"}),
        r"(?i)dspark",
        r"(^|\.)(confidence_head|markov_head)\.",
    ),
    RefusedLayout(
        "MTP",
        "it is a part of its base model's own checkpoint",
        frozenset({"mtp", "fast_mtp", "fastmtp"}),
        architecture=r"(?i)mtp|nextn",
        tensor=r"(^|\.)(mtp|mtp_layers|eh_proj)\.",
    ),
    RefusedLayout(
        "Medusa",
        "its heads are independent of each other",
        frozenset({"medusa"}),
        frozenset({"medusa_num_heads", "medusa_num_layers"}),
        r"(?i)medusa",
        r"medusa_head|^\d+\.\d+\.linear\.",
    ),
    RefusedLayout(
        "Hydra",
        "its heads read all tokens drafted so far",
        frozenset({"hydra"}),
        frozenset({"hydra_num_heads"}),
        r"(?i)hydra",
        r"hydra_head",
    ),
    RefusedLayout(
        "MLP speculator",
        "it has no attention",
        frozenset({"mlp_speculator"}),
        architecture=r"MLPSpeculator",
        tensor=r"^(speculator\.)?(emb|proj)\.\d+\.",
    ),
    RefusedLayout(
        "EAGLE with parallel draft heads",
        "some of its tokens are drafted side by side",
        tensor=r"parallel_draft_heads\.",
    ),
    RefusedLayout(
        "EAGLE with multi-head latent attention",
        "its attention keeps compressed keys",
        tensor=r"\.(kv_a_proj_with_mqa|kv_b_proj|q_a_proj)\.",
    ),
    RefusedLayout(
        "mixture-of-experts head",
        "its layer routes tokens to experts",
        tensor=r"\.mlp\.(experts|gate\.)",
    ),
    RefusedLayout(
        "quantized head",
        "its weights are packed for other kernels",
        tensor=r"\.(qweight|qzeros|weight_scale(_inv)?|weight_packed|scales|absmax)$",
        hint="choose the head in bfloat16 or float16; it is small beside its base",
    ),
    RefusedLayout(
        "LoRA adapter",
        "it holds changes to a model only",
        tensor=r"\.lora_[AB]\.",
        hint="merge the adapter into its model first, then name the merged folder",
    ),
)

WITHOUT_FUSION = RefusedLayout("EAGLE-3 (single feature)", "it fuses no layers' features")


def refuse(found: RefusedLayout) -> IncompatibleHead:
    """The error for a layout that is not loaded."""
    return IncompatibleHead(
        f"this is a {found.name} checkpoint, which cannot draft here: {found.why}",
        expected="an EAGLE, EAGLE-2 or EAGLE-3 head",
        got=found.name,
        hint=found.hint,
    )


def check_config_is_known(config: Mapping[str, Any]) -> None:
    """Look for the marks of other draft models in a head's config.json.

    Raises: IncompatibleHead, naming the kind.
    """
    kinds = {str(config.get(key, "")).lower() for key in ("speculators_model_type", "model_type")}
    nested = config.get("eagle_config")
    if isinstance(nested, Mapping) and nested.get("use_aux_hidden_state") is False:
        raise refuse(WITHOUT_FUSION)
    fields = {key for key, value in config.items() if value}
    fields |= {k for k, v in nested.items() if v} if isinstance(nested, Mapping) else set()
    architectures = " ".join(map(str, config.get("architectures") or ()))
    for layout in REFUSED:
        is_named = bool(layout.architecture) and bool(re.search(layout.architecture, architectures))
        if is_named or kinds & layout.types or fields & layout.fields:
            raise refuse(layout)


def check_tensors_are_known(names: Iterable[str]) -> None:
    """Look for the marks of other draft models in the tensors' names.

    Raises: IncompatibleHead, naming the kind.
    """
    names = list(names)
    for layout in REFUSED:
        if layout.tensor and any(re.search(layout.tensor, name) for name in names):
            raise refuse(layout)


__all__ = [
    "REFUSED",
    "WITHOUT_FUSION",
    "RefusedLayout",
    "check_config_is_known",
    "check_tensors_are_known",
    "refuse",
]
