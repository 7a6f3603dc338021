"""The kinds of heads: from a config to its module, and from a base model to the config of a new head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_core.heads.base import DraftHead
from eagle_core.heads.eagle1 import Eagle1Config, Eagle1Head, config_for_base
from eagle_core.heads.eagle3 import Eagle3Config, Eagle3Head

HeadConfig = Eagle1Config | Eagle3Config


def make_head(config: HeadConfig) -> DraftHead:
    """A head with the shapes of ``config``, its weights not trained."""
    return Eagle1Head(config) if isinstance(config, Eagle1Config) else Eagle3Head(config)


def eagle3_for_base(
    base: Any,
    feature_layers: Sequence[int],
    *,
    n_layers: int = 1,
    draft_vocab_size: int = 0,
    fc_norm: bool = False,
) -> Eagle3Config:
    """A head shaped like one decoder layer of ``base`` (a transformers text config)."""
    shape = config_for_base(base, n_layers=n_layers)
    return Eagle3Config(
        hidden_size=shape.hidden_size,
        target_hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        feature_layers=tuple(feature_layers),
        vocab_size=int(base.vocab_size),
        draft_vocab_size=0 if draft_vocab_size == base.vocab_size else draft_vocab_size,
        n_layers=n_layers,
        fc_norm=fc_norm,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_theta,
    )


__all__ = ["HeadConfig", "eagle3_for_base", "make_head"]
