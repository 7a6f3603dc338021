"""What a base is loaded as: on which device, in which precision, in one piece or spread out.

Decides by what is asked for, by the checkpoint's description and by what ``fit`` finds; opens no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eagle_core import precision
from eagle_core.config import DType, LoadConfig
from eagle_core.devices import SPLIT, resolve_device
from eagle_core.fit import Fit, Machine, order
from eagle_core.kernels.ops import has_kernels
from eagle_core.precision import PRECISIONS, DTypeName, Precision, PrecisionName, QuantizationName
from eagle_core.quantization import has_bitsandbytes, own_method, refuse_twice, require_bitsandbytes


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What a base is loaded as. ``own`` is how its weights are quantized already, or None."""

    device: torch.device
    dtype: torch.dtype
    quantization: QuantizationName
    own: str | None = None
    is_split: bool = False
    note: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the model goes through memory as it is, and then to its device."""
        return not self.by_bitsandbytes and self.own is None and not self.is_split

    @property
    def device_map(self) -> str | dict[str, torch.device] | None:
        """What transformers is told about places; None for a model that is moved as a whole."""
        if self.is_split:
            return "auto"
        return None if self.is_whole else {"": self.device}

    @property
    def by_bitsandbytes(self) -> bool:
        """Whether bitsandbytes quantizes the weights as they are loaded."""
        return self.quantization not in ("none", "int8")


# How a pair fits a machine in the best of some precisions: ``fit.best_fit`` of the pair.
FitOf = Callable[[Machine, Sequence[PrecisionName]], Fit]


def make_plan(
    config: LoadConfig,
    device: torch.device,
    machine: Machine,
    fit_of: FitOf,
    description: Mapping[str, Any],
) -> LoadPlan:
    """Decide on precision and place: what is asked for, else what fits, as ``models fit`` says it.

    Args: machine: what is free on ``device`` and beside it.
    Raises: ConfigError for weights that are quantized already; ModelError where bitsandbytes does not work.
    """
    own, is_split = own_method(description), config.device == SPLIT
    refuse_twice(config.quantization, own)
    if own in precision.QUANTIZED_BYTES:
        require_bitsandbytes(f"a model in {own}", device.type)
    if own is not None:
        return LoadPlan(device, quantized_dtype(config.dtype, device), "none", own, is_split)
    if config.quantization == "int8":
        require_int8(config, device)
        return LoadPlan(device, torch.float32, "int8")
    if config.quantization != "auto" and config.quantization != "none":
        require_bitsandbytes(config.quantization, device.type)
        dtype = quantized_dtype(config.dtype, device)
        wanted = Precision(dtype_name(dtype), config.quantization)
        note = "; ".join(precision.notes(wanted, device.type))
        return LoadPlan(device, dtype, config.quantization, None, is_split, note)
    among = _among(config, device)
    if is_split:
        return _spread(device, machine, fit_of, among, "")
    is_open = config.device == "auto"
    fit = _working(fit_of, machine if is_open else machine.alone(), among)
    if is_open and (fit.verdict == "too-large" or fit.device == SPLIT):
        too_much = _too_much(fit_of(machine.alone(), order(machine, among)[:1]))
        return _spread(device, machine, fit_of, among, too_much)
    if fit.device == "cpu" != device.type:  # only main memory holds it
        return _plan(torch.device("cpu"), fit, fit.reason)
    finest = fit_of(machine.alone(), order(machine, among)[:1])
    why = _too_much(finest) if fit.verdict == "too-large" else ""
    if fit.precision != finest.precision:
        why = f"{_too_much(finest)}: taking {precision.describe(_meant(fit.precision, device))}"
    return _plan(device, fit, why)


def _among(config: LoadConfig, device: torch.device) -> tuple[PrecisionName, ...]:
    """The precisions that may be taken: with a dtype or a "none" of one's own, one."""
    if config.dtype == config.quantization == "auto":
        return PRECISIONS
    name = dtype_name(resolve_dtype(config.dtype, device))
    assert name != "float16"
    return (name,)


