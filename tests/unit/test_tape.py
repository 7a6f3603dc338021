"""Recorded forwards: the same bits as the model's own, or not used."""

from __future__ import annotations

import threading

import pytest
import torch

from eagle_core.kernels import ops, tape
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.kernels.recording import Recorder, Unrecordable, active
from eagle_core.kernels.tape import MOST_ROWS, TapeDeck
from eagle_core.packing import pack_layers
from eagle_core.target import Target
from eagle_core.testing import tiny_model
from eagle_core.tree import DraftTree

pytestmark = pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")


class Length:
    """As much of a cache as a deck looks at."""

    length = 0


def fast_target(kind: str) -> Target:
    model = tiny_model(kind, hidden_size=64).requires_grad_(False)
    pack_layers(model)
    assert use_rows_attention(model)
    return Target(model)


def test_a_row_that_never_comes_alone_is_settled_as_two_are() -> None:
    """In bfloat16 no row is computed alone, and nothing is recorded."""
    model = tiny_model("llama", dtype=torch.bfloat16)
    assert use_rows_attention(model)
    target = Target(model)
    assert target.is_reproducible
    cache = target.new_cache(50)
    target.prefill_chunk(torch.arange(4), cache)
    for _ in range(4):
        target.forward_tree(DraftTree.single(torch.tensor(5)), cache)
        cache.advance(1)
    assert target.is_settled(1)
    assert target.is_settled(2)


def some_tree(n_nodes: int, random: torch.Generator) -> DraftTree:
    parents = [-1, *((node - 1) // 2 for node in range(1, n_nodes))]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    tokens = torch.randint(250, (n_nodes,), generator=random)
    return DraftTree(tokens, torch.tensor(parents), max(depths))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "phi3", "mixtral", "gpt_neox"])
def test_replayed_forwards_are_bitwise_the_models_own(kind):
    fast, plain = fast_target(kind), fast_target(kind)
    plain._tapes = None
    random = torch.Generator().manual_seed(1)
    caches = fast.new_cache(200), plain.new_cache(200)
    prompt = torch.randint(250, (9,), generator=random)
    for target, cache in zip((fast, plain), caches, strict=True):
        target.prefill_chunk(prompt, cache)
    for turn in range(6):
        for n_nodes in (1, 2, 5, 13):
            tree = some_tree(n_nodes, random)
            outputs = [
                target.forward_tree(tree, cache)
                for target, cache in zip((fast, plain), caches, strict=True)
            ]
            assert torch.equal(outputs[0].logits, outputs[1].logits), (turn, n_nodes)
            assert torch.equal(outputs[0].features, outputs[1].features)
            path = [0, 1, 3][: 1 + turn % 3] if n_nodes > 3 else [0]
            for cache in caches:
                cache.keep(path)
    for left, right in zip(*(cache.layers for cache in caches), strict=True):
        assert torch.equal(
            left.keys[..., : caches[0].length, :], right.keys[..., : caches[0].length, :]
        )
        assert torch.equal(
            left.values[..., : caches[0].length, :], right.values[..., : caches[0].length, :]
        )
    assert fast._tapes.n_replayed() == 4


def test_results_of_a_replay_are_not_overwritten_by_the_next():
    target = fast_target("llama")
    cache = target.new_cache(100)
    target.prefill_chunk(torch.arange(8), cache)
    outputs = []
    for token in range(8):
        outputs.append(target.forward_tree(DraftTree.single(torch.tensor(token)), cache))
        cache.advance(1)
    assert target._tapes.n_replayed() == 1
    copies = [(out.logits.clone(), out.features.clone()) for out in outputs]
    target.forward_tree(DraftTree.single(torch.tensor(99)), cache)
    for out, (logits, features) in zip(outputs, copies, strict=True):
        assert torch.equal(out.logits, logits)
        assert torch.equal(out.features, features)
    assert len({float(out.logits.sum()) for out in outputs}) == len(outputs)


def test_another_cache_takes_the_models_own_way_until_the_first_is_gone():
    target = fast_target("llama")
    first, second = target.new_cache(50), target.new_cache(60)
    tree = DraftTree.single(torch.tensor(3))
    for cache in (first, second):
        target.prefill_chunk(torch.arange(8), cache)
        for _ in range(5):
            target.forward_tree(tree, cache)
            cache.advance(1)
    assert target._tapes._cache() is first
    wanted = target.forward_tree(tree, second)
    del first, cache
    for _ in range(5):
        found = target.forward_tree(tree, second)
        assert torch.equal(found.logits, wanted.logits)
        second.advance(1)
        wanted = target._forward(
            tree.tokens, torch.tensor([second.length]), None, second, n_logits=1
        )
    assert target._tapes._cache() is second


