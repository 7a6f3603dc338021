"""A drafter along answers that are known: how many tokens each step would have yielded, without decoding.

Whatever a drafter proposes, the text is the same; so the steps that the engine would take follow from the
answer and the proposals alone. The target reads prompt and answer once, in chunks, for its features; then
only the head computes. Many trees can be counted on one reading. Times are no part of it: no tree ``auto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eagle_core.bench.acceptance import Accepted
from eagle_core.bench.prompts import Question
from eagle_core.bench.records import Row
from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Drafter, FollowingDrafter
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.drafters.ngram import NgramDrafter
from eagle_core.engine import PREFILL_CHUNK, cut_run, step_budget
from eagle_core.errors import ConfigError
from eagle_core.stats import Stats, StatsBuilder
from eagle_core.tree import DraftTree

if TYPE_CHECKING:
    from eagle_core.session import Session

LONGEST_TREE_ROOM = 257  # cache rows that the engine keeps for the largest tree


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """A prompt with its answer and the target's features of both."""

    question: Question
    ids: Tensor  # [T] i64, prompt and answer
    features: Tensor  # [T - 1, D], of all but the last token
    n_prompt: int

    @property
    def n_answer(self) -> int:
        """Tokens of the answer."""
        return int(self.ids.shape[0]) - self.n_prompt


def read_answer(session: Session, question: Question, row: Row) -> KnownAnswer:
    """Let the target read a prompt and its answer.

    Raises: ConfigError when the prompt is not the one that was answered.
    """
    prompt = session.encode_chat([{"role": "user", "content": question.text}])
    if len(prompt) != row.n_prompt_tokens:
        raise ConfigError(
            f"question {question.question_id} is not the one that was answered",
            expected=f"{row.n_prompt_tokens} tokens",
            got=f"{len(prompt)} tokens",
            hint="give the questions, the base and the chat template that the file was made with",
        )
    target = session.target
    ids = torch.tensor([*prompt, *row.token_ids], device=target.device)  # [T]
    cache = target.new_cache(ids.shape[0])
    # The prompt in the engine's chunks; the answer in others, whose rows are alike.
    ends = sorted({*range(PREFILL_CHUNK, len(prompt), PREFILL_CHUNK), len(prompt), len(ids) - 1})
    parts, start = [], 0
    for end in ends:
        if end > start:
            parts.append(target.prefill_chunk(ids[start:end], cache).features)
            start = end
    return KnownAnswer(question, ids, torch.cat(parts), len(prompt))


def replay(
    drafter: Drafter,
    known: KnownAnswer,
    tree: TreeConfig,
    generation: GenerationConfig,
    eos_ids: frozenset[int],
    context_length: int,
) -> Stats:
    """The steps that the engine would take to this answer; all times are 0.

    Args:
        generation: of the answer; its ``max_new_tokens`` bounds the trees near the end.
    """
    drafter.reset()
    if isinstance(drafter, FollowingDrafter):
        drafter.follow(generation)
    ids, features, n_prompt = known.ids, known.features, known.n_prompt
    for start in range(0, n_prompt, PREFILL_CHUNK):
        end = min(start + PREFILL_CHUNK, n_prompt)
        drafter.commit(ids[start:end], features[start:end], ids[end])
    truth = ids.tolist()
    stats = StatsBuilder()
    stats.add_emission(1, 0.0)
    place = n_prompt  # of the pending token
    while place < len(truth) - 1:
        n_done = place - n_prompt + 1
        n_left = min(generation.max_new_tokens - n_done, context_length - place - 1)
        budget = step_budget(tree, n_left, context_length + LONGEST_TREE_ROOM - place)
        drafted = drafter.propose(ids[place], budget) if budget.max_nodes else None
        n_matched, n_nodes, depth = walk(drafted, truth[place + 1 :])
        run = truth[place + 1 : place + 2 + n_matched]
        n_kept = cut_run(run, n_left, eos_ids)
        stats.add_step(
            n_drafted=n_nodes,
            depth_drafted=depth,
            n_accepted=min(n_matched, n_kept),
            draft_s=0.0,
            target_s=0.0,
            verify_s=0.0,
            commit_s=0.0,
        )
        stats.add_emission(n_kept, 0.0)
        end = place + n_kept
        drafter.commit(ids[place:end], features[place:end], ids[end])
        place = end
    return stats.build(0.0)


def walk(tree: DraftTree | None, truth: Sequence[int]) -> tuple[int, int, int]:
    """How far a tree follows the text: accepted nodes, drafted nodes, and the depth of the deepest.

    Example: root with children a and b, a with child c; the text a, d: 1 of 3 nodes, depth 2.
    """
    if tree is None:
        return 0, 0, 0
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    children: dict[tuple[int, int], int] = {}
    depths = [0]
    for node in range(1, len(tokens)):
        children.setdefault((parents[node], tokens[node]), node)
        depths.append(depths[parents[node]] + 1)
    place, n_matched = 0, 0
    for token in truth:
        found = children.get((place, token))
        if found is None:
            break
        place, n_matched = found, n_matched + 1
    return n_matched, len(tokens) - 1, max(depths)


def make_drafter(session: Session, drafter: str, tree: TreeConfig) -> Drafter:
    """A drafter of its own, for replays.

    Raises: ConfigError without a head, or for a tree that is chosen by time.
    """
    if tree.policy == "auto":
        raise ConfigError(
            "the tree auto goes by time, and a replay has none",
            expected="chain, static or dynamic",
            got="auto",
            hint="name one with --tree, or several with --trees",
        )
    if session.info.drafting != "tree":
        raise ConfigError(
            "this base is not drafted with trees here",
            expected="a base that passes its self-test with trees",
            got=session.info.drafting_reason,
            hint="measure it by `eagle-chat train eval`, which decodes",
        )
    if drafter == "ngram":
        return NgramDrafter()
    head = session.head
    if head is None:
        raise ConfigError(
            f"no EAGLE head is known for {session.info.base}",
            expected="a head to replay",
            got="none",
            hint="name one with --head, or use --drafter ngram",
        )
    target = session.target
    return EagleDrafter(
        head, target.embed, target.output_embeddings, tree, target.context_length + 1
    )


def replay_all(
    session: Session,
    known: Sequence[tuple[Question, Row]],
    drafter: str,
    trees: Sequence[TreeConfig],
    generation: GenerationConfig,
) -> Iterator[list[Accepted]]:
    """Each answer read once and replayed with every tree: one result for each, in the order of ``trees``."""
    drafters = [make_drafter(session, drafter, tree) for tree in trees]
    for question, row in known:
        answer = read_answer(session, question, row)
        limit = session.info.context_length
        yield [
            Accepted(question, replay(one, answer, tree, generation, session.eos_ids, limit))
            for one, tree in zip(drafters, trees, strict=True)
        ]


__all__ = [
    "KnownAnswer",
    "make_drafter",
    "read_answer",
    "replay",
    "replay_all",
    "walk",
]
