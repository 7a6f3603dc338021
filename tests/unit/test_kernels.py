"""The compiled kernels: right, and bit for bit the same row whatever is computed beside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.kernels import attention, build, ops
from eagle_core.kernels.attention import NAME, use_rows_attention
from eagle_core.packing import pack_layers
from eagle_core.target import Target, self_check
from eagle_core.testing import tiny_model
from eagle_core.tree import DraftTree

needs_kernels = pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
pytestmark = needs_kernels
HIDDEN = torch.finfo(torch.float32).min


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def halve(tensor: torch.Tensor, exact: bool) -> torch.Tensor:
    return tensor.bfloat16().float() if exact else tensor


@pytest.mark.parametrize("is_bfloat16", [True, False])
@pytest.mark.parametrize(("n_in", "n_out"), [(48, 100), (16, 32), (33, 7), (64, 64), (100, 33)])
@pytest.mark.parametrize("n_rows", [1, 5, 14, 15, 29, 200])
def test_linear_rows_are_right_and_independent(is_bfloat16, n_in, n_out, n_rows):
    weight, bias = halve(draw(n_out, n_in), is_bfloat16), draw(n_out, seed=1)
    packed = ops.PackedWeight(weight)
    assert packed.format == (ops.BFLOAT16 if is_bfloat16 else ops.FLOAT32)
    assert torch.equal(packed.unpacked(), weight)
    rows = draw(1, n_rows, n_in, seed=2)
    out = ops.linear(rows, packed, bias)
    # float32 sums of a few dozen terms in another order.
    torch.testing.assert_close(out, F.linear(rows, weight, bias), atol=1e-5, rtol=1e-5)
    for i in range(n_rows):
        assert torch.equal(ops.linear(rows[:, i], packed, bias)[0], out[0, i])


@pytest.mark.parametrize("is_int8", [True, False])
@pytest.mark.parametrize(("n_in", "n_out"), [(64, 64), (100, 33), (16, 5)])
def test_weights_in_bfloat16_are_packed_as_the_same_ones_in_float32(is_int8, n_in, n_out):
    weight = draw(n_out, n_in, seed=3).bfloat16()
    weight[0] = 0
    narrow, wide = (ops.PackedWeight(one, is_int8=is_int8) for one in (weight, weight.float()))
    assert narrow.format == wide.format == (ops.INT8 if is_int8 else ops.BFLOAT16)
    assert torch.equal(narrow.data, wide.data)


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Rows in 8 bits, one scale per 64 inputs, as the kernels are documented to round them."""
    n = values.shape[-1]
    blocks = torch.nn.functional.pad(values, (0, -n % 64)).unflatten(-1, (-1, 64))
    most = blocks.abs().amax(-1, keepdim=True)
    whole = (blocks * torch.where(most > 0, 127 / most, 0)).round()
    return (whole * (most / 127)).flatten(-2)[..., :n]


@pytest.mark.parametrize(("n_in", "n_out"), [(64, 32), (48, 100), (200, 33)])
@pytest.mark.parametrize("n_rows", [1, 2, 7, 8, 33])
def test_int8_rows_are_right_and_independent(n_in, n_out, n_rows):
    weight, bias = draw(n_out, n_in), draw(n_out, seed=1)
    packed = ops.PackedWeight(weight, is_int8=True)
    torch.testing.assert_close(packed.unpacked(), rounded(weight), atol=1e-6, rtol=1e-5)
    inputs = draw(n_rows, n_in, seed=2) * 10
    inputs[0] = 0  # a row without a scale
    found = ops.linear(inputs, packed, bias)
    wanted = rounded(inputs).double() @ packed.unpacked().double().T + bias
    # Sums of 64 products are exact; the few scaled sums are added in float32.
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-5)
    for row in range(n_rows):
        assert torch.equal(ops.linear(inputs[row : row + 1], packed, bias)[0], found[row])


