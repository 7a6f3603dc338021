"""The pure parts of the head loader: shapes of attention, rotations, fused layers, and pairs of configs."""

from __future__ import annotations

import math

import pytest
import torch

from eagle_core.errors import CheckpointMismatch, IncompatibleHead
from eagle_core.heads.eagle3 import default_feature_layers
from eagle_core.heads.layouts import (
    BaseShape,
    attention_heads,
    describe,
    feature_layers,
    is_eagle3,
    rope,
)
from eagle_core.heads.pairing import base_shape, check_pair, special_ids
from tests.support.tiny_heads import tiny_head

BASE = BaseShape(hidden_size=4096, vocab_size=32000, n_layers=32)


def projections(q: int, k: int, norm: int = 0) -> dict[str, tuple[int, ...]]:
    begin = "layers.0.self_attn."
    shapes = {f"{begin}q_proj.weight": (q, 1), f"{begin}k_proj.weight": (k, 1)}
    return shapes | ({f"{begin}q_norm.weight": (norm,)} if norm else {})


@pytest.mark.parametrize(
    ("shapes", "hints", "expected"),
    [
        (projections(4096, 1024), {"num_attention_heads": 32, "num_key_value_heads": 8}, (32, 8, 128)),
        # A published head: 2560 wide, 32 heads of 128, but head_dim 80 in its config.
        (projections(4096, 1024), {"num_attention_heads": 32, "head_dim": 80}, (32, 8, 128)),
        (projections(4096, 1024, 64), {"num_attention_heads": 32}, (64, 16, 64)),
        (projections(4096, 1024), {"num_attention_heads": 30, "num_key_value_heads": 8}, (32, 8, 128)),
        (projections(4096, 4096), {"head_dim": 128}, (32, 32, 128)),
        (projections(512, 128), {}, (8, 2, 64)),
    ],
)  # fmt: skip
def test_heads_of_attention_come_from_the_tensors(shapes, hints, expected):
    assert attention_heads(shapes, hints) == expected


def test_shapes_that_nothing_explains():
    with pytest.raises(IncompatibleHead, match="does not explain"):
        attention_heads(projections(100, 30), {"num_attention_heads": 7})


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, (10_000.0, None)),
        ({"rope_theta": 5e5, "rope_scaling": None}, (5e5, None)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, (1e6, None)),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, (1e4, {"rope_type": "linear", "factor": 4.0})),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 2]}}, (1e4, None)),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "max_position_embeddings": 64},
            (1e4, {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}),
        ),
    ],
)  # fmt: skip
def test_rope_is_read_in_every_spelling(hints, expected):
    assert rope(hints, 8) == expected


@pytest.mark.parametrize(
    "hints",
    [
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "proportional"}},
        {"rope_scaling": {"type": "unheard-of"}},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_rotations_that_are_not_known(hints):
    with pytest.raises(IncompatibleHead, match="rotates positions") as caught:
        rope(hints, 8)
    kind = hints.get("rope_scaling", {}).get("type", "default")
    assert kind in caught.value.got
    assert "longrope" in caught.value.expected


PHI_3 = {
    "max_position_embeddings": 64, "original_max_position_embeddings": 16, "rope_theta": 1e4,
    "rope_scaling": {"type": "su", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]},
}  # fmt: skip


@pytest.mark.parametrize("length", [12, 40])
def test_longrope_turns_as_the_paper_says(length):
    """arXiv 2402.13753, as Phi-3's configs spell it: short factors up to the first length, then long ones."""
    theta, fields = rope(PHI_3, 8)
    head = tiny_head(16, head_dim=8, rope_theta=theta, rope_scaling=fields)
    cos, sin = head.rotary(torch.zeros(1), torch.arange(length)[None])
    factors = PHI_3["rope_scaling"]["short_factor" if length <= 16 else "long_factor"]
    frequencies = torch.tensor(factors).reciprocal() * theta ** (-torch.arange(0, 8, 2) / 8)
    angles = torch.arange(length)[:, None] * frequencies  # [T, 4]
    size = (1 + math.log(4) / math.log(16)) ** 0.5
    torch.testing.assert_close(cos[0, :, :4], angles.cos() * size)
    torch.testing.assert_close(sin[0, :, :4], angles.sin() * size)


