"""Recordings made shorter and smaller: what may be fused and moved is, what may not stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_core.kernels import ops
from eagle_core.kernels.program import compact
from eagle_core.kernels.recording import ADD, GATED_MLP, LINEAR, NEG, ROTATE, Recorder
from eagle_core.kernels.tape import TapeDeck
from eagle_core.packing import pack_layers
from eagle_core.testing import tiny_model

pytestmark = pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
WIDTH = 64


class Length:
    """As much of a cache as a deck looks at."""

    length = 0


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def record(forward: Any, *inputs: torch.Tensor) -> tuple[Recorder, tuple[torch.Tensor, ...]]:
    recorder = Recorder(inputs, None)
    with torch.inference_mode(), recorder.recording():
        outputs = forward(*inputs)
    return recorder, outputs


def kinds(steps: Any) -> list[int]:
    return [step[0] for step in steps if isinstance(step, list)]


@torch.inference_mode()
def assert_replays_alike(forward: Any, shape: tuple[int, ...]) -> None:
    """Five calls with other inputs: results are the function's own, the last of them replayed."""
    deck, holder = TapeDeck(lambda inputs, mask, cache: forward(*inputs)), Length()
    for turn in range(5):
        holder.length = turn
        values = draw(*shape, seed=turn)
        wanted = tuple(out.clone() for out in forward(values.clone()))
        for left, right in zip(deck.run((values,), None, holder), wanted, strict=True):
            assert torch.equal(left, right)
    assert deck.n_replayed() == 1


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotated(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    heads = values.view(1, 5, 3, 8).transpose(1, 2)  # [1, 3, 5, 8]
    cosine, sine = (draw(1, 5, 8, seed=seed)[:, None] for seed in (1, 2))
    out = heads * cosine + rotate_half(heads) * sine
    return (out * 2,)


def test_a_rotary_embedding_is_one_step():
    recorder, outputs = record(rotated, draw(5, 24))
    smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
    assert kinds(recorder.steps).count(NEG) == 1
    assert kinds(smaller.steps).count(ROTATE) == 1
    assert len(smaller.steps) == len(recorder.steps) - 5
    assert_replays_alike(rotated, (5, 24))


def test_parts_of_a_rotary_embedding_that_something_else_reads_are_kept():
    def forward(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = values.view(1, 5, 3, 8).transpose(1, 2)
        cosine, sine = (draw(1, 5, 8, seed=seed)[:, None] for seed in (1, 2))
        straight = heads * cosine
        out = straight + rotate_half(heads) * sine
        return (out - straight,)

    recorder, outputs = record(forward, draw(5, 24))
    smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
    assert ROTATE not in kinds(smaller.steps)
    assert_replays_alike(forward, (5, 24))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("is_int8", [False, True])
def test_a_product_adds_what_is_added_to_its_result(turned, is_int8):
    packed = ops.PackedWeight(draw(WIDTH, WIDTH, seed=3), is_int8=is_int8)
    gate_up = ops.PackedWeight(draw(2 * 96, WIDTH, seed=4), is_int8=is_int8)
    down = ops.PackedWeight(draw(WIDTH, 96, seed=5), is_int8=is_int8)

    def forward(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = ops.linear(values * 0.5, packed)
        hidden = values + product if turned else product + values
        hidden = hidden + ops.gated_mlp(hidden * 0.1, gate_up, down)
        return (hidden * 3,)

    recorder, outputs = record(forward, draw(5, WIDTH))
    smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
    assert kinds(recorder.steps).count(ADD) == 2
    assert ADD not in kinds(smaller.steps)
    assert_replays_alike(forward, (5, WIDTH))


def test_a_sum_that_overwrites_the_products_inputs_waits():
    packed = ops.PackedWeight(draw(WIDTH, WIDTH, seed=3))

    def forward(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = values * 0.5
        hidden += ops.linear(hidden, packed)
        return (hidden * 2,)

    recorder, outputs = record(forward, draw(5, WIDTH))
    smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
    assert kinds(smaller.steps).count(ADD) == 1
    assert_replays_alike(forward, (5, WIDTH))


def test_a_product_that_is_needed_itself_is_kept():
    packed = ops.PackedWeight(draw(WIDTH, WIDTH, seed=3))

    def forward(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = ops.linear(values, packed)
        return (product + values, product * 2)

    recorder, outputs = record(forward, draw(5, WIDTH))
    smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
    assert kinds(smaller.steps).count(ADD) == 1
    assert_replays_alike(forward, (5, WIDTH))


def test_memory_that_is_not_written_in_full_stays_where_it_is():
    def forward(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        held = torch.ones(6, WIDTH)
        held[:5] += values  # the last row is what it was before the forward
        return (held * values[:1],)

    recorder, outputs = record(forward, draw(5, WIDTH))
    smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
    (before,) = [step for step in recorder.steps if isinstance(step, list) and step[0] == ADD]
    (after,) = [step for step in smaller.steps if isinstance(step, list) and step[0] == ADD]
    assert after == before


@torch.inference_mode()
def test_the_results_of_all_layers_share_little_memory():
    shapes = []
    for n_layers in (2, 6):
        model = tiny_model("llama", hidden_size=WIDTH).requires_grad_(False)
        pack_layers(model)
        layers = [*model.model.layers] * (n_layers // 2)

        def forward(ids: torch.Tensor, model: Any = model, layers: Any = layers) -> Any:
            hidden = model.get_input_embeddings()(ids[None])
            for layer in layers:
                hidden = hidden + layer.mlp(layer.input_layernorm(hidden))
            return (hidden[0],)

        recorder, outputs = record(forward, torch.arange(12))
        smaller = compact(recorder.steps, recorder.kept, (*recorder.inputs, *outputs))
        shapes.append((recorder.n_bytes, recorder.n_bytes - smaller.n_saved))
        assert kinds(smaller.steps).count(GATED_MLP) == n_layers
    (few, few_left), (many, many_left) = shapes
    assert many > 2 * few
    assert many_left < 1.2 * few_left  # more layers need hardly more room
    assert LINEAR not in kinds(smaller.steps)
