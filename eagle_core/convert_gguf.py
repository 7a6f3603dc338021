"""GGUF -> a folder that transformers loads directly: safetensors, config and tokenizer files.

Converting once is what keeps later starts short: reading packed blocks and building a tokenizer from GGUF
metadata takes several times as long as reading the result. Knows no cache and no network.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_core.errors import CheckpointMismatch, ModelError, OutOfMemory
from eagle_core.events import FileProgress, LoadProgress
from eagle_core.folders import OnEvent, ignore_event

if TYPE_CHECKING:
    import torch
    from gguf import GGMLQuantizationType

logger = logging.getLogger(__name__)

STAMP_NAME = "eagle-source.json"
STAMP_FORMAT = 1
# Every token that ends an answer: the end of the text, of a turn, of a message.
END_FIELDS = tuple(f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))


@dataclass(frozen=True, slots=True)
class GgufInfo:
    """What a GGUF file says about itself. ``dtype`` is the smallest that keeps what its tensors hold:
    the stored one for plain floats, bfloat16 for quantized blocks."""

    architecture: str
    n_parameters: int
    dtype: torch.dtype
    end_ids: tuple[int, ...]

    @property
    def converted_bytes(self) -> int:
        """Size of the converted weights."""
        return self.n_parameters * self.dtype.itemsize


def read_info(path: Path) -> GgufInfo:
    """Read a GGUF file's metadata; its tensors stay on disk.

    Raises: CheckpointMismatch when it is no GGUF file, is cut off, or has no tensors.
    """
    from gguf import GGUFReader  # brings numpy along, and few starts convert anything

    try:
        reader = GGUFReader(str(path))
        architecture = reader.fields["general.architecture"].contents()
    # The reader's own checks, plus what numpy and struct raise on a file that ends early.
    except (
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        OverflowError,
        UnicodeDecodeError,
    ) as error:
        raise damaged(path, error) from error
    if not reader.tensors:
        raise damaged(path, ValueError("it holds no tensors"))
    end_ids = [reader.fields[name].contents() for name in END_FIELDS if name in reader.fields]
    return GgufInfo(
        architecture=str(architecture),
        n_parameters=sum(math.prod(map(int, tensor.shape)) for tensor in reader.tensors),
        dtype=dtype_of({tensor.tensor_type for tensor in reader.tensors}),
        end_ids=tuple(dict.fromkeys(int(end) for end in end_ids)),
    )


def dtype_of(types: set[GGMLQuantizationType]) -> torch.dtype:
    """The dtype a file's tensor types are converted to; the norms are F32 in every file."""
    import torch
    from gguf import GGMLQuantizationType

    plain = types - {GGMLQuantizationType.F32}
    if not plain:
        return torch.float32
    return torch.float16 if plain == {GGMLQuantizationType.F16} else torch.bfloat16


@contextmanager
def read_once() -> Iterator[None]:
    """Let transformers make but once what it makes of a file's metadata again and again, seconds each time.

    That is the reader, for tokenizer, config and weights, and the table of tensors' names, for every module.
    Neither is changed by anyone.
    """
    library: Any = importlib.import_module("gguf")
    names = ("GGUFReader", "get_tensor_name_map")
    before = {name: getattr(library, name) for name in names}
    for name, make in before.items():
        setattr(library, name, cache(make))
    try:
        yield
    finally:
        for name, make in before.items():
            setattr(library, name, make)


@read_once()
def convert(
    path: Path, folder: Path, source: Mapping[str, Any], on_event: OnEvent = ignore_event
) -> None:
    """Write ``path``'s model and tokenizer into ``folder``.

    Args:
        source: plain data about where the file came from, kept in the folder's stamp.
        on_event: gets a LoadProgress for each stage, and FileProgress while tensors are unpacked.
    Raises: CheckpointMismatch for a damaged file, ModelError for an architecture that transformers does
        not read from GGUF, OutOfMemory.
    """
    on_event(LoadProgress(f"converting {path.name}, once: starting transformers"))
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    on_event(LoadProgress(f"converting {path.name}, once: reading its vocabulary"))
    info = read_info(path)
    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
        on_event(LoadProgress(f"converting {path.name}, once: reading its tensors"))
        with without_library_bars(partial(counted, path.name, on_event)):
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, dtype=info.dtype, **where, **unpacked()
            )
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise OutOfMemory(
            f"not enough memory to convert {path.name}",
            expected=f"about {info.converted_bytes / 1e9:.1f} GB",
            hint="close other programs or choose a smaller model",
        ) from error
    except (ValueError, KeyError, NotImplementedError, RuntimeError, OSError) as error:
        raise ModelError(
            f"{path.name} cannot be converted",
            expected="a GGUF file of an architecture that transformers reads",
            got=f"{info.architecture}: {first_line(error)}",
            hint="use the model's safetensors from the Hub instead",
        ) from error
    on_event(LoadProgress(f"converting {path.name}, once: writing the model"))
    set_end_tokens(model, info.end_ids)
    with without_library_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_stamp(folder, source)


