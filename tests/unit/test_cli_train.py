"""``eagle-chat train``: every mode, on a tiny base."""

from __future__ import annotations

import json

import pytest

from eagle_core.cli import main
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.events import Notice
from eagle_core.session import Session
from eagle_core.train.dataset import Conversations
from tests.support.tiny_models import save_llama


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return str(save_llama(tmp_path_factory.mktemp("base"), seed=4))


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    lines = capsys.readouterr().out.strip().splitlines()
    return code, json.loads(lines[-1])


COLLECT = ["--n-tokens", "150", "--batch-size", "6", "--max-length", "60", "--max-user-tokens", "8"]
LOAD = ["--dtype", "float32", "--device", "cpu"]


@pytest.fixture(scope="module")
def data(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("data")
    # Small parts, so that there are shards to hold out: 64 conversations make one.
    settings = ["--n-tokens", "1500", "--batch-size", "40", "--max-length", "60"]
    arguments = ["train", "collect", "--base", base, "--out", str(out), *settings, *LOAD]
    assert main([*arguments, "--max-user-tokens", "8"]) == 0
    return out


def test_collect_writes_its_own_conversations_and_goes_on_after_a_kill(capsys, base, tmp_path):
    code, outcome = run(
        capsys, "train", "collect", "--base", base, "--out", tmp_path, *COLLECT, *LOAD, "--json"
    )
    assert code == 0
    assert outcome["n_response_tokens"] >= 150
    written = Conversations.load(tmp_path / "conversations.npz")
    assert {float(t) for t in written.temperature} >= {0.0}
    assert all(len(written.ids(i)) <= 60 for i in range(len(written)))
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    code, again = run(
        capsys, "train", "collect", "--base", base, "--out", tmp_path, *COLLECT, *LOAD, "--json"
    )
    assert again == outcome
    assert {path: path.stat().st_mtime_ns for path in parts} == parts


def test_collect_puts_the_models_own_texts_into_user_turns(capsys, base, data, tmp_path):
    code, _ = run(
        capsys, "train", "collect", "--base", base, "--out", tmp_path, "--n-tokens", "60",
        "--batch-size", "6", "--max-length", "400", "--max-text-tokens", "64", "--max-answer-tokens", "20",
        "--text-share", "1", "--texts", data / "conversations.npz", *LOAD, "--json",
    )  # fmt: skip
    assert code == 0
    session = Session.open(LoadConfig(base=base, device="cpu", dtype="float32"))
    decode = session.tokenizer.decode
    source = Conversations.load(data / "conversations.npz")
    answers = [
        decode(source.ids(i)[source.response_start[i] :], skip_special_tokens=True).strip()
        for i in range(len(source))
    ]
    written = Conversations.load(tmp_path / "conversations.npz")
    for i in range(len(written)):
        start = int(written.response_start[i])
        prompt = decode(written.ids(i)[:start])
        assert any(answer[:10] in prompt for answer in answers if answer[:10])
        assert 1 <= len(written.ids(i)) - start <= 20
    assert len({written.response_start[i] for i in range(len(written))}) > 1


def test_collected_sets_are_joined(capsys, base, data, tmp_path):
    (tmp_path / "empty").write_text("\n")
    file = data / "conversations.npz"
    arguments = ("train", "collect", "--base", base, "--out", tmp_path / "out", *LOAD, "--json")
    code, outcome = run(capsys, *arguments, "--token-ids", file, file)
    one = Conversations.load(file)
    assert code == 0
    assert outcome["n_conversations"] == 2 * len(one)
    both = Conversations.load(tmp_path / "out" / "conversations.npz")
    assert both.ids(len(one)).tolist() == one.ids(0).tolist()
    code, outcome = run(capsys, *arguments, "--openings", tmp_path / "empty")
    assert "no opening" in outcome["error"]["message"]


def collect_talks(capsys, base, file, out):
    command = ["train", "collect", "--base", base, "--conversations", file, "--out", out]
    return run(capsys, *command, *LOAD, "--json")


def test_collect_takes_a_conversations_file(capsys, base, tmp_path):
    file = tmp_path / "talk.jsonl"
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]
    file.write_text(json.dumps({"messages": talk}) + "\n\n" + json.dumps({"messages": talk}) + "\n")
    code, outcome = collect_talks(capsys, base, file, tmp_path / "out")
    assert code == 0
    assert outcome["n_conversations"] == 2


