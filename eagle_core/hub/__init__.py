"""Repositories of the Hugging Face Hub: the only place that imports huggingface_hub.

Files land in the Hub's own cache (``HF_HOME``), shared with other programs; the library lists, authorises
and links, ``transfer`` moves the bytes. Only formats that cannot run code are fetched; a pickled ``.bin``
only where a repository has no safetensors, to be read with ``weights_only``. A name is resolved to a commit
first, and every file belongs to that commit. What a broken or killed transfer left is gone on with; every
file's checksum is compared on arrival, and a wrong one is removed.
"""

from __future__ import annotations

from eagle_core.hub.cache import CachedRepo, cached_repos, commit_of, downloads, remove_repo
from eagle_core.hub.fetch import fetch_repo, is_here
from eagle_core.hub.listing import choose_files
from eagle_core.hub.metadata import RepoFacts, describe_folder, describe_repo
from eagle_core.hub.token import (
    forget_token,
    has_token,
    is_token_from_environment,
    save_token,
)

__all__ = [
    "CachedRepo",
    "RepoFacts",
    "cached_repos",
    "choose_files",
    "commit_of",
    "describe_folder",
    "describe_repo",
    "downloads",
    "fetch_repo",
    "forget_token",
    "has_token",
    "is_here",
    "is_token_from_environment",
    "remove_repo",
    "save_token",
]
