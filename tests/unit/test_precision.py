"""What precision is chosen: a table of memory and sizes, and what each choice says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_core import placement
from eagle_core.config import LoadConfig
from eagle_core.errors import ConfigError, ModelError
from eagle_core.placement import make_plan
from eagle_core.precision import (
    SLOW_ON_CPU,
    Precision,
    WeightCount,
    candidates,
    choose,
    inexact_reason,
    needed_bytes,
    notes,
    weight_bytes,
)

GB = 10**9
SMALL = WeightCount(135_000_000, 28_000_000)
EIGHT = WeightCount(8_000_000_000, 1_050_000_000)
SEVENTY = WeightCount(70_600_000_000, 2_100_000_000)
FLOAT32, BFLOAT16 = Precision("float32"), Precision("bfloat16")
NF4, HALF_NF4 = Precision("bfloat16", "nf4"), Precision("float16", "nf4")
CPU = candidates("cpu", "float32", has_bitsandbytes=True)
CPU_ALONE = candidates("cpu", "float32", has_bitsandbytes=False)
CUDA = candidates("cuda", "bfloat16", has_bitsandbytes=True)
MPS = candidates("mps", "bfloat16", has_bitsandbytes=True)


@pytest.mark.parametrize(
    ("free_gb", "count", "among", "precision", "fits"),
    [
        (4, SMALL, CPU, FLOAT32, True),
        (1, SMALL, CPU, BFLOAT16, True),
        (0.7, SMALL, CPU, NF4, True),
        (0.2, SMALL, CPU, NF4, False),
        (0.7, SMALL, CPU_ALONE, BFLOAT16, False),
        (48, EIGHT, CPU, FLOAT32, True),
        (32, EIGHT, CPU, BFLOAT16, True),
        (16, EIGHT, CPU, NF4, True),
        (24, EIGHT, CUDA, BFLOAT16, True),
        (8, EIGHT, CUDA, NF4, True),
        (4, EIGHT, CUDA, NF4, False),
        (80, SEVENTY, CUDA, NF4, True),
        (160, SEVENTY, CUDA, BFLOAT16, True),
        (24, SEVENTY, CUDA, NF4, False),
        (16, EIGHT, MPS, BFLOAT16, False),
        (-1, EIGHT, CUDA, NF4, False),
    ],
)
def test_the_most_exact_that_fits(free_gb, count, among, precision, fits) -> None:
    choice = choose(count, int(free_gb * GB), among)
    assert (choice.precision, choice.fits) == (precision, fits)
    assert bool(choice.reason) == (not fits or precision != among[0])


def test_a_reason_names_both_sizes() -> None:
    choice = choose(EIGHT, 16 * GB, CPU)
    assert choice.reason == (
        "in float32 the model takes about 35.7 GB, of which 16.0 GB are free: taking nf4 (bfloat16)"
    )


def test_more_memory_never_gives_less() -> None:
    for among in (CPU, CUDA, MPS):
        taken = [among.index(choose(EIGHT, n * GB, among).precision) for n in range(1, 60)]
        assert taken == sorted(taken, reverse=True)


def test_weights_that_stay_are_counted_in_16_bits() -> None:
    count = WeightCount(1_000_000, 250_000)
    assert weight_bytes(count, FLOAT32) == 4_000_000
    assert weight_bytes(count, NF4) == 500_000 + round(750_000 * 0.517)
    assert needed_bytes(count, NF4) > weight_bytes(count, NF4)


def test_four_bits_on_a_cpu_say_that_they_save_no_time() -> None:
    assert notes(NF4, "cpu") == (SLOW_ON_CPU,)
    assert "not time" in SLOW_ON_CPU
    assert notes(NF4, "cuda") == notes(BFLOAT16, "cpu") == ()
    assert len(notes(Precision("bfloat16", "int8-bnb"), "cpu")) == 1


def test_only_outlier_columns_are_inexact() -> None:
    kinds = ("none", "nf4", "fp4", "int8-bnb", "llm-int8")
    assert [bool(inexact_reason(kind)) for kind in kinds] == [False] * 4 + [True]


def plan_for(
    monkeypatch: Any,
    free_gb: float,
    all_gb: float = 0,
    has_library: bool = True,
    has_int8: bool = False,
    stored: str = "float32",
    **settings: Any,
) -> placement.LoadPlan:
    monkeypatch.setattr(placement, "free_bytes", lambda device: int(free_gb * GB))
    monkeypatch.setattr(placement, "all_free_bytes", lambda device: int(all_gb * GB))
    monkeypatch.setattr(placement, "has_fast_int8", lambda: has_int8)
    monkeypatch.setattr(placement, "has_kernels", lambda: True)
    monkeypatch.setattr(placement, "has_bitsandbytes", lambda: has_library)
    monkeypatch.setattr(placement, "require_bitsandbytes", lambda name, device: None)
    config = LoadConfig(base="x", **{"device": "cpu"} | settings)
    return make_plan(config, torch.device("cpu"), EIGHT, {"dtype": stored})


def test_auto_leaves_a_chosen_dtype_alone(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, 16, dtype="bfloat16")
    assert (plan.dtype, plan.quantization) == (torch.bfloat16, "none")
    assert "18.1 GB" in plan.note
    plan = plan_for(monkeypatch, 16)
    assert (plan.dtype, plan.quantization) == (torch.bfloat16, "nf4")
    assert SLOW_ON_CPU in plan.note
    plan = plan_for(monkeypatch, 16, quantization="none")
    assert (plan.dtype, plan.quantization) == (torch.float32, "none")


def test_a_fast_8_bits_comes_before_4(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, 16, has_int8=True)
    assert (plan.dtype, plan.quantization) == (torch.float32, "int8")
    assert plan.is_whole
    assert "taking int8 (float32)" in plan.note
    plan = plan_for(monkeypatch, 12, has_int8=True)
    assert plan.quantization == "nf4"


def test_float32_of_a_half_precision_file_takes_half(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, 24, stored="bfloat16")
    assert (plan.dtype, plan.quantization, plan.note) == (torch.float32, "none", "")
    assert plan_for(monkeypatch, 24, stored="float16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"dtype": "bfloat16"}, "bfloat16"), ({"device": "split"}, "CPU"), ({}, "no kernels")],
)
def test_int8_says_where_it_does_not_work(monkeypatch: Any, settings: Any, why: str) -> None:
    assert plan_for(monkeypatch, 16, quantization="int8").quantization == "int8"
    plan_for(monkeypatch, 16)
    monkeypatch.setattr(placement, "has_kernels", lambda: False)
    config = LoadConfig(base="x", **{"device": "cpu", "quantization": "int8"} | settings)
    with pytest.raises(ConfigError) as caught:
        make_plan(config, torch.device("cpu"), EIGHT, {})
    assert why in f"{caught.value.expected} {caught.value.got}"
    assert caught.value.hint


def test_without_bitsandbytes_auto_does_without(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, 16, has_library=False)
    assert (plan.dtype, plan.quantization) == (torch.bfloat16, "none")
    assert "of which 16.0 GB are free: taking bfloat16" in plan.note


@pytest.mark.parametrize(
    ("all_gb", "dtype", "quantization"),
    [
        (48, torch.float32, "none"),
        (24, torch.bfloat16, "none"),
        (8, torch.bfloat16, "nf4"),
        (4, torch.bfloat16, "none"),  # partly on disk, where quantized weights cannot lie
    ],
)
def test_what_fits_no_device_is_spread_out_if_the_place_was_left_open(
    monkeypatch: Any, all_gb: float, dtype: torch.dtype, quantization: str
) -> None:
    plan = plan_for(monkeypatch, 1, all_gb, device="auto")
    assert (plan.is_split, plan.is_whole) == (True, False)
    assert (plan.dtype, plan.quantization) == (dtype, quantization)
    assert plan.note == (
        "in float32 the model takes about 35.7 GB, of which 1.0 GB are free: it is spread over all "
        "devices, memory and disk"
    )
    assert not plan_for(monkeypatch, 1, device="cpu").is_split
    asked = plan_for(monkeypatch, 1, all_gb, device="split")
    assert (asked.is_split, asked.quantization, asked.note) == (True, quantization, "")


@pytest.mark.parametrize(("name", "dtype"), [("auto", torch.bfloat16), ("float32", torch.float32)])
def test_asked_for_four_bits_compute_in_16_unless_asked_otherwise(
    monkeypatch: Any, name: Any, dtype: torch.dtype
) -> None:
    plan = plan_for(monkeypatch, 100, quantization="nf4", dtype=name)
    assert (plan.dtype, plan.quantization, plan.is_whole) == (dtype, "nf4", False)
    assert plan.note == SLOW_ON_CPU


def test_weights_that_are_quantized_already() -> None:
    cpu = torch.device("cpu")
    gptq = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    plan = make_plan(LoadConfig(base="x"), cpu, EIGHT, gptq)
    assert (plan.own, plan.quantization, plan.is_whole) == ("gptq", "none", False)
    with pytest.raises(ConfigError, match="quantized already"):
        make_plan(LoadConfig(base="x", quantization="nf4"), cpu, EIGHT, gptq)
    eight = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert make_plan(LoadConfig(base="x"), cpu, EIGHT, eight).own == "llm-int8"


def test_bitsandbytes_missing_or_without_kernels(monkeypatch: Any) -> None:
    from eagle_core import quantization

    config = LoadConfig(base="x", quantization="nf4")
    with pytest.raises(ModelError, match="no kernels for mps"):
        make_plan(config, torch.device("mps"), EIGHT, {})
    monkeypatch.setattr(quantization, "has_bitsandbytes", lambda: False)
    with pytest.raises(ModelError, match="pip install bitsandbytes"):
        make_plan(config, torch.device("cpu"), EIGHT, {})
