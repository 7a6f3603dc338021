"""A base model, from wherever it is, onto a device: strict, and never running code that came with it.

Knows no tree and no loop. Memory, precision and attention are chosen here; how the model is run is
``target``'s affair.
"""

from __future__ import annotations

import dataclasses
import logging
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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

from eagle_core import models
from eagle_core.catalog import default_tree
from eagle_core.config import LoadConfig
from eagle_core.convert_gguf import first_line, without_library_bars
from eagle_core.devices import resolve_device
from eagle_core.errors import (
    CheckpointMismatch,
    ModelError,
    ModelNotFound,
    OutOfMemory,
)
from eagle_core.events import LoadProgress
from eagle_core.fit import Fit, Machine, best_fit
from eagle_core.folders import OnEvent, cache_folder, ignore_event, make_cache_folder
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.kernels.build import build_ahead, must_compile
from eagle_core.kernels.ops import has_kernels
from eagle_core.loading_head import head_source, load_head
from eagle_core.machine import this_machine
from eagle_core.packing import pack_layers
from eagle_core.pages import PagesAhead
from eagle_core.placement import FitOf, LoadPlan, make_plan, resolve_dtype, stored_in
from eagle_core.precision import QUANTIZED_BYTES, PrecisionName, inexact_reason
from eagle_core.quantization import (
    bitsandbytes_config,
    check_quantized,
    own_method_hint,
)
from eagle_core.sizes import read_size
from eagle_core.sources import base_folder, read_json, resolve_context

logger = logging.getLogger(__name__)

MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory")


@dataclass(frozen=True, slots=True)
class LoadedBase:
    """A base model in evaluation mode on its device. ``name`` is how the user called it.

    ``reproducible`` is whether a row shall be computed alike alone and beside others; ``cuda_graphs`` whether
    forwards may be replayed as CUDA graphs where the device has them; ``precision_note`` says
    what the precision costs, or why it was chosen; ``inexact_reason`` why drafting may change answers on
    every device, "" if it can't.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    context_length: int
    reproducible: bool = True
    quantization: str = "none"
    precision_note: str = ""
    inexact_reason: str = ""
    cuda_graphs: bool = False


def load_base(
    config: LoadConfig, on_event: OnEvent = ignore_event, ahead: PagesAhead | None = None
) -> LoadedBase:
    """Find, fetch if need be, and load the base model that ``config`` names.

    Args:
        on_event: gets DownloadProgress and LoadProgress.
        ahead: memory that was touched for it meanwhile.
    Raises: ConfigError for a device or context length that cannot be; ModelNotFound, DownloadError,
        GatedRepo, CheckpointMismatch or ModelError for the model; DiskFull, OutOfMemory.
    """
    device = resolve_device(config.device)
    if device.type == "cpu":
        build_ahead()  # while the model is fetched
    folder = base_folder(config, on_event, check_config)  # a model that cannot run is not fetched
    description = check_config(folder)
    if device.type == "cpu":
        build_ahead(_head_dim(description))
    context_length = resolve_context(config.context_length, description)
    say_compiling(device, on_event)
    machine = compiled_machine(config.device)
    plan = make_plan(config, device, machine, fit_of(config, folder), description)
    device = plan.device
    say_compiling(device, on_event)
    on_event(LoadProgress(f"loading {config.base}"))
    if plan.note:
        logger.info("%s", plan.note)
        on_event(LoadProgress(plan.note))
    model = load_model(folder, plan, stored_dtype(plan, description))
    model.train(False)
    model.requires_grad_(False)
    with ThreadPoolExecutor(1) as beside, memory_errors(config.base):
        reading = beside.submit(load_tokenizer, folder)  # Python's work, while packing is not
        if plan.is_whole:
            model.to(device)  # type: ignore[arg-type]  # transformers' decorator hides Module.to's overloads
        if device.type == "cpu" and not plan.is_split:
            pack_for_cpu(model, plan, on_event, ahead)
    tokenizer = reading.result()
    quantization = plan.own or plan.quantization
    return LoadedBase(
        model,
        tokenizer,
        config.base,
        context_length,
        config.reproducible,
        quantization=quantization,
        precision_note=plan.note,
        inexact_reason=inexact_reason(quantization),
        cuda_graphs=config.cuda_graphs,
    )


def _head_dim(description: Mapping[str, Any]) -> int | None:
    with suppress(CheckpointMismatch):
        return read_size(description, {}).head_dim
    return None


def say_compiling(device: torch.device, on_event: OnEvent) -> None:
    """Report that the kernels are about to be compiled, if they are."""
    if device.type == "cpu" and must_compile():
        on_event(LoadProgress("compiling the fast layers for this processor, once"))


def compiled_machine(device: str) -> Machine:
    """This machine; on a CPU the kernels are compiled for it, so that what they can do is known."""
    machine = this_machine(device)
    if machine.device != "cpu" or has_kernels():
        return machine
    return dataclasses.replace(machine, has_kernels=False, lacks=(*machine.lacks, "int8"))


def fit_of(config: LoadConfig, folder: Path) -> FitOf:
    """How the pair that ``config`` names fits a machine, by the files of its base in ``folder``."""
    entry = models.resolve(config.base, config.head)
    size = models.folder_size(folder)
    head = models.head_size(entry, size)

    def best(machine: Machine, precisions: Sequence[PrecisionName]) -> Fit:
        tree = default_tree(entry, machine.device)
        known = [one for one in precisions if one in entry.precisions]
        return best_fit(size, head, machine, known or precisions, config.context_length, tree)

    return best


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


def stored_dtype(plan: LoadPlan, description: Mapping[str, Any]) -> torch.dtype:
    """What the weights are read as: the plan's dtype, or the half of it that holds them as well.

    A checkpoint in bfloat16 for float32 on a CPU is widened layer by layer, when the layers are packed.
    """
    is_wide = plan.is_whole and plan.device.type == "cpu" and plan.dtype == torch.float32
    if not is_wide or stored_in(description) != "bfloat16":
        return plan.dtype
    return torch.bfloat16 if has_kernels() else plan.dtype


def load_model(folder: Path, plan: LoadPlan, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The folder's weights as planned, with PyTorch's fused attention where the model allows it.

    Args: dtype: what they are read as; None: as planned.

    A model that is neither quantized nor split stays on the CPU.

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
    offload_folder = new_offload_folder() if plan.is_split else None
    options: dict[str, Any] = {
        "dtype": dtype or plan.dtype,
        "use_safetensors": has_safetensors,
        "weights_only": True,
        "local_files_only": True,
        "trust_remote_code": False,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # reported below, by name, with everything else that is wrong
        **placing_options(plan, offload_folder),
    }
    with loading_errors(folder, plan), memory_errors(folder.name), without_library_bars():
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
    if offload_folder is not None:
        weakref.finalize(model, shutil.rmtree, offload_folder, ignore_errors=True)
    check_report(folder, report)
    if plan.by_bitsandbytes or plan.own in QUANTIZED_BYTES:
        check_quantized(model, plan.own or plan.quantization)
    assert isinstance(model, PreTrainedModel)
    return model


def new_offload_folder() -> str:
    """For weights that find no room in memory; not in the system's temporary folder, which may be memory."""
    make_cache_folder(cache_folder())
    return tempfile.mkdtemp(prefix="offload-", dir=cache_folder())


