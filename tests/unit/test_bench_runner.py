"""The benchmark's loop, over methods that answer from a list."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from eagle_core.bench.config import BenchConfig
from eagle_core.bench.methods import Answer
from eagle_core.bench.prompts import Question
from eagle_core.bench.provenance import package_versions, peak_process_bytes, provenance
from eagle_core.bench.records import BenchWriter, Row, read_bench_file
from eagle_core.bench.runner import PeakMeter, n_rows, run_bench, settings_of
from eagle_core.bench.transformers_peer import TokenClock
from eagle_core.config import GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError, OutOfMemory
from eagle_core.stats import Stats

QUESTIONS = [Question(i, "qa", f"question {i}") for i in range(3)]


class FakeMethod:
    """Answers every prompt with ``tokens``; fails on the prompts in ``bad``. Notes its calls."""

    def __init__(
        self, name: str, calls: list[tuple[str, int]], *, tokens: tuple[int, ...] = (1, 2)
    ):
        self.name = name
        self.tokens = tokens
        self.bad: set[int] = set()
        self.seen: list[GenerationConfig] = []
        self._calls = calls

    def answer(self, prompt_ids: Sequence[int], generation: GenerationConfig) -> Answer:
        self._calls.append((self.name, prompt_ids[0]))
        self.seen.append(generation)
        if prompt_ids[0] in self.bad:
            raise OutOfMemory("no memory", hint="buy some")
        stats = Stats(n_tokens=len(self.tokens), n_steps=1, decode_s=0.1, total_s=0.2)
        return Answer(self.tokens, "eos", stats, n_cached_tokens=4)


def encode(text: str) -> list[int]:
    return [int(text.split()[-1])]


def measure(
    path: Path, methods: list[FakeMethod], bench: BenchConfig, *, n: int | None = None
) -> list[Row]:
    """Run the benchmark into ``path``; with ``n``, stop after that many rows as a kill would."""
    settings = settings_of(QUESTIONS, bench, GenerationConfig(), TreeConfig(), LoadConfig())
    writer = BenchWriter(path, {"settings": settings}, resume=True)
    found = []
    for row in run_bench(
        QUESTIONS, methods, encode, GenerationConfig(), bench, writer, PeakMeter("cpu")
    ):
        found.append(row)
        if len(found) == n:
            break
    writer.close()
    return found


def test_methods_take_turns_in_rotating_order(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    methods = [FakeMethod("none", calls), FakeMethod("eagle", calls)]
    bench = BenchConfig(warmup=0)
    rows = measure(tmp_path / "rows.jsonl", methods, bench)
    assert calls == [
        ("none", 0), ("eagle", 0), ("eagle", 1), ("none", 1), ("none", 2), ("eagle", 2),
    ]  # fmt: skip
    assert len(rows) == n_rows(QUESTIONS, bench) == 6
    assert read_bench_file(tmp_path / "rows.jsonl").rows == rows
    assert {row.n_cached_tokens for row in rows} == {4}
    assert all(row.peak_memory_bytes > 0 for row in rows)


def test_warm_up_is_short_and_leaves_no_row(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    methods = [FakeMethod("none", calls), FakeMethod("eagle", calls)]
    methods[1].bad = {0}  # a failure while warming up ends nothing
    rows = measure(tmp_path / "rows.jsonl", methods, BenchConfig(warmup=2))
    assert calls[:4] == [("none", 0), ("eagle", 0), ("none", 1), ("eagle", 1)]
    assert [one.max_new_tokens for one in methods[0].seen[:3]] == [32, 32, 512]
    assert len(rows) == 6


def test_repeats_use_a_seed_of_their_own_for_all_methods(tmp_path: Path) -> None:
    methods = [FakeMethod("none", []), FakeMethod("eagle", [])]
    measure(tmp_path / "rows.jsonl", methods, BenchConfig(warmup=0, repeats=2))
    seeds = [[one.seed for one in method.seen] for method in methods]
    assert seeds == [[0, 0, 0, 1, 1, 1]] * 2


def test_rows_say_where_they_differ_from_plain_decoding(tmp_path: Path) -> None:
    methods = [FakeMethod("eagle", [], tokens=(1, 3)), FakeMethod("none", [])]
    rows = measure(tmp_path / "rows.jsonl", methods, BenchConfig(("eagle", "none"), warmup=0))
    eagle = [row for row in rows if row.method == "eagle"]
    assert [(row.is_identical, row.first_difference) for row in eagle] == [(False, 1)] * 3


def test_a_failed_answer_is_kept_and_not_timed(tmp_path: Path) -> None:
    methods = [FakeMethod("none", []), FakeMethod("eagle", [])]
    methods[1].bad = {1}
    rows = measure(tmp_path / "rows.jsonl", methods, BenchConfig(warmup=0))
    (bad,) = (row for row in rows if row.status == "failed")
    assert (bad.question_id, bad.method, bad.stats) == (1, "eagle", None)
    assert bad.error == {"code": "out-of-memory", "message": "no memory", "hint": "buy some"}


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_killed_run_measures_only_what_is_missing(tmp_path: Path, n: int) -> None:
    path = tmp_path / "rows.jsonl"
    bench = BenchConfig(warmup=0)
    measure(path, [FakeMethod("none", []), FakeMethod("eagle", [])], bench, n=n)
    calls: list[tuple[str, int]] = []
    rest = measure(path, [FakeMethod("none", calls), FakeMethod("eagle", calls)], bench)
    assert len(rest) == len(calls) == 6 - n
    rows = read_bench_file(path).rows
    assert len({row.key for row in rows}) == len(rows) == 6
    assert all(row.is_identical for row in rows if row.method == "eagle")


def test_a_complete_file_is_not_measured_again(tmp_path: Path) -> None:
    bench = BenchConfig()
    measure(tmp_path / "rows.jsonl", [FakeMethod("none", []), FakeMethod("eagle", [])], bench)
    calls: list[tuple[str, int]] = []
    methods = [FakeMethod("none", calls), FakeMethod("eagle", calls)]
    assert measure(tmp_path / "rows.jsonl", methods, bench) == []
    assert calls == []


@pytest.mark.parametrize("methods", [(), ("none", "none"), ("eagle", "magic")])
def test_methods_must_be_known_and_distinct(methods: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="distinct methods"):
        BenchConfig(methods)  # type: ignore[arg-type]


def test_settings_tell_two_question_sets_apart() -> None:
    def settings(questions: list[Question]) -> dict[str, object]:
        return settings_of(questions, BenchConfig(), GenerationConfig(), TreeConfig(), LoadConfig())

    other = [dataclasses.replace(QUESTIONS[0], text="another text"), *QUESTIONS[1:]]
    assert settings(QUESTIONS) == settings(list(QUESTIONS))
    assert settings(QUESTIONS)["prompts_sha256"] != settings(other)["prompts_sha256"]


def test_the_clock_skips_the_prompt_and_counts_the_tokens() -> None:
    clock = TokenClock(start_s=0.0)
    clock.put(torch.tensor([[7, 8, 9]]))
    for token in (1, 2, 3):
        clock.put(torch.tensor([token]))
    clock.end()
    stats = clock.stats.build(total_s=1.0)
    assert clock.token_ids == [1, 2, 3]
    assert stats.n_tokens == 3
    assert stats.ttft_s == stats.prefill_s
    assert stats.decode_s > 0


def test_provenance_names_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_core.bench.provenance.READ_BYTES", 2**20)
    found = provenance("cpu")
    assert found["cpu"]
    assert found["n_threads"] >= 1
    assert found["read_bandwidth_bytes_s"] > 0
    assert found["versions"]["torch"] == package_versions()["torch"] != "not installed"
    assert peak_process_bytes() > 2**20
