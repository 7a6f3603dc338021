"""A tiny base model in a folder, and its answers with and without drafting."""

from __future__ import annotations

from pathlib import Path

from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.engine import generate_tokens
from eagle_core.events import Finished
from eagle_core.session import Session
from eagle_core.testing import OracleDrafter, tiny_model
from tests.support.tiny_models import byte_level_tokenizer

HIDDEN = 64  # a multiple of the 64 weights that share a scale
PROMPT = [10, 20, 30, 40, 50, 20, 30]
N_NEW = 16
TREE = TreeConfig(depth=3, branching=3, size=8)


def save_base(folder: Path) -> Path:
    """Save a random Llama with a byte-level tokenizer."""
    tokenizer = byte_level_tokenizer()
    model = tiny_model("llama", vocab=len(tokenizer), hidden_size=HIDDEN, seed=3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def ids(session: Session, draft: DraftConfig, temperature: float = 0.0) -> tuple[int, ...]:
    session.forget()
    config = GenerationConfig(max_new_tokens=N_NEW, temperature=temperature, seed=3)
    last = list(session.generate(PROMPT, config, draft))[-1]
    assert isinstance(last, Finished), last
    return last.token_ids


def ideal(session: Session, truth: tuple[int, ...], temperature: float) -> Finished:
    """The answer with a drafter that proposes it, and wrong tokens beside."""
    config = GenerationConfig(max_new_tokens=N_NEW, temperature=temperature, seed=3)
    drafter = OracleDrafter(truth, len(PROMPT), n_wrong=2)
    cache = session.target.new_cache(100)
    *_, last = generate_tokens(
        session.target,
        cache,
        drafter,
        PROMPT,
        config,
        TREE,
        session.target.eos_ids(session.tokenizer),
    )
    assert isinstance(last, Finished)
    return last