@pytest.mark.parametrize(
    "line", ["{}", "not json", '{"messages": [{"role": "user", "content": "x"}]}']
)
def test_collect_names_the_bad_line(capsys, base, tmp_path, line):
    file = tmp_path / "talk.jsonl"
    file.write_text(line + "\n")
    code, outcome = collect_talks(capsys, base, file, tmp_path / "out")
    assert code == 1
    assert "line 1" in outcome["error"]["message"]


def test_fit_then_eval(capsys, base, data, tmp_path):
    out = tmp_path / "head"
    arguments = ["train", "fit", "--base", base, "--data", data, "--out", out, *LOAD]
    settings = ["--epochs", "1", "--batch-tokens", "600", "--draft-vocab-size", "128",
                "--held-out-shards", "1", "--eval-every", "2"]  # fmt: skip
    code, outcome = run(capsys, *arguments, *settings, "--json")
    assert code == 0
    assert len(outcome["acceptance_at_depth"]) == 5
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    assert len((out / "history.jsonl").read_text().splitlines()) == outcome["n_steps"]

    questions = tmp_path / "questions.jsonl"
    rows = [{"question_id": i, "category": "abc"[i], "turns": [f"question {i}"]} for i in range(3)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, figures = run(
        capsys, "train", "eval", "--base", base, "--head", out, "--prompts", questions,
        "--max-new-tokens", "12", *LOAD, "--json",
    )  # fmt: skip
    assert code == 0
    assert figures["n_failed"] == 0
    assert figures["tau_mean"] >= 1.0
    assert set(figures["tau_by_category"]) <= set("abc")


def test_fit_without_data_says_what_to_do(capsys, base, tmp_path):
    arguments = ["train", "fit", "--base", base, "--data", tmp_path, "--out", tmp_path / "x", *LOAD]
    code, outcome = run(capsys, *arguments, "--json")
    assert code == 1
    assert "train collect" in outcome["error"]["hint"]


def test_an_eagle3_head_from_collected_conversations(capsys, base, data, tmp_path):
    collected, out = tmp_path / "data", tmp_path / "head"
    fit = ["train", "fit", "--base", base, "--arch", "eagle3", "--out", out, *LOAD, "--json",
           "--epochs", "1", "--batch-tokens", "600", "--draft-vocab-size", "128", "--unroll", "3",
           "--held-out-shards", "1", "--eval-every", "2"]  # fmt: skip
    code, outcome = run(capsys, *fit, "--data", data)
    assert code == 1
    assert "--arch eagle3" in outcome["error"]["hint"]
    code, _ = run(
        capsys, "train", "collect", "--base", base, "--arch", "eagle3", "--out", collected,
        "--token-ids", data / "conversations.npz", *LOAD, "--json",
    )  # fmt: skip
    assert code == 0
    code, outcome = run(capsys, *fit, "--data", collected)
    assert code == 0
    assert len(outcome["acceptance_at_depth"]) == 5
    session = Session.open(LoadConfig(base=base, head=str(out), device="cpu", dtype="float32"))
    assert session.target.feature_layers == (2, 1, 0)
    answers = []
    for drafter in ("eagle", "none"):
        events = list(session.generate([5, 9, 12, 30], GenerationConfig(20), DraftConfig(drafter)))
        answers.append(events[-1].token_ids)
        assert not [e for e in events if isinstance(e, Notice)]
    assert answers[0] == answers[1]
