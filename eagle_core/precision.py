"""Precisions: what they are called, how many bytes a weight takes in each, what one should know about them.

The one table of bytes: ``fit`` judges by it what a model takes, and loading takes what ``fit`` finds. Knows
no torch, no library that quantizes, and no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from eagle_core.errors import ConfigError, ModelError

DTypeName = Literal["float32", "bfloat16", "float16"]
QuantizationName = Literal["none", "int8", "nf4", "fp4", "int8-bnb", "llm-int8"]
# As people choose; what each means to the loader on a kind of device, ``spelled`` says.
PrecisionName = Literal["float32", "bfloat16", "int8", "nf4"]
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
DeviceKind = Literal["cpu", "cuda", "mps"]

# Bytes per weight of a quantized layer. 4 bits, plus a scale of 8 bits for 64 weights, plus one of 32 bits
# for 256 scales; 8 bits, plus one scale per output; int8: 8 bits, plus one scale of 32 bits for 64 weights.
QUANTIZED_BYTES: Final = {
    "int8": 1.0625,
    "nf4": 0.517,
    "fp4": 0.517,
    "int8-bnb": 1.01,
    "llm-int8": 1.01,
}
BY_BITSANDBYTES: Final = ("nf4", "fp4", "int8-bnb", "llm-int8")
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
# What can be loaded on each kind of device, the most exact first.
WORKING: Final[dict[DeviceKind, tuple[PrecisionName, ...]]] = {
    "cpu": PRECISIONS,
    "cuda": PRECISIONS,
    "mps": ("float32", "bfloat16"),
}
# Of these, what is taken unasked. Float32 comes first on a CPU: there answers are the same with and without
# drafting, to the token. bitsandbytes' 8 bits are never chosen: without outlier columns large models lose
# more with them than with NF4, and with them a draft changes the rows beside it.
CHOSEN: Final[dict[DeviceKind, tuple[PrecisionName, ...]]] = {
    "cpu": PRECISIONS,
    "cuda": ("bfloat16", "nf4"),
    "mps": ("bfloat16",),
}

# Measured on two AVX-512 cores with the default model, plain decoding (docs/precision.md, docs/LOG.md): how
# many times as fast 8 bits are as float32, and at what share of tokens the likeliest one is the same.
INT8_SPEEDUP: Final = 1.9
INT8_SAME: Final = 0.975
# What choosing a precision means, in a few words. Speeds are said where they were measured: on a CPU.
MEANINGS: Final[dict[DeviceKind, dict[PrecisionName, str]]] = {
    "cpu": {
        "float32": "exact weights",
        "bfloat16": "less memory, not faster",
        "int8": "fastest here, 8-bit weights",
        "nf4": "least memory, slower",
    },
    "cuda": {
        "float32": "32 bits, twice the memory of 16",
        "bfloat16": "16 bits, as most weights are published",
        "int8": "8 bits, loses more than nf4 in large models",
        "nf4": "4 bits, least memory",
    },
    "mps": {
        "float32": "32 bits, twice the memory of 16",
        "bfloat16": "16 bits, as most weights are published",
    },
}

SLOW_ON_CPU = (
    "4-bit weights save memory on a CPU, not time: a step takes longer than with 16 or 32 bits"
)
SLOW_INT8_ON_CPU = "bitsandbytes' 8-bit weights save memory on a CPU, not time: a step takes longer"
OUTLIERS_REASON = (
    "LLM.int8 picks its outlier columns over all rows of a forward, so that a draft changes the rows "
    "beside it: answers with and without drafting may differ"
)


@dataclass(frozen=True, slots=True)
class Precision:
    """``dtype`` is that of activations and of weights that are not quantized."""

    dtype: DTypeName
    quantization: QuantizationName = "none"

    @property
    def linear_bytes(self) -> float:
        """Of a weight of a linear layer."""
        if self.quantization == "none":
            return DTYPE_BYTES[self.dtype]
        return QUANTIZED_BYTES[self.quantization]

    @property
    def other_bytes(self) -> int:
        """Of any other value: embeddings, norms, activations, caches."""
        return DTYPE_BYTES[self.dtype]


INT8 = Precision("float32", "int8")  # activations stay in float32


def spelled(name: PrecisionName, device: DeviceKind, half: DTypeName = "bfloat16") -> Precision:
    """What a precision is to the loader. Args: half: the 16 bits that the device computes in."""
    if name == "int8":
        return INT8 if device == "cpu" else Precision(half, "int8-bnb")
    return Precision(half, "nf4") if name == "nf4" else Precision(name)


def describe(precision: Precision) -> str:
    """A precision in words, for example "nf4 (bfloat16)"."""
    if precision.quantization == "none":
        return precision.dtype
    return f"{precision.quantization} ({precision.dtype})"


def meaning(name: PrecisionName, device: DeviceKind, is_measured: bool = False) -> str:
    """What choosing a precision means, in a few words. Args: is_measured: for the default model."""
    said = MEANINGS[device].get(name, "")
    if name == "int8" and device == "cpu" and is_measured:
        said += f": same likeliest token {INT8_SAME:.1%} of the time"
    return said


def notes(precision: Precision, device_type: str) -> tuple[str, ...]:
    """What a user should know about a precision on a kind of device."""
    found = []
    if device_type == "cpu" and precision.quantization in ("nf4", "fp4"):
        found.append(SLOW_ON_CPU)
    if device_type == "cpu" and precision.quantization in ("int8-bnb", "llm-int8"):
        found.append(SLOW_INT8_ON_CPU)
    return tuple(found)


def inexact_reason(quantization: str) -> str:
    """Why answers with and without drafting may differ whatever the dtype; "" when they need not."""
    return OUTLIERS_REASON if quantization == "llm-int8" else ""


def check_asked(quantization: str, dtype: str, device: str) -> None:
    """Whether precision and device go together, as far as that is known before anything is looked at.

    Args: device: its kind, or "auto".
    Raises: ConfigError.
    """
    if quantization != "int8":
        return
    if device not in ("auto", "cpu"):
        raise no_int8(f"this is {device}", "use --device cpu, or --quantization int8-bnb")
    if dtype == "bfloat16":
        raise no_int8("--dtype bfloat16 was asked for", "leave --dtype out")


def no_int8(why: str, hint: str) -> ConfigError:
    """The error where 8 bits by this engine's kernels are not to be had."""
    return ConfigError(
        "int8 works on a CPU alone, with the compiled kernels and float32 activations",
        expected="a CPU, g++ and float32",
        got=why,
        hint=hint,
    )


def no_bitsandbytes(what: str) -> ModelError:
    """The error where bitsandbytes is missing, or does not work."""
    return ModelError(
        f"{what} needs bitsandbytes, which is not installed or does not work here",
        expected="the package bitsandbytes",
        hint="run `pip install bitsandbytes`, or use --quantization none",
    )


__all__ = [
    "BY_BITSANDBYTES",
    "CHOSEN",
    "DTYPE_BYTES",
    "INT8",
    "INT8_SAME",
    "INT8_SPEEDUP",
    "MEANINGS",
    "OUTLIERS_REASON",
    "PRECISIONS",
    "QUANTIZED_BYTES",
    "SLOW_INT8_ON_CPU",
    "SLOW_ON_CPU",
    "WORKING",
    "DTypeName",
    "DeviceKind",
    "Precision",
    "PrecisionName",
    "QuantizationName",
    "check_asked",
    "describe",
    "inexact_reason",
    "meaning",
    "no_bitsandbytes",
    "no_int8",
    "notes",
    "spelled",
]
