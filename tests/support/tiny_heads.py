"""Tiny EAGLE heads with random weights, and drafters made of them."""

from __future__ import annotations

import torch

from eagle_core.config import TreeConfig
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.heads.base import DraftHead
from eagle_core.heads.eagle1 import Eagle1Config, Eagle1Head
from eagle_core.heads.eagle3 import Eagle3Config, Eagle3Head
from eagle_core.target import Target


def tiny_head(
    hidden_size: int = 32, *, seed: int = 0, vocabulary: list[int] | None = None, **shape: object
) -> Eagle1Head:
    """A random head whose predictions differ much from token to token."""
    settings = {"intermediate_size": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8} | shape
    config = Eagle1Config(hidden_size, draft_vocab_size=len(vocabulary or ()), **settings)
    head = Eagle1Head(config).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.4, generator=random)
        if vocabulary is not None:
            head.draft_vocabulary.copy_(torch.tensor(vocabulary))
    return head


def tiny_eagle3_head(
    target_hidden_size: int = 32,
    vocab_size: int = 260,
    *,
    seed: int = 0,
    vocabulary: list[int] | None = None,
    **shape: object,
) -> Eagle3Head:
    """A random EAGLE-3 head whose predictions differ much from token to token."""
    settings = {
        "hidden_size": target_hidden_size, "intermediate_size": 48, "n_heads": 4, "n_kv_heads": 2,
        "head_dim": 8, "feature_layers": (2, 1, 0),
    }  # fmt: skip
    config = Eagle3Config(
        target_hidden_size=target_hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=len(vocabulary or ()),
        **settings | shape,
    )
    head = Eagle3Head(config).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.4, generator=random)
        if vocabulary is not None:
            head.draft_vocabulary.copy_(torch.tensor(vocabulary))
    return head


def eagle_drafter(target: Target, tree: TreeConfig, head: DraftHead | None = None) -> EagleDrafter:
    """A drafter for ``target``; its head is random unless given."""
    head = head if head is not None else tiny_head(target.hidden_size)
    return EagleDrafter(
        head, target.embed, target.output_embeddings, tree, target.context_length + 1
    )
