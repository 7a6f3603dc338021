"""The one loop: propose a tree, check it with the target, keep what the target agrees with.

Plain decoding is the same loop with a drafter that proposes nothing. Token ids only, no text.
Invariant whenever a generator yields, ends or is closed: both caches hold all tokens but the last,
the pending one: ``cache.length == drafter.length == len(tokens) - 1``. Before the first token they
hold the part of the prompt that was read. A drafter that failed to commit was switched off and is empty
instead; whatever a drafter does, the text is the same (``guard``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import torch
from torch import Tensor

from eagle_core.cache import KVCache
from eagle_core.capture import interruptible
from eagle_core.config import DrafterName, GenerationConfig, Rule, TreeConfig
from eagle_core.drafters.base import Budget, Drafter, SamplingDrafter
from eagle_core.errors import Cancelled, ConfigError, ContextOverflow, DraftError
from eagle_core.events import (
    Event,
    Finished,
    FinishReason,
    Notice,
    PrefillProgress,
    Started,
    StepDone,
    TokenOut,
    TreeView,
)
from eagle_core.guard import GuardedDrafter
from eagle_core.processors import Processors, processors_for
from eagle_core.sampling import check_finite, choose, position_noise
from eagle_core.stats import StatsBuilder
from eagle_core.target import Target
from eagle_core.tree import DraftTree
from eagle_core.verify import Verdict, verify

logger = logging.getLogger(__name__)

PREFILL_CHUNK = 512  # prompt tokens per forward; Stop is seen between its layers
NO_TREE = TreeView((), ())

# Reads tokens that are about to be kept, each of the answer's once and in order, and says how many of them
# stay because the answer ends there; None: it goes on.
Cut = Callable[[Sequence[int]], int | None]


def never() -> bool:
    """The default for ``is_cancelled``."""
    return False


def nowhere(_run: Sequence[int]) -> int | None:
    """The default for ``cut``."""
    return None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step made final. Times in seconds.

    ``n_kept`` tokens of the verdict's run were kept; ``path`` are the accepted nodes among them.
    ``is_cut``: the answer ends here, as ``cut`` said.
    """

    verdict: Verdict
    depth_drafted: int
    n_kept: int
    is_cut: bool
    draft_s: float
    target_s: float
    verify_s: float
    commit_s: float
    draft_probabilities: tuple[float | None, ...] = ()

    @property
    def path(self) -> tuple[int, ...]:
        """Accepted nodes whose tokens were kept."""
        return self.verdict.path[: self.n_kept]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The kept tokens."""
        return self.verdict.run[: self.n_kept]

    @property
    def tokens(self) -> tuple[TokenOut, ...]:
        """The kept tokens with their origin."""
        n_accepted = len(self.path)
        kept = zip(self.token_ids, self.verdict.probabilities, strict=False)
        drafted = self.draft_probabilities or (None,) * n_accepted
        return tuple(
            TokenOut(token, "draft", i + 1, probability, self.path[i], drafted[i])
            if i < n_accepted
            else TokenOut(token, "target", 0, probability)
            for i, (token, probability) in enumerate(kept)
        )


class _Clock:
    """Seconds, after the device has done what it was asked to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits = device.type != "cpu"

    def __call__(self) -> float:
        if self._waits:
            torch.accelerator.synchronize(self._device)
        return perf_counter()


def step_budget(tree: TreeConfig, n_left: int, room: int) -> Budget:
    """What the next tree may cost.

    Args:
        n_left: tokens that may still be emitted, >= 1; a path and its bonus must fit.
        room: free rows of the cache; the pending node takes one.
    """
    max_depth = max(0, min(tree.max_depth, n_left - 1, room - 1))
    return Budget(max_nodes=min(tree.max_nodes, room - 1) if max_depth else 0, max_depth=max_depth)


def cut_run(run: Sequence[int], n_left: int, eos_ids: frozenset[int]) -> int:
    """How many tokens of a run stay: through the first end-of-text token, at most ``n_left``."""
    for i, token in enumerate(run[:n_left]):
        if token in eos_ids:
            return i + 1
    return min(len(run), n_left)


def acceptance_rule(drafter: Drafter, config: GenerationConfig) -> Rule:
    """The rule for a drafter: without a known q, ``match`` serves for ``sampling``."""
    wanted = config.acceptance
    if wanted == "sampling" and not isinstance(drafter, SamplingDrafter):
        return "match"
    return wanted


