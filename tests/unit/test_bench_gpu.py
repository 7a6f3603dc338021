"""``bench gpu`` on a tiny shape and the CPU: the code that a GPU runs, but for CUDA graphs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core.bench import gpu, random_model
from eagle_core.bench.config import GpuConfig
from eagle_core.bench.random_model import SHAPES, random_head
from eagle_core.bench.random_model import random_model as make_model
from eagle_core.cli.bench_gpu import gpu_table
from eagle_core.errors import ConfigError, ModelError, OutOfMemory
from eagle_core.kernels.graphs import CaptureFailed
from eagle_core.packing import bytes_read
from eagle_core.target import Target
from tests.support.cli import Run, save_head
from tests.support.recorded_graphs import RecordedCapture
from tests.support.tiny_models import save_llama

CPU = torch.device("cpu")
TINY = [
    "bench",
    "gpu",
    "--device",
    "cpu",
    "--shape",
    "tiny",
    "--prompt-tokens",
    "16",
    "--new-tokens",
    "8",
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs of each figure: their number does not matter here."""
    monkeypatch.setattr(gpu, "WARM", 1)
    monkeypatch.setattr(gpu, "TIMES", 2)
    monkeypatch.setattr("eagle_core.bench.provenance.READ_BYTES", 2**20)
    monkeypatch.setattr("eagle_core.bench.gpu_default.N_TOKENS", 6)


def test_all_parts_are_measured(run: Run, tmp_path: Path) -> None:
    base = save_llama(tmp_path / "base")
    head = save_head(base, tmp_path / "head")
    prompts, out = tmp_path / "q.jsonl", tmp_path / "gpu.json"
    lines = [{"question_id": i, "category": "qa", "turns": [f"the cat {i}"]} for i in range(8)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, text, err = run(
        *TINY, "--base", base, "--head", head, "--prompts", prompts, "--out", out
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out.read_text())
    assert found["copy"]["bandwidth_bytes_s"] > 0
    for precision in ("bfloat16", "nf4"):
        part = found[precision]
        assert set(part["verify_ms"]) == set(map(str, gpu.ROWS))
        assert all(ms > 0 for ms in part["verify_ms"].values())
        assert set(part["verify_reproducible_ms"]) == {"1", "16", "60"}
        assert set(part["draft"]) == {"eagle1", "eagle3"}
        assert all(
            one["chain_ms"] > 0 and one["tree_ms"]["dynamic"] > 0 for one in part["draft"].values()
        )
        assert part["plain_ms"] == pytest.approx(1e3 / part["plain_tok_s"])
        assert part["graph"] is None  # there are none on a CPU
        assert part["peak_bytes"] > 0
    assert found["nf4"]["weight_bytes"] < found["bfloat16"]["weight_bytes"]
    real = found["real"]
    assert (real["n_questions"], real["n_identical"]) == (8, 8)
    assert real["speedup"]["n_questions"] == 8
    assert "times 1 row" in text
    assert "plain decoding / memory bound" in text
    assert "8 of 8 answers identical" in text
    assert f"wrote {out}" in err


def test_graphs_are_measured_beside_what_is_launched_from_python(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "graph_captures", lambda _: RecordedCapture)
    monkeypatch.setattr("eagle_core.kernels.graphs.SMALLEST_KEYS", 24)
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    code, text, err = run(*TINY, "--precisions", "bfloat16", "--json")
    assert code == 0, err
    graph = json.loads(text)["bfloat16"]["graph"]
    assert set(graph["verify_ms"]) == set(map(str, gpu.ROWS))
    assert graph["plain_ms"] > 0
    assert set(graph["draft"]) == {"eagle1", "eagle3"}
    assert set(graph["bars"]) == set(gpu.BARS)
    assert graph["reason"] == ""
    code, text, err = run(*TINY, "--precisions", "bfloat16")
    assert "as a CUDA graph, ms" in text
    assert "tiny, bfloat16, CUDA graphs: plain decoding" in text
    assert "times as fast as launched from Python" in text


def test_a_graph_that_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_capture() -> RecordedCapture:
        raise CaptureFailed("out of order")

    monkeypatch.setattr("eagle_core.kernels.graphs.SMALLEST_KEYS", 24)
    target = Target(make_model(SHAPES["tiny"], CPU, "bfloat16", 300))
    config = GpuConfig(device="cpu", shape="tiny", prompt_tokens=16, new_tokens=8)
    graph = gpu.graph_figures(target, config, gpu.Meter(CPU), no_capture)
    assert graph is not None
    assert (graph["verify_ms"], graph["reason"]) == ({}, "out of order")


def test_what_is_missing_is_skipped_with_its_reason(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(quantization: str, device: str) -> None:
        raise ModelError(f"{quantization} needs bitsandbytes", hint="pip install bitsandbytes")

    monkeypatch.setattr(random_model, "require_bitsandbytes", missing)
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))  # the default model is not there, nor fetched
    code, text, _ = run(*TINY, "--precisions", "nf4")
    assert code == 0
    assert "tiny, nf4: skipped: nf4 needs bitsandbytes" in text
    assert "a real model: skipped: " in text
    assert "not on this machine yet" in text