def _working(fit_of: FitOf, machine: Machine, among: tuple[PrecisionName, ...]) -> Fit:
    """The best fit; whether bitsandbytes works is only found out, slowly, when nothing else fits."""
    fit = fit_of(machine, among)
    if fit.precision != "nf4" or has_bitsandbytes():
        return fit
    return fit_of(machine, tuple(one for one in among if one != "nf4"))


def _spread(
    device: torch.device,
    machine: Machine,
    fit_of: FitOf,
    among: tuple[PrecisionName, ...],
    why: str,
) -> LoadPlan:
    """Over several devices in what fits there; beyond their memory only unquantized weights may lie."""
    fit = _working(fit_of, machine.together(), among)
    if fit.verdict == "too-large" or fit.precision == "int8":
        plain = [one for one in order(machine, among) if one in precision.DTYPE_BYTES]
        fit = fit_of(machine.together(), plain[-1:])
    note = f"{why}: it is spread over all devices, memory and disk" if why else ""
    taken = _meant(fit.precision, device)
    return LoadPlan(device, _dtype(taken), taken.quantization, None, True, note)


def _too_much(fit: Fit) -> str:
    """Says that a precision does not fit, or not well."""
    return (
        f"in {fit.precision} the model takes about {fit.estimate.needed_bytes / 1e9:.1f} GB, of which "
        f"{max(fit.free_bytes, 0) / 1e9:.1f} GB are free"
    )


def _plan(device: torch.device, fit: Fit, why: str) -> LoadPlan:
    taken = _meant(fit.precision, device)
    note = "; ".join(filter(None, (why, *precision.notes(taken, device.type))))
    return LoadPlan(device, _dtype(taken), taken.quantization, note=note)


def _meant(name: PrecisionName, device: torch.device) -> Precision:
    kind: Any = device.type
    return precision.spelled(name, kind, dtype_name(quantized_dtype("auto", device)))


def require_int8(config: LoadConfig, device: torch.device) -> None:
    """Raises: ConfigError where 8 bits by this engine's kernels are not to be had."""
    kind = SPLIT if config.device == SPLIT else device.type
    precision.check_asked(config.quantization, config.dtype, kind)
    if not has_kernels():
        raise precision.no_int8(
            "there are no kernels", "install g++, or use --quantization int8-bnb"
        )


def _dtype(taken: Precision) -> torch.dtype:
    found: torch.dtype = getattr(torch, taken.dtype)
    return found


def stored_in(description: Mapping[str, Any]) -> str | None:
    """The dtype of a checkpoint's weights, as its config.json says; None: it does not."""
    found = description.get("dtype", description.get("torch_dtype"))
    return str(found) if found is not None else None


def quantized_dtype(name: DType, device: torch.device) -> torch.dtype:
    """The dtype beside quantized weights: 16 bits, as their kernels expect, unless asked otherwise."""
    if name != "auto":
        return resolve_dtype(name, device)
    if device.type == "cuda" and resolve_dtype("auto", device) != torch.bfloat16:
        return torch.float16
    return torch.bfloat16


def dtype_name(dtype: torch.dtype) -> DTypeName:
    """ "float32", "bfloat16" or "float16"."""
    names: dict[torch.dtype, DTypeName] = {
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
        torch.float32: "float32",
    }
    return names[dtype]


def resolve_dtype(name: DType, device: torch.device) -> torch.dtype:
    """The dtype called ``name``.

    "auto" is float32 on a CPU: there answers are the same with and without drafting, to the token, and
    without matrix units bfloat16 is slower, too. On other devices it is bfloat16 where they compute in it.
    """
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    has_bfloat16 = device.type == "mps" or (
        device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    )
    return torch.bfloat16 if has_bfloat16 else torch.float32


__all__ = [
    "SPLIT",
    "LoadPlan",
    "make_plan",
    "quantized_dtype",
    "resolve_device",
    "resolve_dtype",
    "stored_in",
]
