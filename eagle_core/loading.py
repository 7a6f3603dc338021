"""A base model, from wherever it is, onto a device: strict, and never running code that came with it.

Knows no tree and no loop. Memory, precision and attention are chosen here; how the model is run is
``target``'s affair.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from eagle_core.config import DType, LoadConfig
from eagle_core.convert_gguf import first_line, without_library_bars
from eagle_core.errors import (
    CheckpointMismatch,
    ConfigError,
    ModelError,
    ModelNotFound,
    OutOfMemory,
)
from eagle_core.events import LoadProgress
from eagle_core.folders import OnEvent, ignore_event
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.kernels.build import must_compile
from eagle_core.loading_head import head_source, load_head
from eagle_core.packing import pack_layers
from eagle_core.sources import base_folder, read_json

logger = logging.getLogger(__name__)

LONGEST_DEFAULT_CONTEXT = 8192
MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass(frozen=True, slots=True)
class LoadedBase:
    """A base model in evaluation mode on its device.

    ``name`` is how the user called it, ``reproducible`` whether a row shall be computed alike alone and
    beside others.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    context_length: int
    reproducible: bool = True


def load_base(config: LoadConfig, on_event: OnEvent = ignore_event) -> LoadedBase:
    """Find, fetch if need be, and load the base model that ``config`` names.

    Args:
        on_event: gets DownloadProgress and LoadProgress.
    Raises: ConfigError for a device or context length that cannot be; ModelNotFound, DownloadError,
        GatedRepo, CheckpointMismatch or ModelError for the model; DiskFull, OutOfMemory.
    """
    device = resolve_device(config.device)
    folder = base_folder(config, on_event)
    description = check_config(folder)
    context_length = resolve_context(config.context_length, description)
    on_event(LoadProgress(f"loading {config.base}"))
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, resolve_dtype(config.dtype, device))
    with memory_errors(config.base):
        model.to(device)  # type: ignore[arg-type]  # transformers' decorator hides Module.to's overloads
    model.train(False)
    model.requires_grad_(False)
    if device.type == "cpu":
        with memory_errors(config.base):
            pack_if_it_fits(model, on_event)
    return LoadedBase(model, tokenizer, config.base, context_length, config.reproducible)


def check_config(folder: Path) -> dict[str, Any]:
    """Read config.json and check that transformers itself can run the model.

    Raises: ModelNotFound without config.json; CheckpointMismatch if it cannot be read; ModelError for a
        model that is no causal language model, or needs code of its own.
    """
    config = read_json(folder / "config.json")
    model_type, architectures = config.get("model_type"), config.get("architectures") or []
    if model_type not in CONFIG_MAPPING:
        own_code = (
            "its own code, which is never run" if "auto_map" in config else "a newer transformers"
        )
        raise ModelError(
            f"{folder.name} is a {model_type!r} model: it needs {own_code}",
            expected="a model type that the installed transformers knows",
            got=repr(model_type),
            hint="choose a model whose architecture is part of transformers",
        )
    causal = {
        name
        for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        for name in ((names,) if isinstance(names, str) else names)
    }
    is_causal = model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not is_causal or (architectures and not causal.intersection(architectures)):
        raise ModelError(
            f"{folder.name} is not a causal language model",
            expected="a ...ForCausalLM architecture",
            got=", ".join(architectures) or repr(model_type),
            hint="choose a text-generation model",
        )
    return config


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer.

    Raises: CheckpointMismatch when its files are missing or damaged.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    # The tokenizers library raises bare Exception for a file it cannot parse.
    except Exception as error:
        raise CheckpointMismatch(
            f"the tokenizer in {folder} cannot be loaded",
            expected="tokenizer.json, or the files of the model's own tokenizer",
            got=first_line(error),
            hint="fetch the model again, its tokenizer files included",
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """The folder's weights in ``dtype`` on the CPU, with PyTorch's fused attention where the model allows it.

    Raises: ModelNotFound without weights; CheckpointMismatch for missing, misshapen or damaged tensors;
        ModelError for what transformers refuses; OutOfMemory.
    """
    has_safetensors = any(folder.glob("*.safetensors"))
    if not has_safetensors and not any(folder.glob("pytorch_model*.bin")):
        raise ModelNotFound(
            f"{folder} has no weights",
            expected="*.safetensors or pytorch_model*.bin",
            hint="fetch the model again; GGUF files are named one by one",
        )
    options: dict[str, Any] = {
        "dtype": dtype,
        "use_safetensors": has_safetensors,
        "weights_only": True,
        "local_files_only": True,
        "trust_remote_code": False,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # reported below, by name, with everything else that is wrong
    }
    with loading_errors(folder), memory_errors(folder.name), without_library_bars():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, attn_implementation="sdpa", **options
            )
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            loaded = AutoModelForCausalLM.from_pretrained(
                folder, attn_implementation="eager", **options
            )
    model, report = loaded
    check_report(folder, report)
    assert isinstance(model, PreTrainedModel)
    return model


