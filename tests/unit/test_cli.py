"""The command line: every mode that a flag reaches, on a tiny random model with a tiny random head."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core.catalog import CatalogEntry, HubSource
from eagle_core.cli import doctor, generate
from eagle_core.errors import OutOfMemory
from eagle_core.events import Failed, Finished, LoadProgress, Span, TextDelta
from eagle_core.session import Session
from eagle_core.stats import Stats
from tests.support.cli import OneAnswer, Run


def last_json(stdout: str) -> Any:
    return json.loads(stdout.rstrip("\n").split("\n")[-1])


# --- exit codes and errors


def test_help_of_every_command_needs_no_heavy_import() -> None:
    code = (
        "import sys; from eagle_core.cli import main\n"
        "for name in ('', 'serve', 'chat', 'generate', 'bench run', 'bench report', 'bench compare',\n"
        "             'bench replay', 'bench gpu', 'doctor', 'verify'):\n"
        "    assert main([*name.split(), '--help']) == 0, name\n"
        "heavy = {'torch', 'transformers', 'gradio', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--max-new-tokens N" in found.stdout
    assert "--llama-gguf NAME=FILE" in found.stdout
    assert "(default: 512)" in found.stdout


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("eagle-chat ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to do: serve, desktop, chat"),
        (["bench"], "say what to do: run, "),
        (["sing"], "invalid choice"),
        (["generate"], "one of the arguments --prompt --prompt-file is required"),
        (["generate", "--prompt", "a", "--prompt-file", "b"], "not allowed with"),
        (["generate", "--prompt", "a", "--temperature", "hot"], "invalid float value: 'hot'"),
        (["generate", "--prompt", "a", "--temperature", "9"], "expected 0.0 to 5.0; got 9.0"),
        (["generate", "--prompt", "a", "--max-new", "9"], "unknown flag --max-new (did you mean"),
        (["generate", "--promt", "a"], "unknown flag --promt (did you mean --prompt?)"),
        (["models", "list", "--jason"], "see `eagle-chat models list --help`"),
        (["generate", "--prompt", "a", "--tree", "bush"], "invalid choice: 'bush'"),
        (["generate", "--prompt", "a", "--shape", "0 x"], "is no path"),
        (["generate", "--prompt", "a", "--shape", "0 11"], "has no parent"),
        (["generate", "--prompt", "a", "--raw", "--system", "b"], "no place for --system"),
        (["bench", "run", "--prompts", "a", "--out", "b", "--methods", "magic"], "got magic"),
        (["serve", "--port", "0"], "ports are 1 to 65535"),
    ],
)
def test_wrong_usage_is_code_2(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert message in err


def test_an_empty_prompt_is_refused_before_anything_is_loaded(run: Run) -> None:
    code, _, err = run("generate", "--prompt", " ")
    assert code == 1
    assert "the prompt is empty" in err


def test_a_failure_is_one_sentence_with_a_hint(run: Run, tmp_path: Path) -> None:
    arguments = ["generate", "--prompt", "a", "--base", tmp_path / "nowhere"]
    code, out, err = run(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err

    code, out, err = run(*arguments, "--json")
    assert code == 1
    error = last_json(out)["error"]
    assert error["code"] == "model-not-found"
    assert "nowhere" in error["message"] + error["hint"] + err


def test_wrong_usage_is_json_too(run: Run) -> None:
    code, out, _ = run("generate", "--json", "--prompt", "a", "--seed", "-1")
    assert code == 2
    assert last_json(out)["error"]["code"] == "bad-config"


def test_a_failed_request_is_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    session = OneAnswer(Failed("context-overflow", "the prompt is too long", "shorten it"))
    monkeypatch.setattr(generate, "open_session", lambda *_: session)
    code, out, err = run("generate", "--prompt", "a", "--json")
    assert code == 1
    expected = {
        "code": "context-overflow",
        "message": "the prompt is too long",
        "hint": "shorten it",
    }
    assert last_json(out) == {"error": expected}
    assert err == "error: the prompt is too long. shorten it\n"
    assert session.is_closed


def test_an_interrupt_is_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Session:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "open_session", interrupted)
    assert run("generate", "--prompt", "a") == (130, "", "interrupted\n")


def test_a_stopped_answer_is_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    delta = TextDelta("half an", (Span("target", 7),))
    session = OneAnswer(delta, Finished("cancelled", 1, (), Stats(n_tokens=2)))
    monkeypatch.setattr(generate, "open_session", lambda *_: session)
    code, out, _ = run("generate", "--prompt", "a")
    assert (code, out) == (130, "half an\n")


# --- generate


@pytest.mark.parametrize(
    "flags",
    [
        ["--drafter", "none"],
        ["--drafter", "eagle", "--tree", "chain", "--depth", "3"],
        ["--tree", "static"],
        ["--tree", "static", "--shape", "0 1 00 01"],
        ["--tree", "dynamic", "--branching", "3", "--size", "9"],
        ["--temperature", "0.8", "--top-p", "0.9", "--seed", "3"],
        ["--temperature", "0.8", "--rule", "sampling", "--with-replacement"],
        [
            "--top-k",
            "9",
            "--min-p",
            "0.05",
            "--repetition-penalty",
            "1.2",
            "--min-new-tokens",
            "3",
            "--presence-penalty",
            "0.5",
            "--frequency-penalty",
            "-0.5",
        ],
        ["--logit-bias", "12:-5 42:2.5", "--stop", "\\n", "--stop", "a, b"],
        ["--raw", "--context-length", "64"],
        ["--system", "be kind", "--dtype", "bfloat16", "--device", "cpu", "--offline"],
    ],
)
def test_generate_reaches_every_mode(run: Run, base: Path, head: Path, flags: list[str]) -> None:
    code, out, err = run(
        "generate", "--base", base, "--head", head, "--prompt", "the cat", "--dtype", "float32",
        "--max-new-tokens", "12", "--json", *flags,
    )  # fmt: skip
    assert code == 0, err
    found = last_json(out)
    assert list(found) == [
        "text", "token_ids", "origins", "finish_reason", "n_prompt_tokens", "drafter", "stats",
        "notices", "config", "model",
    ]  # fmt: skip
    assert len(found["origins"]) == len(found["token_ids"]) == found["stats"]["n_tokens"] <= 12
    assert set(found["origins"]) <= {"draft", "target"}
    assert found["drafter"] == found["config"]["draft"]["drafter"]
    assert found["model"]["base"] == str(base)
    stats = found["stats"]
    assert len(stats["acceptance_at_depth"]) == len(stats["drafted_at_depth"])
    # An untrained head's guesses are worth nothing, and auto sees it.
    if found["drafter"] == "eagle" and found["config"]["draft"]["tree"]["policy"] != "auto":
        assert stats["n_drafted"] > 0


@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_drafting_changes_no_token(run: Run, base: Path, head: Path, temperature: str) -> None:
    answers = []
    for drafter in ("none", "eagle"):
        _, out, _ = run(
            "generate", "--base", base, "--head", head, "--prompt", "one two", "--json",
            "--dtype", "float32", "--max-new-tokens", "24", "--temperature", temperature,
            "--drafter", drafter,
        )  # fmt: skip
        answers.append(last_json(out)["token_ids"])
    assert answers[0] == answers[1]


def test_generate_streams_text_to_stdout_and_figures_to_stderr(
    run: Run, base: Path, tmp_path: Path
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("the dog", encoding="utf-8")
    arguments = ["--base", base, "--dtype", "float32", "--max-new-tokens", "6"]
    code, out, err = run("generate", "--prompt-file", prompt, *arguments)
    _, as_json, _ = run("generate", "--prompt-file", prompt, *arguments, "--json")
    assert code == 0
    assert out == last_json(as_json)["text"] + "\n"
    assert "6 tokens | " in err
    assert "warning: no EAGLE head is known" in err


def test_generate_reads_stdin(run: Run, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one two three"))
    code, out, _ = run(
        "generate", "--base", base, "--prompt-file", "-", "--max-new-tokens", "2", "--json",
        "--drafter", "none",
    )  # fmt: skip
    assert code == 0
    assert last_json(out)["n_prompt_tokens"] > 1


def test_a_missing_prompt_file_is_named(run: Run, tmp_path: Path) -> None:
    code, _, err = run("generate", "--prompt-file", tmp_path / "none.txt")
    assert code == 1
    assert "none.txt" in err


# --- bench


@pytest.fixture(autouse=True)
def small_bandwidth_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_core.bench.provenance.READ_BYTES", 2**20)


def write_questions(path: Path) -> Path:
    lines = [
        {"question_id": i, "category": ("qa", "math")[i % 2], "turns": [f"the cat {i}", "more"]}
        for i in range(4)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_bench_measures_resumes_and_reports(
    run: Run, base: Path, head: Path, tmp_path: Path
) -> None:
    out_file = tmp_path / "rows.jsonl"
    arguments = [
        "bench", "run", "--base", base, "--head", head, "--dtype", "float32", "--device", "cpu",
        "--prompts", write_questions(tmp_path / "q.jsonl"), "--out", out_file, "--limit", "2",
        "--methods", "none,eagle,transformers", "--max-new-tokens", "8", "--repeats", "1",
        "--warmup", "1", "--tree", "chain", "--depth", "2",
    ]  # fmt: skip
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    found = last_json(out)
    assert list(found["methods"]) == ["none", "eagle", "transformers"]
    # float32 on one machine: the three compute the same tokens.
    assert found["methods"]["eagle"]["identical_rate"] == 1.0
    assert found["methods"]["transformers"]["identical_rate"] == 1.0
    assert found["methods"]["none"]["tau"] == found["methods"]["transformers"]["tau"] == 1.0
    assert set(found["methods"]["eagle"]["speedup"]) == {"none", "transformers"}
    assert 0 < found["header"]["weight_bytes"] <= 4.2 * found["header"]["model"]["n_parameters"]
    assert found["bandwidth_bound_tok_s"] > 0

    rows = [json.loads(line) for line in out_file.read_text().splitlines()]
    assert [row["type"] for row in rows] == ["header"] + ["row"] * 6
    # Every method reads the whole prompt, whatever was asked before.
    assert {row["n_cached_tokens"] for row in rows[1:]} == {0}

    code, _, err = run(*arguments)
    assert code == 1
    assert "exists already" in err

    out_file.write_text("".join(json.dumps(row) + "\n" for row in rows[:-2]))
    code, out, err = run(*arguments, "--resume", "--json")
    assert code == 0, err
    assert last_json(out)["methods"]["eagle"]["n_rows"] == 2

    png = tmp_path / "bars.png"
    code, out, _ = run("bench", "report", out_file, "--plot", png)
    assert code == 0
    assert "tok/s" in out
    assert png.read_bytes().startswith(b"\x89PNG")
    code, out, _ = run("bench", "report", out_file, "--json")
    assert last_json(out)["methods"]["eagle"]["n_rows"] == 2


def test_bench_samples_and_keeps_failures(run: Run, base: Path, tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "q.jsonl")
    with questions.open("a") as file:
        too_long = {"question_id": 9, "category": "qa", "turns": ["cat " * 300]}
        file.write(json.dumps(too_long) + "\n")
    code, out, err = run(
        "bench", "run", "--base", base, "--prompts", questions, "--out", tmp_path / "rows.jsonl",
        "--methods", "none,transformers", "--temperature", "0.8", "--max-new-tokens", "4",
        "--warmup", "0", "--json",
    )  # fmt: skip
    assert code == 1
    methods = last_json(out)["methods"]
    assert [methods[name]["n_failed"] for name in ("none", "transformers")] == [1, 1]
    assert [methods[name]["n_questions"] for name in ("none", "transformers")] == [4, 4]
    assert "none failed on question 9" in err


def test_bench_needs_a_head_for_eagle(run: Run, base: Path, tmp_path: Path) -> None:
    code, _, err = run(
        "bench", "run", "--base", base, "--prompts", write_questions(tmp_path / "q.jsonl"),
        "--out", tmp_path / "rows.jsonl",
    )  # fmt: skip
    assert code == 1
    assert "no EAGLE head is known" in err
    assert not (tmp_path / "rows.jsonl").exists()


def test_bench_report_refuses_another_file(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("bench", "report", tmp_path / "none.jsonl", "--json")
    assert code == 1
    assert last_json(out)["error"]["code"] == "bad-config"


# --- doctor and serve


@pytest.fixture
def small_catalog(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "cache"))
    entry = CatalogEntry("tiny", "Tiny", HubSource("org/tiny"), None, 1, "MIT")
    monkeypatch.setattr(doctor, "default_entry", lambda: entry)


@pytest.mark.usefixtures("small_catalog")
def test_doctor_checks_the_engine(run: Run) -> None:
    code, out, _ = run("doctor", "--json")
    found = last_json(out)
    checks = {check["name"]: check for check in found["checks"]}
    assert code == 0, out
    assert found["status"] == "ok"
    assert checks["engine"]["status"] == "ok"
    assert "a tiny random model" in checks["engine"]["detail"]
    assert checks["tiny"]["status"] == "warn"
    assert checks["torch"]["detail"] == torch.__version__

    code, out, _ = run("doctor")
    assert code == 0
    assert "ok    engine" in out


@pytest.mark.usefixtures("small_catalog")
def test_doctor_fails_when_a_check_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> doctor.Check:
        raise OutOfMemory("no memory", hint="buy some")

    monkeypatch.setattr(doctor, "check_memory", no_memory)
    monkeypatch.setattr("eagle_core.target.self_check", lambda *_, **__: 3.0)
    code, out, _ = run("doctor", "--json")
    checks = {check["name"]: check for check in last_json(out)["checks"]}
    assert code == 1
    assert checks["memory"] == {
        "name": "memory", "status": "fail", "detail": "no memory", "hint": "buy some",
    }  # fmt: skip
    assert checks["engine"]["status"] == "fail"
    assert "--drafter none" in checks["engine"]["hint"]


def test_serve_opens_the_session_behind_the_page(
    run: Run, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def fake_launch(opener: Any, **settings: Any) -> None:
        events: list[Any] = []
        session = opener(events.append)
        seen.update(settings, base=session.info.base, events=events)
        session.close()
        settings["on_ready"]("http://127.0.0.1:7999")

    monkeypatch.setattr("eagle_core.ui.app.launch", fake_launch)
    code, out, err = run("serve", "--base", base, "--port", "7999", "--no-browser")
    assert code == 0
    assert out == "http://127.0.0.1:7999 (Ctrl+C stops)\n"
    assert (seen["host"], seen["port"], seen["open_browser"]) == ("127.0.0.1", 7999, False)
    assert seen["base"] == str(base)
    assert any(isinstance(event, LoadProgress) for event in seen["events"])
    assert "loading" in err
