"""Which precision a base model is loaded in: pure functions of memory, sizes and wishes.

Candidates are tried from the most to the least exact, and the first that fits is taken. Knows no torch, no
library that quantizes, and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

DTypeName = Literal["float32", "bfloat16", "float16"]
QuantizationName = Literal["none", "int8", "nf4", "fp4", "int8-bnb", "llm-int8"]

# Bytes per weight of a quantized layer. 4 bits, plus a scale of 8 bits for 64 weights, plus one of 32 bits
# for 256 scales; 8 bits, plus one scale per output; int8: 8 bits, plus one scale of 32 bits for 64 weights.
QUANTIZED_BYTES: Final = {
    "int8": 1.0625,
    "nf4": 0.517,
    "fp4": 0.517,
    "int8-bnb": 1.01,
    "llm-int8": 1.01,
}
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
# What a model takes beside its weights: caches of a chat, activations, libraries.
OVERHEAD_SHARE, RESERVE_BYTES = 0.10, 500_000_000

SLOW_ON_CPU = (
    "4-bit weights save memory on a CPU, not time: a step takes longer than with 16 or 32 bits"
)
SLOW_INT8_ON_CPU = "bitsandbytes' 8-bit weights save memory on a CPU, not time: a step takes longer"
OUTLIERS_REASON = (
    "LLM.int8 picks its outlier columns over all rows of a forward, so that a draft changes the rows "
    "beside it: answers with and without drafting may differ"
)


@dataclass(frozen=True, slots=True)
class WeightCount:
    """Weights of a model; ``n_kept`` of them (embeddings, LM head, norms) bitsandbytes never quantizes.

    ``is_half``: in float32 they are kept in half of it, as they are stored; all but ``n_kept``.
    """

    n_weights: int
    n_kept: int
    is_half: bool = False


@dataclass(frozen=True, slots=True)
class Precision:
    """``dtype`` is that of activations and of weights that are not quantized."""

    dtype: DTypeName
    quantization: QuantizationName = "none"


INT8 = Precision("float32", "int8")  # activations stay in float32


@dataclass(frozen=True, slots=True)
class Choice:
    """A precision, whether it fits one device, and why it is another than the best: "" if it is not."""

    precision: Precision
    fits: bool
    reason: str = ""


def weight_bytes(count: WeightCount, precision: Precision) -> int:
    """Bytes of the weights alone."""
    width = DTYPE_BYTES[precision.dtype]
    if (
        precision == INT8
    ):  # the LM head as well; the embedding, which may be the same, stays as it is
        return round(count.n_weights * QUANTIZED_BYTES["int8"] + count.n_kept * width)
    if precision.quantization == "none" and precision.dtype == "float32" and count.is_half:
        return count.n_weights * 2 + count.n_kept * width
    if precision.quantization == "none":
        return count.n_weights * width
    quantized = (count.n_weights - count.n_kept) * QUANTIZED_BYTES[precision.quantization]
    return round(count.n_kept * width + quantized)


def needed_bytes(count: WeightCount, precision: Precision) -> int:
    """Bytes that a model takes when it runs, all in all."""
    return round(weight_bytes(count, precision) * (1 + OVERHEAD_SHARE)) + RESERVE_BYTES


def candidates(
    device_type: str, dtype: DTypeName, *, has_bitsandbytes: bool, has_int8: bool = False
) -> tuple[Precision, ...]:
    """What ``auto`` may choose, from the most to the least exact.

    bitsandbytes' 8 bits are never chosen: without outlier columns large models lose more with them than with
    NF4, and with them a draft changes the rows beside it. ``has_int8``: this engine's own 8 bits work here.
    """
    found = [Precision(dtype)]
    if dtype == "float32" and device_type == "cpu":
        found.append(Precision("bfloat16"))
        if has_int8:
            found.append(INT8)
    if has_bitsandbytes and device_type != "mps":
        small: DTypeName = "bfloat16" if device_type == "cpu" else dtype
        found.append(Precision(small, "nf4"))
    return tuple(found)


def choose(count: WeightCount, free_bytes: int, among: Sequence[Precision]) -> Choice:
    """The first candidate that fits into ``free_bytes``, else the last."""
    too_much = too_large(count, free_bytes, among)
    for precision in among:
        if needed_bytes(count, precision) <= free_bytes:
            reason = "" if precision == among[0] else _taking(too_much, precision, among)
            return Choice(precision, True, reason)
    return Choice(among[-1], False, _taking(too_much, among[-1], among))


def too_large(count: WeightCount, free_bytes: int, among: Sequence[Precision]) -> str:
    """Says that the best does not fit."""
    needed = needed_bytes(count, among[0])
    return (
        f"in {among[0].dtype} the model takes about {needed / 1e9:.1f} GB, of which "
        f"{max(free_bytes, 0) / 1e9:.1f} GB are free"
    )


def _taking(too_much: str, taken: Precision, among: Sequence[Precision]) -> str:
    if taken != among[0]:
        return f"{too_much}: taking {describe(taken)}"
    return too_much


def describe(precision: Precision) -> str:
    """A precision in words, for example "nf4 (bfloat16)"."""
    if precision.quantization == "none":
        return precision.dtype
    return f"{precision.quantization} ({precision.dtype})"


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


__all__ = [
    "INT8",
    "OUTLIERS_REASON",
    "QUANTIZED_BYTES",
    "SLOW_INT8_ON_CPU",
    "SLOW_ON_CPU",
    "Choice",
    "DTypeName",
    "Precision",
    "QuantizationName",
    "WeightCount",
    "candidates",
    "choose",
    "describe",
    "inexact_reason",
    "needed_bytes",
    "notes",
    "too_large",
    "weight_bytes",
]