def test_a_forward_that_depends_on_the_length_in_python_is_found_out(caplog):
    def forward(inputs, mask, cache):
        ids, positions = inputs
        features = ids[:, None].float() * float(cache.length)
        return features + positions[:, None], features * 2

    deck, holder = TapeDeck(forward), Length()
    for length in (3, 4, 5, 6, 7):
        holder.length = length
        ids, positions = torch.tensor([2, 9]), torch.tensor([length, length])
        logits, features = deck.run((ids, positions), None, holder)
        assert logits.flatten().tolist() == [3 * length, 10 * length]
        assert features.flatten().tolist() == [4 * length, 18 * length]
    assert deck.n_replayed() == 0
    assert "differs" in caplog.text


def test_what_the_host_reads_cannot_be_recorded():
    values = torch.tensor([1.0, 2.0])
    recorder = Recorder((values,), None)
    with pytest.raises(Unrecordable, match="host"), recorder.recording():
        float((values * 2).sum())
    with pytest.raises(Unrecordable, match="mask"), Recorder((), values).recording():
        values + 1


@torch.inference_mode()
def test_elementwise_steps_of_every_kind_and_stride():
    random = torch.Generator().manual_seed(2)
    x = torch.randn(2, 3, 8, generator=random)
    row = torch.randn(8, generator=random)

    def forward(inputs, mask, cache):
        ids, positions = inputs
        scaled = x * ids.float()[0]
        turned = scaled.transpose(0, 2)
        mixed = torch.cat((-turned[..., 1:], turned[..., :1]), dim=-1) * turned + row[:, None, None]
        mixed = mixed - 0.5 * turned.contiguous()
        mixed += positions.float()[0]
        return mixed, mixed.sigmoid()

    deck = TapeDeck(forward)
    holder = Length()
    for turn in range(5):
        ids, positions = torch.tensor([turn + 1]), torch.tensor([7 * turn])
        holder.length = turn
        found = deck.run((ids, positions), None, holder)
        for left, right in zip(found, forward((ids, positions), None, None), strict=True):
            assert torch.equal(left, right)
    assert deck.n_replayed() == 1


def test_many_rows_are_never_recorded():
    target = fast_target("llama")
    cache = target.new_cache(200)
    target.prefill_chunk(torch.arange(8), cache)
    tree = some_tree(MOST_ROWS + 1, torch.Generator().manual_seed(0))
    for _ in range(4):
        target.forward_tree(tree, cache)
        cache.advance(1)
    assert target._tapes.n_replayed() == 0


def test_a_forward_that_breaks_under_recording_still_answers(caplog):
    def forward(inputs, mask, cache):
        if active() is not None:
            raise ValueError("no recording, please")
        return (inputs[0].float() * 2,)

    deck, holder = TapeDeck(forward), Length()
    for _ in range(4):
        (found,) = deck.run((torch.tensor([3, 4]),), None, holder)
        assert found.tolist() == [6, 8]
    assert deck.n_replayed() == 0


def test_tapes_do_not_take_more_memory_than_allowed(monkeypatch):
    monkeypatch.setattr(tape, "MOST_BYTES", 100_000)
    target = fast_target("llama")
    cache = target.new_cache(300)
    target.prefill_chunk(torch.arange(8), cache)
    random = torch.Generator().manual_seed(0)
    for n_nodes in range(1, 13):
        for _ in range(4):
            target.forward_tree(some_tree(n_nodes, random), cache)
            cache.advance(1)
    assert 0 < target._tapes.n_replayed() < 12
    assert target._tapes._n_bytes <= 100_000


def test_a_recording_does_not_see_what_another_thread_computes():
    """A model is loaded and tested beside one that answers."""
    target, random = fast_target("llama"), torch.Generator().manual_seed(2)
    target._tapes = None
    cache = target.new_cache(100)
    target.prefill_chunk(torch.arange(8), cache)
    tree = some_tree(5, random)
    expected = target.forward_tree(tree, cache).logits
    recorder, found = Recorder((), None), []
    with recorder.recording():
        thread = threading.Thread(target=lambda: found.append(target.forward_tree(tree, cache)))
        thread.start()
        thread.join()
    assert torch.equal(found[0].logits, expected)
    assert recorder.steps == recorder.kept == []
