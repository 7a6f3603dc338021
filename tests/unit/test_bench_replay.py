"""Replays along known answers: the same steps as the engine takes, to the last count."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core.bench.known import known_rows, parse_tree
from eagle_core.bench.methods import SessionMethod
from eagle_core.bench.prompts import Question
from eagle_core.bench.records import BenchFile, Row
from eagle_core.bench.replay import (
    make_drafter,
    read_answer,
    replay_all,
    walk,
)
from eagle_core.cli import main
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.session import Session
from eagle_core.stats import Stats
from eagle_core.testing import tiny_model
from eagle_core.tree import DraftTree
from tests.support.cli import save_head
from tests.support.tiny_models import byte_level_tokenizer

QUESTIONS = [
    Question(1, "qa", "the cat sat on the mat, the cat sat on"),
    Question(2, "code", "one two three one two three one two"),
    Question(3, "qa", "w"),
]
TREES = [
    TreeConfig("chain", depth=3, size=3, lookup=0),
    TreeConfig("static", lookup=4),
    TreeConfig("dynamic", depth=2, branching=64, size=200, lookup=0),
    TreeConfig("dynamic", depth=2, branching=4, size=6, lookup=10),
]
COUNTS = ("n_tokens", "n_steps", "n_accepted", "n_drafted", "tau", "drafted_at_depth",
          "accepted_at_depth")  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model whose text varies, and a head of random weights for it."""
    root = tmp_path_factory.mktemp("replay")
    tokenizer = byte_level_tokenizer()
    model: Any = tiny_model("llama", vocab=len(tokenizer), seed=2)
    model.save_pretrained(root / "base")
    tokenizer.save_pretrained(root / "base")
    return root / "base", save_head(root / "base", root / "head")


@pytest.fixture(scope="module")
def session(folders: tuple[Path, Path]) -> Session:
    base, head = map(str, folders)
    return Session.open(LoadConfig(base=base, head=head, dtype="float32", device="cpu"))


def decoded(
    session: Session, draft: DraftConfig, generation: GenerationConfig
) -> list[tuple[Question, Row]]:
    """Each question's answer by the engine, as rows of plain decoding."""
    method = SessionMethod("none", session, draft)
    found = []
    for question in QUESTIONS:
        prompt = session.encode_chat([{"role": "user", "content": question.text}])
        answer = method.answer(prompt, generation)
        row = Row(
            question.question_id, question.category, 0, "none", "ok", n_prompt_tokens=len(prompt),
            token_ids=answer.token_ids, stats=answer.stats,
        )  # fmt: skip
        found.append((question, row))
    return found


def counts(stats: Stats | None) -> dict[str, Any]:
    assert stats is not None
    return {name: getattr(stats, name) for name in COUNTS}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_replay_takes_the_engines_steps(session: Session, temperature: float) -> None:
    generation = GenerationConfig(max_new_tokens=40, temperature=temperature, seed=3)
    plain = decoded(session, DraftConfig("none"), generation)
    replayed = list(replay_all(session, plain, "eagle", TREES, generation))
    n_accepted = 0
    for place, tree in enumerate(TREES):
        engine = decoded(session, DraftConfig("eagle", tree), generation)
        for (_, row), (_, known), results in zip(engine, plain, replayed, strict=True):
            assert row.token_ids == known.token_ids
            assert counts(results[place].stats) == counts(row.stats), tree
            n_accepted += row.stats.n_accepted if row.stats is not None else 0
    assert n_accepted > 10  # else the counts would be equal because nothing ever fits


def test_replay_of_lookup_alone(session: Session) -> None:
    generation = GenerationConfig(max_new_tokens=30)
    plain = decoded(session, DraftConfig("none"), generation)
    engine = decoded(session, DraftConfig("ngram"), generation)
    # The engine's budget for lookup alone is that of the default tree, which is bounded by the lookup.
    tree = dataclasses.replace(TreeConfig(), policy="dynamic")
    bounded = decoded(session, DraftConfig("ngram", tree), generation)
    replayed = list(replay_all(session, plain, "ngram", [tree], generation))
    assert [counts(one[0].stats) for one in replayed] == [counts(row.stats) for _, row in bounded]
    assert [row.token_ids for _, row in engine] == [row.token_ids for _, row in plain]


def test_an_answer_of_one_token_has_no_step(session: Session) -> None:
    generation = GenerationConfig(max_new_tokens=1)
    plain = decoded(session, DraftConfig("none"), generation)
    (stats,) = (
        one.stats for one in next(replay_all(session, plain, "eagle", TREES[:1], generation))
    )
    assert stats is not None
    assert (stats.n_tokens, stats.n_steps) == (1, 0)