def placing_options(plan: LoadPlan, offload_folder: str | None) -> dict[str, Any]:
    """What from_pretrained is told about devices and quantized weights; nothing for a plain model."""
    options: dict[str, Any] = {}
    if plan.by_bitsandbytes:
        options["quantization_config"] = bitsandbytes_config(plan.quantization, plan.dtype)
    if plan.device_map is not None:
        options |= {"device_map": plan.device_map, "offload_folder": offload_folder}
    return options


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
        logger.info(
            "unused tensors in %s: %s", folder.name, some(sorted(report["unexpected_keys"]))
        )


def some(names: list[str], limit: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(names[:limit]) or "none") + more


@contextmanager
def loading_errors(folder: Path, plan: LoadPlan) -> Iterator[None]:
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
        hint = "see which part transformers refuses; another format of the model may do"
        if plan.own is not None:
            hint = own_method_hint(plan.own)
        elif plan.by_bitsandbytes:
            hint = "use --quantization none, or a device with room for the whole quantized model"
        raise ModelError(
            f"{folder} cannot be loaded",
            got=first_line(error),
            hint=hint,
        ) from error


def is_memory_error(error: BaseException) -> bool:
    """Whether an exception says that memory ran out; on a CPU torch raises a plain RuntimeError for it."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in MEMORY_MESSAGES)


def pack_for_cpu(
    model: PreTrainedModel, plan: LoadPlan, on_event: OnEvent, ahead: PagesAhead | None = None
) -> None:
    """Swap in the faster layers. With the kernels the weights are kept once, packed.

    Without, the packed ones are a second copy, left out where it could push out what else is running.
    """
    if has_kernels():
        is_narrow = model.dtype != plan.dtype
        is_int8 = plan.quantization == "int8"
        pack_layers(model, is_int8=is_int8, widens=is_narrow, frees=True, ahead=ahead)
        model.config.dtype = model.dtype
    else:
        n_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        if n_bytes > psutil.virtual_memory().available / 2:
            on_event(LoadProgress("little free memory: the faster copy of the weights is left out"))
            return
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


__all__ = [
    "LoadedBase",
    "head_source",
    "load_base",
    "load_head",
    "resolve_device",
    "resolve_dtype",
]
