"""Comparisons and reports of benchmark files, on hand-made rows whose answers are known."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from eagle_core.bench import charts
from eagle_core.bench.compare import Side, check_comparable, compare, methods_of
from eagle_core.bench.findings import by_length, find, group_of, ms_per_step, ratios, sentences
from eagle_core.bench.records import BenchFile, BenchWriter, Row
from eagle_core.bench.report import html_report, markdown_report, overall_table
from eagle_core.bench.summary import rate_with_interval
from eagle_core.errors import ConfigError
from eagle_core.stats import Stats
from tests.support.cli import Run

METHODS = ["none", "eagle:dynamic", "transformers", "llama.cpp:q8"]
RATES = {"none": 10.0, "eagle:dynamic": 20.0, "transformers": 5.0, "llama.cpp:q8": 16.0}
VOID = {"meta", "br", "hr", "img", "link", "input", "path", "use", "rect", "line"}


def header(**changes: Any) -> dict[str, Any]:
    """A file's header; a changed entry is given by its dotted path with "__" for the dot."""
    found: dict[str, Any] = {
        "created": "2026-01-02T03:04:05+00:00",
        "cpu": "A processor",
        "accelerator": None,
        "n_threads": 2,
        "read_bandwidth_bytes_s": 20e9,
        "weight_bytes": 200_000_000,
        "model": {
            "base": "tiny", "dtype": "float32", "device": "cpu", "quantization": "none", "n_parameters": 5
        },
        "row_costs": [[1, 2, 16], [0.01, 0.011, 0.02], 0.002, 1.25],
        "peers": {"llama.cpp:q8": {"build": "b1", "file": "q8.gguf", "file_bytes": 5_000_000}},
        "settings": {
            "prompts_sha256": "abc",
            "bench": {"methods": METHODS},
            "generation": {"temperature": 0.0, "max_new_tokens": 11},
            "tree": {"policy": "dynamic"},
        },
    }  # fmt: skip
    for path, value in changes.items():
        *folders, name = path.split("__")
        place = found
        for folder in folders:
            place = place[folder]
        place[name] = value
    return found


def row(
    question: int, method: str, category: str = "qa", *, factor: float = 1.0, **changes: Any
) -> Row:
    """An answer of 11 tokens, ten of them decoded at the method's rate times ``factor``."""
    decode_s = 10 / (RATES[method] * factor)
    n_steps = 5 if method.startswith("eagle") else 10
    is_own = method.partition(":")[0] in ("none", "eagle")
    draft_s, target_s = (0.1 if n_steps == 5 else 0.0, 0.7 if is_own else 0.0)
    stats = Stats(
        n_tokens=11, n_steps=n_steps, n_accepted=10 - n_steps, decode_s=decode_s, total_s=decode_s + 0.5,
        ttft_s=0.5, draft_s=draft_s * decode_s, target_s=target_s * decode_s,
        drafted_at_depth=(5, 5) if n_steps == 5 else (), accepted_at_depth=(4, 1) if n_steps == 5 else (),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "n_prompt_tokens": 10 + 10 * question,
        "token_ids": tuple(range(11)),
        "finish_reason": "length",
        "stats": stats,
        "is_identical": None if method == "none" else method != "llama.cpp:q8",
    }
    return Row(question, category, 0, method, "ok", **{**fields, **changes})


def failed(question: int, method: str) -> Row:
    error = {"code": "out-of-memory", "message": "no memory", "hint": ""}
    return Row(question, "qa", 0, method, "failed", error=error)


def bench_file(n: int = 8, methods: list[str] | None = None, **changes: Any) -> BenchFile:
    """``n`` questions by each method, half of them in the category "writing" (of MT-bench)."""
    rows = [
        row(q, m, ("qa", "writing")[q % 2], factor=1 + q / 20)
        for q in range(n)
        for m in methods or METHODS
    ]
    return BenchFile(header(**changes), rows)