def test_features_are_those_of_decoding(session: Session) -> None:
    generation = GenerationConfig(max_new_tokens=8)
    (question, row), *_ = decoded(session, DraftConfig("none"), generation)
    known = read_answer(session, question, row)
    assert known.n_answer == len(row.token_ids)
    assert known.features.shape == (known.ids.shape[0] - 1, session.target.hidden_size)
    whole = session.target.batch_features(known.ids[None])[0]
    assert torch.allclose(
        known.features, whole[:-1], atol=1e-4
    )  # float32 rounding of other kernels


def test_another_question_is_refused(session: Session) -> None:
    (question, row), *_ = decoded(session, DraftConfig("none"), GenerationConfig(max_new_tokens=2))
    longer = dataclasses.replace(question, text=question.text + " more")
    with pytest.raises(ConfigError, match="not the one that was answered"):
        read_answer(session, longer, row)


def test_a_walk_follows_the_text() -> None:
    tree = DraftTree(torch.tensor([9, 1, 2, 3]), torch.tensor([-1, 0, 0, 1]), 2)
    assert walk(tree, [1, 3, 5]) == (2, 3, 2)
    assert walk(tree, [1, 4]) == (1, 3, 2)
    assert walk(tree, [3]) == (0, 3, 2)
    assert walk(tree, []) == (0, 3, 2)
    assert walk(None, [1]) == (0, 0, 0)


def test_trees_as_text() -> None:
    tree = TreeConfig(lookup=7)
    assert parse_tree("5/4/16", tree) == TreeConfig("dynamic", 5, 4, 16, lookup=7)
    assert parse_tree("2/2/3/0", tree) == TreeConfig("dynamic", 2, 2, 3, lookup=0)
    for wrong in ("5/4", "a/b/c", "1/2/3/4/5", ""):
        with pytest.raises(ConfigError, match="is no tree"):
            parse_tree(wrong, tree)


def test_auto_and_a_missing_head_are_refused(session: Session) -> None:
    with pytest.raises(ConfigError, match="goes by time"):
        make_drafter(session, "eagle", TreeConfig())


def test_a_file_without_plain_answers_is_refused() -> None:
    row = Row(1, "qa", 0, "eagle", "ok")
    with pytest.raises(ConfigError, match="no answer of plain decoding") as caught:
        known_rows(BenchFile({}, [row]), QUESTIONS)
    assert "--methods none" in caught.value.hint


def test_the_command_counts_what_the_benchmark_counted(
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("eagle_core.bench.provenance.READ_BYTES", 2**20)
    base, head = map(str, folders)
    prompts, rows = tmp_path / "q.jsonl", tmp_path / "rows.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"question_id": q.question_id, "category": q.category, "turns": [q.text]})
            + "\n"
            for q in QUESTIONS
        )
    )
    model = ["--base", base, "--head", head, "--dtype", "float32", "--device", "cpu"]
    tree = ["--tree", "dynamic", "--depth", "2", "--branching", "4", "--size", "6"]
    common = [*model, *tree, "--prompts", str(prompts), "--json"]
    assert main(["bench", "run", *common, "--methods", "none,eagle", "--max-new-tokens", "24",
                 "--warmup", "0", "--out", str(rows)]) == 0  # fmt: skip
    measured = json.loads(capsys.readouterr().out.splitlines()[-1])["methods"]["eagle"]
    code = main(["bench", "replay", *common, "--answers", str(rows)])
    out, err = capsys.readouterr()
    assert code == 0, err
    (found,) = json.loads(out.splitlines()[-1])["runs"]
    assert found["tree"] == "dynamic 2/4/6, lookup 10"
    assert found["tau_all_steps"] == pytest.approx(measured["tau"])
    assert found["acceptance_at_depth"] == pytest.approx(measured["acceptance_at_depth"])

    code = main(["bench", "replay", *model, "--prompts", str(prompts), "--answers", str(rows),
                 "--trees", "1/2/2/0,2/4/6", "--limit", "2"])  # fmt: skip
    out, _ = capsys.readouterr()
    assert code == 0
    assert "dynamic 1/2/2, lookup 0: tau" in out
    assert "dynamic 2/4/6, lookup 10: tau" in out
    assert main(["bench", "replay", *common, "--answers", str(rows), "--drafter", "none"]) == 1
    assert "drafts nothing" in capsys.readouterr().err
