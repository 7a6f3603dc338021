"""Checks on the loaded model: rows of a tree against single rows, and answers with and without drafting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from eagle_core.certificate.records import Check
from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.differences import describe
from eagle_core.drafters.base import Drafter
from eagle_core.engine import generate_tokens
from eagle_core.errors import ModelError, NoChatTemplate
from eagle_core.events import Failed, Finished, Notice
from eagle_core.rounding import ROUNDING
from eagle_core.selftest import self_test
from eagle_core.session import Session
from eagle_core.testing import OracleDrafter

QUESTION = "Explain in two sentences why the sea is salty."
N_NEW = 32
SETTINGS = (GenerationConfig(N_NEW), GenerationConfig(N_NEW, temperature=0.8, top_p=0.95, seed=1))
WIDE = TreeConfig("dynamic", depth=4, branching=4, size=12)


def model_checks(session: Session) -> Iterator[Check]:
    """The self-test's figures, then for greedy and for sampled answers: an ideal drafter, and the head."""
    yield _tree_check(session)
    prompt = prompt_ids(session)
    for config in SETTINGS:
        name = "greedy" if config.temperature == 0 else f"temperature {config.temperature}"
        plain = _answer(session, prompt, config, DraftConfig("none"))
        plain_ids = list(plain.token_ids)
        # Also where no head is at hand: the right tokens beside wrong ones, in every tree.
        if session.info.drafting != "none":
            is_chain = session.info.drafting == "chain"
            oracle = OracleDrafter(
                plain_ids,
                len(prompt),
                n_wrong=0 if is_chain else 2,
                vocab=session.target.vocab_size,
            )
            done = _with_drafter(session, prompt, config, oracle)
            yield _compare(session, f"{name}, ideal drafter", prompt, plain_ids, done, config)
        if session.info.head is not None and session.info.drafting != "none":
            done = _answer(session, prompt, config, DraftConfig("eagle", WIDE))
            yield _compare(session, f"{name}, head", prompt, plain_ids, done, config)


def prompt_ids(session: Session) -> list[int]:
    """The question, in the model's chat template if it has one."""
    try:
        return session.encode_chat([{"role": "user", "content": QUESTION}])
    except NoChatTemplate:
        return session.encode(QUESTION)


def _tree_check(session: Session) -> Check:
    """The self-test with other tokens than at load: it must find the same."""
    found = self_test(session.target, seed=1)
    detail = (
        f"{found.difference:.1e} of the logits' spread (allowed: {found.tolerance:.0e}), "
        f"{found.leak:.1e} when a hidden token changes; {found.elapsed_s:.2f} s"
    )
    if found.difference == found.leak == 0.0 and found.drafting == "tree":
        detail = f"the same bits; {found.elapsed_s:.2f} s"
    # A limit that was found at load is no failure: it is kept to, and nothing wrong is drafted.
    return Check(
        "model",
        f"logits of a {found.drafting if found.drafting != 'none' else 'token'} and of single tokens",
        found.drafting == session.info.drafting,
        found.reason or detail,
        dataclasses.asdict(found),
    )


def _answer(
    session: Session, prompt: Sequence[int], config: GenerationConfig, draft: DraftConfig
) -> Finished:
    """One answer through the session, its whole prompt read anew.

    Raises: ModelError when it fails, or the drafter does.
    """
    session.forget()
    says_something = session.info.drafting != "tree" or session.info.quantization == "llm-int8"
    for event in session.generate(prompt, config, draft):
        if isinstance(event, (Failed, Notice)) and not says_something:
            raise ModelError("the answer to be checked failed", got=event.message)
        if isinstance(event, Finished):
            return event
    raise ModelError("the answer to be checked failed")


def _with_drafter(
    session: Session, prompt: Sequence[int], config: GenerationConfig, drafter: Drafter
) -> Finished:
    target = session.target
    cache = target.new_cache(len(prompt) + N_NEW + WIDE.max_nodes + 2)
    *_, last = generate_tokens(
        target, cache, drafter, prompt, config, WIDE, target.eos_ids(session.tokenizer)
    )
    assert isinstance(last, Finished)
    return last


def _compare(
    session: Session,
    name: str,
    prompt: Sequence[int],
    plain: list[int],
    drafted: Finished,
    config: GenerationConfig,
) -> Check:
    stats = drafted.stats
    kept = f"{stats.n_accepted} of {stats.n_drafted} drafted tokens were kept"
    found = session.explain_difference(prompt, plain, drafted.token_ids, config)
    if found is None:
        figures = {"identical": True, "n_tokens": len(plain), "n_accepted": stats.n_accepted}
        return Check("model", name, True, f"{len(plain)} tokens equal; {kept}", figures)
    figures = dataclasses.asdict(found) | {"is_tie": found.is_tie}
    # Where a cut (top-p, say) left one of the tokens out, 16 bits may have moved it across the border.
    is_on_border = found.gap is not None and found.lead is None
    is_coarse = session.target.dtype not in ROUNDING
    return Check(
        "model",
        name,
        found.is_tie is True or (is_on_border and is_coarse),
        describe(found, len(plain)) + f"; {kept}",
        {"identical": False, "n_tokens": len(plain), **figures},
    )


__all__ = ["model_checks", "prompt_ids"]
