"""Does it fit? Dimensions from configs, bytes from dimensions, verdicts, and what is measured."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from eagle_core import catalog, fit, machine, sizes
from eagle_core.assets import asset_path
from eagle_core.config import LoadConfig
from eagle_core.errors import CheckpointMismatch, ConfigError
from eagle_core.fit import Machine, best_fit, fit_entry, judge, recommend
from eagle_core.sizes import HeadSize, ModelSize, read_head_size, read_size, usual_head
from eagle_core.sources import base_folder, read_json
from tests.support.cli import save_head
from tests.support.peak_memory import peak_of
from tests.support.tiny_models import byte_level_tokenizer, save_llama

GB = 1_000_000_000
CONTEXT = 1024
SMALL = {
    "vocab_size": 16_384, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": CONTEXT,
    "bos_token_id": 1, "eos_token_id": None, "tie_word_embeddings": True,
}  # fmt: skip


def cpu(free_gb: float) -> Machine:
    return Machine("cpu", round(free_gb * GB), round(free_gb * GB))


def gpu(free_gb: float, ram_gb: float = 16) -> Machine:
    return Machine("cuda", round(free_gb * GB), round(ram_gb * GB))


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def size_of(folder: Path) -> ModelSize:
    return read_size(read_json(folder / "config.json"), shapes(folder))


def head_size_of(folder: Path) -> HeadSize:
    return read_head_size(read_json(folder / "config.json"), shapes(folder))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model large enough to be told from the process's own noise: 27 million weights."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMALL)).to(torch.bfloat16).save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    return folder


# --- against measurements


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


slow = pytest.mark.slow


@on_linux
@pytest.mark.parametrize(
    "precision", ["float32", pytest.param("bfloat16", marks=slow), pytest.param("int8", marks=slow)]
)
def test_a_small_models_peak_is_estimated_within_a_tenth(
    model: Path, tmp_path: Path, precision: catalog.Precision
) -> None:
    head = save_head(model, tmp_path / "head")
    warm_up = save_llama(tmp_path / "warm-up")
    # Of two: a peak that lasts less long than the time between two looks is missed.
    peak = max(peak_of(warm_up, model, head, precision, CONTEXT) for _ in range(2))
    size = size_of(model)
    found = fit.estimate(size, head_size_of(head), precision, "cpu")
    tokenizer = fit.TOKENIZER_BYTES * (size.vocab_size - 300)  # the tests' one has 300 tokens
    assert found.needed_bytes - tokenizer == pytest.approx(peak, rel=0.1)


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_default_models_peak_is_estimated_within_a_tenth(
    tmp_path: Path, precision: catalog.Precision
) -> None:
    entry = catalog.default_entry()
    assert entry.size is not None
    base = base_folder(LoadConfig(base=entry.name))
    head = asset_path(str(entry.head))
    peak = peak_of(save_llama(tmp_path / "warm-up"), base, head, precision, 1024)
    found = fit.estimate(entry.size, head_size_of(head), precision, "cpu", 1024)
    assert found.needed_bytes == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("precision", ["int8", "nf4"])
def test_quantized_weights_take_what_is_estimated(
    model: Path, precision: catalog.Precision
) -> None:
    pytest.importorskip("bitsandbytes")
    options = (
        {"load_in_8bit": True}
        if precision == "int8"
        else {
            "load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True,
            "bnb_4bit_compute_dtype": torch.bfloat16,
        }
    )  # fmt: skip
    loaded = LlamaForCausalLM.from_pretrained(
        model, quantization_config=BitsAndBytesConfig(**options), dtype=torch.bfloat16,
        device_map="cpu",
    )  # fmt: skip
    found = fit.estimate(size_of(model), None, precision, "cuda")
    assert found.weight_bytes == pytest.approx(loaded.get_memory_footprint(), rel=0.1)


# --- dimensions


def test_dimensions_come_from_config_and_tensors(model: Path) -> None:
    size = size_of(model)
    per_layer = 512 * 512 * 2 + 512 * 256 * 2 + 3 * 512 * 1536
    assert size.n_linear == 6 * per_layer
    assert size.n_parameters == 6 * (per_layer + 2 * 512) + 16_384 * 512 + 512
    assert size.is_tied
    assert size.is_bfloat16
    # Without headers the file's size tells nearly the same.
    guess = read_size(read_json(model / "config.json"), {}, size.n_parameters * 2)
    assert guess.n_parameters == size.n_parameters
    assert guess.n_linear == pytest.approx(size.n_linear, rel=0.01)


def test_experts_are_neither_shrunk_nor_all_read() -> None:
    config = {
        "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 10,
        "num_local_experts": 4, "num_experts_per_tok": 1, "dtype": "float16",
    }  # fmt: skip
    tensors = {
        "model.embed_tokens.weight": (10, 8),
        "model.layers.0.self_attn.q_proj.weight": (8, 8),
        "model.layers.0.mlp.experts.0.w1.weight": (16, 8),
        "model.layers.0.mlp.experts.1.w1.weight": (16, 8),
    }
    size = read_size(config, tensors)
    assert size.n_linear == 64
    assert size.n_parameters == 80 + 64 + 256
    assert size.n_active == 80 + 64 + 64  # one of four experts: a quarter of their weights
    assert not size.is_bfloat16


def test_a_heads_dimensions_come_from_its_tensors_before_its_config() -> None:
    config = {"hidden_size": 8, "num_attention_heads": 4, "head_dim": 4, "draft_vocab_size": 99}
    tensors = {
        "embed_tokens.weight": (50, 8),
        "midlayer.self_attn.k_proj.weight": (8, 16),
        "lm_head.weight": (20, 8),
    }
    assert read_head_size(config, tensors) == HeadSize(128 + 160, 2, 4, 1, 20, True)


def test_a_config_without_dimensions_is_refused() -> None:
    with pytest.raises(CheckpointMismatch, match="how large"):
        read_size({"model_type": "bert"}, {})


def test_usual_heads_are_as_large_as_published_ones() -> None:
    for entry in catalog.packaged():
        if entry.n_head_parameters and entry.size is not None and not entry.size.n_active:
            guess = usual_head(entry.size, entry.method).n_parameters
            assert guess == pytest.approx(entry.n_head_parameters, rel=0.2), entry.name


# --- verdicts


def test_free_memory_decides_precision_and_verdict() -> None:
    entry = catalog.find("qwen3-8b")
    found = {gb: fit_entry(entry, gpu(gb, ram_gb=1)) for gb in (40, 16, 12, 4)}
    assert [(f.precision, f.verdict) for f in found.values() if f is not None] == [
        ("bfloat16", "fits"),
        ("nf4", "fits"),
        ("nf4", "fits"),
        ("nf4", "too-large"),
    ]
    assert found[4] is not None
    assert "needs" in found[4].reason
    assert found[4].sentence == "Won't fit"


def test_little_room_and_slow_reading_are_said() -> None:
    size = catalog.find("qwen3-1.7b").size
    assert size is not None
    exact = fit.estimate(size, None, "bfloat16", "cuda").needed_bytes
    tight = judge(size, None, "bfloat16", Machine("cuda", exact + 1, 0))
    assert tight.verdict == "slow"
    assert "leaves 0.0 GB" in tight.reason
    large = catalog.find("qwen3-14b")
    on_cpu = fit_entry(large, cpu(200))
    assert on_cpu is not None
    assert (on_cpu.verdict, on_cpu.precision) == ("slow", "float32")  # packed: read in 16 bits
    assert "for every token" in on_cpu.reason
    assert "not time" in judge(size, None, "nf4", cpu(64)).reason


def test_what_is_too_large_for_the_card_may_run_on_the_processor() -> None:
    entry = catalog.find("qwen3-1.7b")
    found = fit_entry(entry, gpu(0.5, ram_gb=32))
    assert found is not None
    assert (found.verdict, found.device) == ("slow", "cpu")
    assert "processor" in found.reason


def test_a_longer_context_and_a_larger_tree_take_more() -> None:
    size = catalog.find("llama-3.1-8b").size
    assert size is not None
    short, long = (fit.estimate(size, None, "bfloat16", "cuda", n) for n in (1024, 65_536))
    assert long.cache_bytes - short.cache_bytes == 2 * 32 * 8 * 128 * 2 * (65_536 - 1024)
    assert fit.estimate(size, None, "bfloat16", "cuda").cache_bytes < long.cache_bytes


def test_no_precision_for_a_device_is_an_error() -> None:
    size = catalog.default_entry().size
    assert size is not None
    with pytest.raises(ConfigError, match="bfloat16"):
        best_fit(size, None, Machine("mps", 64 * GB, 64 * GB), ("int8",))


# --- proposals


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        (gpu(7.6), "qwen3-4b"),
        (gpu(22), "qwen3-14b"),
        (gpu(79), "qwen3-32b"),
        (cpu(1.5), "smollm2-135m"),
        (cpu(16), "qwen3-4b"),
        (gpu(0.1, ram_gb=0.1), "smollm2-135m"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.device}-{value.free_bytes}",
)
def test_proposals(machine: Machine, name: str) -> None:
    entry = recommend(machine)
    assert entry.name == name
    assert not entry.is_gated


def test_gated_and_unmarked_pairs_are_never_proposed() -> None:
    everything = gpu(1000, ram_gb=1000)
    entries = [dataclasses.replace(e, is_gated=True) for e in catalog.packaged()]
    assert recommend(everything, entries) == catalog.default_entry()
    entries = [dataclasses.replace(e, is_recommended=False) for e in catalog.packaged()]
    assert recommend(everything, entries) == catalog.default_entry()


# --- the machine


def test_this_machine_has_free_memory() -> None:
    found = machine.this_machine("cpu")
    assert found.device == "cpu"
    assert 0 < found.free_bytes == found.free_ram_bytes


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (
            {"memory.max": "5000\n", "memory.current": "2000", "memory.stat": "inactive_file 500"},
            3500,
        ),
        ({"memory.max": "max\n", "memory.current": "2000", "memory.stat": "inactive_file 0"}, None),
        ({"memory.max": "5000"}, None),
        ({"memory.max": "10", "memory.current": "20", "memory.stat": "inactive_file 0"}, 0),
    ],
)
def test_a_containers_limit_counts(tmp_path: Path, files: dict[str, str], free: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    found = machine.free_ram_bytes(tmp_path)
    assert found == free if free is not None else found > 1_000_000


def test_layers_above_agree_on_the_numbers() -> None:
    """What fit repeats, because it may not import it."""
    from eagle_core import engine, loading, session

    assert fit.TREE_ROOM == session.TREE_ROOM
    assert fit.CHUNK_ROWS == engine.PREFILL_CHUNK
    assert fit.DEFAULT_CONTEXT == loading.LONGEST_DEFAULT_CONTEXT
    assert sizes.UNKNOWN_CONTEXT == loading.LONGEST_DEFAULT_CONTEXT