def save(file: BenchFile, path: Path) -> Path:
    writer = BenchWriter(path, file.header, resume=False)
    for one in file.rows:
        writer.write(one)
    writer.close()
    return path


# --- compare


def test_methods_of_one_file() -> None:
    file = bench_file()
    assert methods_of(file) == METHODS
    found = compare(Side(file, "eagle:dynamic", "eagle"), Side(file, "llama.cpp:q8", "llama"))
    assert (found["method"], found["baseline"], found["is_same_method"]) == (
        "eagle",
        "llama",
        False,
    )
    assert list(found["rows"]) == ["all", "qa", "writing"]
    every = found["rows"]["all"]
    assert every["speedup"]["decode"] == pytest.approx({"value": 1.25, "low": 1.25, "high": 1.25})
    assert (every["n_compared"], every["n_identical"], every["n_failed"]) == (8, 8, [0, 0])
    assert every["tau"] == [2.0, 1.0]
    assert found["rows"]["qa"]["speedup"]["n_questions"] == 4


def test_two_files_pair_the_same_questions() -> None:
    before, after = bench_file(4), bench_file(4)
    after.rows[1] = row(0, "eagle:dynamic", factor=2.0, token_ids=(1, 2))
    after.rows[5] = failed(1, "eagle:dynamic")
    found = compare(Side(after, "eagle:dynamic", "after"), Side(before, "eagle:dynamic", "before"))
    every = found["rows"]["all"]
    assert every["n_compared"] == 3
    assert every["n_identical"] == 2
    assert every["n_failed"] == [1, 0]
    # Three questions at rates 20 (then 40), 22 and 23: 10 tokens each.
    before_s, after_s = 10 / 20 + 10 / 22 + 10 / 23, 10 / 40 + 10 / 22 + 10 / 23
    assert every["speedup"]["decode"]["value"] == pytest.approx(before_s / after_s)


def test_a_category_without_a_pair_has_no_ratio() -> None:
    file = BenchFile(header(), [row(0, "none"), row(1, "eagle:dynamic")])
    found = compare(Side(file, "eagle:dynamic", "e"), Side(file, "none", "n"))
    assert found["rows"]["all"]["speedup"] is None
    assert found["rows"]["all"]["n_compared"] == 0


