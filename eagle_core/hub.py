"""Repositories of the Hugging Face Hub: the only place that imports huggingface_hub.

Files land in the Hub's own cache (``HF_HOME``), shared with other programs. Only formats that cannot run code
are fetched; a pickled ``.bin`` only where a repository has no safetensors, to be read with ``weights_only``.
When a connection breaks, the library goes on in the file where it stopped; when the program is stopped, the
finished files are kept. Sizes and, for weights, the Hub's SHA-256 are checked once, on arrival.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, get_cached_repo_tree, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm.asyncio import tqdm_asyncio

from eagle_core.errors import CheckpointMismatch, DiskFull, DownloadError, GatedRepo, ModelNotFound
from eagle_core.events import DownloadProgress
from eagle_core.folders import OnEvent, check_free_space, ignore_event

SAFE_SUFFIXES = (".safetensors", ".json", ".model", ".jinja", ".tiktoken")
SAFE_NAMES = ("merges.txt", "vocab.txt")
PICKLES = "pytorch_model*.bin"
FREQUENCIES = (
    "freq_*.pt"  # FR-Spec's vocabularies: pickled lists of ids, read with ``weights_only``
)
LIST_TIMEOUT_S = 15
CHUNK_BYTES = 1 << 20
EVENT_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository; ``sha256`` is None for the small files, which the Hub does not hash so."""

    name: str
    n_bytes: int
    sha256: str | None


def fetch_repo(
    repo_id: str,
    revision: str | None = None,
    allow_patterns: Sequence[str] = ("*",),
    on_event: OnEvent = ignore_event,
    offline: bool = False,
) -> Path:
    """Folder with a repository's loadable files; what is missing is downloaded.

    Without a network, or with ``offline``, what an earlier call fetched is used.

    Args:
        repo_id: "org/name".
        revision: branch, tag or commit; None: the main branch.
        allow_patterns: which of the loadable files are wanted, as for ``fnmatch``.
        on_event: gets DownloadProgress over all files together.
    Raises: ModelNotFound, GatedRepo, DownloadError, DiskFull, CheckpointMismatch; each with a hint.
    """
    if offline:
        return cached_repo(repo_id, revision, allow_patterns)
    with hub_errors(repo_id, revision):
        try:
            files = list_files(repo_id, revision)
        except (httpx2.TransportError, OfflineModeIsEnabled) as error:
            try:
                return cached_repo(repo_id, revision, allow_patterns)
            except ModelNotFound:
                raise unreachable(repo_id, error) from error
        return download(repo_id, revision, wanted(repo_id, files, allow_patterns), on_event)


def choose_files(names: Iterable[str], allow_patterns: Sequence[str] = ("*",)) -> list[str]:
    """The files worth fetching: top-level, allowed, and of a format that cannot run code.

    Pickled weights are chosen only when no safetensors file is. ``consolidated*.safetensors`` are a second
    copy of the weights in some repositories.
    """
    top = [n for n in names if "/" not in n and any(fnmatch(n, p) for p in allow_patterns)]
    safe = [n for n in top if n.endswith(SAFE_SUFFIXES) or n in SAFE_NAMES]
    weights = [n for n in safe if n.endswith(".safetensors")]
    if any(n.startswith("model") for n in weights):
        safe = [n for n in safe if not n.startswith("consolidated")]
    pickles = [] if weights else [n for n in top if fnmatch(n, PICKLES)]
    asked = any(pattern == FREQUENCIES for pattern in allow_patterns)
    lists = [n for n in top if fnmatch(n, FREQUENCIES)] if asked else []
    return sorted(safe + pickles + lists)


def list_files(repo_id: str, revision: str | None) -> list[RemoteFile]:
    """A repository's files, asked from the Hub in one request."""
    api = HfApi(endpoint=endpoint())
    info = api.model_info(repo_id, revision=revision, files_metadata=True, timeout=LIST_TIMEOUT_S)
    return [
        RemoteFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or ()
    ]


def wanted(
    repo_id: str, files: Sequence[RemoteFile], allow_patterns: Sequence[str]
) -> list[RemoteFile]:
    """The files of a listing to fetch.

    Raises: ModelNotFound when there are none.
    """
    names = set(choose_files([file.name for file in files], allow_patterns))
    if not names:
        raise ModelNotFound(
            f"{repo_id} has no files that can be loaded",
            expected="config.json and safetensors weights",
            got=", ".join(sorted(file.name for file in files)[:6]) or "an empty repository",
            hint="choose a repository in transformers' format; GGUF files are loaded from disk",
        )
    return [file for file in files if file.name in names]


def download(
    repo_id: str, revision: str | None, files: Sequence[RemoteFile], on_event: OnEvent
) -> Path:
    """Fetch the files that are missing and check those that arrived."""
    missing = [file for file in files if not is_cached(repo_id, revision, file)]
    total = sum(file.n_bytes for file in files)
    cached = total - sum(file.n_bytes for file in missing)
    cache = cache_dir()
    if missing:
        parent = existing_parent(cache)
        check_free_space(parent, total - cached, repo_id, variable="HF_HOME")
        on_event(DownloadProgress(repo_id, cached, total))
    folder = snapshot_download(
        repo_id,
        revision=revision,
        allow_patterns=[glob.escape(file.name) for file in files],
        tqdm_class=progress_class(repo_id, cached, total, on_event),
        cache_dir=cache,
        endpoint=endpoint(),
    )
    for file in missing:
        check_file(repo_id, Path(folder) / file.name, file)
    if missing:
        on_event(DownloadProgress(repo_id, total, total))
    return Path(folder)


