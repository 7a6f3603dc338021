"""A loaded model with its drafter, its caches and its queue: what app, CLI and benchmark talk to.

The boundary where exceptions become ``Failed`` events. Caches outlive a request, so that the next turn of a
chat only reads what is new.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from eagle_core import catalog, templates
from eagle_core._version import __version__
from eagle_core.cache import KVCache
from eagle_core.chat_text import ChatText
from eagle_core.config import DraftConfig, GenerationConfig, HeadDType, LoadConfig, TreeConfig
from eagle_core.differences import Difference
from eagle_core.drafters.base import Drafter
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.drafters.ngram import NgramDrafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import check_prompt_ids, generate_tokens, never
from eagle_core.errors import EagleError, NoChatTemplate, OutOfMemory
from eagle_core.events import (
    Event,
    Failed,
    Finished,
    LoadProgress,
    Notice,
    Queued,
    StepDone,
    TextDelta,
)
from eagle_core.folders import OnEvent, cache_folder, ignore_event
from eagle_core.head_precision import head_dtype_name, place_head
from eagle_core.heads.base import DraftHead
from eagle_core.kernels.cuda_graphs import graph_captures
from eagle_core.loading import LoadedBase, is_memory_error, load_base
from eagle_core.loading_head import check_before_download, head_source, load_head
from eagle_core.pace import PaceBook, pace_file
from eagle_core.packing import bytes_read, count_let_go
from eagle_core.pages import PagesAhead
from eagle_core.queueing import TicketQueue
from eagle_core.rehearsal import Rehearsal, in_idle_moments
from eagle_core.rounding import explain_difference
from eagle_core.row_costs import RowCosts
from eagle_core.selftest import rounding_reason, self_test
from eagle_core.session_info import Drafting, Message, SessionInfo
from eagle_core.stats import Stats
from eagle_core.stops import StopStrings
from eagle_core.target import Target
from eagle_core.text import TextStream, special_ids

logger = logging.getLogger(__name__)

TREE_ROOM = 257  # cache rows for the largest tree that the settings allow, pending node included
POLL_S = 0.1


class Session:
    """One base model, one head or none, one request at a time.

    Args:
        base: a loaded base model.
        head: a head that fits it, or None: then every answer is decoded plainly, and says so.
        head_name: how the head is called.
        on_event: hears when the base's self-test finds a limit.
        head_dtype: precision of the head.
        chat_template: a built-in template's name or a file, instead of the model's own.
        pace_folder: where is kept how fast the trees of ``auto`` are; None: nowhere.
    Raises: ModelError when the base cannot be run rightly.
    """

    def __init__(
        self,
        base: LoadedBase,
        head: DraftHead | None,
        head_name: str | None = None,
        on_event: Callable[[Event], None] | None = None,
        head_dtype: HeadDType = "auto",
        chat_template: str | None = None,
        pace_folder: Path | None = None,
    ) -> None:
        self._text = ChatText(base.tokenizer, chat_template, base.name)
        self._tokenizer: Any = base.tokenizer
        feature_layers = head.feature_layers if head is not None else ()
        self._target = Target(base.model, base.context_length, feature_layers)
        self._inexact_reason = base.inexact_reason
        self._target.set_reproducible(base.reproducible)
        self._captures = graph_captures(self._target.device) if base.cuda_graphs else None
        self._target.use_graphs(self._captures)
        drafting, drafting_reason, may_part = self._test()
        if drafting_reason and on_event is not None:
            on_event(LoadProgress(drafting_reason))
        self._cache = self._new_cache()
        n_head_parameters = 0
        if head is not None:
            n_head_parameters = sum(parameter.numel() for parameter in head.parameters())
            head = place_head(head, self._target.device, self._target.dtype, head_dtype)
        self._head = head
        self._eagle: EagleDrafter | None = None
        self._eos_ids = self._target.eos_ids(base.tokenizer)
        self._hidden_ids = self._eos_ids | special_ids(base.tokenizer)
        self._cached_ids: list[int] = []
        self._queue = TicketQueue()
        self._is_closed = threading.Event()
        self._rehearsal: Rehearsal | None = None  # the one that is under way
        self._auto_tree = catalog.default_tree(catalog.lookup(base.name), self._target.device.type)
        self.info = SessionInfo(
            base=base.name,
            head=head_name,
            dtype=str(self._target.dtype).removeprefix("torch."),
            device=str(self._target.device),
            context_length=self._target.context_length,
            # transformers counts a byte of two 4-bit weights as two; we count what was let go.
            n_parameters=base.model.num_parameters() + count_let_go(base.model),
            weight_bytes=bytes_read(base.model),
            n_head_parameters=n_head_parameters,
            drafting=drafting,
            drafting_reason=drafting_reason,
            reproducible=base.reproducible,
            rounding_reason=may_part,
            quantization=base.quantization,
            precision_note=base.precision_note,
            head_dtype=head_dtype_name(head, head_dtype) if head is not None else None,
            cuda_graphs=self._target.graphs is not None,
        )
        self._pace_folder = pace_folder
        self._paces = self._new_paces()
        with suppress(NoChatTemplate):  # said when a chat is to be answered
            self.info = dataclasses.replace(self.info, chat_template=self._text.template.name)

    @classmethod
    def open(
        cls, config: LoadConfig, on_event: OnEvent = ignore_event, ahead: PagesAhead | None = None
    ) -> Session:
        """Fetch what is missing, load it, and be ready.

        Args:
            on_event: gets DownloadProgress and LoadProgress.
            ahead: memory that was touched for the base meanwhile (``headstart``).
        Raises: ModelError, ResourceError or ConfigError, each with a hint.
        """
        if config.chat_template is not None:  # a misspelled one is said before anything is loaded
            templates.named(config.chat_template)
        source = head_source(config)
        check_before_download(config, on_event)
        base = load_base(config, on_event, ahead)
        head = name = None
        if source is not None:
            head = load_head(source, base.model, on_event, offline=config.offline)
            name = Path(source).name
        pace_folder, template = cache_folder() / "pace", config.chat_template
        return cls(base, head, name, on_event, config.head_dtype, template, pace_folder)

    @property
    def tokenizer(self) -> Any:
        """The base's tokenizer."""
        return self._tokenizer

    @property
    def target(self) -> Target:
        """The base model as the loop sees it."""
        return self._target

    @property
    def head(self) -> DraftHead | None:
        """The head, ready to draft; None without one."""
        return self._head

    @property
    def row_costs(self) -> RowCosts | None:
        """What forwards of some counts of rows take on this machine; None before it was measured."""
        return self._paces.worth.measured

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._eos_ids

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without a chat template."""
        return list(self._tokenizer(text).input_ids)

    def use_template(self, name: str) -> None:
        """Chat by another template from now on: a built-in one's name (``templates.names()``), or a file.

        Raises: ConfigError when there is no such template.
        """
        self.info = dataclasses.replace(self.info, chat_template=self._text.use_template(name))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a chat, ready for the answer.

        A last message of the assistant is an answer to be continued: its text is the answer's beginning.
        Raises: NoChatTemplate when the model has none; ConfigError when it refuses these messages.
        """
        return self._text.encode(messages)[0]

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a chat in its template. Raises as :meth:`encode_chat` does."""
        return len(self.encode_chat(messages))

    def token_text(self, token_id: int) -> str:
        """One token for the eye; bytes that are no whole character are shown in the vocabulary's spelling."""
        return self._text.token_text(token_id)

    def chat(
        self,
        messages: Sequence[Message],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Answer a chat; see :meth:`generate`. What had to be changed for the template is said first."""
        try:
            prompt_ids, notices = self._text.encode(messages)
        except EagleError as error:
            yield Failed.of(error)
            return
        yield from (Notice("info", notice) for notice in notices)
        yield from self.generate(prompt_ids, generation, draft, cancel=cancel)

    def generate(
        self,
        prompt_ids: Sequence[int],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Continue a prompt; waits for its turn first.

        Yields: Queued*, Started, PrefillProgress*, then StepDone and TextDelta, and last Finished or Failed.
            Never raises; closing the iterator early frees the engine and leaves the caches valid.
        """
        cancelled = cancel if cancel is not None else threading.Event()
        ticket = self._queue.enter()
        try:
            shown = 0
            while ahead := self._queue.wait(ticket, POLL_S):
                if ahead != shown:
                    shown = ahead
                    yield Queued(ahead)
                if cancelled.is_set():
                    yield Finished("cancelled", len(prompt_ids), (), Stats())
                    return
            yield from self._guarded(list(prompt_ids), generation, draft, cancelled)
        finally:
            self._queue.leave(ticket)

    def forget(self) -> None:
        """Drop the cached prompt, so that the next request reads its whole prompt anew.

        What was recorded and measured of the drafter stays, as it does between the turns of a chat.
        """
        with self._turn():
            self._cache.reset()
            self._cached_ids = []
            if self._eagle is not None:
                self._eagle.reset()

    def rehearse(self, is_over: Callable[[], bool] = never) -> None:
        """Meet all usual forwards now, between the requests of others; returns when it is done, or over.

        Answers are as fast from the first one on then, and ``auto`` knows what rows cost on this machine. It
        gives way as soon as a request waits. Never raises; where nothing is gained it does nothing.
        """
        if self._target.device.type == "cpu":
            in_idle_moments(
                self._queue, lambda: self._is_closed.is_set() or is_over(), self._rehearse
            )

    def _rehearse(self, is_wanted: Callable[[], bool]) -> bool:
        """Go on with it; whether all is done. After a reset it begins anew: the recordings are gone."""
        if self.info.drafting != "tree":
            return True
        if self._head is not None and self._eagle is None:
            self._eagle = self._new_eagle(self._head, self._allowed(DraftConfig()).tree)
        new = (self._target, self._cache, self._eagle, self.row_costs)
        self._rehearsal = played = self._rehearsal or Rehearsal(*new)
        played.go_on(is_wanted)
        if played.is_done:
            self._rehearsal = None
            self._paces.learn(played.costs())
        return played.is_done

    def explain_difference(
        self,
        prompt_ids: Sequence[int],
        plain: Sequence[int],
        drafted: Sequence[int],
        generation: GenerationConfig,
    ) -> Difference | None:
        """Where two answers to a prompt part, and whether it is a rounding tie; None when they are the same.

        For the rules greedy and match, under which they should be the same. Waits for its turn.
        Args: plain, drafted: ids of the answer without and with drafting.
        """
        with self._turn():
            return explain_difference(
                self._target, prompt_ids, plain, drafted, generation, self._eos_ids
            )

    def set_reproducible(self, is_on: bool) -> None:
        """Compute rows alike alone and beside others, or not; what is cached is read again. Waits its turn.

        ``info`` says afterwards whether answers may part. Without effect in float32.
        """
        with self._turn():
            self._target.set_reproducible(is_on)
            drafting, drafting_reason, may_part = self._test()
            self._reset()
            self.info = dataclasses.replace(
                self.info, drafting=drafting, drafting_reason=drafting_reason, reproducible=is_on,
                rounding_reason=may_part,
            )  # fmt: skip
            self._paces = self._new_paces()

    def _test(self) -> tuple[Drafting, str, str]:
        """What the model can check, why no trees, and why answers may part all the same."""
        test = self_test(self._target)
        logger.info("self-test: %s", test)
        inexact = self._inexact_reason
        if test.drafting == "none":
            return "none", "; ".join(filter(None, (test.reason, inexact))), ""
        return test.drafting, test.reason, inexact or rounding_reason(self._target, test)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The engine for oneself, after everybody who came before."""
        ticket = self._queue.enter()
        try:
            while self._queue.wait(ticket, POLL_S):
                pass
            yield
        finally:
            self._queue.leave(ticket)

    def close(self) -> None:
        """Forget everything and let go of the caches' memory."""
        self._is_closed.set()
        with self._turn():
            self._reset()
            self._cache = self._new_cache()

    def _guarded(
        self,
        prompt_ids: list[int],
        generation: GenerationConfig,
        draft: DraftConfig,
        cancel: threading.Event,
    ) -> Iterator[Event]:
        """The boundary: whatever goes wrong becomes one Failed event, and the caches start afresh."""
        try:
            yield from self._answer(prompt_ids, generation, draft, cancel)
        except EagleError as error:
            logger.info("request failed: %s", error.code)
            self._reset()
            yield Failed.of(error)
        except Exception as error:
            logger.exception("request failed")
            self._reset()
            if is_memory_error(error):
                hint = "use a shorter context, a smaller tree or another precision"
                yield Failed.of(OutOfMemory("the device ran out of memory", hint=hint))
                return
            yield Failed(
                "internal",
                "something went wrong inside the engine",
                "try again; the log has the details",
            )

    def _answer(
        self,
        prompt_ids: list[int],
        generation: GenerationConfig,
        draft: DraftConfig,
        cancel: threading.Event,
    ) -> Iterator[Event]:
        check_prompt_ids(prompt_ids, self._target.vocab_size)
        if draft.drafter != "none" and self.info.drafting != "tree":
            yield Notice("warning", self.info.drafting_reason)
        elif draft.drafter != "none" and self._inexact_reason:
            yield Notice("warning", self._inexact_reason)
        if draft.drafter == "eagle" and self._head is None and self.info.drafting != "none":
            yield Notice(
                "warning", f"no EAGLE head is known for {self.info.base}: drafting by lookup alone"
            )
            draft = dataclasses.replace(draft, drafter="ngram")
        draft = self._allowed(draft)
        drafter = self._prepare(prompt_ids, draft, generation.temperature)
        stream = TextStream(self._tokenizer, self._hidden_ids)
        stops = StopStrings(generation.stop, self._tokenizer, self._hidden_ids)
        ids = list(prompt_ids)
        events = generate_tokens(
            self._target, self._cache, drafter, prompt_ids, generation, draft.tree, self._eos_ids,
            is_cancelled=cancel.is_set, cut=stops.cut,
        )  # fmt: skip
        try:
            for event in events:
                delta: TextDelta | None = None
                if isinstance(event, StepDone):
                    ids += [token.id for token in event.tokens]
                    delta = stops.shown(stream.feed(event.tokens))
                elif isinstance(event, Finished):
                    if (tail := stops.rest(stream.flush())) is not None:
                        yield tail
                    if stops.is_complete:
                        event = dataclasses.replace(event, reason="stop")
                yield event
                if delta is not None:
                    yield delta
        finally:
            _close(events)
            self._settle(ids, drafter)

    def _allowed(self, draft: DraftConfig) -> DraftConfig:
        """The wish with the tree that ``auto`` means here; after the self-test a chain, or no drafting."""
        if self.info.drafting == "none":
            return dataclasses.replace(draft, drafter="none")
        tree = draft.tree
        if tree.policy == "auto" and tree.start is None:
            tree = dataclasses.replace(self._auto_tree, lookup=tree.lookup)
        if self.info.drafting == "chain":
            tree = dataclasses.replace(tree, policy="chain", lookup=0)
        return dataclasses.replace(draft, tree=tree)

    def _prepare(self, prompt_ids: list[int], draft: DraftConfig, temperature: float) -> Drafter:
        """The drafter for a request, it and the cache holding the rows that the prompt shares with the last.

        One token of the shared prefix is read again: its feature is needed beside the first new token
        (the head's row i depends on token i + 1).
        """
        shared = 0
        for cached, wanted in zip(self._cached_ids, prompt_ids, strict=False):
            if cached != wanted:
                break
            shared += 1
        keep = max(0, shared - 1) if self._cache.can_rewind else 0
        if draft.drafter != "eagle" or self._head is None:
            if self._eagle is not None:
                self._eagle.reset()
            self._cache.rewind(keep)
            return NgramDrafter(prompt_ids[:keep]) if draft.drafter == "ngram" else NoDrafter(keep)
        if self._eagle is None:
            self._eagle = self._new_eagle(self._head, draft.tree)
        self._eagle.configure(draft.tree, temperature)
        keep = min(keep, self._eagle.length)
        self._eagle.rewind(keep)
        self._cache.rewind(keep)
        return self._eagle

    def _new_eagle(self, head: DraftHead, tree: TreeConfig) -> EagleDrafter:
        return EagleDrafter(
            head, self._target.embed, self._target.output_embeddings, tree,
            self._target.context_length + 1, self._paces, self._captures,
        )  # fmt: skip

    def _settle(self, ids: list[int], drafter: Drafter) -> None:
        """After a request, however it ended: caches of equal length, and the ids that they hold."""
        length = min(self._cache.length, len(ids))
        if isinstance(drafter, EagleDrafter):
            length = min(length, drafter.length)
            drafter.rewind(length)
            self._paces.save()
        self._cache.rewind(length)
        self._cached_ids = ids[:length]

    def _new_paces(self) -> PaceBook:
        """What is known of speeds; one file for all on which it depends how fast things are."""
        facts = (__version__, torch.get_num_threads(), *self.info.speed_facts)
        return PaceBook(pace_file(self._pace_folder, *facts) if self._pace_folder else None)

    def _new_cache(self) -> KVCache:
        cache = self._target.new_cache(self._target.context_length + TREE_ROOM)
        self._target.record_on(cache)
        return cache

    def _reset(self) -> None:
        self._cache.reset()
        self._cached_ids = []
        self._eagle = self._rehearsal = None


def _close(events: Iterator[Event]) -> None:
    close = getattr(events, "close", None)
    if close is not None:
        close()


__all__ = ["Message", "Session", "SessionInfo"]