@pytest.mark.parametrize("n_rows", [1, 9])
def test_an_int8_mlp_is_its_three_products(n_rows):
    gate, up, down = draw(64, 48), draw(64, 48, seed=1), draw(40, 64, seed=2)
    joint = ops.interleaved(gate, up)
    assert all(torch.equal(*pair) for pair in zip(ops.separated(joint), (gate, up), strict=True))
    packed = [ops.PackedWeight(weight, is_int8=True) for weight in (gate, up, down, joint)]
    inputs = draw(n_rows, 48, seed=3)
    middle = torch.nn.functional.silu(ops.linear(inputs, packed[0])) * ops.linear(inputs, packed[1])
    found = ops.gated_mlp(inputs, packed[3], packed[2])
    # An input that lies between two whole numbers may round the other way: one step of one input.
    torch.testing.assert_close(found, ops.linear(middle, packed[2]), atol=0.02, rtol=1e-3)
    for row in range(n_rows):
        assert torch.equal(
            ops.gated_mlp(inputs[row : row + 1], packed[3], packed[2])[0], found[row]
        )


@pytest.mark.parametrize("is_bfloat16", [True, False])
@pytest.mark.parametrize("n_rows", [1, 6, 40])
def test_gated_mlp_rows_are_right_and_independent(is_bfloat16, n_rows):
    gate, up, down = (halve(draw(*s), is_bfloat16) for s in ((64, 48), (64, 48), (40, 64)))
    packed = ops.PackedWeight(ops.interleaved(gate, up)), ops.PackedWeight(down)
    rows = draw(n_rows, 48, seed=3) * 4  # gates from about -100 to 100: both ends of silu
    wanted = F.linear(F.silu(F.linear(rows, gate)) * F.linear(rows, up), down)
    out = ops.gated_mlp(rows, *packed)
    torch.testing.assert_close(out, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-5)
    for i in range(n_rows):
        assert torch.equal(ops.gated_mlp(rows[i : i + 1], *packed)[0], out[i])


def test_silu_survives_extreme_gates():
    eye = torch.eye(32)
    packed = ops.PackedWeight(ops.interleaved(eye, eye)), ops.PackedWeight(eye)
    row = torch.tensor([0.0, -0.0, 1e4, -1e4, 90.0, -90.0, 1e-30, -1e-30] * 4)[None]
    torch.testing.assert_close(ops.gated_mlp(row, *packed), F.silu(row) * row)


def test_rms_norm_is_that_of_torch():
    rows, weight = draw(1, 7, 96), draw(96, seed=1)
    wanted = F.rms_norm(rows, (96,), weight, 1e-5)
    torch.testing.assert_close(ops.rms_norm(rows, weight, 1e-5), wanted, atol=1e-6, rtol=1e-6)


@st.composite
def trees(draw_from):
    """(committed rows, parents): a random tree behind a cache of random length."""
    n_nodes = draw_from(st.integers(2, 40))
    parents = [-1] + [draw_from(st.integers(0, i - 1)) for i in range(1, n_nodes)]
    return draw_from(st.integers(0, 70)), parents


@settings(max_examples=40, deadline=None)
@given(tree=trees(), head_dim=st.sampled_from([16, 64, 128]))
def test_attention_of_a_tree_is_bitwise_that_of_its_paths(tree, head_dim):
    length, parents = tree
    n_nodes, scale = len(parents), head_dim**-0.5
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    mask = torch.full((n_nodes, length + n_nodes), HIDDEN)
    mask[:, :length] = 0
    for node, path in enumerate(paths):
        mask[node, [length + ancestor for ancestor in path]] = 0
    query = draw(n_nodes, 6, head_dim).transpose(0, 1)  # [H, N, d], as transformers hands it over
    keys = draw(2, length + n_nodes + 3, head_dim, seed=1)[:, :-3]  # a view into a larger buffer
    values = draw(2, length + n_nodes + 3, head_dim, seed=2)[:, :-3]
    out = ops.attention(query, keys, values, mask, scale)
    wanted = F.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(out, wanted, atol=2e-6, rtol=1e-5)
    for node, path in enumerate(paths):
        rows = [*range(length), *(length + ancestor for ancestor in path)]
        alone = ops.attention(
            query[:, node : node + 1], keys[:, rows], values[:, rows], None, scale
        )
        assert torch.equal(alone[0], out[node])


@pytest.mark.parametrize("length", [0, 5, 33])
def test_causal_rows_are_bitwise_those_read_one_by_one(length):
    n_rows = 23
    query, keys, values = (
        draw(h, length + n_rows, 64, seed=s) for h, s in ((6, 0), (2, 1), (2, 2))
    )
    out = ops.attention(query[:, length:], keys, values, None, 0.125)
    wanted = F.scaled_dot_product_attention(
        query[None], keys[None], values[None], is_causal=True, scale=0.125, enable_gqa=True
    )[0, :, length:].transpose(0, 1)
    torch.testing.assert_close(out, wanted, atol=2e-6, rtol=1e-5)
    for i in range(n_rows):
        end = length + i + 1
        alone = ops.attention(query[:, end - 1 : end], keys[:, :end], values[:, :end], None, 0.125)
        assert torch.equal(alone[0], out[i])


