"""What can be done with a pair of base and head without loading it: is it here, fetch, remove, measure, fit.

Command line and app share this. Knows no torch.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle_core import catalog, hub
from eagle_core.assets import asset_path
from eagle_core.catalog import CatalogEntry, HubSource, LocalSource, WheelSource
from eagle_core.convert_gguf import is_converted
from eagle_core.default_model import converted_folder, fetch_default_model, kept_folder
from eagle_core.errors import Cancelled, ConfigError, EagleError, ModelNotFound
from eagle_core.events import Event
from eagle_core.fit import Fit, Machine, best_fit
from eagle_core.folders import OnEvent, ignore_event
from eagle_core.sizes import (
    UNKNOWN_CONTEXT,
    HeadSize,
    ModelSize,
    read_head_size,
    read_size,
    usual_head,
)
from eagle_core.sources import HEAD_FILES, HUB_ID, Check, check_first, missing_path

PUBLISHED_BYTES = 2  # of a weight: published ones are in 16 bits


@dataclass(frozen=True, slots=True)
class Part:
    """A base or a head: where it comes from, whether all of it is here, and how much of it.

    ``is_fetched``: it came from the network and may be removed; bundled heads and the user's folders stay.
    """

    role: str
    source: str
    is_here: bool
    n_bytes: int = 0
    commit: str | None = None
    is_fetched: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """A pair's dimensions; ``is_read`` says that they were read from its files, not from the catalogue."""

    base: ModelSize
    head: HeadSize | None
    is_read: bool
    download_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Download:
    """Bytes to fetch, None where nobody says them; ``note`` why not."""

    n_bytes: int | None
    is_estimate: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """What was taken off this machine, and what stays because another pair here uses it."""

    names: tuple[str, ...]
    n_bytes: int
    kept: tuple[str, ...] = ()


def resolve(name: str, head: str | None = None) -> CatalogEntry:
    """The pair called ``name``: a known one, or one made up for a Hub id, a folder or a file.

    Args: head: takes the place of the known head.
    Raises: ModelNotFound, with near matches.
    """
    entry = catalog.lookup(name)
    if entry is None:
        path = Path(name).expanduser()
        if not path.exists() and not HUB_ID.fullmatch(name):
            if len(path.parts) > 1:
                raise missing_path(path, "a folder of a model, or a .gguf file")
            catalog.find(name)  # raises, with near matches
        entry = CatalogEntry(
            name=name, title=name, source=catalog.parse_source(name), head=None, n_parameters=None,
            license="unknown",
        )  # fmt: skip
    if head is None:
        return entry
    return dataclasses.replace(entry, head=own_source(head), n_head_parameters=None)


def parts_of(entry: CatalogEntry) -> tuple[Part, ...]:
    """Base and head of a pair, as they lie on this machine."""
    parts = [_base_part(entry)]
    if entry.head is not None and entry.has_bundled_head:
        folder = asset_path(entry.head)
        parts.append(Part("head", str(folder), True, _folder_bytes(folder)))
    elif entry.head is not None:
        source = catalog.parse_source(entry.head)
        parts.append(_part("head", source, HEAD_FILES))
    return tuple(parts)


def _base_part(entry: CatalogEntry) -> Part:
    if isinstance(entry.source, WheelSource):
        folder = converted_folder(entry.name, entry.source)
        is_here = is_converted(folder)
        n_bytes = _folder_bytes(folder) + _folder_bytes(kept_folder(folder))
        name = f"{entry.source.package} {entry.source.version}"
        return Part("base", name, is_here, n_bytes, is_fetched=n_bytes > 0)
    return _part("base", entry.source, ("*",))


def _part(role: str, source: catalog.Source, patterns: tuple[str, ...]) -> Part:
    if not isinstance(source, HubSource):
        path = Path(source.path) if isinstance(source, LocalSource) else Path()
        return Part(role, str(source), path.exists(), _folder_bytes(path))
    cached = hub.downloads([source.repo_id])
    return Part(
        role,
        str(source),
        _is_source_here(source, patterns),
        cached[0].n_bytes if cached else 0,
        hub.commit_of(source.repo_id, source.revision),
        is_fetched=bool(cached),
    )


def is_here(entry: CatalogEntry) -> bool:
    """Whether a pair loads without a network."""
    if isinstance(entry.source, WheelSource):
        if not is_converted(converted_folder(entry.name, entry.source)):
            return False
    elif not _is_source_here(entry.source, ("*",)):
        return False
    if entry.head is None or entry.has_bundled_head:
        return True
    return _is_source_here(catalog.parse_source(entry.head), HEAD_FILES)


def _is_source_here(
    source: HubSource | LocalSource | WheelSource, patterns: tuple[str, ...]
) -> bool:
    if isinstance(source, HubSource):
        return hub.is_here(source.repo_id, source.revision, patterns)
    return isinstance(source, LocalSource) and Path(source.path).exists()


