"""Training data: conversations from a file, or written by the base model itself, and their features.

Self-written data needs no file at all: after the chat template's opening of a user turn the model writes a
question, then it answers the question. Answers are what a head must predict, so they are the model's own.
Some user turns carry a text to work on, as people's do; the texts are earlier answers of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle_core.errors import ConfigError
from eagle_core.session import Message, Session
from eagle_core.train.config import CollectConfig
from eagle_core.train.dataset import Conversations

MARK = "\u241f"  # stands for the user's text while the template is taken apart
MIN_ANSWER = 8  # tokens that an answer must have room for
MOST_EMPTY_PARTS = 5
OPENINGS = (
    "", "", "", "Write", "Explain", "How", "What", "Why", "Give me", "Can you", "Describe", "List", "Tell me",
    "Create", "def ", "Calculate", "Summarize", "Translate", "I need", "Imagine", "Compare", "Please",
    "Is it", "Find", "Help me", "The", "Who", "When", "Rewrite", "Design", "How many", "If a", "There are",
    "from typing import", "Translate German to English: Die", "Translate German to English: Der",
    "Translate French to English: Le", "Translate Spanish to English: El",
)  # fmt: skip
TEXT_TASKS = (
    "Summarize: {text}", "Summarize the following text.\n\n{text}", "{text}\n\nTL;DR", "Rewrite this: {text}",
    "List the key points of this text:\n\n{text}", "{text}\n\nExplain this in simple words.",
    "{text}\n\n{question}", "Context: {text}\n\nQuestion: {question}", "{question}\n\n{text}",
    "Answer the question with the help of the passages.\n\n{text}\n\nQuestion: {question}",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CollectProgress:
    """Answer tokens so far, of how many."""

    done: int
    total: int


def user_turn_frame(session: Session) -> tuple[str, str]:
    """What the chat template writes before a user's first words and after the last.

    Raises: ConfigError when the template changes the user's text, NoChatTemplate when there is none.
    """
    text = str(session.tokenizer.decode(session.encode_chat([{"role": "user", "content": MARK}])))
    if text.count(MARK) != 1:
        raise ConfigError(
            "the chat template does not hold the user's text as it is",
            expected="the text once",
            got=f"{text.count(MARK)} times",
            hint="give a conversations file with --conversations",
        )
    before, after = text.split(MARK)
    return before, after


class Writer:
    """Writes batches of continuations with the base model's own ``generate``."""

    def __init__(
        self, session: Session, config: CollectConfig, openings: Sequence[str] = OPENINGS
    ) -> None:
        self._session, self._config, self._openings = session, config, openings
        self._model: Any = session.target.model
        self._pad = session.tokenizer.pad_token_id
        if self._pad is None:
            self._pad = session.tokenizer.eos_token_id or 0
        self._eos = sorted(session.target.eos_ids(session.tokenizer))

    @torch.inference_mode()
    def continue_all(
        self, prompts: list[list[int]], temperature: float, max_new_tokens: int
    ) -> list[list[int]]:
        """New tokens for each prompt, an end-of-text token included where one came."""
        width = max(len(prompt) for prompt in prompts)
        device = self._session.target.device
        ids = torch.full(
            (len(prompts), width), self._pad, dtype=torch.long
        )  # [B, T], padded on the left
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": temperature,
                "top_k": self._config.top_k,
                "top_p": 1.0,
            }
        out: Tensor = self._model.generate(
            input_ids=ids.to(device), attention_mask=mask.to(device), max_new_tokens=max_new_tokens,
            pad_token_id=self._pad, eos_token_id=self._eos, **sampling,
        )  # fmt: skip
        return [self._cut(row[width:].tolist()) for row in out]

    def _cut(self, tokens: list[int]) -> list[int]:
        for index, token in enumerate(tokens):
            if token in self._eos:
                return tokens[: index + 1]
        return tokens

    def user_turns(self, random: np.random.Generator, count: int) -> list[str]:
        """Questions that the model wrote itself; some may be empty."""
        prefix, _ = user_turn_frame(self._session)
        drawn = random.integers(len(self._openings), size=count)
        openings = [self._openings[i] for i in drawn]
        tokenizer = self._session.tokenizer
        prompts = [
            list(tokenizer(prefix + opening, add_special_tokens=False).input_ids)
            for opening in openings
        ]
        written = self.continue_all(
            prompts, self._config.user_temperature, self._config.max_user_tokens
        )
        texts = [str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in written]
        return [(opening + text).strip() for opening, text in zip(openings, texts, strict=True)]

    def text_turns(
        self, random: np.random.Generator, count: int, written: Conversations
    ) -> list[str]:
        """User turns that carry a text of about one length, joined from answers of ``written``."""
        before, after = user_turn_frame(self._session)
        tokenizer = self._session.tokenizer
        turns = []
        length = int(random.integers(64, self._config.max_text_tokens + 1))
        for _ in range(count):
            n_tokens = length
            passages: list[str] = []
            question = ""
            while n_tokens > MIN_ANSWER:
                index = int(random.integers(len(written)))
                ids, start = written.ids(index), int(written.response_start[index])
                answer = ids[start:][:n_tokens]
                passages.append(str(tokenizer.decode(answer, skip_special_tokens=True)).strip())
                n_tokens -= len(answer)
                asked = str(tokenizer.decode(ids[:start]))
                if not question or random.random() < 0.5:
                    question = asked.removeprefix(before).removesuffix(after).strip()
            task = TEXT_TASKS[int(random.integers(len(TEXT_TASKS)))]
            turns.append(task.format(text="\n\n".join(passages), question=question))
        return turns


