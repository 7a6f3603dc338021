"""Packed linear layers compute what plain ones do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from eagle_core.packing import MOST_ROWS, PackedLinear, can_pack, pack_linear_layers
from eagle_core.testing import tiny_model

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


@needs_mkl
def test_a_model_is_packed_whole_and_its_weights_stay_shared():
    plain, packed = tiny_model("llama"), tiny_model("llama").requires_grad_(False)
    n_layers = sum(type(module) is nn.Linear for module in packed.modules())
    assert pack_linear_layers(packed) == n_layers > 0
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(packed(ids).logits, plain(ids).logits, atol=1e-4, rtol=1e-4)
    assert set(packed.state_dict()) == set(plain.state_dict())


def test_other_precisions_are_left_alone():
    assert pack_linear_layers(tiny_model("llama", dtype=torch.bfloat16)) == 0
