"""Fetches one wheel through pip's own session, and goes on where an earlier try stopped. A program.

Index, mirrors, proxies, certificates and logins are those that pip is set up with. pip itself begins a file
anew after every break; here the rest is asked for, where the server can send a part. Run as
``python -m eagle_core.pip_fetch TARGET REQUIREMENT PIP-OPTIONS...``; ends when its input does, so that it
does not outlive the process that started it. Warnings and errors go to stderr, as pip writes them.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PARTIAL = ".partial"
EXIT_FAILED = 1
EXIT_OTHER_PIP = 3  # this pip is made differently inside: `pip download` has to do
CHUNK_BYTES = 1 << 16
MAX_BREAKS = 5  # in a row, without a byte between them
FIRST_PAUSE_S = 0.5


def find_link(command: Any, options: Any, session: Any, requirement: str) -> Any:
    """What pip would download for ``package==version``; None when no index has it."""
    name, _, version = requirement.partition("==")
    finder = command._build_package_finder(options=options, session=session)
    specifiers = importlib.import_module("pip._vendor.packaging.specifiers")
    best = finder.find_best_candidate(name, specifiers.SpecifierSet(f"=={version}"))
    return None if best.best_candidate is None else best.best_candidate.link


def fetch(session: Any, link: Any, target: Path) -> None:
    """Bring ``target`` here whole; what an earlier try left is gone on with.

    Raises: OSError, which the library's own errors are, too; the last one when the file does not come.
    """
    partial = target.with_name(target.name + PARTIAL)
    n_breaks = 0
    while True:
        before = partial.stat().st_size if partial.exists() else 0
        try:
            receive(session, link.url_without_fragment, partial)
            if is_right(link, partial) or before == 0:
                break
            partial.unlink()  # its beginning was of another file
            continue
        except OSError as error:
            after = partial.stat().st_size if partial.exists() else 0
            n_breaks = 0 if after > before else n_breaks + 1
            if n_breaks > MAX_BREAKS or is_final(error):
                raise
            logger.warning("going on after %s: %s", type(error).__name__, error)
            time.sleep(FIRST_PAUSE_S * 2**n_breaks)
    if not is_right(link, partial):
        partial.unlink()
        raise OSError(f"{link.filename} does not have the {link.hash_name} that the index names")
    os.replace(partial, target)


def receive(session: Any, url: str, partial: Path) -> None:
    """Append what is missing of a file.

    Raises: OSError when the server refuses, or the answer ends early.
    """
    with partial.open("ab") as out:
        start = out.tell()
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with session.get(url, headers=headers, stream=True) as response:
            if start and response.status_code != 206:  # the whole file, or no such part of it
                out.truncate(0)
                start = 0
                if response.status_code == 416:
                    raise OSError("the server has no such part of the file")
            response.raise_for_status()
            length = response.headers.get("Content-Length")
            for chunk in response.iter_content(CHUNK_BYTES):
                out.write(chunk)
                out.flush()
            if length is not None and out.tell() < start + int(length):
                raise OSError("the answer ended before the file did")


def is_right(link: Any, path: Path) -> bool:
    """Whether a file has the checksum that the index names; one without is checked by what it holds."""
    if not link.hash_name or link.hash_name not in hashlib.algorithms_available:
        return True
    digest = hashlib.new(link.hash_name)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return bool(digest.hexdigest() == link.hash)


def is_final(error: OSError) -> bool:
    """Whether trying again is of no use: the server refuses, or the disk is the problem."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return error.errno is not None or (status is not None and 400 <= status < 500)


def end_with_parent() -> None:
    """End as soon as the process that holds the other end of the input is gone."""
    while os.read(
        sys.stdin.fileno(), 1
    ):  # not through the buffer: its lock would outlive this thread
        pass
    os._exit(EXIT_FAILED)


def main(argv: Sequence[str]) -> int:
    """Fetch; returns the exit code."""
    target, requirement, *flags = argv
    threading.Thread(target=end_with_parent, daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        command = importlib.import_module("pip._internal.commands.download").DownloadCommand(
            "download", ""
        )
        options, _ = command.parse_args([*flags, requirement])
        with command.main_context():
            session = command.get_default_session(options)
            link = find_link(command, options, session, requirement)
            if link is None:
                logger.error("No matching distribution found for %s", requirement)
                return EXIT_FAILED
            fetch(session, link, Path(target))
    except (ImportError, AttributeError, TypeError) as error:
        logger.warning("%s: %s", type(error).__name__, error)
        return EXIT_OTHER_PIP
    except OSError as error:
        logger.error("%s: %s", type(error).__name__, error)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


__all__ = ["EXIT_OTHER_PIP", "PARTIAL", "main"]
