"""PyTorch's default dtype is the whole process's; transformers changes it while it loads a model."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import eagle_core
from eagle_core.config import GenerationConfig
from eagle_core.kernels import ops
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.packing import pack_layers
from eagle_core.sampling import choose
from eagle_core.target import Target
from eagle_core.testing import tiny_model
from eagle_core.tree import DraftTree

MAKERS = {"empty", "zeros", "ones", "full", "rand", "randn", "eye", "linspace", "empty_strided"}
# They run alone, or say what they compute in.
ELSEWHERE = ("train", "bench", "certificate", "testing.py", "convert_gguf.py")


@pytest.fixture
def narrow() -> Iterator[None]:
    """As it is while a model in 16 bits is being loaded."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


def test_every_tensor_is_made_with_its_dtype() -> None:
    folder = Path(eagle_core.__file__).parent
    found = []
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).parts[0] in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            names = {keyword.arg for keyword in node.keywords}
            if is_torch and node.func.attr in MAKERS and "dtype" not in names:
                found.append(f"{path.relative_to(folder)}:{node.lineno}: torch.{node.func.attr}")
    assert found == []


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_kernels_write_float32_whatever_the_default_is(narrow: None) -> None:
    logits = torch.linspace(-3, 3, 600, dtype=torch.float32).reshape(2, 300)
    tokens, scores = ops.top(logits, 4)
    assert scores.dtype == torch.float32
    expected = torch.log_softmax(logits, dim=-1).topk(4)
    assert torch.equal(tokens, expected.indices)
    torch.testing.assert_close(scores, expected.values)  # rounding of another order of sums
    greedy, chances = choose(logits, torch.zeros(2, dtype=torch.float32), GenerationConfig())
    assert greedy.tolist() == [299, 299]
    assert chances.dtype == torch.float32


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_a_forward_has_the_same_bits_whatever_the_default_is() -> None:
    model = tiny_model("llama", hidden_size=64).requires_grad_(False)
    pack_layers(model)
    assert use_rows_attention(model)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        target = Target(model)
        cache = target.new_cache(64)
        torch.set_default_dtype(dtype)
        try:
            target.prefill_chunk(torch.arange(9), cache)
            tree = DraftTree(torch.tensor([1, 2, 3, 4]), torch.tensor([-1, 0, 0, 1]), 2)
            found.append([target.forward_tree(tree, cache).logits for _ in range(4)])
        finally:
            torch.set_default_dtype(torch.float32)
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert torch.equal(one, other)
