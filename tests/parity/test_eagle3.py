"""The EAGLE-3 head and its drafter against a reference written from the paper: no cache, no library layers.

Tolerance 1e-5 times the largest value, float32 on both sides in another order of summation.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from eagle_core.config import TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.target import Target
from eagle_core.testing import tiny_model
from tests.parity.reference import paths_of, rms_norm, rotate
from tests.support.tiny_heads import eagle_drafter, tiny_eagle3_head

PROMPT = torch.tensor([5, 9, 33, 2, 17, 8, 40])
SHAPES = {
    "official": {},
    "own embedding, other width": {"hidden_size": 48, "own_embedding": True},
    "norm before residual, qwen3 block": {"norm_before_residual": True, "qk_norm": True},
    "eagle 3.1": {"fc_norm": True, "norm_output": True},
    "norm before fc, biases": {"norm_before_fc": True, "fc_bias": True, "qkv_bias": True},
    "output bias, four kv heads": {"output_bias": True, "n_kv_heads": 4, "rope_theta": 500.0},
    "two layers": {"n_layers": 2, "qk_norm": True},
    "window": {"window": 4},
    "two features": {"feature_layers": (0, 2)},
}


def weights(head):
    return dict(head.named_parameters())


def reference_fuse(head, features):
    """[T, n D'] -> g [T, D]."""
    w, c = weights(head), head.config
    if c.fc_norm:
        width = c.target_hidden_size
        parts = [features[:, i * width : (i + 1) * width] for i in range(len(c.feature_layers))]
        features = torch.cat(
            [rms_norm(p, w[f"fc_norm.{i}.weight"], c.rms_norm_eps) for i, p in enumerate(parts)], -1
        )
    if c.norm_before_fc:
        features = rms_norm(features, w["input_norm.weight"], c.rms_norm_eps)
    out = features @ w["fc.weight"].T
    return out + w["fc.bias"] if c.fc_bias else out


def reference_attention(head, p, x, positions):
    """[T, W] -> [T, D]: causal, within the window."""
    w, c = weights(head), head.config
    parts = []
    for name, n in (("q", c.n_heads), ("k", c.n_kv_heads), ("v", c.n_kv_heads)):
        y = x @ w[f"{p}{name}_proj.weight"].T
        if c.qkv_bias:
            y = y + w[f"{p}{name}_proj.bias"]
        y = y.view(len(x), n, c.head_dim)
        if c.qk_norm and name != "v":
            y = rms_norm(y, w[f"{p}{name}_norm.weight"], c.rms_norm_eps)
        parts.append(y)
    q, k = rotate(parts[0], positions, c.rope_theta), rotate(parts[1], positions, c.rope_theta)
    group = c.n_heads // c.n_kv_heads
    k, v = k.repeat_interleave(group, 1), parts[2].repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(c.head_dim)
    distance = positions[:, None] - positions[None, :]
    hidden = (distance < 0) | ((distance >= c.window) if c.window else torch.tensor(False))
    attended = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -math.inf).softmax(-1), v)
    out = attended.reshape(len(x), -1) @ w[p + "o_proj.weight"].T
    return out + w[p + "o_proj.bias"] if c.output_bias else out