@pytest.mark.parametrize("head_dim", [16, 48, 64, 128, 256])
@pytest.mark.parametrize(("n_rows", "n_keys"), [(14, 900), (40, 700), (300, 300)])
def test_many_queries_are_bitwise_those_taken_alone(n_rows, n_keys, head_dim):
    """Keys are put in blocks for them; a tree's branches end the rows' common keys early."""
    query, keys, values = (
        draw(h, n, head_dim, seed=s) for h, n, s in ((4, n_rows, 0), (2, n_keys, 1), (2, n_keys, 2))
    )
    own = torch.rand(n_rows, n_rows, generator=torch.Generator().manual_seed(3)) < 0.4
    mask = torch.zeros(n_rows, n_keys)
    mask[:, n_keys - n_rows :].masked_fill_(
        ~(own | torch.eye(n_rows, dtype=torch.bool)), -torch.inf
    )
    out = ops.attention(query, keys, values, mask, 0.1)
    wanted = F.scaled_dot_product_attention(
        query[None], keys[None], values[None], mask, scale=0.1, enable_gqa=True
    )[0].transpose(0, 1)
    torch.testing.assert_close(out, wanted, atol=5e-6, rtol=1e-5)
    for i in range(0, n_rows, 1 + n_rows // 20):
        alone = ops.attention(query[:, i : i + 1], keys, values, mask[i : i + 1], 0.1)
        assert torch.equal(alone[0], out[i])


def test_a_causal_mask_is_found_once_and_another_one_is_kept():
    causal = torch.ones(7, 20, dtype=torch.bool).tril(13)[None, None]
    assert attention._masks.additive(causal) is None
    other = causal.clone()
    other[0, 0, 3, 2] = False
    mask = attention._masks.additive(other)
    assert torch.equal(mask < -1e30, ~other[0, 0])
    assert attention._masks.additive(other) is mask


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_the_chunks_of_a_prompt_do_not_change_a_bit(kind):
    model = tiny_model(kind, hidden_size=64, window=20).requires_grad_(False)
    pack_layers(model)
    assert use_rows_attention(model)
    target = Target(model)
    prompt = torch.randint(250, (90,), generator=torch.Generator().manual_seed(5))
    found = []
    for sizes in ((90,), (30, 60), (89, 1), (1, 1, 88), (64, 26)):
        cache = target.new_cache(100)
        outputs = [target.prefill_chunk(chunk, cache) for chunk in prompt.split(list(sizes))]
        found.append((torch.cat([out.features for out in outputs]), outputs[-1].logits))
    for features, logits in found[1:]:
        assert torch.equal(features, found[0][0])
        assert torch.equal(logits, found[0][1])


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("llama", None),
        ("qwen2", None),
        ("qwen3", 20),
        ("mistral", 20),
        ("gemma3", 20),
        ("phi3", None),
    ],
)
def test_a_whole_models_tree_rows_are_bitwise_the_sequential_ones(kind, window):
    def model():
        return tiny_model(kind, window=window, hidden_size=64).requires_grad_(False)

    plain = self_check(Target(model()), 3)
    fast = model()
    pack_layers(fast)
    assert use_rows_attention(fast)
    assert fast.config._attn_implementation == NAME
    assert self_check(Target(fast), 3) == 0.0
    assert 0.0 < plain < 1e-3  # the check does see rounding where there is some


def test_other_precisions_keep_their_attention():
    model = tiny_model("llama", dtype=torch.float64)
    assert not use_rows_attention(model)
    assert model.config._attn_implementation == "sdpa"


