"""The Hub's cache on disk: where it is, what is in it, and taking things out of it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub import constants, scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from eagle_core.errors import DownloadError
from eagle_core.hub.transfer import PARTIAL


@dataclass(frozen=True, slots=True)
class CachedRepo:
    """A repository in the cache; ``commits`` are those of which there are files."""

    repo_id: str
    commits: tuple[str, ...]
    n_bytes: int
    folder: Path


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


def cache_root() -> Path:
    """The Hub's cache, the library's default included."""
    return cache_dir() or Path(constants.HF_HUB_CACHE)


def repo_folder(repo_id: str) -> Path:
    """Where a repository's files lie, or will lie; the layout is the library's."""
    return cache_root() / ("models--" + repo_id.replace("/", "--"))


def repo_lock(repo_id: str) -> FileLock:
    """Held while a repository is fetched or removed."""
    folder = cache_root() / ".locks" / repo_folder(repo_id).name
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / "eagle.lock")


def commit_of(repo_id: str, revision: str | None = None) -> str | None:
    """The commit that a branch or tag meant when it was last fetched; None when it never was."""
    try:
        text = (repo_folder(repo_id) / "refs" / (revision or "main")).read_text(encoding="ascii")
    except OSError:
        return None
    return text.strip() or None


def record_commit(repo_id: str, revision: str | None, commit: str) -> None:
    """Write down what a branch or tag means, as the library does; later starts without a network use it."""
    if revision == commit:
        return
    path = repo_folder(repo_id) / "refs" / (revision or "main")
    if commit_of(repo_id, revision) == commit:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(commit, encoding="ascii")
    os.replace(temporary, path)


def cached_repos() -> dict[str, CachedRepo]:
    """All model repositories in the cache, by id; those with partial files only included."""
    found: dict[str, CachedRepo] = {}
    try:
        scanned = scan_cache_dir(cache_root()).repos
    except CacheNotFound:
        return found
    for repo in scanned:
        if repo.repo_type == "model":
            commits = tuple(sorted(revision.commit_hash for revision in repo.revisions))
            size = repo.size_on_disk + _partial_bytes(repo.repo_path)
            found[repo.repo_id] = CachedRepo(repo.repo_id, commits, size, repo.repo_path)
    for folder in cache_root().glob("models--*"):
        repo_id = folder.name.removeprefix("models--").replace("--", "/")
        if repo_id not in found and _partial_bytes(folder):
            found[repo_id] = CachedRepo(repo_id, (), _partial_bytes(folder), folder)
    return found


def _partial_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"blobs/*{PARTIAL}"))


def downloads(repo_ids: Iterable[str]) -> list[CachedRepo]:
    """Which of these repositories are in the cache."""
    repo_ids = [repo_id for repo_id in repo_ids if repo_folder(repo_id).exists()]
    there = cached_repos() if repo_ids else {}  # it looks at every file of the cache
    return [there[repo_id] for repo_id in repo_ids if repo_id in there]


def remove_repo(repo_id: str) -> int:
    """Take a repository out of the cache, unfinished downloads included; returns the bytes that frees.

    A content that other repositories in the cache use, too, stays for them: the library keeps count.

    Raises: DownloadError while it is being fetched.
    """
    lock = repo_lock(repo_id)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise DownloadError(
            f"{repo_id} is being downloaded",
            expected="a finished or stopped download",
            hint="stop that download first",
        ) from error
    try:
        repo = cached_repos().get(repo_id)
        if repo is None:
            return 0
        freed = _partial_bytes(repo.folder)
        if repo.commits:
            found = scan_cache_dir(cache_root())
            # Copies of a repository have the same commits: the library would take the first that has one.
            own = frozenset(one for one in found.repos if one.repo_path == repo.folder)
            strategy = dataclasses.replace(found, repos=own).delete_revisions(*repo.commits)
            freed += strategy.expected_freed_size
            strategy.execute()
        shutil.rmtree(repo.folder, ignore_errors=True)
        return freed
    finally:
        lock.release()


__all__ = [
    "CachedRepo",
    "cache_dir",
    "cache_root",
    "cached_repos",
    "commit_of",
    "downloads",
    "endpoint",
    "record_commit",
    "remove_repo",
    "repo_folder",
    "repo_lock",
]