def test_no_part_starts_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GpuConfig(device="cpu", shape="tiny", max_minutes=0.1)
    times = iter([0.0, *[7.0] * 20])
    monkeypatch.setattr("eagle_core.bench.gpu.time.monotonic", lambda: next(times))
    monkeypatch.setattr(gpu, "measure_precision", lambda *_: pytest.fail("was measured"))
    found = dict(gpu.measure(config, lambda _: None))
    assert found["nf4"] == {"skipped": "0.1 minutes are over"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_next_step_is_said(run: Run) -> None:
    code, out, err = run("bench", "gpu", "--json")
    assert code == 1
    assert "there is no such GPU" in err
    assert "--device cpu --shape tiny" in json.loads(out)["error"]["hint"]


def test_a_shape_that_does_not_fit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"available": 2**30})()
    monkeypatch.setattr("eagle_core.bench.random_model.psutil.virtual_memory", lambda: memory)
    with pytest.raises(OutOfMemory, match=r"8\.0 billion") as caught:
        make_model(SHAPES["llama-8b"], CPU, "bfloat16", 64)
    assert "tiny" in caught.value.hint


def test_the_shape_is_that_of_the_published_model() -> None:
    assert SHAPES["llama-8b"].n_weights == pytest.approx(8.03e9, rel=1e-3)
    tiny = make_model(SHAPES["tiny"], CPU, "bfloat16", 64)
    n_norms = 64 * (2 * 4 + 1)
    assert tiny.num_parameters() == SHAPES["tiny"].n_weights + n_norms
    assert tiny.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32
    # Every weight but the embedding is read once for a token.
    assert bytes_read(tiny) == 2 * (tiny.num_parameters() - 512 * 64)


def test_heads_fit_the_shape() -> None:
    first, third = (random_head("tiny", kind, CPU) for kind in ("eagle1", "eagle3"))
    assert first.draft_vocabulary is None
    assert third.draft_vocabulary is not None
    assert third.draft_vocabulary.tolist() == list(range(64))
    assert len(third.feature_layers) == 3


def test_a_tree_of_any_size() -> None:
    for n_rows in gpu.ROWS:
        tree = gpu.bushy_tree(n_rows, CPU)
        assert tree.n_nodes == n_rows
        assert int(tree.depths.max()) == tree.max_depth


@pytest.mark.parametrize("precisions", [(), ("int3",)])
def test_precisions_must_be_known(precisions: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="precisions"):
        GpuConfig(precisions=precisions)


def part(**changes: Any) -> dict[str, Any]:
    """Figures of an 8B model on a fast GPU."""
    verify = {1: 5.0, 60: 5.5}
    draft = {"n_parameters": 10**9, "step_ms": 0.2, "chain_ms": 1.0, "tree_ms": {"dynamic": 2.0}}
    found: dict[str, Any] = {
        "weight_bytes": 16e9, "bound_ms": 4.0, "plain_ms": 4.8, "plain_tok_s": 208.0, "verify_ms": verify,
        "verify_reproducible_ms": {1: 5.2}, "draft": {"eagle1": draft}, "peak_bytes": 20e9, "graph": None,
        **changes,
    }  # fmt: skip
    return found | {"bars": gpu.bars(found)}


def test_aims_and_table() -> None:
    bars = part()["bars"]
    assert bars["plain_of_bound"] == {"value": pytest.approx(4.0 / 4.8), "bar": 0.8, "is_met": True}
    assert bars["verify_60"]["value"] == pytest.approx(1.1)
    assert bars["draft_step"] == {"value": pytest.approx(0.04), "bar": 0.06, "is_met": True}
    missed = part(verify_ms={1: 5.0, 60: 9.0}, graph={"reason": "a wait", "verify_ms": {1: 4.5}})
    assert not missed["bars"]["verify_60"]["is_met"]
    found = {
        "header": {"accelerator": "A GPU", "cpu": "x"}, "copy": {"bandwidth_bytes_s": 4.3e12},
        "shape": "llama-8b", "bfloat16": missed, "nf4": {"skipped": "no bitsandbytes"},
        "real": {"skipped": "not here"}, "took_s": 61.2,
    }  # fmt: skip
    text = gpu_table(found, ("bfloat16", "nf4"))
    assert "A GPU: copies 4300 GB/s" in text
    assert "as a CUDA graph, ms  4.50     -" in text
    assert "no CUDA graph: a wait" in text
    assert "1.800  missed" in text
    assert "61 s in all" in text


def test_the_command_needs_no_package_that_a_lent_machine_lacks() -> None:
    code = (
        "import sys\n"
        "for name in ('gradio', 'gguf', 'bitsandbytes', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "from eagle_core.bench import gpu, provenance\n"
        "gpu.WARM, gpu.TIMES, provenance.READ_BYTES = 0, 1, 2**20\n"
        "from eagle_core.cli import main\n"
        f"assert main({TINY!r}) == 0\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "tiny, bfloat16: " in found.stdout
    assert "nf4: skipped: nf4 needs bitsandbytes" in found.stdout
    assert "a real model: skipped: " in found.stdout


@pytest.mark.gpu
def test_on_a_real_gpu(run: Run) -> None:
    code, out, err = run("bench", "gpu", "--shape", "tiny", "--json")
    assert code == 0, err
    assert json.loads(out)["bfloat16"]["graph"] is not None