def is_cached(repo_id: str, revision: str | None, file: RemoteFile) -> bool:
    """Whether an earlier call fetched this file whole; the size tells a changed file."""
    path = try_to_load_from_cache(repo_id, file.name, cache_dir=cache_dir(), revision=revision)
    return isinstance(path, str) and Path(path).stat().st_size == file.n_bytes


def check_file(repo_id: str, path: Path, file: RemoteFile) -> None:
    """Compare a fetched file with the Hub's listing, and remove it if it differs.

    Raises: CheckpointMismatch.
    """
    expected, got = f"{file.n_bytes:,} bytes", f"{path.stat().st_size:,} bytes"
    if expected == got and file.sha256 is not None:
        expected, got = f"SHA-256 {file.sha256}", f"SHA-256 {sha256_of(path)}"
    if expected != got:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise CheckpointMismatch(
            f"{file.name} of {repo_id} arrived damaged and was removed",
            expected=expected,
            got=got,
            hint="start again to download this file anew",
        )


def sha256_of(path: Path) -> str:
    """A file's SHA-256 in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def cached_repo(repo_id: str, revision: str | None, allow_patterns: Sequence[str]) -> Path:
    """What an earlier call fetched.

    Raises: ModelNotFound when something of it is missing.
    """
    try:
        tree = get_cached_repo_tree(repo_id, revision=revision, cache_dir=cache_dir())
        names = choose_files([file.path for file in tree], allow_patterns)
        folder = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=[glob.escape(name) for name in names],
            cache_dir=cache_dir(),
            local_files_only=True,
        )
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"{repo_id} is not on this machine, or only a part of it",
            expected=f"a finished download in {cache_dir() or 'the Hub cache'}",
            hint="start once with a network and without the offline setting",
        ) from error
    return Path(folder)


def progress_class(
    what: str, cached: int, total: int, on_event: OnEvent
) -> type[tqdm_asyncio[Any]]:
    """A silent progress bar for the library that turns its byte counts into DownloadProgress.

    The library makes several bars; those in bytes count the same files on the wire and on disk, and a bar
    jumps ahead when a break is resumed. The furthest one is reported, at most ten times a second.
    """
    lock = threading.Lock()
    state = {"done": cached, "time_s": 0.0}

    class Progress(tqdm_asyncio):  # type: ignore[type-arg]  # generic in its stubs only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("unit") == "B"
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if not self.counts_bytes:
                return None
            with lock:
                self.n += n or 0
                done = min(cached + int(self.n), total)
                now_s = time.monotonic()
                if done <= state["done"] or now_s - state["time_s"] < EVENT_INTERVAL_S:
                    return None
                state.update(done=done, time_s=now_s)
            on_event(DownloadProgress(what, done, total))
            return None

    return Progress


@contextmanager
def hub_errors(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turn the library's errors into ours. The order matters: gated is a kind of not found there."""
    try:
        yield
    except GatedRepoError as error:
        raise GatedRepo(
            f"{repo_id} is gated: its licence must be accepted first",
            hint=f"accept it on the page of {repo_id} on the Hub, then run: hf auth login",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(
            f"{repo_id} has no revision {revision!r}",
            hint="leave the revision out, or name a branch, a tag or a commit of it",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"there is no folder and no Hub repository {repo_id!r}",
            hint="check the spelling; for a private repository, run: hf auth login",
        ) from error
    except HfHubHTTPError as error:
        raise http_error(repo_id, error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"the disk is full: {repo_id} is not downloaded",
                hint="free some space, or set HF_HOME to a folder on another disk",
            ) from error
        raise unreachable(repo_id, error) from error
    except httpx2.HTTPError as error:
        raise unreachable(repo_id, error) from error


def http_error(repo_id: str, error: HfHubHTTPError) -> GatedRepo | DownloadError:
    """Our error for an answer with a status that says no."""
    status = error.response.status_code
    if status in (401, 403):
        return GatedRepo(
            f"the Hub refuses access to {repo_id} (HTTP {status})",
            hint="run: hf auth login, with a token that may read this repository",
        )
    return DownloadError(
        f"the Hub answered HTTP {status} for {repo_id}",
        hint="wait a little and start again; what arrived is kept",
    )


def unreachable(repo_id: str, error: BaseException) -> DownloadError:
    """Our error for a Hub that cannot be reached, or a transfer that broke for good."""
    lines = str(error).strip().splitlines()
    return DownloadError(
        f"{repo_id} could not be downloaded from the Hub",
        got=lines[0] if lines else type(error).__name__,
        hint="check the network and start again; the files that arrived are kept",
    )


def endpoint() -> str | None:
    """The Hub's address if ``HF_ENDPOINT`` gives another one; read at every call."""
    return os.environ.get("HF_ENDPOINT") or None


def cache_dir() -> Path | None:
    """The Hub's cache, by ``HF_HUB_CACHE`` or ``HF_HOME`` read at every call; None: the library's default."""
    own = os.environ.get("HF_HUB_CACHE")
    if own:
        return Path(own).expanduser()
    home = os.environ.get("HF_HOME")
    return Path(home).expanduser() / "hub" if home else None


def existing_parent(folder: Path | None) -> Path:
    """The nearest folder that exists, on whose disk ``folder`` will be."""
    path = (folder or Path.home()).absolute()
    return next(parent for parent in (path, *path.parents) if parent.exists())


__all__ = ["choose_files", "fetch_repo"]
