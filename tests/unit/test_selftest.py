"""The self-test at load: rounding passes, a planted mistake does not, and the session says what is left."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.errors import ModelError
from eagle_core.events import Finished, LoadProgress, Notice, Started
from eagle_core.kernels import ops
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.loading import LoadedBase
from eagle_core.packing import pack_layers
from eagle_core.selftest import self_test
from eagle_core.session import Session
from eagle_core.target import Target, TargetOutput
from eagle_core.testing import KINDS, Kind, tiny_model, tiny_target
from eagle_core.tree import DraftTree
from tests.support.tiny_heads import tiny_head
from tests.support.tiny_models import byte_level_tokenizer

DTYPES = [torch.float32, torch.bfloat16]
PROMPT = [10, 20, 30, 40, 50]
SHORT = GenerationConfig(max_new_tokens=12)
WIDE = DraftConfig("eagle", TreeConfig(depth=3, branching=3, size=8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_passes(kind: Kind, dtype: torch.dtype) -> None:
    found = self_test(tiny_target(kind, dtype=dtype))
    assert (found.drafting, found.reason) == ("tree", "")
    # A tenth of what is allowed at most, so that deeper models fit in, too.
    assert found.difference < found.tolerance / 10


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_the_kernels_are_exact_to_the_bit() -> None:
    model = tiny_model("llama", hidden_size=64).requires_grad_(False)
    pack_layers(model)
    assert use_rows_attention(model)
    found = self_test(Target(model))
    assert (found.difference, found.leak) == (0.0, 0.0)


def causal_mask(self: DraftTree) -> torch.Tensor:
    return torch.ones(self.n_nodes, self.n_nodes, dtype=torch.bool).tril()


def in_order(self: DraftTree) -> torch.Tensor:
    return torch.arange(self.n_nodes)


def one_too_far(self: DraftTree) -> torch.Tensor:
    return self.ancestor_mask.sum(dim=1)


MISTAKES: dict[str, tuple[str, Any]] = {
    "every earlier node is seen": ("ancestor_mask", causal_mask),
    "positions count nodes": ("depths", in_order),
    "positions are one too far": ("depths", one_too_far),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral", "gpt_neox", "mixtral"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(
    monkeypatch: Any, kind: Kind, dtype: Any, mistake: str
) -> None:
    name, wrong = MISTAKES[mistake]
    target = tiny_target(kind, dtype=dtype)
    monkeypatch.setattr(DraftTree, name, property(wrong))
    found = self_test(target)
    assert found.drafting == "chain", "without a mask, paths are still right"
    assert "tree: logits off by" in found.reason
    assert target.chains_only


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_faint_leak_is_caught_in_every_precision(monkeypatch: Any, dtype: torch.dtype) -> None:
    """One masked weight of 1e-3: far below the rounding of 16 bits, but no rounding."""
    target = tiny_target(dtype=dtype)
    original = Target._tree_mask

    def faint(self: Target, *arguments: Any) -> Any:
        mask = original(self, *arguments).clone()
        mask[0, 0, 2, -3] = mask.new_tensor(-6.0)  # b sees a, at exp(-6) of its weight
        return mask

    monkeypatch.setattr(Target, "_tree_mask", faint)
    found = self_test(target)
    assert found.drafting == "chain"


def test_rows_gathered_wrongly_are_caught(monkeypatch: Any) -> None:
    target = tiny_target()
    keep = type(target.new_cache(9)).keep
    monkeypatch.setattr(
        "eagle_core.cache.KVCache.keep",
        lambda self, path: keep(self, tuple(range(len(path)))),
    )
    assert self_test(target).drafting == "chain"


def test_when_paths_are_wrong_as_well_nothing_is_drafted(monkeypatch: Any) -> None:
    target = tiny_target()
    original = Target.forward_tree

    def shifted(self: Target, tree: DraftTree, cache: Any) -> TargetOutput:
        output = original(self, tree, cache)
        if tree.n_nodes == 1:
            return output
        return TargetOutput(output.logits.roll(1, 0), output.features)

    monkeypatch.setattr(Target, "forward_tree", shifted)
    found = self_test(target)
    assert found.drafting == "none"
    assert "chain: logits off by" in found.reason
    assert not target.chains_only


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_model_that_cannot_even_decode_is_refused(monkeypatch: Any, value: float) -> None:
    target = tiny_target()
    logits = target.plain_logits(torch.tensor(PROMPT + PROMPT))
    monkeypatch.setattr(Target, "plain_logits", lambda self, ids: logits[: len(ids)] * value)
    with pytest.raises(ModelError, match="whole forward"):
        self_test(target)


def test_a_model_that_breaks_in_its_first_forward_is_refused(monkeypatch: Any) -> None:
    target = tiny_target()

    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("shape '[32, 0]' is invalid\nand more")

    monkeypatch.setattr(target.model.get_decoder(), "forward", breaks)
    with pytest.raises(ModelError, match="the model cannot be run") as caught:
        self_test(target)
    assert caught.value.got == "RuntimeError: shape '[32, 0]' is invalid"


def open_session(kind: Kind, on_event: Any = None, **settings: Any) -> Session:
    tokenizer = byte_level_tokenizer()
    model = tiny_model(kind, vocab=len(tokenizer), **settings)
    base = LoadedBase(model, tokenizer, f"tiny {kind}", 128)
    return Session(base, tiny_head(32), "head", on_event)


def answer(session: Session, draft: DraftConfig) -> list[Any]:
    events = list(session.generate(PROMPT, SHORT, draft))
    assert isinstance(events[-1], Finished), events[-1]
    return events


def test_a_session_that_checks_trees_says_nothing() -> None:
    heard: list[Any] = []
    session = open_session("llama", heard.append)
    assert (session.info.drafting, session.info.drafting_reason) == ("tree", "")
    assert heard == []
    assert not any(isinstance(event, Notice) for event in answer(session, WIDE))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "drafting", "drafter", "reason"),
    [
        ("bloom", "chain", "eagle", "single paths only"),
        ("mamba", "none", "none", "cannot be taken back"),
    ],
)
def test_a_session_that_cannot_says_so_and_answers(kind, drafting, drafter, reason) -> None:
    heard: list[Any] = []
    session = open_session(kind, heard.append)
    assert session.info.drafting == drafting
    assert reason in session.info.drafting_reason
    assert [type(event) for event in heard] == [LoadProgress]
    plain = answer(session, DraftConfig("none"))
    assert not any(isinstance(event, Notice) for event in plain)
    session.forget()
    for _ in range(2):  # the second one finds what the first has cached
        events = answer(session, WIDE)
        assert events[-1].token_ids == plain[-1].token_ids
        (notice,) = [event for event in events if isinstance(event, Notice)]
        assert reason in notice.message
        (started,) = [event for event in events if isinstance(event, Started)]
        assert started.drafter == drafter
        assert (events[-1].stats.n_drafted > 0) is (drafting == "chain")


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_rows_that_fill_a_forward_up_change_nothing(kind: Kind) -> None:
    """As on an accelerator, where a reproducible forward has a least count of rows."""
    plain, filled = tiny_target(kind), tiny_target(kind)
    filled._min_rows = 32
    assert self_test(filled).difference < 1e-5
    tree = DraftTree(torch.tensor([1, 2, 3]), torch.tensor([-1, 0, 0]), 1)
    found = []
    for target in (plain, filled):
        cache = target.new_cache(64)
        target.prefill_chunk(torch.tensor(PROMPT), cache)
        output = target.forward_tree(tree, cache)
        assert output.logits.shape[0] == output.features.shape[0] == 3
        cache.keep((0, 2))
        found.append((output.logits, target.forward_tree(tree, cache).logits))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)  # float32, another count of rows


def test_a_session_says_whether_answers_can_part(monkeypatch: Any) -> None:
    if not ops.has_kernels():
        pytest.skip("no C++ compiler here")
    tokenizer = byte_level_tokenizer()
    model = tiny_model("llama", dtype=torch.bfloat16, hidden_size=64, vocab=len(tokenizer))
    session = Session(LoadedBase(model, tokenizer, "tiny", 128), None)
    assert (session.info.reproducible, session.info.rounding_reason) == (True, "")
    session.set_reproducible(False)
    assert not session.info.reproducible
    assert "in bfloat16 a row computed beside others can round" in session.info.rounding_reason
    session.set_reproducible(True)
    assert session.info.rounding_reason == ""
    assert isinstance(list(session.generate(PROMPT, SHORT, DraftConfig("ngram")))[-1], Finished)
