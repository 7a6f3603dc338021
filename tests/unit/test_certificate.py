"""The certificate: its checks can fail, planted bugs are caught, and it is kept, shown and read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core.certificate import drawn, loaded, run, statistics, tokens
from eagle_core.certificate.records import (
    Certificate,
    Check,
    as_table,
    certificate_path,
    last_certificate,
    write_certificate,
)
from eagle_core.cli import main
from eagle_core.config import GenerationConfig
from eagle_core.loading import LoadedBase
from eagle_core.sampling import to_probabilities
from eagle_core.session import Session
from eagle_core.session_info import SessionInfo
from eagle_core.testing import tiny_model
from eagle_core.ui import render
from eagle_core.verify import verify
from tests.support.cli import save_head
from tests.support.fake_session import FakeInfo
from tests.support.tiny_heads import tiny_head
from tests.support.tiny_models import byte_level_tokenizer, save_llama

CHECKS = (Check("model", "greedy", True, "32 tokens equal"), Check("tokens", "<b>", True, "x"))
GOOD = Certificate("m", "h", "float32", "cpu", "2026-01-02T03:04:05+00:00", "1", 2.0, CHECKS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer answers and seeds than the command takes; the tests of each part look at all of its cases."""
    monkeypatch.setattr(tokens, "SETTINGS", tokens.SETTINGS[:2])
    monkeypatch.setattr(run, "statistical_checks", lambda: statistics.statistical_checks(300))
    monkeypatch.setattr(loaded, "N_NEW", 8)
    monkeypatch.setattr(
        loaded, "SETTINGS", (GenerationConfig(8), GenerationConfig(8, temperature=0.8, seed=1))
    )


def test_every_drafter_and_rule_writes_the_same(few: None) -> None:
    checks = list(tokens.token_checks())
    assert len(checks) == 2 * len(tokens.cases())
    assert all(check.passed for check in checks), [c for c in checks if not c.passed]
    assert all(check.figures["n_tokens"] >= 8 for check in checks)