def test_bfloat16_rows_are_those_read_one_by_one():
    model = tiny_model("llama", dtype=torch.bfloat16, hidden_size=64).requires_grad_(False)
    plain = tiny_model("llama", dtype=torch.bfloat16, hidden_size=64)
    assert use_rows_attention(model)
    target = Target(model)
    assert target._min_rows == 2
    assert max(self_check(target, seed) for seed in range(3)) == 0.0
    assert max(self_check(Target(plain), seed) for seed in range(3)) > 0.0
    ids, features = torch.arange(75), []
    for parts in ((75,), (1, 40, 2, 1, 31), (74, 1)):  # however the prompt is read
        cache = target.new_cache(80)
        outputs = [target.prefill_chunk(part, cache) for part in torch.split(ids, parts)]
        features.append(torch.cat([output.features for output in outputs]))
    assert all(torch.equal(features[0], other) for other in features[1:])
    cache = target.new_cache(9)  # no room for a second row: the ordinary way
    target.prefill_chunk(torch.arange(8), cache)
    assert target.forward_tree(DraftTree.single(torch.tensor(3)), cache).logits.shape[0] == 1


def test_switched_off_without_a_compiler_or_by_the_variable(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(build.SWITCH, "off")
    assert build.kernel_library.__wrapped__() is None
    monkeypatch.setenv(build.SWITCH, "on")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.kernel_library.__wrapped__() is None
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho broken\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "cache")
    assert build.kernel_library.__wrapped__() is None
    assert "cannot be compiled" in caplog.text
    kernels = tmp_path / "cache" / "kernels"
    assert not kernels.exists() or not [p for p in kernels.rglob("*") if p.suffix == ".so"]


@pytest.mark.parametrize("n", [1, 5, 16, 33, 1000])
def test_the_likeliest_token_is_the_first_highest_with_its_softmax(n):
    for seed in range(20):
        logits = draw(n, seed=seed).round(decimals=1) * 3  # with ties
        best, chance = ops.likeliest(logits)
        assert best == int((logits == logits.max()).nonzero()[0])
        assert chance == pytest.approx(float(logits.softmax(0).max()), rel=1e-5)
    logits[n // 2] = float("nan")
    assert ops.likeliest(logits)[1] != ops.likeliest(logits)[1]
    logits[n // 2] = float("-inf")
    assert ops.likeliest(logits)[1] == pytest.approx(
        float(logits.softmax(0).max()), rel=1e-5, nan_ok=n == 1
    )
    logits[n // 2] = float("inf")
    assert ops.likeliest(logits)[1] != ops.likeliest(logits)[1]


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 5), (16, 3), (33, 10), (5000, 10)])
def test_the_top_tokens_are_those_of_a_sort(n, k):
    for seed in range(20):
        logits = draw(3, n, seed=seed) * 3
        ids, scores = ops.top(logits, k)
        wanted = logits.log_softmax(-1).topk(k)
        torch.testing.assert_close(scores, wanted.values, atol=1e-5, rtol=1e-5)
        assert torch.equal(ids, wanted.indices)


def test_of_equal_tokens_the_first_are_taken_and_what_is_no_number_last():
    logits = torch.zeros(2, 40)
    logits[1, :3] = torch.tensor([float("nan"), float("-inf"), 5.0])
    ids, scores = ops.top(logits, 4)
    assert ids.tolist() == [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert scores[0].tolist() == pytest.approx([-torch.tensor(40.0).log().item()] * 4)
    assert scores[1].tolist() == [-1e9] * 4
    nothing = torch.full((1, 20), float("nan"))
    assert ops.top(nothing, 3)[0].tolist() == [[0, 1, 2]]
    few = torch.full((1, 20), float("-inf"))
    few[0, 1] = 2.0
    ids, scores = ops.top(few, 3)
    assert ids.tolist() == [[1, 0, 2]]
    assert scores.tolist() == [[0.0, -1e9, -1e9]]


@needs_kernels
def test_a_head_size_is_compiled_once_and_others_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path)
    compiled, run = [], build._run
    monkeypatch.setattr(build, "_run", lambda *command: (compiled.append(command), run(*command)))
    build.build_ahead(112).join()
    attention = build.attention_library.__wrapped__
    assert attention(112) is not None
    assert sum("-DHEAD_DIM=112" in command and "-c" in command for command in compiled) == 1
    assert sorted(path.name for path in tmp_path.rglob("*.so")) == ["attend.so", "rows.so"]
    assert not list(tmp_path.rglob("*.o"))
    n_commands = len(compiled)
    assert [attention(size) for size in (0, 8, 40, 272)] == [None] * 4
    assert not any(ops.can_attend(size) for size in (0, 8, 40, 272))
    rows = torch.zeros(1, 1, 40, dtype=torch.float32)
    with pytest.raises(ValueError, match="40"):
        ops.attention(rows, rows, rows, None, 1.0)
    assert len(compiled) == n_commands