@pytest.mark.parametrize(
    "change",
    [{"short_factor": [1.0]}, {"long_factor": None}, {"original_max_position_embeddings": 0}],
)
def test_a_longrope_that_is_not_whole(change):
    scaling = PHI_3["rope_scaling"] | change
    hints = {**PHI_3, "rope_scaling": scaling, **{k: v for k, v in change.items() if k in PHI_3}}
    with pytest.raises(IncompatibleHead, match="longrope scaling is not whole"):
        rope(hints, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frequencies_stay_in_float32(dtype):
    """In 16 bits angles of far positions would be wrong by whole turns."""
    head, cast = tiny_head(32), tiny_head(32).to(dtype)
    assert cast.dtype == dtype
    assert torch.equal(cast.rotary.inv_freq, head.rotary.inv_freq)
    far = torch.tensor([[6001]])
    for one, other in zip(
        head.rotary(torch.zeros(1), far), cast.rotary(torch.zeros(1), far), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_positions_go_as_far_as_they_must_under_every_scaling(kind, caplog):
    """The head's own length is 16; transformers has nothing to remark on what we ask it for."""
    scaling = {"rope_type": kind, "factor": 4.0}
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theta, fields = rope({"rope_scaling": scaling, "max_position_embeddings": 16}, 8)
    head = tiny_head(32, rope_theta=theta, rope_scaling=fields)
    plain = tiny_head(32)
    inputs = torch.randn(1, 200, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        out, other = (h(inputs, inputs, torch.arange(200)[None]) for h in (head, plain))
    assert out.isfinite().all()
    assert not torch.allclose(out[0, -1], other[0, -1])
    assert not caplog.records


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({}, (2, 16, 29)),
        # Outputs of layers, as SGLang counts: one is added.
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}, (2, 16, 29)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 9, 31]}}, (1, 10, 32)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}, (2, 16, 29)),
        # States, as vLLM counts: they stay.
        ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, (2, 16, 29)),
        ({"eagle_aux_hidden_state_layer_ids": [0, 9, 31]}, (0, 9, 31)),
        # SGLang's default, carried over to the wrong place.
        ({"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}, (2, 16, 29)),
        # The same list in both places is SGLang's; two that agree say it twice.
        (
            {
                "eagle_aux_hidden_state_layer_ids": [0, 9, 20],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 9, 20]},
            },
            (1, 10, 21),
        ),
        (
            {
                "eagle_aux_hidden_state_layer_ids": [1, 15, 28],
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 14, 27]},
            },
            (1, 15, 28),
        ),
    ],
)
def test_the_place_of_the_layer_ids_says_how_they_count(hints, expected):
    assert feature_layers(hints, 3, BASE) == expected


def test_layer_ids_that_are_missing_or_do_not_fit():
    with pytest.raises(IncompatibleHead, match="does not say which layers"):
        feature_layers({}, 3, None)
    with pytest.raises(IncompatibleHead, match="3 layers, by the width"):
        feature_layers({"eagle_aux_hidden_state_layer_ids": [2, 16]}, 3, BASE)


def test_default_layers_exist_in_small_bases_too():
    assert default_feature_layers(30) == (2, 15, 27)
    assert default_feature_layers(2) == (2, 1, 0)


def test_the_family_is_told_by_the_width_of_the_attention():
    attention = "layers.0.self_attn."
    assert is_eagle3({f"{attention}q_proj.weight": (32, 64), f"{attention}o_proj.weight": (32, 32)})
    assert not is_eagle3(
        {f"{attention}q_proj.weight": (32, 32), f"{attention}o_proj.weight": (32, 32)}
    )


def test_two_spellings_of_one_tensor():
    with pytest.raises(CheckpointMismatch, match=r"two tensors for layers\.0\.mlp"):
        describe({"midlayer.mlp.x.weight": (1,), "layers.0.mlp.x.weight": (1,)}, {})


LLAMA = {"hidden_size": 4096, "vocab_size": 128256, "num_hidden_layers": 32, "eos_token_id": [128001, 128009],
         "bos_token_id": 128000}  # fmt: skip


@pytest.mark.parametrize(
    "head",
    [
        {},
        {"hidden_size": 4096, "vocab_size": 128256, "bos_token_id": 128000, "eos_token_id": 128001},
        {"hidden_size": 4096, "vocab_size": 32000, "draft_vocab_size": 32000},  # as some write it
        {"hidden_size": 6144, "target_hidden_size": 4096},
        {"bos_token_id": 1, "eos_token_id": 2},  # transformers' defaults
        {"transformer_layer_config": {"hidden_size": 4096}, "speculators_model_type": "eagle3"},
    ],
)
def test_configs_that_fit(head):
    check_pair(LLAMA, head)
    check_pair({"text_config": LLAMA, "model_type": "wrapped"}, head)


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        ({"hidden_size": 2048}, "hidden size 4096; got 2048"),
        ({"hidden_size": 4096, "target_hidden_size": 8192}, "hidden size 4096; got 8192"),
        ({"hidden_size": 4096, "vocab_size": 32000}, "vocabulary 128256; got 32000"),
        ({"bos_token_id": 151643, "eos_token_id": 151645}, r"special tokens .*151643"),
        ({"hidden_size": 4096, "medusa_num_heads": 5}, "Medusa"),
    ],
)
def test_configs_that_do_not_fit(head, problem):
    with pytest.raises(IncompatibleHead, match=problem) as caught:
        check_pair(LLAMA, head)
    assert caught.value.hint


def test_what_configs_leave_out():
    assert base_shape({"hidden_size": 8}) is None
    assert base_shape({"n_embd": 8, "vocab_size": 9, "n_layer": 3}) == BaseShape(8, 9, 3)
    check_pair({}, {"hidden_size": 1})
    assert special_ids({"bos_token_id": None, "eos_token_id": [2, 50]}) == {2, 50}