def unpacked() -> dict[str, Any]:
    """Options that make transformers unpack GGUF blocks; the releases that do nothing else need none."""
    config = getattr(importlib.import_module("transformers"), "GgufConfig", None)
    return {} if config is None else {"quantization_config": config(dequantize=True)}


def counted(what: str, on_event: OnEvent, tensors: Iterable[Any], **_: Any) -> Iterator[Any]:
    """A GGUF file's tensors one after the other, with the bytes of those that are done as events."""
    listed = list(tensors)
    sizes = [int(tensor.n_bytes) for tensor in listed]
    done, total = 0, sum(sizes)
    for tensor, n_bytes in zip(listed, sizes, strict=True):
        yield tensor
        done += n_bytes
        on_event(FileProgress("converting", what, done, total))


def untold(items: Iterable[Any], **_: Any) -> Iterable[Any]:
    """In place of a progress bar: none."""
    return items


@contextmanager
def without_library_bars(
    bar: Callable[..., Iterable[Any]] = untold,
) -> Iterator[None]:
    """Keep transformers' own progress bars off the terminal: progress is told in events.

    Args: bar: takes the place of the one around a GGUF file's tensors.
    """
    library_logging: Any = importlib.import_module("transformers.utils.logging")
    gguf_reading = _gguf_reading()
    was_on = library_logging.is_progress_bar_enabled()
    own_bar = getattr(gguf_reading, "tqdm", None)  # asks no setting
    library_logging.disable_progress_bar()
    if own_bar is not None:
        gguf_reading.tqdm = bar
    try:
        yield
    finally:
        if own_bar is not None:
            gguf_reading.tqdm = own_bar
        if was_on:
            library_logging.enable_progress_bar()


def _gguf_reading() -> Any:
    """transformers' module that unpacks GGUF, or None in a release that has another one."""
    try:
        return importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    except ImportError:
        return None


def set_end_tokens(model: Any, end_ids: tuple[int, ...]) -> None:
    """Make the generation config name every end token that the file names."""
    known = model.generation_config.eos_token_id
    known = known if isinstance(known, list) else [] if known is None else [known]
    ids = list(dict.fromkeys([*end_ids, *known]))
    if ids:
        model.generation_config.eos_token_id = ids[0] if len(ids) == 1 else ids
        model.generation_config._from_model_config = False  # it says more than the model's config


def write_stamp(folder: Path, source: Mapping[str, Any]) -> None:
    """Record the source and every file's size, so that a later start can trust the folder by ``stat``."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file())
    sizes = {path.name: path.stat().st_size for path in files}
    stamp = {"format": STAMP_FORMAT, "source": dict(source), "sizes": sizes}
    (folder / STAMP_NAME).write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")


def is_converted(folder: Path) -> bool:
    """Whether ``folder`` holds a whole conversion: the stamp is there and each file has its size."""
    try:
        stamp = json.loads((folder / STAMP_NAME).read_text(encoding="utf-8"))
        sizes = stamp["sizes"] if stamp["format"] == STAMP_FORMAT else {}
        return bool(sizes) and all((folder / n).stat().st_size == size for n, size in sizes.items())
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning(
            "the converted model in %s is not usable (%s); making it again", folder, error
        )
        return False


def damaged(path: Path, error: BaseException) -> CheckpointMismatch:
    """The error for a file that is no readable GGUF."""
    return CheckpointMismatch(
        f"{path.name} is no intact GGUF file",
        expected="a GGUF file",
        got=first_line(error),
        hint="download it again, and check that it is complete",
    )


def first_line(error: BaseException) -> str:
    """An error's first line, or its type when it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


__all__ = ["GgufInfo", "convert", "is_converted", "read_info", "set_end_tokens", "write_stamp"]