def write_conversations(
    session: Session,
    config: CollectConfig,
    folder: Path,
    *,
    texts: Conversations | None = None,
    openings: Sequence[str] = OPENINGS,
) -> Iterator[CollectProgress]:
    """Let the model write conversations until there are enough; parts in ``folder`` survive a kill.

    Args:
        texts: answers that user turns with a text are made of; None: the first part of the run itself.
        openings: first words of the user turns that the model writes itself.
    Yields: progress after each batch. Afterwards :func:`join_parts` makes one set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(session, config, openings)
    n_template = len(session.encode_chat([{"role": "user", "content": MARK}]))
    if n_template + MIN_ANSWER >= config.max_length:
        raise ConfigError(
            "max_length leaves no room for an answer",
            expected=f"more than {n_template + MIN_ANSWER}, as the template takes {n_template} tokens",
            got=str(config.max_length),
            hint="raise --max-length",
        )
    done, part, n_empty = 0, 0, 0
    while done < config.n_tokens:
        path = folder / f"part-{part:05d}.npz"
        if not path.exists():
            _write_part(session, writer, config, part, texts).save(path)
        part_written = Conversations.load(path)
        n_written = part_written.n_response_tokens
        if texts is None and n_written:
            texts = part_written
        n_empty = 0 if n_written else n_empty + 1
        if n_empty >= MOST_EMPTY_PARTS:
            raise ConfigError(
                "the model writes no usable conversations",
                expected=f"questions shorter than {config.max_length} tokens",
                got=f"none in {n_empty} batches",
                hint="raise --max-length, or give a conversations file",
            )
        done += n_written
        part += 1
        yield CollectProgress(min(done, config.n_tokens), config.n_tokens)


def _write_part(
    session: Session, writer: Writer, config: CollectConfig, part: int, texts: Conversations | None
) -> Conversations:
    random = np.random.default_rng((config.seed, part))
    temperature = config.temperatures[part % len(config.temperatures)]
    has_texts = texts is not None and random.random() < config.text_share
    with torch.random.fork_rng():  # transformers' generate draws from the global generator only
        torch.manual_seed(int(random.integers(2**31)))
        if has_texts:
            assert texts is not None
            turns = writer.text_turns(random, config.batch_size, texts)
        else:
            turns = [turn for turn in writer.user_turns(random, config.batch_size) if turn]
        prompts = [session.encode_chat([{"role": "user", "content": turn}]) for turn in turns]
        prompts = [prompt for prompt in prompts if len(prompt) < config.max_length - MIN_ANSWER]
        if not prompts:
            return Conversations.from_lists([], [], [])
        room = config.max_length - max(len(prompt) for prompt in prompts)
        room = min(room, config.max_answer_tokens)
        answers = writer.continue_all(prompts, temperature, room)
    return Conversations.from_lists(
        [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)],
        [len(prompt) for prompt in prompts],
        [temperature] * len(prompts),
    )


def join_parts(folder: Path) -> Conversations:
    """All parts of a folder as one set.

    Raises: ConfigError when there is none.
    """
    parts = [Conversations.load(path) for path in sorted(folder.glob("part-*.npz"))]
    if not parts:
        raise ConfigError(f"{folder} holds no conversations", expected="part-*.npz", got="none")
    return join_sets(parts)


def join_sets(sets: Sequence[Conversations]) -> Conversations:
    """Several conversation sets as one, in their order."""
    ids = [part.ids(i).tolist() for part in sets for i in range(len(part))]
    starts = [int(start) for part in sets for start in part.response_start]
    temperatures = [float(t) for part in sets for t in part.temperature]
    return Conversations.from_lists(ids, starts, temperatures)


def encode_talks(
    session: Session, talks: Sequence[Sequence[Message]], config: CollectConfig
) -> Conversations:
    """Conversations as they are.

    The last message should be the assistant's; everything before it is the prompt.
    Raises: ConfigError when none is of use.
    """
    ids: list[list[int]] = []
    starts: list[int] = []
    for messages in talks:
        prompt = session.encode_chat(messages[:-1])
        answer = session.tokenizer(messages[-1]["content"], add_special_tokens=False).input_ids
        eos = session.tokenizer.eos_token_id
        row = [*prompt, *answer, *([eos] if eos is not None else [])][: config.max_length]
        if len(row) > len(prompt) + 1:
            ids.append(row)
            starts.append(len(prompt))
    if not ids:
        raise ConfigError(
            "there is no usable conversation",
            expected=f"answers that start within {config.max_length} tokens",
            got="none",
            hint="raise --max-length, or check the file",
        )
    return Conversations.from_lists(ids, starts, [float("nan")] * len(ids))


__all__ = [
    "CollectProgress",
    "Writer",
    "encode_talks",
    "join_parts",
    "join_sets",
    "user_turn_frame",
    "write_conversations",
]
