"""What a freshly loaded model can check: trees, single paths, or nothing but the next token.

A handful of forwards on random tokens, in the real precision and with the real attention. The reference is
the model itself: its own forward without a cache for plain decoding, plain decoding for everything else.

Two measures, each relative to the spread of the logits (root mean square around their mean):
- ``difference`` between a row of the tree and the same token computed alone. Rounding: about 1e-6 in
  float32, up to 0.1 in bfloat16. A token in a wrong place: 0.1 to 1.6.
- ``leak``: how a row changes when a token that it must not see is exchanged, in a forward of the same shape.
  A dense model computes the same bits again, so that even a faint leak stands out in every precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from eagle_core.cache import KVCache
from eagle_core.errors import ModelError
from eagle_core.session_info import Drafting
from eagle_core.target import Target, self_check
from eagle_core.tree import DraftTree

# Float32: a hundred times the rounding that was measured (2e-6). 16 bits: rounding was measured at up to 0.11
# on the default model, a wrong position at 0.49 and more. How a model rounds shows when its whole forward is
# compared with single tokens; one that rounds more is allowed more, within bounds.
TOLERANCES = {torch.float32: 2e-4, torch.float64: 1e-8}
COARSE_TOLERANCE, MOST_COARSE, COARSE_SHARE = 0.25, 0.45, 3.0
REFUSED_FROM = {torch.float32: 4e-4, torch.float64: 2e-8}
COARSE_REFUSED_FROM = 0.8
LEAK_TOLERANCES = {torch.float32: 4e-6, torch.float64: 1e-12}
COARSE_LEAK = 2e-3
N_PROMPT = 5
# root, a, b, c: a and b follow the root, c follows b.
PARENTS = (-1, 0, 0, 2)
PATH = (0, 2, 3)
WHAT_MODELS_RAISE = (
    RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError,
    NotImplementedError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SelfTest:
    """``drafting`` is what the model can check; ``reason`` says why no trees, "" if it can.

    ``difference`` and ``leak`` are those of what can be checked; 0.0 in float32 with the compiled kernels.
    """

    drafting: Drafting
    reason: str
    difference: float
    leak: float
    tolerance: float
    elapsed_s: float


class _Tokens:
    """Random tokens, siblings distinct."""

    def __init__(self, target: Target, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        high = target.vocab_size
        ids = torch.randint(high, (N_PROMPT + 5,), generator=generator)
        self.prompt, self.root, self.a, self.b, self.c, self.d = (
            ids[:N_PROMPT], *ids[N_PROMPT:],
        )  # fmt: skip
        if self.a == self.b:
            self.a = (self.b + 1) % high
        self.other = (self.a + 1 + (self.a + 1 == self.b)) % high  # neither a nor b

    @property
    def text(self) -> Tensor:
        """The prompt and the path that is kept, [T]."""
        return torch.cat((self.prompt, torch.stack((self.root, self.b, self.c))))


def self_test(target: Target, seed: int = 0) -> SelfTest:
    """Find out what ``target`` can check, and set its ``chains_only`` accordingly.

    Raises: ModelError when even plain decoding is not what the model computes.
    """
    started = perf_counter()
    tokens, cache = _Tokens(target, seed), target.new_cache(N_PROMPT + 8)
    try:
        alone, off = _check_plain(target, tokens, cache)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except WHAT_MODELS_RAISE as error:
        raise ModelError(
            "the model cannot be run",
            got=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            hint="another --dtype or --quantization may do; else choose another model",
        ) from error
    coarse = min(max(COARSE_TOLERANCE, COARSE_SHARE * off), MOST_COARSE)
    tolerance = TOLERANCES.get(target.dtype, coarse)
    # Experts' products have other shapes when a token goes to another expert: then it is rounding.
    faint = LEAK_TOLERANCES.get(target.dtype, COARSE_LEAK)
    leak_tolerance = tolerance if target.has_experts else faint
    if target.has_state:
        reason = "this model keeps state that cannot be taken back after a rejected draft: decoding plainly"
        return SelfTest("none", reason, 0.0, 0.0, tolerance, perf_counter() - started)
    problems = []
    for drafting, check in (("tree", _check_tree), ("chain", _check_chain)):
        target.chains_only = drafting == "chain"
        try:
            difference, leak = check(target, tokens, cache, alone)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except WHAT_MODELS_RAISE as error:
            problems.append(f"{drafting}: {type(error).__name__}")
            continue
        if difference <= tolerance and leak <= leak_tolerance:
            reason = "" if drafting == "tree" else _reason(problems, "single paths only")
            elapsed_s = perf_counter() - started
            return SelfTest(drafting, reason, difference, leak, tolerance, elapsed_s)  # type: ignore[arg-type]
        problems.append(f"{drafting}: logits off by {difference:.1e}, leak {leak:.1e}")
    target.chains_only = False
    reason = _reason(problems, "decoding plainly")
    return SelfTest("none", reason, 0.0, 0.0, tolerance, perf_counter() - started)


def rounding_reason(target: Target, test: SelfTest) -> str:
    """Why answers with and without drafting may part; "" where they cannot.

    In float32 only tokens within a hundred-thousandth of each other could. A reproducible target is believed
    on the CPU, where its rows are the same by construction, and measured on longer texts elsewhere.
    """
    if test.drafting == "none" or target.dtype in TOLERANCES:
        return ""
    share = max(test.difference, test.leak)
    is_host = target.device.type == "cpu"
    seems_exact = target.is_reproducible and share == 0.0
    if seems_exact and (is_host or self_check(target, 0, n_prompt=200) == 0.0):
        return ""
    measured = f" (seen: {share:.1%} of the logits' spread)" if share else ""
    return (
        f"in {str(target.dtype).removeprefix('torch.')} a row computed beside others can round differently "
        f"here{measured}: answers with and without drafting can part where two tokens are nearly level"
    )


def _reason(problems: list[str], consequence: str) -> str:
    return f"this model failed the self-test of drafting ({'; '.join(problems)}): {consequence}"


def _check_plain(
    target: Target, tokens: _Tokens, cache: KVCache
) -> tuple[dict[str, Tensor], float]:
    """Logits [V] of root, b and c, each computed alone, and how far they are from the whole text's forward.

    Raises: ModelError when that is too far for rounding.
    """
    cache.reset()
    target.prefill_chunk(tokens.prompt, cache)
    alone = {}
    for name in ("root", "b", "c"):
        single = DraftTree.single(getattr(tokens, name))
        alone[name] = target.forward_tree(single, cache).logits[0].float()
        cache.advance(1)
    whole = target.plain_logits(tokens.text)[N_PROMPT:].float()  # [3, V]
    off = max(_distance(row, alone[name]) for row, name in zip(whole, alone, strict=True))
    limit = REFUSED_FROM.get(target.dtype, COARSE_REFUSED_FROM)
    if not off <= limit:
        raise ModelError(
            "the model's logits, token by token, are not those of its own whole forward",
            expected=f"a relative difference up to {limit:.0e}",
            got=f"{off:.1e}",
            hint="its architecture does not work with this engine; choose another model",
        )
    return alone, off


def _check_tree(
    target: Target, tokens: _Tokens, cache: KVCache, alone: dict[str, Tensor]
) -> tuple[float, float]:
    """(difference, leak) of a tree with a branch, and of what follows when a part of its path is kept."""
    rows = _tree_rows(target, tokens, cache, tokens.a)
    cache.keep(PATH[:2])
    after = target.forward_tree(DraftTree.single(tokens.c), cache).logits[0].float()
    pairs = ((rows[0], "root"), (rows[2], "b"), (rows[3], "c"), (after, "c"))
    difference = max(_distance(row, alone[name]) for row, name in pairs)
    changed = _tree_rows(target, tokens, cache, tokens.other)
    leak = max(_distance(changed[node], rows[node]) for node in PATH)
    return difference, leak


def _tree_rows(target: Target, tokens: _Tokens, cache: KVCache, sibling: Tensor) -> Tensor:
    """Logits [4, V] of the tree, ``sibling`` in the place of a; its rows lie behind the prompt's."""
    cache.rewind(N_PROMPT)
    ids = torch.stack((tokens.root, sibling, tokens.b, tokens.c))  # [4]
    return target.forward_tree(DraftTree(ids, torch.tensor(PARENTS), 2), cache).logits.float()