@pytest.mark.parametrize(
    ("change", "value", "words"),
    [
        ("cpu", "Another", "other machines"),
        ("n_threads", 4, "n_threads 2 and 4"),
        ("settings__prompts_sha256", "xyz", "other questions"),
        ("model__base", "large", "other models"),
        ("model__dtype", "bfloat16", "another precision"),
        ("model__quantization", "int8", "quantization none and int8"),
        ("settings__generation", {"temperature": 1.0}, "other settings"),
    ],
)
def test_files_that_cannot_be_compared_are_refused(change: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_comparable(bench_file(), bench_file(**{change: value}))
    assert words in str(caught.value)
    assert "measure both the same way" in caught.value.hint


def test_what_is_compared_may_be_allowed_to_differ() -> None:
    other = bench_file(model__dtype="bfloat16")
    assert "bfloat16" in check_comparable(bench_file(), other, ["precision"])[0]
    with pytest.raises(ConfigError, match="cannot be allowed"):
        check_comparable(bench_file(), bench_file(settings__prompts_sha256="x"), ["prompts"])
    assert check_comparable(bench_file(), bench_file()) == []


def test_an_entry_that_an_older_file_lacks_is_no_difference() -> None:
    old = bench_file()
    del old.header["model"]["quantization"]
    assert check_comparable(old, bench_file()) == []


# --- findings


def test_findings_of_known_rows() -> None:
    found = find(bench_file())
    assert found.title == "tiny, float32, temperature 0, 8 questions"
    assert found.methods == METHODS
    assert found.groups == ["all", "mt-bench", "qa"]
    assert found.speedups["qa"]["eagle:dynamic"]["decode"]["value"] == pytest.approx(2.0)
    assert found.taus["all"] == {
        "none": 1.0,
        "eagle:dynamic": 2.0,
        "transformers": 1.0,
        "llama.cpp:q8": 1.0,
    }
    assert list(found.split) == ["none", "eagle:dynamic"]  # peers do not say where their time goes
    assert found.acceptance == {"eagle:dynamic": [0.8, 0.2]}
    assert found.ratios["transformers"] == pytest.approx([0.5] * 8)
    assert len(found.by_answer["none"]) == 1  # all answers are of one length
    assert [x for x, _ in found.by_prompt["none"]] == pytest.approx([25.0, 65.0])
    said = " ".join(sentences(found))
    assert (
        "EAGLE, dynamic decodes 2.00x (2.00-2.00) as fast as plain decoding over 8 questions"
        in said
    )
    assert "1.25x (1.25-1.25) as fast as llama.cpp, q8" in said
    assert "8 of 8 answers hold the tokens of plain decoding" in said


def test_a_steps_time_adds_up() -> None:
    one = Stats(n_steps=10, decode_s=1.0, draft_s=0.2, target_s=0.7)
    assert ms_per_step([one]) == pytest.approx({"draft": 20, "target": 70, "host": 10})
    assert ms_per_step([Stats(n_steps=10, decode_s=1.0)]) == {}


def test_groups_of_like_length() -> None:
    rows = [row(q, "none", n_prompt_tokens=10 * (q + 1)) for q in range(6)]
    points = by_length(rows, lambda one: one.n_prompt_tokens)
    assert points == [(20, pytest.approx(10.0)), (50, pytest.approx(10.0))]
    assert by_length(rows[:2], lambda one: one.n_prompt_tokens) == []


def test_ratios_are_sorted_and_paired() -> None:
    rows = [
        row(0, "none"),
        row(0, "transformers", factor=3),
        row(1, "none"),
        row(1, "transformers"),
    ]
    assert ratios([*rows, row(2, "transformers")], "transformers") == pytest.approx([0.5, 1.5])


def test_a_rate_has_an_interval_over_questions() -> None:
    rows = [row(q, "none", factor=1 + q) for q in range(5)]
    found = rate_with_interval(rows)
    assert found is not None
    assert found["low"] < found["value"] < found["high"]
    assert rate_with_interval(rows[:1])["low"] is None  # type: ignore[index]
    assert rate_with_interval([failed(1, "none")]) is None


def test_categories_of_mt_bench_are_one_group() -> None:
    assert [group_of(name) for name in ("writing", "stem", "qa")] == ["mt-bench", "mt-bench", "qa"]


# --- the page


class Page(HTMLParser):
    """What a test wants to know of a page: its tags are closed, its ids, links, images and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.alts: list[str | None] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        for name in ("href", "src", "xlink:href"):
            value = found.get(name)
            if value and not value.startswith(("#", "data:")):
                self.outside.append(value)
        if found.get("role") == "img":
            self.alts.append(found.get("aria-label"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_stands_alone() -> None:
    text = html_report([find(bench_file()), find(bench_file(model__dtype="bfloat16"))])
    page = Page(text)
    assert page.open == []
    assert page.outside == []
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(page.ids) == len(set(page.ids))
    assert len(page.alts) == 2 * len(charts.DRAWERS)
    assert all(alt and re.search(r"\d", alt) for alt in page.alts)
    assert "prefers-color-scheme: dark" in text
    assert charts.INK not in text
    assert "currentColor" in text


def test_a_forwards_costs_are_drawn_and_told() -> None:
    (chart,) = [
        c for c in charts.draw_all(find(bench_file()), "k") if c.title == "What a forward costs"
    ]
    assert "One row: 10.0 ms" in chart.alt
    assert "1.10 for 2, 2.00 for 16" in chart.alt
    assert "head: 2.0 ms" in chart.alt
    assert "1.25 times as long" in chart.alt
    old = charts.draw_all(find(bench_file(row_costs=None)), "k")
    assert "What a forward costs" not in [chart.title for chart in old]


def test_ids_that_charts_use_are_there() -> None:
    text = html_report([find(bench_file())])
    ids = set(Page(text).ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert used
    assert used <= ids


def test_texts_from_files_are_escaped() -> None:
    text = html_report([find(bench_file(model__base="<b>&"))])
    assert "<b>" not in text
    assert "&lt;b&gt;&amp;" in text


def test_a_run_with_little_in_it_has_a_page() -> None:
    rows = [row(1, "none"), failed(1, "transformers")]
    found = find(BenchFile({}, rows))
    text = html_report([found])
    assert "unknown processor" in text
    assert Page(text).open == []
    assert html_report([find(BenchFile({}, []))])
    table = overall_table(found)
    assert table[2][-1] == "1"


def test_markdown_holds_the_figures() -> None:
    text = markdown_report([find(bench_file())])
    assert "| EAGLE, dynamic | 23.3 (" in text
    assert "2.00x (2.00-2.00)" in text
    assert "llama.cpp:q8: q8.gguf (5 MB), build b1" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:6]}) == 1


# --- the commands


def test_compare_within_a_file(run: Run, tmp_path: Path) -> None:
    path = save(bench_file(), tmp_path / "a.jsonl")
    code, out, _ = run("bench", "compare", path)
    assert code == 0
    assert out.count("against none") == 3
    code, out, _ = run(
        "bench",
        "compare",
        path,
        "--method",
        "eagle:dynamic",
        "--baseline",
        "llama.cpp:q8",
        "--json",
    )
    (found,) = json.loads(out)["comparisons"]
    assert found["rows"]["all"]["speedup"]["decode"]["value"] == pytest.approx(1.25)
    code, _, err = run("bench", "compare", path, "--method", "ngram")
    assert code == 1
    assert "no answer by ngram" in err


def test_compare_two_files(run: Run, tmp_path: Path) -> None:
    before = save(bench_file(), tmp_path / "a.jsonl")
    after = save(bench_file(), tmp_path / "b.jsonl")
    other = save(bench_file(model__dtype="bfloat16"), tmp_path / "c.jsonl")
    code, out, _ = run("bench", "compare", before, after)
    assert code == 0
    assert f"none in {after} against none in {before}" in out
    assert out.count("8 of 8") == len(METHODS)

    code, _, err = run("bench", "compare", before, other)
    assert code == 1
    assert "another precision" in err
    assert "--allow precision" in err
    code, out, err = run(
        "bench", "compare", before, other, "--allow", "precision", "--method", "eagle:dynamic"
    )
    assert code == 0
    assert "float32 and bfloat16" in err
    assert "eagle:dynamic in" in out
    assert run("bench", "compare", before, after, other)[0] == 2


def test_nothing_to_compare_is_said(run: Run, tmp_path: Path) -> None:
    path = save(bench_file(methods=["none"]), tmp_path / "a.jsonl")
    code, _, err = run("bench", "compare", path)
    assert code == 1
    assert "nothing to compare" in err


def test_report_writes_what_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    one = save(bench_file(), tmp_path / "a.jsonl")
    two = save(bench_file(model__dtype="bfloat16"), tmp_path / "b.jsonl")
    page, markdown = tmp_path / "docs" / "report.html", tmp_path / "docs" / "report.md"
    code, out, err = run("bench", "report", one, two, "--out", page, "--markdown", markdown)
    assert code == 0, err
    assert out.count("tok/s") > 2
    assert "bfloat16" in page.read_text()
    assert "## tiny, bfloat16" in markdown.read_text()
    assert [path.name for path in page.parent.iterdir() if path.name.startswith(".")] == []
    code, out, _ = run("bench", "report", one, two, "--json")
    assert len(json.loads(out)["runs"]) == 2

    code, _, err = run("bench", "report", one, "--out", one / "report.html")
    assert code == 1
    assert "cannot write" in err