@torch.inference_mode()
def step(
    target: Target,
    cache: KVCache,
    drafter: GuardedDrafter,
    pending: int,
    budget: Budget,
    config: GenerationConfig,
    eos_ids: frozenset[int] = frozenset(),
    n_left: int = 1 << 62,
    processors: Processors | None = None,
    cut: Cut = nowhere,
) -> Step:
    """Propose, evaluate, verify, cut, commit. Nothing is committed if any of the first four fails.

    Args:
        pending: the last token decided, at position cache.length.
        n_left: tokens that may still be emitted; the run is cut there, or after an end-of-text token.
        processors: hold all tokens up to the pending one.
        cut: reads what is left of the run, and may cut it once more.
    """
    device = target.device
    clock = _Clock(device)
    started = clock()
    draws = acceptance_rule(drafter.inner, config) == "sampling"
    tree = drafter.propose(pending, budget, device, config if draws else None)
    drafted = clock()
    output = target.forward_tree(tree, cache)
    evaluated = clock()
    try:
        verdict = verify(tree, output.logits, cache.length + 1, config, processors)
        if device.type != "cpu":  # there the guard could not look before the forward
            drafter.check(list(verdict.tokens), list(verdict.parents), pending, budget.max_depth)
    except DraftError as error:
        drafter.blame(error)
        tree = DraftTree.single(torch.tensor(pending, device=device))
        output = target.forward_tree(tree, cache)
        verdict = verify(tree, output.logits, cache.length + 1, config, processors)
    n_kept = cut_run(verdict.run, n_left, eos_ids)
    n_before_end = cut(verdict.run[:n_kept])
    n_kept = n_kept if n_before_end is None else n_before_end
    verified = clock()
    _commit(device, cache, drafter, output.features, verdict, n_kept)
    committed = clock()
    return Step(
        verdict=verdict,
        depth_drafted=verdict.depth,
        n_kept=n_kept,
        is_cut=n_before_end is not None,
        draft_s=drafted - started,
        target_s=evaluated - drafted,
        verify_s=verified - evaluated,
        commit_s=committed - verified,
        draft_probabilities=_draft_probabilities(tree, verdict.path),
    )


def _draft_probabilities(tree: DraftTree, path: Sequence[int]) -> tuple[float | None, ...]:
    """The drafter's own probability of each accepted node; what it does not say, or says wrongly, is None."""
    scores = tree.draft_scores
    if not path or not isinstance(scores, Tensor) or not scores.is_floating_point():
        return (None,) * len(path)
    if scores.shape != tree.tokens.shape:
        return (None,) * len(path)
    shares = [math.exp(min(score, 0.0)) for score in scores.float().tolist()]
    return tuple(None if math.isnan(shares[node]) else shares[node] for node in path)


def _commit(
    device: torch.device,
    cache: KVCache,
    drafter: GuardedDrafter,
    features: Tensor,
    verdict: Verdict,
    n_kept: int,
) -> None:
    """Commit the pending token and the kept run but its last token, which is the new pending one.

    Example: path (1, 4), run (a, b, x), all 3 kept: rows 0, 1, 4 hold pending, a, b; x is pending. Cut
    to 2 kept: rows 0, 1 hold pending, a; b is pending.
    """
    rows = verdict.rows[:n_kept]
    tokens = [verdict.tokens[0], *verdict.run[: n_kept - 1], verdict.run[n_kept - 1]]
    ids = torch.tensor(tokens, device=device)  # [K + 1]
    if rows != tuple(range(len(rows))):
        kept_features = features[torch.tensor(rows, device=features.device)]  # [K, D]
    else:
        kept_features = features[: len(rows)]  # [K, D]
    length = cache.length
    cache.keep(rows)
    try:
        drafter.commit(ids[:-1], kept_features, ids[-1])
    except BaseException:  # an interrupt; what a drafter raises ends in the guard
        _level(cache, drafter, length)
        raise


def _level(cache: KVCache, drafter: GuardedDrafter, length: int) -> None:
    """Put both caches back to a length that they had in common."""
    cache.rewind(length)
    drafter.rewind(length)


