"""bitsandbytes at arm's length: whether it is there, what it is told, and what a checkpoint brings along.

Loads no model.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig

from eagle_core.errors import ConfigError, ModelError
from eagle_core.precision import QuantizationName, no_bitsandbytes

logger = logging.getLogger(__name__)

DEVICES = ("cpu", "cuda", "xpu", "hpu")  # where bitsandbytes has kernels
CHATTY_LOGGER = "bitsandbytes.autograd._functions"
OUTLIER_THRESHOLD = 6.0  # arXiv 2208.07339, section 3.2
# What must be installed for checkpoints that others have quantized, where it is not what they are called.
PACKAGES = {
    "gptq": "gptqmodel",
    "awq": "gptqmodel",
    "compressed-tensors": "compressed-tensors",
    "hqq": "hqq",
    "quanto": "optimum-quanto",
    "torchao": "torchao",
    "mxfp4": "kernels",
}


class CastFilter(logging.Filter):
    """Drops what bitsandbytes warns of at every 8-bit product: that 16 bits of one kind become the other."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is something else."""
        return "will be cast from" not in record.getMessage()


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """A library's logger says nothing for a while."""
    library = logging.getLogger(name)
    before, library.disabled = library.disabled, True
    try:
        yield
    finally:
        library.disabled = before


def has_bitsandbytes() -> bool:
    """Whether bitsandbytes is installed and can be imported.

    It warns when a faster CPU kernel is missing, which it would fetch as compiled code: that is left alone.
    """
    try:
        with quiet("bitsandbytes.backends.cpu.ops"):
            importlib.import_module("bitsandbytes")
    except (ImportError, OSError, RuntimeError) as error:
        logger.info("bitsandbytes cannot be used: %s", error)
        return False
    return True


def require_bitsandbytes(quantization: str, device_type: str) -> None:
    """Raises: ModelError when bitsandbytes is missing, or has no kernels for this kind of device."""
    if device_type not in DEVICES:
        raise ModelError(
            f"bitsandbytes has no kernels for {device_type}",
            expected=" or ".join(DEVICES),
            got=device_type,
            hint="use --quantization none, and --dtype bfloat16 or a smaller model if memory is short",
        )
    if not has_bitsandbytes():
        raise no_bitsandbytes(quantization)


def bitsandbytes_config(quantization: QuantizationName, dtype: torch.dtype) -> BitsAndBytesConfig:
    """What transformers is told. ``dtype`` is what products of 4-bit weights are computed in.

    The LM head, and what is tied to it, stays as it is: that is transformers' default.
    """
    if quantization in ("nf4", "fp4"):
        return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type=quantization,
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    # Without outlier columns each row is scaled by itself, and no row depends on another.
    threshold = OUTLIER_THRESHOLD if quantization == "llm-int8" else 0.0
    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_8bit=True, llm_int8_threshold=threshold
    )


def own_method(description: Mapping[str, Any]) -> str | None:
    """How a checkpoint is quantized already, by its config.json: "gptq", "awq", "bitsandbytes", ...; or None.

    "nf4", "fp4", "int8-bnb" and "llm-int8" for what bitsandbytes made.
    """
    own = description.get("quantization_config")
    if not isinstance(own, Mapping):
        return None
    if own.get("load_in_4bit"):
        return str(own.get("bnb_4bit_quant_type", "fp4"))
    if own.get("load_in_8bit"):
        return "llm-int8" if float(own.get("llm_int8_threshold", 6.0)) > 0 else "int8-bnb"
    return str(own.get("quant_method", "unknown")).lower()


def refuse_twice(asked: str, own: str | None) -> None:
    """Raises: ConfigError when weights that are quantized already shall be quantized in another way."""
    if own is not None and asked not in ("auto", own):
        raise ConfigError(
            "the model's weights are quantized already",
            expected="auto",
            got=asked,
            hint=f"leave --quantization out to load them as {own}, or choose the model's 16-bit weights",
        )


def own_method_hint(own: str) -> str:
    """The next step when weights that others have quantized do not load."""
    package = PACKAGES.get(own)
    install = f"`pip install {package}` may be missing, or" if package is not None else "perhaps"
    return (
        f"its weights are quantized by {own}: {install} this device lacks the kernels; "
        "the model's 16-bit weights with --quantization nf4 need neither"
    )


def n_quantized_layers(model: nn.Module) -> int:
    """Layers whose weights bitsandbytes holds."""
    return sum(type(m).__module__.startswith("bitsandbytes.") for m in model.modules())


def check_quantized(model: nn.Module, quantization: str) -> None:
    """Raises: ModelError when nothing was quantized: some models' linear layers are of their own kind."""
    if n_quantized_layers(model) == 0:
        raise ModelError(
            "bitsandbytes finds no layer of this model to quantize",
            expected="linear layers",
            got=f"{type(model).__name__} with layers of its own kind",
            hint="use --quantization none",
        )
    if quantization in ("int8-bnb", "llm-int8"):
        library = logging.getLogger(CHATTY_LOGGER)
        if not any(isinstance(found, CastFilter) for found in library.filters):
            library.addFilter(CastFilter())


__all__ = [
    "bitsandbytes_config",
    "check_quantized",
    "has_bitsandbytes",
    "n_quantized_layers",
    "own_method",
    "own_method_hint",
    "refuse_twice",
    "require_bitsandbytes",
]
