"""A repository's folder, fetched if need be: several files at once, one count of bytes, all of one commit."""

from __future__ import annotations

import glob
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx2
from filelock import Timeout
from huggingface_hub import (
    get_cached_repo_tree,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # no __all__ there
from tqdm.asyncio import tqdm_asyncio

from eagle_core.errors import Cancelled, DownloadError, ModelNotFound
from eagle_core.events import DownloadProgress, LoadProgress
from eagle_core.folders import OnEvent, check_free_space, ignore_event
from eagle_core.hub.cache import (
    cache_dir,
    cache_root,
    endpoint,
    record_commit,
    repo_folder,
    repo_lock,
)
from eagle_core.hub.errors import RETRY_STATUSES, damaged, http_error, hub_errors, unreachable
from eagle_core.hub.listing import Listing, RemoteFile, choose_files, list_files, wanted
from eagle_core.hub.transfer import MAX_RETRIES, POLL_S, Content, Stop, fetch_file, partial_bytes
from eagle_core.outputs import existing_parent

FILES_AT_ONCE = 4
EVENT_INTERVAL_S = 0.1
COMMIT = re.compile(r"[0-9a-f]{40}")


def fetch_repo(
    repo_id: str,
    revision: str | None = None,
    allow_patterns: Sequence[str] = ("*",),
    on_event: OnEvent = ignore_event,
    offline: bool = False,
    cancel: threading.Event | None = None,
) -> Path:
    """Folder with a repository's loadable files; what is missing is downloaded.

    Without a network, or with ``offline``, what an earlier call fetched is used.

    Args:
        repo_id: "org/name".
        revision: branch, tag or commit; None: the main branch.
        allow_patterns: which of the loadable files are wanted, as for ``fnmatch``.
        on_event: gets DownloadProgress over all files together.
        cancel: stops the download once it is set; what arrived is kept for the next call.
    Raises: ModelNotFound, GatedRepo, BadToken, DownloadError and its kinds, DiskFull, CheckpointMismatch,
        Cancelled; each with a hint.
    """
    if offline:
        return cached_repo(repo_id, revision, allow_patterns)
    stop = Stop(cancel)
    has_all = is_here(repo_id, revision, allow_patterns)
    if has_all and COMMIT.fullmatch(revision or ""):  # a commit never changes
        return cached_repo(repo_id, revision, allow_patterns)
    # With all of it here, a busy Hub is not worth waiting for.
    retries = 0 if has_all else MAX_RETRIES
    with hub_errors(repo_id, revision):
        try:
            listing = list_files(repo_id, revision, stop, retries)
        except (httpx2.TransportError, OfflineModeIsEnabled, HfHubHTTPError) as error:
            status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
            if status is not None and status not in RETRY_STATUSES:
                raise
            try:
                return cached_repo(repo_id, revision, allow_patterns)
            except ModelNotFound:
                if isinstance(error, HfHubHTTPError):
                    raise http_error(repo_id, error) from error
                raise unreachable(repo_id, error) from error
        files = wanted(repo_id, listing.files, allow_patterns)
        return download(repo_id, revision, listing, files, on_event, stop)


def download(
    repo_id: str,
    revision: str | None,
    listing: Listing,
    files: Sequence[RemoteFile],
    on_event: OnEvent,
    stop: Stop,
) -> Path:
    """Fetch the files that are missing, link them into a snapshot of the commit, and note the commit."""
    missing = [file for file in files if not is_cached(repo_id, listing.commit, file)]
    if missing:
        with _Locked(repo_id, on_event, stop):
            missing = [file for file in files if not is_cached(repo_id, listing.commit, file)]
            transfer_all(repo_id, listing.commit, files, missing, on_event, stop)
    folder = snapshot_download(
        repo_id,
        revision=listing.commit,
        allow_patterns=[glob.escape(file.name) for file in files],
        tqdm_class=_NoBar,
        cache_dir=cache_dir(),
        endpoint=endpoint(),
    )
    record_commit(repo_id, revision, listing.commit)
    return Path(folder)


def transfer_all(
    repo_id: str,
    commit: str,
    files: Sequence[RemoteFile],
    missing: Sequence[RemoteFile],
    on_event: OnEvent,
    stop: Stop,
) -> None:
    """Fetch the contents of ``missing`` into the cache, some at once. One that fails stops the others."""
    blobs = repo_folder(repo_id) / "blobs"
    total = sum(file.n_bytes for file in files)
    cached = total - sum(file.n_bytes for file in missing)
    left_over = sum(partial_bytes(blobs / str(file.blob_name)) for file in missing)
    parent = existing_parent(cache_root())
    check_free_space(parent, max(total - cached - left_over, 0), repo_id, variable="HF_HOME")
    blobs.mkdir(parents=True, exist_ok=True)
    tally = _Tally(repo_id, cached, total, on_event)
    contents = {file.blob_name: file for file in missing}.values()  # equal files are one content
    pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="eagle-download")
    try:
        futures = [
            pool.submit(_transfer, repo_id, commit, file, blobs, stop, tally) for file in contents
        ]
        waiting = set(futures)
        while waiting:  # in short waits: a Ctrl+C is heard between them
            done, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_EXCEPTION)
            if any(future.exception() is not None for future in done):
                break
        stop.stop_all()  # nothing to stop when all went well
        errors = [error for f in futures if (error := f.exception()) is not None]
    finally:
        stop.stop_all()
        pool.shutdown(wait=True, cancel_futures=True)
    if errors:  # those that were stopped say less than the one that failed
        raise next((e for e in errors if not isinstance(e, Cancelled)), errors[0])
    tally.finish()