def pull(
    entry: CatalogEntry,
    on_event: OnEvent = ignore_event,
    cancel: threading.Event | None = None,
    check: Check | None = None,
) -> tuple[Part, ...]:
    """Fetch what is missing of a pair: the head first, which is small and may be refused.

    Args:
        cancel: stops it once it is set; what arrived is kept.
        check: looks at the base's config.json before its weights are fetched; raises to refuse the model.
    Raises: Cancelled; the errors of a download, each with its next step.
    """
    if check is not None and isinstance(entry.source, HubSource):
        check_first(entry.source.repo_id, entry.source.revision, check)
    if entry.head is not None and not entry.has_bundled_head:
        _pull_source(catalog.parse_source(entry.head), HEAD_FILES, on_event, cancel)
    if isinstance(entry.source, WheelSource):
        fetch_default_model(entry, _until(cancel, on_event))
    else:
        _pull_source(entry.source, ("*",), on_event, cancel)
    return parts_of(entry)


def _pull_source(
    source: catalog.Source,
    patterns: tuple[str, ...],
    on_event: OnEvent,
    cancel: threading.Event | None,
) -> None:
    if isinstance(source, HubSource):
        hub.fetch_repo(source.repo_id, source.revision, patterns, on_event, cancel=cancel)
    elif not Path(str(source)).exists():
        raise missing_path(Path(str(source)), "a folder of a model, or a .gguf file")


def _until(cancel: threading.Event | None, on_event: OnEvent) -> Callable[[Event], None]:
    """``on_event``, which ends the work once ``cancel`` is set: pip is stopped by an exception."""

    def pass_on(event: Event) -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled(
                "the download was stopped", hint="start it again to go on where it stopped"
            )
        on_event(event)

    return pass_on


def remove(entry: CatalogEntry) -> Removed:
    """Take what was fetched of a pair off this machine.

    The user's own folders and bundled heads stay, and a repository that another pair here needs.

    Raises: DownloadError while it is being fetched.
    """
    if isinstance(entry.source, WheelSource):
        folder = converted_folder(entry.name, entry.source)
        places = (folder, kept_folder(folder))
        n_bytes = sum(map(_folder_bytes, places))
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
        return Removed((entry.name,) if n_bytes else (), n_bytes)
    others = {repo for e in catalog.known_models() if e.name != entry.name for repo in _in_use(e)}
    names, kept, freed = [], [], 0
    for repo_id in _repos(entry):
        if not hub.downloads([repo_id]):
            continue
        if repo_id in others:
            kept.append(repo_id)
        else:
            freed += hub.remove_repo(repo_id)
            names.append(repo_id)
    return Removed(tuple(names), freed, tuple(kept))


def shares_files(one: CatalogEntry, other: CatalogEntry) -> bool:
    """Whether removing one pair would take files of the other."""
    return one.source == other.source or not {*_repos(one)}.isdisjoint(_repos(other))


def _in_use(entry: CatalogEntry) -> list[str]:
    """The repositories of a pair whose head was fetched from the Hub, too."""
    repos = _repos(entry)
    return repos if len(repos) > 1 and len(hub.downloads(repos)) == len(repos) else []


def _repos(entry: CatalogEntry) -> list[str]:
    sources: list[catalog.Source] = [entry.source]
    if entry.head is not None and not entry.has_bundled_head:
        sources.append(catalog.parse_source(entry.head))
    return [source.repo_id for source in sources if isinstance(source, HubSource)]


def measure(entry: CatalogEntry, *, offline: bool = False) -> Measure:
    """A pair's dimensions: from its configs and safetensors headers, else from the catalogue.

    Raises: what reading raises, where the catalogue has no numbers either.
    """
    if isinstance(entry.source, WheelSource) or (offline and entry.size is not None):
        return _from_catalog(entry, "")
    try:
        base, base_bytes = _measure_base(entry.source, offline)
        head, head_bytes = _measure_head(entry, base, offline)
    except EagleError as error:
        if entry.size is None:
            raise
        return _from_catalog(entry, error.message)
    return Measure(base, head, True, base_bytes + head_bytes)


def _from_catalog(entry: CatalogEntry, note: str) -> Measure:
    assert entry.size is not None
    head = None
    if entry.head is not None and entry.has_bundled_head:
        facts = hub.describe_folder(asset_path(entry.head))
        head = read_head_size(facts.config, facts.tensors, facts.weight_bytes)
    elif entry.head is not None:
        head = usual_head(entry.size, entry.method, entry.n_head_parameters or 0)
    return Measure(entry.size, head, False, note=note)


