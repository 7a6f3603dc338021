"""Target: tree forwards equal sequential ones, on every family, inside a window and beyond it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_core.errors import ConfigError, ModelError
from eagle_core.target import Target, self_check
from eagle_core.testing import EOS_ID, KINDS, ByteTokenizer, tiny_model, tiny_target
from eagle_core.tree import DraftTree

# Logits reach about 30 here; the order of float32 sums differs between one row and many.
TOLERANCE = 3e-4
WINDOWED = ("qwen2", "qwen3", "mistral", "mixtral", "phi3", "gemma2", "gemma3")
WINDOW = 8


@pytest.mark.parametrize("kind", KINDS)
def test_tree_equals_sequence(kind):
    assert self_check(tiny_target(kind), seed=1) < TOLERANCE


@pytest.mark.parametrize("kind", WINDOWED)
@pytest.mark.parametrize("n_prompt", [WINDOW - 4, 3 * WINDOW])
def test_tree_equals_sequence_across_a_window(kind, n_prompt):
    target = tiny_target(kind, window=WINDOW)
    assert self_check(target, seed=2, n_prompt=n_prompt) < TOLERANCE


@pytest.mark.parametrize(("kind", "window"), [("llama", None), *((k, WINDOW) for k in WINDOWED)])
def test_prefill_in_chunks_and_trees_equal_the_plain_model(kind, window):
    """The reference is the model's own forward over the whole text, with no cache of ours."""
    target = tiny_target(kind, window=window)
    ids = torch.randint(256, (30,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = target.model(input_ids=ids[None], use_cache=False).logits[0]  # [30, V]
    cache = target.new_cache(40)
    for begin, end in ((0, 11), (11, 12), (12, 24)):
        output = target.prefill_chunk(ids[begin:end], cache)
        assert cache.length == end
        assert output.features.shape == (end - begin, target.hidden_size)
        torch.testing.assert_close(output.logits[0], expected[end - 1], atol=TOLERANCE, rtol=0)
    chain = DraftTree.chain(ids[24], ids[25:])
    output = target.forward_tree(chain, cache)
    assert cache.length == 24
    torch.testing.assert_close(output.logits, expected[24:], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gemma2"])
def test_features_go_into_the_lm_head(kind):
    """gemma2 is left out: its logits are capped after the LM head."""
    target = tiny_target(kind)
    cache = target.new_cache(10)
    output = target.prefill_chunk(torch.tensor([1, 2, 3]), cache)
    torch.testing.assert_close(target.lm_head(output.features[-1:]), output.logits)


def test_logits_are_those_of_the_whole_model():
    target = tiny_target("gemma2")
    cap = target.model.config.final_logit_softcapping
    output = target.prefill_chunk(torch.tensor([1, 2, 3]), target.new_cache(10))
    scores = target.lm_head(output.features[-1:])
    torch.testing.assert_close(output.logits, (scores / cap).tanh() * cap)


def test_one_node_takes_the_causal_path_without_a_mask(monkeypatch: pytest.MonkeyPatch):
    masks: list[Any] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def record(*args: Any, **kwargs: Any) -> torch.Tensor:
        masks.append(kwargs["attn_mask"])
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    target = tiny_target()
    cache = target.new_cache(20)
    target.prefill_chunk(torch.arange(5), cache)
    target.forward_tree(DraftTree.single(torch.tensor(3)), cache)
    assert masks == [None] * (2 * target.n_layers)
    masks.clear()
    target.forward_tree(DraftTree.chain(torch.tensor(3), torch.tensor([4])), cache)
    assert [mask.shape for mask in masks] == [(1, 1, 2, 7)] * target.n_layers


def test_mask_buffer_leaves_no_trace_of_earlier_trees():
    target = tiny_target()
    cache = target.new_cache(60)
    target.prefill_chunk(torch.arange(10), cache)
    narrow = DraftTree.chain(torch.tensor(3), torch.tensor([4, 5]))
    expected = target.forward_tree(narrow, cache).logits
    for size in (7, 30, 2):
        wide = DraftTree(torch.arange(size), torch.tensor([-1] + [0] * (size - 1)), 1)
        target.forward_tree(wide, cache)
        cache.rewind(10)
        assert torch.equal(target.forward_tree(narrow, cache).logits, expected)


def test_bfloat16_stays_bfloat16():
    target = tiny_target(dtype=torch.bfloat16)
    output = target.prefill_chunk(torch.arange(4), target.new_cache(9))
    assert output.logits.dtype == output.features.dtype == target.dtype == torch.bfloat16
    assert target.embed(torch.tensor([[1, 2]])).shape == (1, 2, target.hidden_size)


def test_hooks_are_gone_after_a_forward():
    target = tiny_target()
    target.prefill_chunk(torch.arange(4), target.new_cache(9))
    assert not target._decoder._forward_hooks


def test_eos_ids():
    target = tiny_target()
    target.model.generation_config.eos_token_id = [3, 4]
    assert target.eos_ids() == {3, 4}
    assert target.eos_ids(ByteTokenizer()) == {3, 4, EOS_ID}
    target.model.generation_config.eos_token_id = None
    assert target.eos_ids() == {EOS_ID}


def test_context_length():
    model = tiny_model(context_length=300)
    assert Target(model).context_length == 300
    assert Target(model, 100).context_length == 100
    assert tiny_target(context_length=20_000).context_length == 8192
    with pytest.raises(ConfigError, match="beyond"):
        Target(model, 301)


def test_models_that_cannot_be_run_are_refused(monkeypatch: pytest.MonkeyPatch):
    model = tiny_model()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(ModelError, match="sdpa"):
        Target(model)
    model = tiny_model()
    model.config.is_encoder_decoder = True
    with pytest.raises(ModelError, match="encoder-decoder"):
        Target(model)
    mamba = tiny_model("mamba")
    assert Target(mamba).has_state
    monkeypatch.setattr(type(mamba), "forward", lambda self, input_ids, cache_params=None: None)
    with pytest.raises(ModelError, match="cache of its own"):
        Target(mamba)


def test_ids_are_checked():
    target = tiny_target()
    with pytest.raises(ConfigError):
        target.prefill_chunk(torch.zeros(0, dtype=torch.long), target.new_cache(9))
