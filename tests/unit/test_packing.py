"""Packed linear layers compute what plain ones do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eagle_core import pages as large
from eagle_core.fast_layers import (
    MOST_ROWS,
    JointLinear,
    PackedLinear,
    RowGatedMlp,
    RowLinear,
    RowRmsNorm,
)
from eagle_core.kernels import memory, ops
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.packing import (
    bytes_read,
    can_pack,
    count_let_go,
    pack_layers,
    plain_layers,
    weight_of,
)
from eagle_core.selftest import self_test
from eagle_core.target import Target
from eagle_core.testing import tiny_model

needs_kernels = pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
needs_mkl = pytest.mark.skipif(not can_pack(), reason="this PyTorch has no MKL")


@needs_mkl
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 48), (1, 1, 48), (1, 9, 48), (2, 40, 48), (MOST_ROWS + 1, 48)]
)
def test_product_is_that_of_the_plain_layer(shape, has_bias):
    random = torch.Generator().manual_seed(0)
    plain = nn.Linear(48, 33, bias=has_bias).requires_grad_(False)
    inputs = torch.randn(*shape, generator=random)
    # float32 in another order of summation.
    torch.testing.assert_close(PackedLinear(plain)(inputs), plain(inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_packed_model_computes_the_same_and_its_weights_stay_shared(monkeypatch, switch):
    if switch == "off":
        monkeypatch.setattr(ops, "has_kernels", lambda: False)
    plain, packed = tiny_model("llama"), tiny_model("llama").requires_grad_(False)
    n_swapped = pack_layers(packed)
    kinds = {type(module) for module in packed.modules()}
    if ops.has_kernels():
        assert {RowLinear, JointLinear, RowGatedMlp, RowRmsNorm} <= kinds
    elif can_pack():
        assert n_swapped == sum(type(module) is PackedLinear for module in packed.modules()) == 15
    for n_tokens in (1, 20, MOST_ROWS + 1):
        ids = torch.arange(n_tokens)[None]
        with torch.no_grad():
            torch.testing.assert_close(packed(ids).logits, plain(ids).logits, atol=1e-4, rtol=1e-4)
    assert set(packed.state_dict()) == set(plain.state_dict())


@needs_kernels
def test_a_layer_that_computes_something_else_is_left_alone():
    class OddRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(32)), 1e-5

        def forward(self, inputs):  # as Gemma's: one more than the weight
            return nn.functional.rms_norm(inputs, (32,), 1 + self.weight, 1e-5)

    class OddMlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = (nn.Linear(32, 64, bias=False) for _ in range(2))
            self.down_proj = nn.Linear(64, 32, bias=False)

        def forward(self, inputs):  # gelu, not silu
            gate = nn.functional.gelu(self.gate_proj(inputs))
            return self.down_proj(gate * self.up_proj(inputs))

    model = nn.Sequential(OddRMSNorm(), OddMlp()).requires_grad_(False)
    inputs = torch.randn(1, 3, 32)
    wanted = model(inputs)
    pack_layers(model)
    assert type(model[0]) is OddRMSNorm
    assert type(model[1]) is OddMlp
    assert type(model[1].gate_proj) is RowLinear  # its parts are still faster
    torch.testing.assert_close(model(inputs), wanted, atol=1e-5, rtol=1e-5)


@needs_kernels
@pytest.mark.parametrize("differs", ["number", "buffer", "shape"])
def test_a_layer_unlike_those_that_were_checked_is_checked_itself(differs):
    class Mlp(nn.Module):
        def __init__(self, factor, width=64):
            super().__init__()
            self.gate_proj, self.up_proj = (nn.Linear(32, width, bias=False) for _ in range(2))
            self.down_proj = nn.Linear(width, 32, bias=False)
            if differs == "buffer":
                self.register_buffer("factor", torch.tensor(factor))
            else:
                self.factor = factor

        def forward(self, inputs):
            gate = nn.functional.silu(self.gate_proj(inputs))
            return self.factor * self.down_proj(gate * self.up_proj(inputs))

    last = Mlp(2.0, width=96 if differs == "shape" else 64)
    model = nn.Sequential(Mlp(1.0), Mlp(1.0), last).requires_grad_(False)
    inputs = torch.randn(1, 3, 32)
    wanted = model(inputs)
    pack_layers(model)
    assert [type(layer) for layer in model] == [RowGatedMlp, RowGatedMlp, Mlp]
    torch.testing.assert_close(model(inputs), wanted, atol=1e-5, rtol=1e-5)


@needs_kernels
def test_joint_projections_take_their_product_once_and_hold_nothing_back():
    attention = nn.Module()
    for name, width in (("q_proj", 64), ("k_proj", 32), ("v_proj", 32)):
        setattr(attention, name, nn.Linear(32, width).requires_grad_(False))
    plain = [getattr(attention, name) for name in ("q_proj", "k_proj", "v_proj")]
    pack_layers(attention)
    first, second = torch.randn(1, 3, 32), torch.randn(1, 3, 32)
    joint = attention.q_proj._joint
    for inputs in (first, second, first):
        for name, layer in zip(("q_proj", "k_proj", "v_proj"), plain, strict=True):
            torch.testing.assert_close(
                getattr(attention, name)(inputs), layer(inputs), atol=1e-5, rtol=1e-5
            )
        assert joint._inputs is None
        assert joint._outputs is None
    torch.testing.assert_close(
        attention.v_proj(first), plain[2](first), atol=1e-5, rtol=1e-5
    )  # out of order


def test_other_precisions_are_left_alone():
    assert pack_layers(tiny_model("llama", dtype=torch.bfloat16)) == 0


@needs_kernels
def test_a_model_can_be_plain_again_for_a_while():
    plain, fast = (tiny_model("llama", hidden_size=64).requires_grad_(False) for _ in range(2))
    kinds = [type(module) for module in plain.modules()]
    pack_layers(fast)
    use_rows_attention(fast)
    names = set(fast.state_dict())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = fast(ids).logits
        with plain_layers(fast):
            assert [type(module) for module in fast.modules()] == kinds
            assert fast.config._attn_implementation == "sdpa"
            assert torch.equal(fast(ids).logits, plain(ids).logits)
        assert fast.config._attn_implementation == "eagle_rows"
        assert torch.equal(fast(ids).logits, before)
    assert set(fast.state_dict()) == names == set(plain.state_dict())


@needs_kernels
def test_weights_can_be_let_go_and_come_back():
    plain, fast = (tiny_model("llama", hidden_size=64).requires_grad_(False) for _ in range(2))
    n_parameters = sum(parameter.numel() for parameter in fast.parameters())
    ids = torch.arange(20)[None]
    pack_layers(fast, frees=True)
    use_rows_attention(fast)
    before = fast(ids).logits
    torch.testing.assert_close(before, plain(ids).logits, atol=1e-4, rtol=1e-4)
    left = sum(parameter.numel() for parameter in fast.parameters())
    assert 0 < count_let_go(fast) == n_parameters - left
    assert fast.get_input_embeddings().weight.numel() > 0
    assert torch.equal(
        weight_of(fast.model.layers[0].self_attn.k_proj),
        plain.model.layers[0].self_attn.k_proj.weight,
    )
    with plain_layers(fast):
        assert torch.equal(fast(ids).logits, plain(ids).logits)
        assert sum(parameter.numel() for parameter in fast.parameters()) == n_parameters
    assert sum(parameter.numel() for parameter in fast.parameters()) == left
    assert torch.equal(fast(ids).logits, before)


@needs_kernels
def test_a_bfloat16_model_is_widened_layer_by_layer():
    """To the very model that loading in float32 gives, at half the bytes."""
    small = tiny_model("llama", hidden_size=64, dtype=torch.bfloat16).requires_grad_(False)
    wide = tiny_model("llama", hidden_size=64, dtype=torch.bfloat16).float().requires_grad_(False)
    n_swapped = pack_layers(small, widens=True, frees=True)
    assert n_swapped == pack_layers(wide)
    assert {parameter.dtype for parameter in small.parameters()} == {torch.float32}
    ids = torch.arange(20)[None]
    assert torch.equal(small(ids).logits, wide(ids).logits)
    assert (
        bytes_read(small)
        == bytes_read(wide)
        < 2.2 * small.num_parameters() + 2.2 * count_let_go(small)
    )


@needs_kernels
def test_an_int8_model_is_near_and_its_rows_are_alike():
    plain, fast = (tiny_model("llama", hidden_size=64).requires_grad_(False) for _ in range(2))
    assert pack_layers(fast, is_int8=True, frees=True) == pack_layers(plain)
    assert bytes_read(fast) < bytes_read(plain) / 3
    use_rows_attention(fast)
    ids = torch.arange(20)[None]
    wanted, found = plain(ids).logits, fast(ids).logits
    # 8 bits: 0.6 % of each weight and input; random layers blow that up.
    assert 1e-4 < (found - wanted).norm() / wanted.norm() < 0.15
    test = self_test(Target(fast))
    assert (test.drafting, test.difference, test.leak) == ("tree", 0.0, 0.0)


@needs_kernels
def test_packed_weights_lie_side_by_side_in_large_pages():
    random = torch.Generator().manual_seed(0)
    pages, kinds = memory.LargePages(), (True, False, True)
    plain = [torch.randn(1000, 700, generator=random) for _ in kinds]
    weights, others = (
        [
            ops.PackedWeight(w, is_int8=kind, pages=where)
            for w, kind in zip(plain, kinds, strict=True)
        ]
        for where in (pages, None)
    )
    places = [weight.address for weight in weights]
    assert places == sorted(places)
    assert places[-1] - places[0] < sum(weight.data.nbytes for weight in weights)
    assert all(place % 64 == 0 for place in places)
    rows = torch.randn(3, 700, generator=random)
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight.unpacked(), other.unpacked())
        assert torch.equal(ops.linear(rows, weight), ops.linear(rows, other))


def test_a_weight_that_is_larger_than_a_region_has_its_own():
    pages = memory.LargePages()
    small, large = pages.empty(100), pages.empty(memory.REGION + 100)
    small.fill_(1)
    large.fill_(2)
    assert (int(small.sum()), int(large[-1])) == (100, 2)


@pytest.mark.parametrize("reason", ["refused", "unknown"])
def test_without_large_pages_weights_are_in_ordinary_memory(monkeypatch, reason):
    asked = []

    def refuse(*_args, **_keywords):
        asked.append(1)
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(large.mmap, "mmap", refuse)
    if reason == "unknown":
        monkeypatch.delattr(large.mmap, "MADV_HUGEPAGE")
    pages = memory.LargePages()
    for n_bytes in (100, 5000):
        place = pages.empty(n_bytes)
        place.fill_(7)
        assert place.shape == (n_bytes,)
    assert len(asked) == (reason == "refused")  # once is enough