def check_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Refuse a model some of whose weights were not in the file: they would be random.

    Tensors that the model does not use (an extra prediction layer, say) are logged.
    """
    missing = sorted(str(key) for key in report.get("missing_keys", ()))
    misshapen = sorted(str(entry[0]) for entry in report.get("mismatched_keys", ()))
    if missing or misshapen:
        raise CheckpointMismatch(
            f"the weights in {folder} do not fit the model",
            expected="every weight, in the shape that config.json gives",
            got=f"missing: {some(missing)}; wrong shape: {some(misshapen)}",
            hint="fetch the model again; the weights and config.json must be of one model",
        )
    if report.get("unexpected_keys"):
        logger.info("unused tensors in %s: %s", folder, some(sorted(report["unexpected_keys"])))


def some(names: list[str], limit: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "none") + more


@contextmanager
def loading_errors(folder: Path) -> Iterator[None]:
    """Turn what transformers and safetensors raise for a model they cannot load into our errors."""
    try:
        yield
    except (SafetensorError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointMismatch(
            f"the weights in {folder} are damaged",
            expected="intact safetensors, or tensors only in a .bin file",
            got=first_line(error),
            hint="fetch the model again",
        ) from error
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{folder} cannot be loaded",
            got=first_line(error),
            hint="see which part transformers refuses; another format of the model may do",
        ) from error


def is_memory_error(error: BaseException) -> bool:
    """Whether an exception says that memory ran out; on a CPU torch raises a plain RuntimeError for it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in MEMORY_MESSAGES)


def pack_if_it_fits(model: PreTrainedModel, on_event: OnEvent) -> None:
    """Swap in the faster layers, unless their copy of the weights could push out what else is running."""
    n_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if n_bytes > psutil.virtual_memory().available / 2:
        on_event(LoadProgress("little free memory: the faster copy of the weights is left out"))
        return
    if must_compile():
        on_event(LoadProgress("compiling the fast layers for this processor, once"))
    pack_layers(model)
    if model.dtype == torch.float32:
        use_rows_attention(model)


@contextmanager
def memory_errors(name: str) -> Iterator[None]:
    """Turn every library's way of saying "no memory" into OutOfMemory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_memory_error(error):
            raise
        raise OutOfMemory(
            f"not enough memory to load {name}",
            got=first_line(error),
            hint="close other programs, choose bfloat16, or a smaller model",
        ) from error


def resolve_device(name: str) -> torch.device:
    """The device called ``name``; "auto" is the first of cuda, mps, cpu that is there.

    Raises: ConfigError for a name that is no device, or a device that this machine lacks.
    """
    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            "device is not known", expected="auto, cpu, cuda, cuda:1 or mps", got=repr(name)
        ) from error
    n_devices = {"cpu": 1, "mps": int(has_mps), "cuda": torch.cuda.device_count()}
    if (device.index or 0) >= n_devices.get(device.type, 0):
        there = [f"{kind} ({n})" for kind, n in n_devices.items() if n]
        raise ConfigError(
            "this machine, or its PyTorch, does not have the device",
            expected=" or ".join(there),
            got=repr(name),
            hint="use --device auto",
        )
    return device


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


def resolve_context(asked: int | None, description: Mapping[str, Any]) -> int:
    """Longest prompt plus answer in tokens: what was asked for, or the model's own up to a limit.

    Raises: ConfigError when more is asked for than the model was made for.
    """
    own = next(
        (
            description[key]
            for key in ("max_position_embeddings", "n_positions")
            if description.get(key)
        ),
        None,
    )
    if asked is not None and own is not None and asked > own:
        raise ConfigError(
            "context_length is longer than the model's own",
            expected=f"at most {own}",
            got=str(asked),
            hint="leave it out to use the model's own",
        )
    return asked or min(own or LONGEST_DEFAULT_CONTEXT, LONGEST_DEFAULT_CONTEXT)


__all__ = ["LoadedBase", "head_source", "load_base", "load_head"]