def _transfer(
    repo_id: str, commit: str, file: RemoteFile, blobs: Path, stop: Stop, tally: _Tally
) -> None:
    if file.blob_name is None:
        raise DownloadError(
            f"the Hub does not say what {file.name} of {repo_id} must contain",
            hint="check HF_ENDPOINT: this server lists files without their checksums",
        )
    path = blobs / file.blob_name
    if path.exists():
        if path.stat().st_size == file.n_bytes:
            tally.add(file.n_bytes)
            return
        path.unlink()
    url = hf_hub_url(repo_id, file.name, revision=commit, endpoint=endpoint())
    content = Content(file.n_bytes, file.sha256, file.git_id)
    is_right = fetch_file(url, build_hf_headers(), path, file.n_bytes, content, stop, tally.add)
    if not is_right:
        kind = "SHA-256" if file.sha256 else "git id"
        raise damaged(repo_id, file.name, f"{kind} {content.expected}", f"{kind} {content.found}")


def is_cached(repo_id: str, commit: str, file: RemoteFile) -> bool:
    """Whether an earlier call fetched this file whole; the size tells a changed file."""
    path = try_to_load_from_cache(repo_id, file.name, cache_dir=cache_dir(), revision=commit)
    return isinstance(path, str) and Path(path).stat().st_size == file.n_bytes


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
            expected=f"a finished download in {cache_root()}",
            hint="start once with a network and without the offline setting",
        ) from error
    return Path(folder)


def is_here(repo_id: str, revision: str | None, allow_patterns: Sequence[str] = ("*",)) -> bool:
    """Whether an earlier call fetched all of it."""
    try:
        cached_repo(repo_id, revision, allow_patterns)
    except ModelNotFound:
        return False
    return True


class _Locked:
    """Within the block no other process fetches this repository; says so once while it waits."""

    def __init__(self, repo_id: str, on_event: OnEvent, stop: Stop) -> None:
        self._repo_id, self._on_event, self._stop = repo_id, on_event, stop

    def __enter__(self) -> None:
        self._lock = repo_lock(self._repo_id)
        is_said = False
        while True:
            try:
                self._lock.acquire(timeout=0)
                return
            except Timeout:
                if not is_said:
                    self._on_event(LoadProgress(f"another process is fetching {self._repo_id}"))
                is_said = True
            self._stop.wait(POLL_S)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Tally:
    """Counts the bytes of all transfers and reports them, at most ten times a second and never backwards."""

    def __init__(self, what: str, done: int, total: int, on_event: OnEvent) -> None:
        self._what, self._done, self._total, self._on_event = what, done, total, on_event
        self._lock = threading.Lock()
        self._shown, self._shown_at_s = done, time.monotonic()
        on_event(DownloadProgress(what, done, total))

    def add(self, n_bytes: int) -> None:
        """So many bytes more; fewer when a file starts over."""
        with self._lock:
            self._done += n_bytes
            now_s = time.monotonic()
            if self._done <= self._shown or now_s - self._shown_at_s < EVENT_INTERVAL_S:
                return
            self._shown, self._shown_at_s = self._done, now_s
            self._on_event(DownloadProgress(self._what, self._done, self._total))

    def finish(self) -> None:
        """All is there."""
        self._on_event(DownloadProgress(self._what, self._total, self._total))


class _NoBar(tqdm_asyncio):  # type: ignore[type-arg]  # generic in its stubs only
    """The library's bars, unseen: what they would count is here already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["disable"] = True
        super().__init__(*args, **kwargs)


__all__ = ["cached_repo", "fetch_repo", "is_here"]