def test_a_wrong_token_is_found(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tokens.write

    def wrong(target: Any, drafter: Any, *rest: Any) -> Any:
        done = original(target, drafter, *rest)
        ids = (*done.token_ids[:-1], done.token_ids[-1] + 1)
        return dataclasses.replace(done, token_ids=ids) if drafter.name == "oracle" else done

    monkeypatch.setattr(tokens, "write", wrong)
    passed = {check.name: check.passed for check in tokens.token_checks()}
    assert not passed["oracle, tree, greedy"]
    assert not passed["oracle, chain, match"]
    assert passed["wrong, greedy"]


@pytest.mark.parametrize("case", statistics.cases(), ids=lambda case: f"{case.rule}, {case.name}")
def test_right_rules_pass_and_planted_bugs_do_not(case: statistics.Case) -> None:
    outcome = statistics.examine(case, min(case.n_seeds, 600))
    assert (outcome.p_value < statistics.ALPHA) is case.is_planted
    assert (outcome.n_accepted > 0) is case.accepts


def test_every_rule_and_each_bug_has_a_case() -> None:
    names = {case.name for case in statistics.cases() if case.is_planted}
    assert {bug.value for bug in drawn.Bug} - {drawn.Bug.NONE.value} <= names
    assert {case.rule for case in statistics.cases()} == {"match", "sampling"}


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("head", [drawn.good_head, drawn.wrong_head, drawn.sure_head])
def test_the_rule_that_bugs_are_planted_in_is_the_engines(
    head: Any, with_replacement: bool
) -> None:
    logits = statistics.table()
    base = dataclasses.replace(statistics.DRAWN, with_replacement=with_replacement)
    q = head(to_probabilities(logits, base))
    for shape in (drawn.TREE, drawn.CHAIN):
        propose, judge = drawn.drawn_tree(q, shape), drawn.plainly()
        for seed in range(40):
            config = dataclasses.replace(base, seed=seed)
            tree = propose(seed % statistics.N_TOKENS, logits, 1, config)
            plain = judge(tree, logits[tree.tokens], 2, config)
            right = verify(tree, logits[tree.tokens], 2, config)
            assert (plain.path, plain.run) == (right.path, right.run)


def test_a_case_that_accepts_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = next(case for case in statistics.cases() if not case.accepts)
    empty = dataclasses.replace(rejected, accepts=True)
    monkeypatch.setattr(statistics, "cases", lambda: (rejected, empty))
    fair, unfair = statistics.statistical_checks(50)
    assert fair.passed
    assert not unfair.passed
    assert "proves nothing" in unfair.detail


def test_chi_square_is_that_of_the_textbook() -> None:
    # Mendel's peas: 315, 108, 101, 32 of 9 : 3 : 3 : 1; chi-square 0.47 with 3 degrees, p 0.925.
    seen = torch.tensor([315.0, 108.0, 101.0, 32.0])
    expected = torch.tensor([9.0, 3.0, 3.0, 1.0]) * (556 / 16)
    assert statistics.chi_square_p(seen, expected) == pytest.approx(0.925, abs=1e-3)
    rare = torch.tensor([20.0, 1.0, 0.0]), torch.tensor([20.0, 1.0, 0.0])
    assert statistics.chi_square_p(*rare) == pytest.approx(1.0)
    assert statistics.chi_square_p(torch.tensor([9.0, 1.0]), torch.tensor([10.0, 0.0])) == 0.0


def open_session(dtype: torch.dtype = torch.float32, kind: Any = "llama") -> Session:
    tokenizer = byte_level_tokenizer()
    base = LoadedBase(tiny_model(kind, dtype=dtype, vocab=len(tokenizer)), tokenizer, "tiny", 256)
    session = Session(base, tiny_head(32), "head")
    session.encode_chat = lambda messages: [5, 6, 7, 8]  # type: ignore[method-assign]
    return session


@pytest.mark.parametrize("kind", ["llama", "bloom"])
def test_the_loaded_model_is_checked(few: None, kind: str) -> None:
    checks = list(loaded.model_checks(open_session(kind=kind)))
    assert [check.name for check in checks[1:]] == [
        "greedy, ideal drafter",
        "greedy, head",
        "temperature 0.8, ideal drafter",
        "temperature 0.8, head",
    ]
    assert all(check.passed for check in checks)
    assert checks[1].figures["n_accepted"] > 3


def test_a_difference_is_shown_with_its_gap(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    original = loaded._with_drafter

    def wrong(*arguments: Any) -> Any:
        done = original(*arguments)
        return dataclasses.replace(done, token_ids=(*done.token_ids[:3], 9, *done.token_ids[4:]))

    monkeypatch.setattr(loaded, "_with_drafter", wrong)
    check = list(loaded.model_checks(open_session(torch.bfloat16)))[1]
    assert not check.passed
    assert check.figures["index"] == 3
    assert check.figures["gap"] > 0
    assert check.figures["gap_float32"] == pytest.approx(check.figures["gap"], rel=0.2)
    assert check.figures["is_tie"] is False
    assert "in float32: more than rounding" in check.detail


def test_a_certificate_is_kept_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    assert last_certificate("m", "h", "float32") is None
    path = certificate_path("m", "h", "float32")
    write_certificate(GOOD, path)
    assert last_certificate("m", "h", "float32") == GOOD
    assert last_certificate("m", "h", "bfloat16") is None
    assert (
        last_certificate("m", "h", SessionInfo("m", "h", "float32", "cpu", 1, 1, 1).precision)
        == GOOD
    )
    in_bytes = SessionInfo("m", "h", "float32", "cpu", 1, 1, 1, quantization="int8")
    assert last_certificate("m", "h", in_bytes.precision) is None
    assert certificate_path("a/m", "h", "float32") != path
    for broken in ("{", "[]", '{"checks": [{}]}'):
        path.write_text(broken)
        assert last_certificate("m", "h", "float32") is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_empty_or_failed_certificate_does_not_pass() -> None:
    assert GOOD.passed
    assert not dataclasses.replace(GOOD, checks=()).passed
    failed = dataclasses.replace(GOOD, checks=(*CHECKS, Check("model", "x", False, "no")))
    assert not failed.passed
    assert "FAIL  x" in as_table(failed)
    assert "3 checks, 1 failed" in as_table(failed)


def test_the_badge_says_what_is_known() -> None:
    info: Any = FakeInfo()
    assert "not verified" in render.header_html(info)
    assert (
        "<code>eagle-chat verify --base tests/fake-135M --dtype bfloat16</code>"
        in render.header_html(info)
    )
    assert "verified" not in render.header_html(None)
    in_bytes = render.header_html(dataclasses.replace(info, dtype="float32", quantization="int8"))
    assert "eagle-chat verify --base tests/fake-135M --quantization int8<" in in_bytes
    assert "int8 on cpu" in in_bytes
    good = render.header_html(info, GOOD)
    assert "verified: 2 checks, 2026-01-02" in good
    assert "&lt;b&gt;" in good
    failed = dataclasses.replace(GOOD, checks=(Check("model", "x", False, "no"),))
    assert "verification failed: 1 of 1" in render.header_html(info, failed)
    limited = dataclasses.replace(info, drafting="chain", drafting_reason="why")
    assert 'class="chip">drafting: chain</summary><p>why</p>' in render.header_html(limited)


def test_the_command(
    few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "cache"))
    # 300 seeds are too few for the faintest of the planted bugs.
    some = statistics.cases()[:3]
    monkeypatch.setattr(statistics, "cases", lambda: some)
    base = save_llama(tmp_path / "base")
    head = save_head(base, tmp_path / "head")
    out = tmp_path / "certificate.json"
    flags = ["verify", "--base", str(base), "--head", str(head), "--device", "cpu"]
    assert main([*flags, "--json", "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out.rstrip("\n").split("\n")[-1])
    assert report["passed"] is True
    sections = {check["section"] for check in report["checks"]}
    assert sections == {"tokens", "statistics", "planted", "model"}
    assert json.loads(out.read_text()) == report
    kept = last_certificate(report["base"], report["head"], report["dtype"])
    assert kept is not None
    assert json.loads(json.dumps(kept.to_dict())) == report
    assert main([*flags, "--out", str(out / "x.json")]) == 1
