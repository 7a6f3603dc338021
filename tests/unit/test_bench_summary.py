"""The benchmark's figures and files, on hand-made rows whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle_core.bench import plot, summary
from eagle_core.bench.prompts import Question, evenly_spaced, load_questions
from eagle_core.bench.records import (
    BenchFile,
    BenchWriter,
    Row,
    compare_with_baseline,
    read_bench_file,
)
from eagle_core.bench.table import summary_table
from eagle_core.differences import Difference
from eagle_core.errors import ConfigError
from eagle_core.stats import Stats

HEADER: dict[str, Any] = {
    "read_bandwidth_bytes_s": 20e9,
    "weight_bytes": 200_000_000,
    "settings": {"bench": {"methods": ["none", "eagle"]}, "n_questions": 3},
}


def row(question_id: int, method: str, **changes: Any) -> Row:
    """A completed answer of 11 tokens: 10 decoded ones in 1 s (none) or in 0.5 s and 5 steps."""
    is_plain = method == "none"
    stats: dict[str, Any] = {
        "n_tokens": 11,
        "n_steps": 10 if is_plain else 5,
        "n_accepted": 0 if is_plain else 5,
        "n_drafted": 0 if is_plain else 10,
        "decode_s": 1.0 if is_plain else 0.5,
        "total_s": 1.5 if is_plain else 1.0,
        "ttft_s": 0.5,
        "draft_s": 0.0 if is_plain else 0.1,
        "target_s": 0.9 if is_plain else 0.3,
        "drafted_at_depth": () if is_plain else (5, 5),
        "accepted_at_depth": () if is_plain else (4, 1),
    }
    stats.update({k: changes.pop(k) for k in list(changes) if k in stats})
    fields: dict[str, Any] = {
        "category": "qa",
        "repeat": 0,
        "status": "ok",
        "token_ids": tuple(range(11)),
        "finish_reason": "eos",
        "stats": Stats(**stats),
        "peak_memory_bytes": 1000,
    }
    return Row(question_id=question_id, method=method, **{**fields, **changes})


def failed(question_id: int, method: str) -> Row:
    error = {"code": "out-of-memory", "message": "no memory", "hint": ""}
    return Row(question_id, "qa", 0, method, "failed", error=error)


def summarized(*rows: Row) -> dict[str, Any]:
    return summary.summarize(BenchFile(HEADER, list(rows)))


def test_figures_of_known_times() -> None:
    found = summarized(
        row(1, "none"),
        row(1, "eagle", is_identical=True),
        row(2, "none", decode_s=3.0, total_s=4.0),
        row(2, "eagle", is_identical=False, first_difference=4),
    )
    plain, eagle = found["methods"]["none"], found["methods"]["eagle"]

    assert plain["decode_tok_s"] == pytest.approx(20 / 4)
    assert plain["decode_tok_s_median"] == pytest.approx((10 + 10 / 3) / 2)
    assert plain["tau"] == pytest.approx(1.0)
    assert plain["speedup"] == {}
    assert plain["time_split"]["target"] == pytest.approx(1.8 / 4)

    assert eagle["decode_tok_s"] == pytest.approx(20 / 1)
    assert eagle["tau"] == pytest.approx(2.0)
    assert eagle["tau_mean"] == pytest.approx(2.0)
    assert eagle["identical_rate"] == pytest.approx(0.5)
    assert eagle["acceptance_at_depth"] == pytest.approx([0.8, 0.2])
    assert eagle["time_split"] == pytest.approx(
        {"draft": 0.2, "target": 0.6, "verify": 0.0, "commit": 0.0, "other": 0.2}
    )
    assert eagle["ttft_s_median"] == pytest.approx(0.5)
    assert eagle["peak_memory_bytes"] == 1000

    speedup = eagle["speedup"]["none"]
    assert speedup["n_questions"] == 2
    assert speedup["decode"]["value"] == pytest.approx(4 / 1)
    assert speedup["total"]["value"] == pytest.approx(5.5 / 2)
    assert speedup["median"]["value"] == pytest.approx((2 + 6) / 2)
    assert found["categories"]["qa"]["eagle"]["speedup"] == pytest.approx(4.0)
    assert found["bandwidth_bound_tok_s"] == pytest.approx(100.0)


def test_failed_rows_count_on_neither_side() -> None:
    found = summarized(
        row(1, "none"),
        row(1, "eagle"),
        row(2, "none", decode_s=100.0),
        failed(2, "eagle"),
        failed(3, "none"),
        row(3, "eagle", decode_s=100.0),
    )
    eagle = found["methods"]["eagle"]
    assert (eagle["n_rows"], eagle["n_failed"]) == (3, 1)
    assert eagle["speedup"]["none"]["n_questions"] == 1
    assert eagle["speedup"]["none"]["decode"]["value"] == pytest.approx(2.0)


def test_repeats_of_a_question_are_one_question() -> None:
    rows = [row(1, method, repeat=repeat) for method in ("none", "eagle") for repeat in (0, 1)]
    found = summary.speedup(rows, "eagle", "none")
    assert found is not None
    assert found["n_questions"] == 1
    assert found["decode"] == {"value": pytest.approx(2.0), "low": None, "high": None}


def test_answers_of_other_lengths_compare_per_token() -> None:
    # The same rate on both sides, but the baseline went on twice as long.
    rows = [row(1, "none", n_tokens=21, decode_s=2.0), row(1, "eagle", n_tokens=11, decode_s=1.0)]
    found = summary.speedup(rows, "eagle", "none")
    assert found is not None
    assert found["decode"]["value"] == pytest.approx(2.0)
    assert found["per_token"]["value"] == pytest.approx(1.0)
    assert found["median"]["value"] == pytest.approx(1.0)


def test_answers_of_one_token_say_nothing_about_the_rate() -> None:
    short = {"n_tokens": 1, "n_steps": 0, "decode_s": 0.0}
    rows = [row(1, "none", **short), row(1, "eagle", **short)]
    assert summary.speedup(rows, "eagle", "none") is None
    assert summarized(*rows)["methods"]["eagle"]["decode_tok_s"] is None


def test_interval_holds_the_estimate_and_is_repeatable() -> None:
    times = np.random.default_rng(1).uniform(0.3, 0.9, size=40)
    rows = [row(i, "none") for i in range(40)]
    rows += [
        row(i, "eagle", decode_s=float(t), total_s=float(t) + 0.5) for i, t in enumerate(times)
    ]
    found = summary.speedup(rows, "eagle", "none")
    assert found is not None
    for kind in ("decode", "total", "per_token", "median"):
        one = found[kind]
        assert one["low"] < one["value"] < one["high"]
    assert summary.speedup(rows, "eagle", "none") == found


def test_interval_of_equal_questions_has_no_width() -> None:
    rows = [row(i, method) for i in range(5) for method in ("none", "eagle")]
    found = summary.speedup(rows, "eagle", "none")
    assert found is not None
    assert found["decode"] == pytest.approx({"value": 2.0, "low": 2.0, "high": 2.0})


def test_comparison_needs_two_complete_answers() -> None:
    plain, eagle = row(1, "none"), row(1, "eagle", token_ids=(0, 1, 9))
    compared = compare_with_baseline(eagle, plain)
    assert (compared.is_identical, compared.first_difference) == (False, 2)
    assert compared.logit_gap is None
    found = Difference(2, 0, 9, gap=0.1, gap_float32=-0.02, lead=0.1, rounding=0.3)
    compared = compare_with_baseline(eagle, plain, lambda *_: found)
    assert (compared.logit_gap, compared.logit_gap_float32) == (0.1, -0.02)
    assert compared.is_rounding_tie
    assert compare_with_baseline(plain, plain).is_identical is None
    assert compare_with_baseline(eagle, failed(1, "none")).is_identical is None
    assert compare_with_baseline(eagle, None).is_identical is None


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    rows = [row(1, "none"), row(1, "eagle", is_identical=True), failed(2, "eagle")]
    writer = BenchWriter(path, HEADER, resume=False)
    for one in rows:
        writer.write(one)
    writer.close()
    found = read_bench_file(path)
    assert found.rows == rows
    assert found.header["settings"] == HEADER["settings"]


def test_a_killed_run_goes_on_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writer = BenchWriter(path, HEADER, resume=False)
    writer.write(row(1, "none"))
    writer.close()
    with path.open("a") as file:
        file.write('{"type": "row", "question_id": 1, "meth')

    writer = BenchWriter(path, HEADER, resume=True)
    assert list(writer.done) == [(1, 0, "none")]
    writer.write(row(1, "eagle"))
    writer.close()
    assert [one.method for one in read_bench_file(path).rows] == ["none", "eagle"]


def test_a_file_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    BenchWriter(path, HEADER, resume=False).close()
    with pytest.raises(ConfigError, match="exists already"):
        BenchWriter(path, HEADER, resume=False)
    other = {**HEADER, "settings": {**HEADER["settings"], "n_questions": 4}}
    with pytest.raises(ConfigError, match=r"n_questions = 3; got n_questions = 4"):
        BenchWriter(path, other, resume=True)


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", "no json\n", '{"type": "row"}\n'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a benchmark file"):
        read_bench_file(path)


def test_questions_keep_odd_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    line = {"question_id": 7, "category": "qa", "turns": ["one\u2028two", "second turn"]}
    path.write_text(json.dumps(line, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert load_questions(path) == [Question(7, "qa", "one\u2028two")]


@pytest.mark.parametrize(
    "line",
    ['{"question_id": 1}', '{"question_id": 1, "category": "a", "turns": []}', "[]", "x"],
)
def test_a_bad_question_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question_id": 0, "category": "a", "turns": ["t"]}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2 is not a question"):
        load_questions(path)


def test_a_limit_is_spread_over_all_questions() -> None:
    questions = [Question(i, "qa", "text") for i in range(280)]
    some = [question.question_id for question in evenly_spaced(questions, 14)]
    assert some == list(range(0, 280, 20))
    assert evenly_spaced(questions, None) == evenly_spaced(questions, 999) == questions


def test_table_and_plot_show_every_method(tmp_path: Path) -> None:
    rows = [row(i, m, category=f"c{i}") for i in range(3) for m in ("none", "eagle")]
    found = summarized(*rows, failed(4, "eagle"))
    table = summary_table(found)
    assert "eagle" in table
    assert "2.00-2.00" in table  # the interval of equal questions
    assert "bounds plain decoding at 100 tok/s" in table

    plot.write_plot(found, tmp_path / "bars.png")
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_file_has_a_summary() -> None:
    assert summarized()["methods"] == {}
    assert "bounds" in summary_table(summarized())


def test_differences_are_listed_with_their_gap() -> None:
    found = summarized(
        row(1, "none"),
        row(1, "eagle", is_identical=False, first_difference=4, logit_gap=0.125,
            logit_gap_float32=-0.004, is_rounding_tie=True),
        row(2, "none"),
        row(2, "eagle", is_identical=False, first_difference=7, is_rounding_tie=False),
    )  # fmt: skip
    first, second = found["methods"]["eagle"]["differences"]
    assert (first["question_id"], first["index"], first["logit_gap"]) == (1, 4, 0.125)
    assert second["is_rounding_tie"] is False
    assert (
        "eagle: 2 answers differ: 1 at a rounding tie, 1 by more than rounding; question 1 from token 4, "
        "logits 0.125 apart (-0.004 in float32)"
    ) in summary_table(found)
