"""The library's and the system's errors as ours, each with its next step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from eagle_core.errors import (
    BadToken,
    CheckpointMismatch,
    DiskFull,
    DownloadError,
    EagleError,
    GatedRepo,
    ModelNotFound,
    NoNetwork,
    RateLimited,
)

RETRY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


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
            raise disk_full(repo_id) from error
        if error.errno in (errno.EACCES, errno.EROFS):
            raise DownloadError(
                f"the cache of the Hub cannot be written, so {repo_id} is not downloaded",
                got=str(error),
                hint="set HF_HOME to a folder of yours",
            ) from error
        raise unreachable(repo_id, error) from error
    except httpx2.HTTPError as error:
        raise unreachable(repo_id, error) from error


def http_error(repo_id: str, error: HfHubHTTPError) -> EagleError:
    """Our error for an answer with a status that says no."""
    status = error.response.status_code
    if status == 401 and get_token() is not None:
        return BadToken(
            f"the Hub does not accept your token for {repo_id}",
            got="HTTP 401",
            hint="make a new one on the Hub's settings page, then run: hf auth login "
            "(or set HF_TOKEN, or unset it for what is public)",
        )
    if status in (401, 403):
        return GatedRepo(
            f"the Hub refuses access to {repo_id} (HTTP {status})",
            hint="run: hf auth login, with a token that may read this repository",
        )
    if status == 429:
        return RateLimited(
            f"the Hub wants fewer requests from here for now, so {repo_id} has to wait (HTTP 429)",
            hint="start again in some minutes; what arrived is kept, and with a token (hf auth login) "
            "more is allowed",
        )
    return DownloadError(
        f"the Hub answered HTTP {status} for {repo_id}",
        hint="wait a little and start again; what arrived is kept",
    )


def unreachable(repo_id: str, error: BaseException) -> DownloadError:
    """Our error for a Hub that cannot be reached, or a transfer that broke for good."""
    lines = str(error).strip().splitlines()
    got = lines[0] if lines else type(error).__name__
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, OfflineModeIsEnabled)):
        return NoNetwork(
            f"the Hub cannot be reached for {repo_id}",
            got=got,
            hint="check the network, the proxy and HF_ENDPOINT, and start again; what arrived is kept. "
            "If a folder was meant: there is none of that name where you run",
        )
    return DownloadError(
        f"{repo_id} could not be downloaded from the Hub",
        got=got,
        hint="check the network and start again; what arrived is kept",
    )


def disk_full(repo_id: str) -> DiskFull:
    """Our error for a disk that filled up."""
    return DiskFull(
        f"the disk is full: {repo_id} is not downloaded",
        hint="free some space, or set HF_HOME to a folder on another disk",
    )


def damaged(repo_id: str, name: str, expected: str, got: str) -> CheckpointMismatch:
    """Our error for a file that is not the one that the Hub lists."""
    return CheckpointMismatch(
        f"{name} of {repo_id} arrived damaged and was removed",
        expected=expected,
        got=got,
        hint="start again to download this file anew; if it happens again, something on the way changes it",
    )


__all__ = ["RETRY_STATUSES", "damaged", "disk_full", "http_error", "hub_errors", "unreachable"]
