"""What a repository's model measures, without its weights: config.json and the safetensors headers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import SafetensorsParsingError

from eagle_core.errors import CheckpointMismatch, ModelNotFound
from eagle_core.folders import OnEvent, ignore_event
from eagle_core.hub.cache import endpoint
from eagle_core.hub.errors import hub_errors
from eagle_core.hub.fetch import fetch_repo
from eagle_core.hub.listing import choose_files, list_files

HEADER_LIMIT_BYTES = 100_000_000  # what the format allows
WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, slots=True)
class RepoFacts:
    """A repository at ``commit``: its config, its tensors' shapes (none without safetensors), its sizes."""

    commit: str
    is_gated: bool
    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    weight_bytes: int
    download_bytes: int


def describe_repo(
    repo_id: str, revision: str | None = None, on_event: OnEvent = ignore_event
) -> RepoFacts:
    """Facts about a repository; fetches config.json and some kilobytes of each weight file.

    Raises: ModelNotFound, GatedRepo, BadToken, DownloadError and its kinds, CheckpointMismatch.
    """
    with hub_errors(repo_id, revision):
        listing = list_files(repo_id, revision)
    sizes = {file.name: file.n_bytes for file in listing.files}
    chosen = choose_files(sizes)
    if "config.json" not in sizes:
        raise ModelNotFound(
            f"{repo_id} has no config.json",
            expected="a model in transformers' format",
            hint="choose another repository; GGUF files are loaded from disk",
        )
    folder = fetch_repo(repo_id, listing.commit, ("config.json",), on_event)
    config = _read_config(folder / "config.json")
    api = HfApi(endpoint=endpoint())
    tensors: dict[str, tuple[int, ...]] = {}
    for name in chosen:
        if not name.endswith(".safetensors"):
            continue
        with hub_errors(repo_id, revision):
            try:
                header = api.parse_safetensors_file_metadata(repo_id, name, revision=listing.commit)
            except SafetensorsParsingError as error:
                raise CheckpointMismatch(
                    f"{name} of {repo_id} is no safetensors file",
                    got=str(error).splitlines()[0],
                    hint="choose another repository",
                ) from error
        tensors.update({key: tuple(info.shape) for key, info in header.tensors.items()})
    return RepoFacts(
        commit=listing.commit,
        is_gated=listing.is_gated,
        config=config,
        tensors=tensors,
        weight_bytes=sum(sizes[name] for name in chosen if name.endswith(WEIGHTS)),
        download_bytes=sum(sizes[name] for name in chosen),
    )


def describe_folder(folder: Path) -> RepoFacts:
    """The same of a folder on this machine.

    Raises: ModelNotFound without config.json; CheckpointMismatch for what cannot be read.
    """
    files = {path.name: path for path in folder.iterdir() if path.is_file()}
    if "config.json" not in files:
        raise ModelNotFound(f"{folder} has no config.json", hint="name the folder of a model")
    chosen = choose_files(files)
    tensors: dict[str, tuple[int, ...]] = {}
    for name in chosen:
        if name.endswith(".safetensors"):
            tensors.update(read_header(files[name]))
    return RepoFacts(
        commit="",
        is_gated=False,
        config=_read_config(files["config.json"]),
        tensors=tensors,
        weight_bytes=sum(files[n].stat().st_size for n in chosen if n.endswith(WEIGHTS)),
        download_bytes=0,
    )


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The tensors' shapes in a safetensors file: 8 bytes of length, then JSON; no tensor is read.

    Raises: CheckpointMismatch.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_LIMIT_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            header = json.loads(file.read(length))
        return {k: tuple(v["shape"]) for k, v in header.items() if k != "__metadata__"}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointMismatch(
            f"{path} is no safetensors file", got=str(error), hint="fetch the model again"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("no object")
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(
            f"{path} cannot be read", expected="JSON", got=str(error), hint="fetch the model again"
        ) from error
    return config


__all__ = ["RepoFacts", "describe_folder", "describe_repo", "read_header"]