def generate_tokens(
    target: Target,
    cache: KVCache,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    config: GenerationConfig,
    tree: TreeConfig,
    eos_ids: frozenset[int],
    *,
    is_cancelled: Callable[[], bool] = never,
    cut: Cut = nowhere,
) -> Iterator[Event]:
    """Answer a prompt: Started, Notice?, PrefillProgress*, StepDone*, Finished.

    One more Notice says so if the drafter fails.

    Args:
        cache, drafter: may hold a prefix of ``prompt_ids``, the same number of tokens each and at
            most len(prompt_ids) - 1; it is not read again. Both hold prompt and answer but the last
            token afterwards; a drafter that failed to commit is empty.
        eos_ids: tokens that end the answer; the one that does is its last token.
        cut: ends the answer in another place, with reason "stop"; what it cuts off is never committed.
    Raises: ContextOverflow when the prompt leaves no room; ConfigError when it is empty.
    """
    limit = min(target.context_length, cache.capacity)
    check_prompt_ids(prompt_ids, target.vocab_size)
    _check_prompt(prompt_ids, cache, drafter, limit)
    processors = processors_for(config, prompt_ids, eos_ids, target.vocab_size)
    guarded = GuardedDrafter(drafter, target.vocab_size, chains_only=target.chains_only)
    request = _Request(
        target, cache, guarded, config, tree, eos_ids, limit, processors=processors, cut=cut
    )
    rule = acceptance_rule(drafter, config)
    guarded.follow(config)
    yield Started(
        n_prompt_tokens=len(prompt_ids),
        n_cached_tokens=cache.length,
        context_length=limit,
        drafter=cast(DrafterName, drafter.name),
        rule=rule,
        seed=config.seed,
    )
    if rule != config.acceptance and drafter.name != "none":
        yield Notice("info", f"{drafter.name} cannot draw its drafts: rule {rule} is used")
    for done in request.prefill(prompt_ids, is_cancelled):
        yield PrefillProgress(done, len(prompt_ids))
        yield from _problem(guarded)
    reason: FinishReason = "cancelled"
    if cache.length == len(prompt_ids):
        yield request.first_token()
        while not (found := request.finish_reason()) and not is_cancelled():
            yield request.next_step()
            yield from _problem(guarded)
        reason = found or "cancelled"
    yield Finished(
        reason=reason,
        n_prompt_tokens=len(prompt_ids),
        token_ids=tuple(request.token_ids),
        stats=request.stats.build(request.elapsed_s()),
    )


def _problem(drafter: GuardedDrafter) -> Iterator[Notice]:
    """The one notice about a drafter that failed."""
    if (problem := drafter.take_problem()) is not None:
        yield Notice("warning", problem)


def check_prompt_ids(prompt_ids: Sequence[int], vocab_size: int) -> None:
    """Raises: ConfigError for an empty prompt, or one that holds an id which the model does not know."""
    if not prompt_ids:
        raise ConfigError(
            "the prompt is empty", expected="at least one token", hint="write something first"
        )
    worst = max(prompt_ids)
    if worst >= vocab_size or min(prompt_ids) < 0:
        raise ConfigError(
            "the prompt holds a token that the model does not know",
            expected=f"ids below {vocab_size}",
            got=str(worst),
            hint="the tokenizer belongs to another model",
        )


def _check_prompt(prompt_ids: Sequence[int], cache: KVCache, drafter: Drafter, limit: int) -> None:
    if len(prompt_ids) >= limit:
        raise ContextOverflow(
            "the prompt leaves no room for an answer",
            expected=f"at most {limit - 1} tokens",
            got=f"{len(prompt_ids)} tokens",
            hint="shorten the conversation, or load the model with a longer context",
        )
    assert cache.length == drafter.length, f"{cache.length} cached, {drafter.length} drafted on"
    assert cache.length < len(prompt_ids), "the last prompt token must be read again"