def _facts(source: catalog.Source, offline: bool) -> hub.RepoFacts:
    if isinstance(source, HubSource):
        if not offline:
            return hub.describe_repo(source.repo_id, source.revision)
        return hub.describe_folder(hub.fetch_repo(source.repo_id, source.revision, offline=True))
    path = Path(str(source))
    if path.suffix.lower() == ".gguf":
        raise ConfigError(
            "the memory of a .gguf file is not estimated",
            expected="a Hub id, or a folder with config.json and safetensors",
            got=str(path),
            hint="convert it by loading it once, and name the folder that this makes",
        )
    if not path.is_dir():
        raise ModelNotFound(f"{path} does not exist", hint="check the path")
    return hub.describe_folder(path)


def _measure_base(source: catalog.Source, offline: bool) -> tuple[ModelSize, int]:
    facts = _facts(source, offline)
    if "quantization_config" in facts.config:  # packed tensors: their shapes do not count weights
        raise ConfigError(
            f"{source} is stored quantized, and its memory cannot be told from its files",
            expected="weights in 16 or 32 bits",
            hint="look at the model's page, and leave some gigabytes free",
        )
    return read_size(facts.config, facts.tensors, facts.weight_bytes), facts.download_bytes


def _measure_head(
    entry: CatalogEntry, base: ModelSize, offline: bool
) -> tuple[HeadSize | None, int]:
    if entry.head is None:
        return None, 0
    if entry.has_bundled_head:
        facts = hub.describe_folder(asset_path(entry.head))
    else:
        facts = _facts(catalog.parse_source(entry.head), offline)
    size = read_head_size(facts.config, facts.tensors, facts.weight_bytes)
    if not size.head_dim:  # a config that says little
        size = usual_head(base, entry.method, size.n_parameters)
    return size, facts.download_bytes


def about_bytes(entry: CatalogEntry) -> int | None:
    """About what fetching all of a pair moves, by the catalogue's numbers; None where it has none."""
    if isinstance(entry.source, WheelSource):
        return entry.source.wheel_bytes
    if entry.download_bytes is not None or entry.n_parameters is None:
        return entry.download_bytes
    n_head = entry.n_head_parameters or 0
    if not n_head and entry.head is not None and not entry.has_bundled_head and entry.size:
        n_head = usual_head(entry.size, entry.method).n_parameters
    return PUBLISHED_BYTES * (entry.n_parameters + n_head)


def to_fetch(entry: CatalogEntry, *, offline: bool = False) -> Download:
    """What fetching a pair would move: nothing, the catalogue's estimate, or what the Hub says.

    Args: offline: ask no Hub, not even where the catalogue has no numbers.
    """
    if is_here(entry):
        return Download(0)
    about = about_bytes(entry)
    if about is not None or offline:
        return Download(about, is_estimate=about is not None)
    try:
        return Download(measure(entry).download_bytes)
    except EagleError as error:
        return Download(None, note=error.message)


def head_size(entry: CatalogEntry, base: ModelSize) -> HeadSize | None:
    """A pair's head as it lies here, else as such heads usually are; None without one. Asks no Hub."""
    try:
        return _measure_head(entry, base, offline=True)[0]
    except EagleError:
        return usual_head(base, entry.method, entry.n_head_parameters or 0)


def folder_size(folder: Path) -> ModelSize:
    """The dimensions of the model in a folder; the count of its weights alone where they cannot be told.

    What is wrong with the files is said when they are loaded.
    """
    try:
        facts = hub.describe_folder(folder)
        return read_size(facts.config, facts.tensors, facts.weight_bytes)
    except EagleError:
        weights = [path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin")]
        n_bytes = sum(map(_folder_bytes, weights))
        return ModelSize(n_bytes // 2, n_bytes // 2, 0, 0, 0, 0, 0, UNKNOWN_CONTEXT)


def fit(
    entry: CatalogEntry,
    measured: Measure,
    machine: Machine,
    context_length: int | None = None,
    precisions: tuple[catalog.Precision, ...] | None = None,
) -> Fit:
    """The best way to run a measured pair on this machine.

    Raises: ConfigError when none of the precisions works on its device.
    """
    return best_fit(
        measured.base, measured.head, machine, precisions or entry.precisions, context_length,
        catalog.default_tree(entry, machine.device),
    )  # fmt: skip


def _folder_bytes(folder: Path) -> int:
    """Size of a file, or of all files in a folder; 0 when it is not there."""
    if folder.is_file():
        return folder.stat().st_size
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def own_source(name: str) -> str:
    """A folder or file as its full path, which holds wherever one starts; a Hub id as it is.

    Raises: ModelNotFound for what is neither.
    """
    path = Path(name).expanduser()
    if path.exists():
        return str(path.absolute())
    if HUB_ID.fullmatch(name):
        return name
    raise missing_path(path, "a Hub id such as org/model, a folder or a .gguf file")


__all__ = [
    "Download",
    "Measure",
    "Part",
    "Removed",
    "about_bytes",
    "fit",
    "folder_size",
    "head_size",
    "is_here",
    "measure",
    "own_source",
    "parts_of",
    "pull",
    "remove",
    "resolve",
    "shares_files",
    "to_fetch",
]
