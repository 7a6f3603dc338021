"""What precision is chosen: that of ``models fit``, and what each choice says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core import catalog, placement
from eagle_core.config import LoadConfig
from eagle_core.errors import ConfigError, ModelError
from eagle_core.fit import Fit, Machine, best_fit
from eagle_core.overview import load_config
from eagle_core.placement import make_plan
from eagle_core.precision import (
    CHOSEN,
    INT8_SAME,
    INT8_SPEEDUP,
    MEANINGS,
    PRECISIONS,
    SLOW_ON_CPU,
    WORKING,
    Precision,
    PrecisionName,
    inexact_reason,
    meaning,
    notes,
    spelled,
)

GB = 10**9
EIGHT = catalog.find("qwen3-8b")  # 8.2 billion weights, 1.2 of them outside of linear layers
NF4 = Precision("bfloat16", "nf4")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def fit_of(machine: Machine, precisions: Sequence[PrecisionName]) -> Fit:
    assert EIGHT.size is not None
    return best_fit(EIGHT.size, None, machine, precisions)


def cpu(free_gb: float, *lacks: PrecisionName, has_kernels: bool = True) -> Machine:
    free = round(free_gb * GB)
    return Machine("cpu", free, free, lacks=lacks, has_kernels=has_kernels)


def gpu(free_gb: float, ram_gb: float = 0, all_gb: float = 0, *lacks: PrecisionName) -> Machine:
    sizes = [round(gb * GB) for gb in (free_gb, ram_gb, all_gb)]
    return Machine("cuda", sizes[0], sizes[1], "card", sizes[2], lacks)


def plan_for(
    monkeypatch: Any, machine: Machine, has_library: bool = True, **settings: Any
) -> placement.LoadPlan:
    monkeypatch.setattr(placement, "has_kernels", lambda: machine.has_kernels)
    monkeypatch.setattr(placement, "has_bitsandbytes", lambda: has_library)
    monkeypatch.setattr(placement, "require_bitsandbytes", lambda name, device: None)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda **_: "bfloat16" not in machine.lacks
    )
    config = LoadConfig(base="x", **settings)
    return make_plan(config, torch.device(machine.device), machine, fit_of, {})


MACHINES = [
    (cpu(64), "float32", "none"),
    (cpu(19.5), "bfloat16", "none"),
    (cpu(17), "float32", "int8"),
    (cpu(17, "int8"), "bfloat16", "nf4"),
    (cpu(9), "bfloat16", "nf4"),
    (cpu(64, has_kernels=False), "bfloat16", "none"),  # float32 would read twice as much
    (gpu(24), "bfloat16", "none"),
    (gpu(16), "bfloat16", "nf4"),
    (gpu(48, 0, 0, "bfloat16"), "float32", "none"),
    (gpu(16, 0, 0, "bfloat16"), "float16", "nf4"),
]


@pytest.mark.parametrize(("machine", "dtype", "quantization"), MACHINES)
def test_auto_takes_the_most_exact_that_fits(
    monkeypatch: Any, machine: Machine, dtype: str, quantization: str
) -> None:
    plan = plan_for(monkeypatch, machine)
    assert (plan.dtype, plan.quantization) == (getattr(torch, dtype), quantization)
    assert not plan.is_split


@pytest.mark.parametrize("machine", [machine for machine, *_ in MACHINES])
def test_loading_takes_what_fit_has_promised(monkeypatch: Any, machine: Machine) -> None:
    """By itself, and when the app loads the precision that it shows."""
    promised = fit_of(machine, PRECISIONS)
    assert promised.verdict != "too-large"
    plan = plan_for(monkeypatch, machine)
    half = "float16" if "bfloat16" in machine.lacks else "bfloat16"
    meant = spelled(promised.precision, machine.device, half)
    assert Precision(placement.dtype_name(plan.dtype), plan.quantization) == meant
    shown = load_config("x", None, promised.precision, machine, promised)
    again = plan_for(monkeypatch, machine, dtype=shown.dtype, quantization=shown.quantization)
    assert (again.dtype, again.quantization) == (plan.dtype, plan.quantization)


def test_more_memory_never_gives_less() -> None:
    for one, machines in ((CHOSEN["cpu"], cpu), (CHOSEN["cuda"], gpu)):
        taken = [one.index(fit_of(machines(n), PRECISIONS).precision) for n in range(8, 70)]
        assert taken == sorted(taken, reverse=True)


def test_what_is_chosen_works_and_is_ordered() -> None:
    for kind, chosen in CHOSEN.items():
        working = WORKING[kind]
        assert list(chosen) == [one for one in working if one in chosen]
        sizes = [spelled(one, kind).linear_bytes for one in working]
        assert sizes == sorted(sizes, reverse=True)


def test_a_reason_names_both_sizes(monkeypatch: Any) -> None:
    note = plan_for(monkeypatch, cpu(9)).note
    assert note.startswith("in float32 the model takes about 20.")
    assert "of which 9.0 GB are free: taking nf4 (bfloat16); " in note
    assert SLOW_ON_CPU in note
    assert plan_for(monkeypatch, cpu(64)).note == ""


def test_four_bits_on_a_cpu_say_that_they_save_no_time() -> None:
    assert notes(NF4, "cpu") == (SLOW_ON_CPU,)
    assert "not time" in SLOW_ON_CPU
    assert notes(NF4, "cuda") == notes(Precision("bfloat16"), "cpu") == ()
    assert len(notes(Precision("bfloat16", "int8-bnb"), "cpu")) == 1


def test_every_precision_says_what_it_means_and_figures_are_those_of_the_docs() -> None:
    for kind, working in WORKING.items():
        assert set(MEANINGS[kind]) == set(working)
        assert all(meaning(one, kind) for one in working)
        if kind != "cpu":  # speeds were not measured elsewhere
            assert "fast" not in " ".join(MEANINGS[kind].values())
    assert meaning("int8", "cpu", is_measured=True).endswith("97.5% of the time")
    assert "%" not in meaning("int8", "cpu") + meaning("int8", "cuda", is_measured=True)
    docs = (Path(__file__).parents[2] / "docs" / "precision.md").read_text(encoding="utf-8")
    assert f"{INT8_SPEEDUP} times as fast as in float32" in docs
    assert f"at {100 * INT8_SAME} % the same likeliest token" in docs


def test_only_outlier_columns_are_inexact() -> None:
    kinds = ("none", "nf4", "fp4", "int8-bnb", "llm-int8")
    assert [bool(inexact_reason(kind)) for kind in kinds] == [False] * 4 + [True]


def test_auto_leaves_a_chosen_dtype_alone(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, cpu(9), dtype="bfloat16", device="cpu")
    assert (plan.dtype, plan.quantization) == (torch.bfloat16, "none")
    assert "of which 9.0 GB are free" in plan.note
    plan = plan_for(monkeypatch, cpu(9), quantization="none", device="cpu")
    assert (plan.dtype, plan.quantization) == (torch.float32, "none")


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"dtype": "bfloat16"}, "bfloat16"), ({"device": "split"}, "CPU"), ({}, "no kernels")],
)
def test_int8_says_where_it_does_not_work(monkeypatch: Any, settings: Any, why: str) -> None:
    assert plan_for(monkeypatch, cpu(16), quantization="int8").quantization == "int8"
    with pytest.raises(ConfigError) as caught:
        plan_for(monkeypatch, cpu(16, has_kernels=False), quantization="int8", **settings)
    assert why in f"{caught.value.expected} {caught.value.got}"
    assert caught.value.hint


def test_without_bitsandbytes_auto_does_without(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, cpu(9, "int8"), has_library=False, device="cpu")
    assert (plan.dtype, plan.quantization) == (torch.bfloat16, "none")
    assert "of which 9.0 GB are free" in plan.note


def test_what_only_main_memory_holds_is_loaded_there(monkeypatch: Any) -> None:
    plan = plan_for(monkeypatch, gpu(4, ram_gb=64))
    assert (plan.device, plan.dtype, plan.is_split) == (CPU, torch.float32, False)
    assert "processor" in plan.note
    stays = plan_for(monkeypatch, gpu(4, ram_gb=64), device="cuda")
    assert (stays.device, stays.quantization) == (CUDA, "nf4")
    assert "4.0 GB are free" in stays.note


@pytest.mark.parametrize(
    ("machine", "dtype", "quantization"),
    [
        (gpu(4, 64, 24), torch.bfloat16, "none"),  # before main memory alone
        (gpu(4, 6, 11), torch.bfloat16, "nf4"),
        (
            gpu(4, 6, 5),
            torch.bfloat16,
            "none",
        ),  # partly on disk, where no quantized weights can lie
        (cpu(4), torch.bfloat16, "none"),
    ],
)
def test_what_fits_no_device_is_spread_out_if_the_place_was_left_open(
    monkeypatch: Any, machine: Machine, dtype: torch.dtype, quantization: str
) -> None:
    plan = plan_for(monkeypatch, machine)
    assert (plan.is_split, plan.is_whole) == (True, False)
    assert (plan.dtype, plan.quantization) == (dtype, quantization)
    assert plan.note.endswith(
        "of which 4.0 GB are free: it is spread over all devices, memory and disk"
    )
    assert not plan_for(monkeypatch, machine, device=machine.device).is_split
    asked = plan_for(monkeypatch, machine, device="split")
    assert (asked.is_split, asked.quantization, asked.note) == (True, quantization, "")


@pytest.mark.parametrize(("name", "dtype"), [("auto", torch.bfloat16), ("float32", torch.float32)])
def test_asked_for_four_bits_compute_in_16_unless_asked_otherwise(
    monkeypatch: Any, name: Any, dtype: torch.dtype
) -> None:
    plan = plan_for(monkeypatch, cpu(100), quantization="nf4", dtype=name)
    assert (plan.dtype, plan.quantization, plan.is_whole) == (dtype, "nf4", False)
    assert plan.note == SLOW_ON_CPU


def test_weights_that_are_quantized_already() -> None:
    gptq = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    plan = make_plan(LoadConfig(base="x"), CPU, cpu(64), fit_of, gptq)
    assert (plan.own, plan.quantization, plan.is_whole) == ("gptq", "none", False)
    with pytest.raises(ConfigError, match="quantized already"):
        make_plan(LoadConfig(base="x", quantization="nf4"), CPU, cpu(64), fit_of, gptq)
    eight = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert make_plan(LoadConfig(base="x"), CPU, cpu(64), fit_of, eight).own == "llm-int8"


def test_bitsandbytes_missing_or_without_kernels(monkeypatch: Any) -> None:
    from eagle_core import quantization

    config = LoadConfig(base="x", quantization="nf4")
    with pytest.raises(ModelError, match="no kernels for mps"):
        make_plan(config, torch.device("mps"), Machine("mps", 64 * GB, 64 * GB), fit_of, {})
    monkeypatch.setattr(quantization, "has_bitsandbytes", lambda: False)
    with pytest.raises(ModelError, match="pip install bitsandbytes"):
        make_plan(config, CPU, cpu(64), fit_of, {})


def test_a_macs_gpu_takes_16_bits() -> None:
    machine = Machine("mps", 64 * GB, 64 * GB)
    plan = make_plan(LoadConfig(base="x"), torch.device("mps"), machine, fit_of, {})
    assert (plan.device.type, plan.dtype, plan.quantization) == ("mps", torch.bfloat16, "none")
