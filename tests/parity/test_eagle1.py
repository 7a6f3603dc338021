"""The head and its drafter against a reference written from the paper: no cache, no library layers.

Tolerances: both sides compute in float32, in another order; the differences seen are below 1e-5.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from eagle_core.config import FIGURE_9, TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.testing import tiny_target
from tests.parity.reference import paths_of, rms_norm, rotate
from tests.support.tiny_heads import eagle_drafter, tiny_head


def reference_head(head, embeddings, features, positions):
    """[T, D] each -> [T, D]: section 3.1 for one sequence, causal."""
    w, c = dict(head.named_parameters()), head.config
    x = torch.cat((embeddings, features), -1) @ w["fc.weight"].T
    if "fc.bias" in w:
        x = x + w["fc.bias"]
    for i in range(c.n_layers):
        p = f"layers.{i}."
        h = x if i == 0 else rms_norm(x, w[p + "input_layernorm.weight"], c.rms_norm_eps)
        parts = []
        for name, n in (("q", c.n_heads), ("k", c.n_kv_heads), ("v", c.n_kv_heads)):
            y = h @ w[p + f"self_attn.{name}_proj.weight"].T
            if c.qkv_bias:
                y = y + w[p + f"self_attn.{name}_proj.bias"]
            parts.append(y.view(len(h), n, c.head_dim))
        q, k = rotate(parts[0], positions, c.rope_theta), rotate(parts[1], positions, c.rope_theta)
        group = c.n_heads // c.n_kv_heads
        k, v = k.repeat_interleave(group, 1), parts[2].repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(c.head_dim)
        future = torch.ones(len(h), len(h)).triu(1).bool()
        attended = torch.einsum(
            "hqk,khd->qhd", scores.masked_fill(future, -math.inf).softmax(-1), v
        )
        x = x + attended.reshape(len(h), -1) @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], c.rms_norm_eps)
        gate = F.silu(h @ w[p + "mlp.gate_proj.weight"].T) * (h @ w[p + "mlp.up_proj.weight"].T)
        x = x + gate @ w[p + "mlp.down_proj.weight"].T
    return x


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"fc_bias": True, "qkv_bias": True},
        {"n_layers": 2},
        {"n_kv_heads": 4, "rope_theta": 500.0},
    ],
    ids=["plain", "biases", "two layers", "mha"],
)
def test_head_is_the_papers(shape):
    head = tiny_head(32, **shape)
    random = torch.Generator().manual_seed(1)
    embeddings, features = torch.randn(2, 9, 32, generator=random)
    positions = torch.arange(9)
    with torch.no_grad():
        ours = head(embeddings[None], features[None], positions[None])[0]
        torch.testing.assert_close(
            ours, reference_head(head, embeddings, features, positions), atol=1e-4, rtol=1e-4
        )


PROMPT = torch.tensor([5, 9, 33, 2, 17, 8, 40])


def committed(target, tree, head):
    """A drafter after prefill and one more commit, with everything that it was told."""
    cache = target.new_cache()
    drafter = eagle_drafter(target, tree, head)
    features = target.prefill_chunk(PROMPT, cache).features  # [7, D]
    drafter.commit(PROMPT[:4], features[:4], PROMPT[4])
    pending = torch.tensor(21)
    drafter.commit(PROMPT[4:], features[4:], pending)
    return drafter, features, pending


def reference_scores(target, head, features, pending, path):
    """Log-probabilities [V'] of what follows ``path``, by running the whole sequence anew each time."""
    tokens = torch.cat((PROMPT[1:], pending.reshape(1)))  # token i + 1 beside feature i
    known = features
    for token in [*path, None]:
        with torch.no_grad():
            out = reference_head(head, target.embed(tokens), known, torch.arange(len(known)))
        if token is None:
            break
        tokens = torch.cat((tokens, torch.tensor([token])))
        known = torch.cat((known, out[-1:]))
    logits = target.lm_head(out[-1])
    if head.draft_vocabulary is not None:
        logits = logits[head.draft_vocabulary]
    return torch.log_softmax(logits.float(), -1)


def ids_of(head, indices):
    return [
        int(i) if head.draft_vocabulary is None else int(head.draft_vocabulary[i]) for i in indices
    ]


def expected_dynamic(target, head, features, pending, tree):
    """EAGLE-2 by hand: expand the k best of each depth, keep the N best of all."""
    candidates, beam = [], [((), 0.0)]
    for _ in range(tree.depth):
        level = []
        for path, value in beam:
            scores = reference_scores(target, head, features, pending, path)
            best = scores.topk(tree.branching)
            for score, token in zip(best.values, ids_of(head, best.indices), strict=True):
                level.append(((*path, token), value + float(score)))
        candidates += level
        beam = sorted(level, key=lambda item: -item[1])[: tree.branching]
    return {path for path, _ in sorted(candidates, key=lambda item: -item[1])[: tree.size]}


@pytest.mark.parametrize(
    "vocabulary", [None, list(range(3, 250, 4))], ids=["full", "draft vocabulary"]
)
def test_dynamic_tree_is_eagle_2s(vocabulary):
    target = tiny_target("llama", seed=2)
    head = tiny_head(32, seed=4, vocabulary=vocabulary)
    tree = TreeConfig("dynamic", depth=4, branching=3, size=11)
    drafter, features, pending = committed(target, tree, head)
    proposed = drafter.propose(pending, Budget(max_nodes=11, max_depth=4))
    proposed.validate()
    found = paths_of(proposed)
    assert len(found) == 11
    assert set(found) == expected_dynamic(target, head, features, pending, tree)
    assert drafter.length == len(PROMPT), "drafted rows are dropped"
    again = drafter.propose(pending, Budget(max_nodes=11, max_depth=4))
    assert paths_of(again) == found


@pytest.mark.parametrize(
    ("policy", "shape"),
    [
        ("static", None),
        ("static", ((0,), (1,), (0, 0), (0, 2), (1, 0), (1, 0, 1))),
        ("chain", None),
    ],
)
def test_fixed_trees_hold_the_ranks_of_their_shape(policy, shape):
    target = tiny_target("llama", seed=2)
    head = tiny_head(32, seed=4)
    tree = TreeConfig(policy, depth=5, size=40, shape=shape)
    drafter, features, pending = committed(target, tree, head)
    proposed = drafter.propose(pending, Budget(max_nodes=40, max_depth=5))
    proposed.validate()
    wanted = shape or (FIGURE_9 if policy == "static" else tuple((0,) * d for d in range(1, 6)))
    expected = set()
    for ranks in wanted:
        path = ()
        for rank in ranks:
            scores = reference_scores(target, head, features, pending, path)
            path = (*path, ids_of(head, scores.topk(rank + 1).indices)[rank])
        expected.add(path)
    assert set(paths_of(proposed)) == expected