def reference_step(head, embeddings, g, positions):
    """[T, D] each -> the states [T, D] that are fed back, and what the LM head scores [T, D]."""
    w, c = weights(head), head.config

    def norm(x, name):
        return rms_norm(x, w[f"{name}.weight"], c.rms_norm_eps)

    for i in range(c.n_layers):
        p = f"layers.{i}."
        if i == 0:
            normed = norm(g, p + "hidden_norm")
            x = torch.cat((norm(embeddings, p + "input_layernorm"), normed), -1)
            residual = normed if c.norm_before_residual else g
        else:
            residual, x = state, norm(state, p + "input_layernorm")  # noqa: F821 - set by layer 0
        state = residual + reference_attention(head, p + "self_attn.", x, positions)
        h = norm(state, p + "post_attention_layernorm")
        gate = F.silu(h @ w[p + "mlp.gate_proj.weight"].T) * (h @ w[p + "mlp.up_proj.weight"].T)
        state = state + gate @ w[p + "mlp.down_proj.weight"].T
    scored = norm(state, "norm")
    return (scored if c.norm_output else state), scored


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_head_is_the_papers(shape):
    head = tiny_eagle3_head(32, 260, **shape)
    c = head.config
    random = torch.Generator().manual_seed(1)
    features = torch.randn(9, len(c.feature_layers) * 32, generator=random)
    embeddings = torch.randn(9, c.hidden_size, generator=random)
    positions = torch.arange(9)
    mask = positions[:, None] - positions[None, :]
    mask = (mask >= 0) & (mask < c.window if c.window else torch.tensor(True))
    with torch.no_grad():
        g = head.fuse(features)
        close(g, reference_fuse(head, features))
        ours = head(
            embeddings[None], g[None], positions[None], attention_mask=mask[None, None]
        )  # [1, T, D]
        state, scored = reference_step(head, embeddings, g, positions)
        close(ours[0], state)
        close(head.normed(ours)[0], scored)


def test_features_are_the_inputs_of_layers():
    """State i is what layer i reads; the last one is raw, unlike transformers' ``hidden_states[-1]``."""
    model = tiny_model("llama", seed=2)
    with torch.no_grad():
        out = model(PROMPT[None], output_hidden_states=True)
    target = Target(model, feature_layers=(2, 0, 1))
    features = target.prefill_chunk(PROMPT, target.new_cache()).features  # [T, 3 D]
    last, first, middle = features.split(32, dim=-1)
    assert torch.equal(first, out.hidden_states[0][0])
    assert torch.equal(middle, out.hidden_states[1][0])
    assert not torch.equal(last, out.hidden_states[2][0])
    torch.testing.assert_close(model.model.norm(last), out.hidden_states[2][0])


def reference_scores(target, head, features, pending, path):
    """Log-probabilities [V'] of what follows ``path``, by running the whole sequence anew each time."""
    tokens = torch.cat((PROMPT[1:], pending.reshape(1)))  # token i + 1 beside feature i
    embed = head.embed_tokens or target.embed
    known = reference_fuse(head, features)
    for token in [*path, None]:
        state, scored = reference_step(head, embed(tokens), known, torch.arange(len(known)))
        if token is None:
            break
        tokens = torch.cat((tokens, torch.tensor([token])))
        known = torch.cat((known, state[-1:]))
    logits = scored[-1] @ head.lm_head.weight.T
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_dynamic_tree_is_eagle_2s_on_this_head(shape):
    """Expand the k best of each depth, keep the N best of all, with everything computed anew."""
    vocabulary = list(range(3, 250, 4))
    layers = shape.get("feature_layers", (2, 1, 0))
    head = tiny_eagle3_head(
        32, 260, seed=4, **{"vocabulary": vocabulary, "feature_layers": layers} | shape
    )
    target = Target(tiny_model("llama", seed=2), feature_layers=layers)
    tree = TreeConfig("dynamic", depth=3, branching=3, size=9)
    features = target.prefill_chunk(PROMPT, target.new_cache()).features  # [7, n D]
    drafter = eagle_drafter(target, tree, head)
    drafter.commit(PROMPT[:4], features[:4], PROMPT[4])
    pending = torch.tensor(21)
    drafter.commit(PROMPT[4:], features[4:], pending)
    proposed = drafter.propose(pending, Budget(max_nodes=9, max_depth=3))
    proposed.validate()

    candidates, beam = [], [((), 0.0)]
    with torch.no_grad():
        for _ in range(tree.depth):
            level = []
            for path, value in beam:
                best = reference_scores(target, head, features, pending, path).topk(3)
                for score, index in zip(best.values, best.indices, strict=True):
                    level.append(((*path, vocabulary[int(index)]), value + float(score)))
            candidates += level
            beam = sorted(level, key=lambda item: -item[1])[:3]
    expected = {path for path, _ in sorted(candidates, key=lambda item: -item[1])[:9]}
    assert set(paths_of(proposed)) == expected