class _Request:
    """State of one answer."""

    def __init__(
        self,
        target: Target,
        cache: KVCache,
        drafter: GuardedDrafter,
        config: GenerationConfig,
        tree: TreeConfig,
        eos_ids: frozenset[int],
        limit: int,
        *,
        processors: Processors | None,
        cut: Cut,
    ) -> None:
        self._target, self._cache, self._drafter = target, cache, drafter
        self._config, self._tree, self._eos_ids, self._limit = config, tree, eos_ids, limit
        self._processors, self._cut, self._is_cut = processors, cut, False
        self._clock = _Clock(target.device)
        self._started = perf_counter()
        self._first: tuple[int, float] = (0, 0.0)
        self.token_ids: list[int] = []
        self.stats = StatsBuilder()

    def elapsed_s(self) -> float:
        """Seconds since the engine started on the request."""
        return perf_counter() - self._started

    def n_left(self) -> int:
        """Tokens that may still be emitted."""
        n_in_context = self._limit - self._cache.length - 1
        return min(self._config.max_new_tokens - len(self.token_ids), n_in_context)

    def finish_reason(self) -> FinishReason | None:
        """Why the answer is complete, or None; called after a token."""
        if self._is_cut:
            return "stop"
        if self.token_ids[-1] in self._eos_ids:
            return "eos"
        if len(self.token_ids) >= self._config.max_new_tokens:
            return "length"
        return "context" if self.n_left() <= 0 else None

    def prefill(self, prompt_ids: Sequence[int], is_cancelled: Callable[[], bool]) -> Iterator[int]:
        """Read the prompt chunk by chunk and yield the tokens read so far, until done or cancelled."""
        begin = self._clock()
        ids = torch.tensor(prompt_ids, device=self._target.device)  # [T]
        while self._cache.length < len(prompt_ids) and not is_cancelled():
            self._read_chunk(ids, is_cancelled)
            self.stats.add_prefill(self._clock() - begin)
            yield self._cache.length

    @torch.inference_mode()
    def _read_chunk(self, ids: Tensor, is_cancelled: Callable[[], bool]) -> None:
        """Commit the next chunk of the prompt ([T]) to both caches or to none; at its end, choose a token."""
        length = self._cache.length
        end = min(length + PREFILL_CHUNK, ids.shape[0])
        try:
            with interruptible(self._target.model, self._target.n_layers, is_cancelled):
                output = self._target.prefill_chunk(ids[length:end], self._cache)
            next_token = ids[end] if end < ids.shape[0] else self._choose_first(output.logits, end)
            # Copies: what a drafter does to its arguments must not reach the prompt.
            self._drafter.commit(ids[length:end].clone(), output.features, next_token.clone())
        except Cancelled:
            _level(self._cache, self._drafter, length)
        except BaseException:
            _level(self._cache, self._drafter, length)
            raise

    def _choose_first(self, logits: Tensor, position: int) -> Tensor:
        """The answer's first token ([] i64), at ``position``, from logits [1, V]."""
        if self._processors is not None:
            logits = self._processors(logits, [()])
        noise = position_noise(self._config.seed, position, 1).to(logits.device)
        token, probability = choose(logits, noise, self._config)
        self._first = int(token), float(probability)
        check_finite([self._first[1]])
        return token[0].to(self._target.device)

    def first_token(self) -> StepDone:
        """Emit the token that the prefill chose."""
        token, probability = self._first
        self._is_cut = self._cut((token,)) is not None
        self._take((token,))
        time_s = self.elapsed_s()
        self.stats.add_emission(1, time_s)
        return StepDone(0, NO_TREE, (), (TokenOut(token, "target", 0, probability),), time_s)

    def _take(self, token_ids: Sequence[int]) -> None:
        """Add tokens to the answer."""
        self.token_ids.extend(token_ids)
        if self._processors is not None:
            self._processors.extend(token_ids)

    def next_step(self) -> StepDone:
        """Take one step and emit its tokens."""
        n_left = self.n_left()
        budget = step_budget(self._tree, n_left, self._cache.room)
        done = step(
            self._target,
            self._cache,
            self._drafter,
            self.token_ids[-1],
            budget,
            self._config,
            self._eos_ids,
            n_left,
            self._processors,
            self._cut,
        )
        self._is_cut = done.is_cut
        self._take(done.token_ids)
        time_s = self.elapsed_s()
        verdict = done.verdict
        times = {
            "draft_s": done.draft_s,
            "target_s": done.target_s,
            "verify_s": done.verify_s,
            "commit_s": done.commit_s,
        }
        self.stats.add_step(
            n_drafted=len(verdict.tokens) - 1,
            depth_drafted=done.depth_drafted,
            n_accepted=len(done.path),
            **times,
        )
        self.stats.add_emission(done.n_kept, time_s)
        logger.debug("step: %d drafted, %d kept", len(verdict.tokens) - 1, done.n_kept)
        return StepDone(
            index=self.stats.n_steps,
            tree=TreeView(verdict.tokens, verdict.parents),
            path=done.path,
            tokens=done.tokens,
            time_s=time_s,
            **times,
        )


__all__ = [
    "PREFILL_CHUNK",
    "Cut",
    "Step",
    "acceptance_rule",
    "check_prompt_ids",
    "cut_run",
    "generate_tokens",
    "never",
    "nowhere",
    "step",
    "step_budget",
]
