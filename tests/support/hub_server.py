"""A loopback server that speaks as much of the Hub's HTTP API as a download needs.

Answers ``/api/models/...`` with listings and ``/{repo}/resolve/{revision}/{file}`` with files (ETag, Range).
A repository can be gated, private or absent, be cut off in the middle, be busy, slow, or send another content
than it lists. ``bytes_sent`` counts what went out, file by file.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """A repository: its files, and how the server misbehaves for it."""

    files: dict[str, bytes]
    refuse: int | None = None
    refuse_code: str = ""
    # Files whose first N transfers end after half of the rest.
    cuts: dict[str, int] = field(default_factory=dict)
    # Files that are sent with another content than listed.
    corrupt: set[str] = field(default_factory=set)
    # Statuses that the next transfers of a file, or "" for the next listings, get instead of an answer.
    failures: dict[str, list[int]] = field(default_factory=dict)
    # Files that come in pieces of so many bytes with a pause of so many seconds after each.
    trickles: dict[str, tuple[int, float]] = field(default_factory=dict)
    # Whether the Range header is ignored.
    no_ranges: bool = False
    # Tokens that may read it; None: everybody.
    tokens: set[str] | None = None
    commit: str = COMMIT


class HubServer:
    """Serves ``repos`` until the ``with`` block ends; ``log`` holds (method, path, Range header)."""

    def __init__(self, repos: dict[str, Repo]) -> None:
        self.repos = repos
        self.log: list[tuple[str, str, str | None]] = []
        self.n_transfers: Counter[str] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.tokens: list[str] = []  # one for each entry of the log
        self.unknown_tokens: set[str] = set()  # that belong to no account
        self.redirects = False  # files lie on another host, as the Hub's do
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )

    @property
    def url(self) -> str:
        """Address for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving: from now on connections are refused."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def ranges(self, file: str) -> list[str | None]:
        """Range headers of the transfers of ``file``, in order."""
        return [r for method, path, r in self.log if method == "GET" and path.endswith(f"/{file}")]


class Handler(BaseHTTPRequestHandler):
    """One request. A connection that closes before Content-Length bytes were sent is a cut."""

    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubServer:
        hub = self.server.hub  # type: ignore[attr-defined]
        assert isinstance(hub, HubServer)
        return hub

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output clean."""

    def do_HEAD(self) -> None:
        """Metadata of a file."""
        self.answer(send_body=False)

    def do_GET(self) -> None:
        """A listing or a file."""
        self.answer(send_body=True)

    def answer(self, *, send_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.log.append((self.command, path, self.headers.get("Range")))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.hub.tokens.append(token)
        if path == "/api/whoami-v2":
            self.send_account(token)
            return
        parts = path.strip("/").split("/")
        is_elsewhere = parts[:1] == ["elsewhere"]
        parts = parts[1:] if is_elsewhere else parts
        is_api = parts[:2] == ["api", "models"]
        if is_api:
            parts = parts[2:]
        repo_id, rest = "/".join(parts[:2]), parts[2:]
        repo = self.hub.repos.get(repo_id)
        if repo is None:
            self.refuse(404, "RepoNotFound")
        elif repo.refuse is not None and not (is_api and repo.refuse_code == "GatedRepo"):
            self.refuse(repo.refuse, repo.refuse_code)  # a gated repository can be listed
        elif repo.tokens is not None and not is_elsewhere and token not in repo.tokens:
            message = "Invalid credentials in Authorization header" if token else "not found"
            self.refuse(401, "" if token else "RepoNotFound", {"X-Error-Message": message})
        elif len(rest) > 1 and rest[1] not in ("main", repo.commit):
            self.refuse(404, "RevisionNotFound")
        elif self.command == "GET" and (left := repo.failures.get("/".join(rest[2:]))):
            self.refuse(left.pop(0), "", {"Retry-After": "0"})
        elif is_api:
            self.send_listing(repo_id, repo, is_tree=rest[:1] == ["tree"])
        elif self.hub.redirects and self.command == "GET" and not is_elsewhere:
            port = self.hub.url.rpartition(":")[2]
            self.refuse(302, "", {"Location": f"http://localhost:{port}/elsewhere{self.path}"})
        elif "/".join(rest[2:]) in repo.files:
            self.send_file(repo, "/".join(rest[2:]), send_body)
        else:
            self.refuse(404, "EntryNotFound")

    def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_account(self, token: str) -> None:
        if token in self.hub.unknown_tokens:
            self.refuse(401, "", {"X-Error-Message": "Invalid user token."})
            return
        body = json.dumps({"type": "user", "name": "tester", "orgs": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_listing(self, repo_id: str, repo: Repo, *, is_tree: bool) -> None:
        entries = {name: describe(name, data) for name, data in repo.files.items()}
        tree = [{"type": "file", "path": name, **entry} for name, entry in entries.items()]
        siblings = [
            {
                "rfilename": name,
                "blobId": entry["oid"],
                "size": entry["size"],
                "lfs": {"sha256": entry["lfs"]["oid"], **entry["lfs"]} if "lfs" in entry else None,
            }
            for name, entry in entries.items()
        ]
        info = {"id": repo_id, "modelId": repo_id, "sha": repo.commit, "siblings": siblings}
        body = json.dumps(tree if is_tree else info).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, repo: Repo, name: str, send_body: bool) -> None:
        data = repo.files[name]
        entry = describe(name, data)
        etag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
        if name in repo.corrupt:
            data = bytes(len(data))
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "bytes=0-")
        assert asked is not None, self.headers.get("Range")
        start, end = int(asked[1]), int(asked[2] or len(data) - 1) + 1
        is_part = self.headers.get("Range") is not None and not repo.no_ranges
        body = data[start:end] if is_part else data
        self.send_response(206 if is_part else 200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("Accept-Ranges", "bytes")
        if is_part:
            last = start + len(body) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not send_body:
            return
        self.hub.n_transfers[name] += 1
        if self.hub.n_transfers[name] <= repo.cuts.get(name, 0):
            body = body[: len(body) // 2]
            self.close_connection = True
        size, pause_s = repo.trickles.get(name, (max(len(body), 1), 0.0))
        for offset in range(0, len(body), size):
            try:
                self.wfile.write(body[offset : offset + size])
                self.wfile.flush()
            except OSError:  # the client has gone
                self.close_connection = True
                return
            self.hub.bytes_sent[name] += len(body[offset : offset + size])
            time.sleep(pause_s)


def describe(name: str, data: bytes) -> dict[str, Any]:
    """A file as the tree listing shows it: a git object id, and LFS data for weights."""
    git_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    entry: dict[str, Any] = {"oid": git_id, "size": len(data)}
    if name.endswith((".safetensors", ".bin")):
        entry["lfs"] = {
            "oid": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "pointerSize": 134,
        }
    return entry
