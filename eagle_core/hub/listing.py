"""What a repository holds, at one commit, and which of it is worth fetching."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from eagle_core.errors import ModelNotFound
from eagle_core.hub import transfer
from eagle_core.hub.cache import endpoint
from eagle_core.hub.errors import RETRY_STATUSES
from eagle_core.hub.transfer import Stop, pause_s

SAFE_SUFFIXES = (".safetensors", ".json", ".model", ".jinja", ".tiktoken")
SAFE_NAMES = ("merges.txt", "vocab.txt")
PICKLES = "pytorch_model*.bin"
FREQUENCIES = (
    "freq_*.pt"  # FR-Spec's vocabularies: pickled lists of ids, read with ``weights_only``
)
LIST_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    ``sha256`` is None for the small files, which the Hub does not hash so; ``git_id`` is its id in git,
    for a small file the SHA-1 of a header and the content. Either names the content in the cache.
    """

    name: str
    n_bytes: int
    sha256: str | None
    git_id: str | None

    @property
    def blob_name(self) -> str | None:
        """How the Hub's cache calls the content."""
        return self.sha256 or self.git_id


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository's files at ``commit``."""

    commit: str
    is_gated: bool
    files: tuple[RemoteFile, ...]


def list_files(
    repo_id: str,
    revision: str | None,
    stop: Stop | None = None,
    max_retries: int = transfer.MAX_RETRIES,
) -> Listing:
    """A repository's commit and files, in one request; a busy Hub is asked again a few times."""
    api, stop = HfApi(endpoint=endpoint()), stop or Stop()
    for n_failures in range(max_retries + 1):
        stop.check()
        try:
            info = api.model_info(
                repo_id, revision=revision, files_metadata=True, timeout=LIST_TIMEOUT_S
            )
            break
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status not in RETRY_STATUSES or n_failures == max_retries:
                raise
            stop.wait(pause_s(n_failures, error.response))
    files = [
        RemoteFile(
            file.rfilename,
            (file.lfs.size if file.lfs else file.size) or 0,
            file.lfs.sha256 if file.lfs else None,
            file.blob_id,
        )
        for file in info.siblings or ()
    ]
    return Listing(info.sha or "", bool(info.gated), tuple(files))


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


def wanted(
    repo_id: str, files: Sequence[RemoteFile], allow_patterns: Sequence[str]
) -> list[RemoteFile]:
    """The files of a listing to fetch, small ones first.

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
    return sorted((f for f in files if f.name in names), key=lambda file: file.n_bytes)


__all__ = ["Listing", "RemoteFile", "choose_files", "list_files", "wanted"]