def _check_chain(
    target: Target, tokens: _Tokens, cache: KVCache, alone: dict[str, Tensor]
) -> tuple[float, float]:
    """(difference, leak) of a chain by the model's own causal path, and of what follows its accepted part."""
    rows = _chain_rows(target, tokens, cache, tokens.c)
    cache.keep((0, 1))
    after = target.forward_tree(DraftTree.single(tokens.c), cache).logits[0].float()
    pairs = ((rows[0], "root"), (rows[1], "b"), (rows[2], "c"), (after, "c"))
    difference = max(_distance(row, alone[name]) for row, name in pairs)
    changed = _chain_rows(target, tokens, cache, tokens.other)
    leak = max(_distance(changed[node], rows[node]) for node in (0, 1))
    return difference, leak


def _chain_rows(target: Target, tokens: _Tokens, cache: KVCache, last: Tensor) -> Tensor:
    """Logits [3, V] of root, b and ``last``; their rows lie behind the prompt's."""
    cache.rewind(N_PROMPT)
    chain = DraftTree.chain(tokens.root, torch.stack((tokens.b, last)))
    return target.forward_tree(chain, cache).logits.float()


def _distance(row: Tensor, reference: Tensor) -> float:
    """Root mean square of the difference of two rows [V], relative to the reference's spread."""
    if torch.equal(row, reference):
        return 0.0
    relative = float((row - reference).norm() / (reference - reference.mean()).norm())
    return relative if math.isfinite(relative) else math.inf


__all__ = ["SelfTest", "rounding_reason", "self_test"]
