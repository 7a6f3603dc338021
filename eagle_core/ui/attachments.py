"""Text files that go into a message: read in memory, never written to disk, refused if they are not text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from eagle_core.errors import ConfigError

MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 8
# Control characters that no text file holds; tab, line ends, form feed and escape may be in one.
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
LANGUAGES = {
    "py": "python", "js": "javascript", "ts": "typescript", "sh": "bash", "bash": "bash", "md": "markdown",
    "json": "json", "html": "html", "css": "css", "c": "c", "h": "c", "cpp": "cpp", "hpp": "cpp",
    "java": "java", "go": "go", "rs": "rust", "php": "php", "sql": "sql", "yml": "yaml", "yaml": "yaml",
    "tex": "latex", "toml": "toml", "csv": "csv", "xml": "xml",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file's text, with the name it had."""

    name: str
    text: str

    @property
    def n_bytes(self) -> int:
        """Size as UTF-8."""
        return len(self.text.encode())


def read_attachment(name: str, encoded: str, n_bytes: int = 0) -> Attachment:
    """A file as the browser sends it: its name, and its bytes in base64.

    ``n_bytes`` is its size as the browser says; the browser doesn't even read one that is too large.

    Raises: ConfigError when it is too large, or no text.
    """
    name = clean_name(name)
    n_bytes = max(n_bytes, len(encoded.rstrip("=")) * 3 // 4)
    if n_bytes > MAX_FILE_BYTES:
        raise ConfigError(
            f"the file {name} is too large to attach",
            expected=f"at most {MAX_FILE_BYTES // 1024} kB",
            got=f"{n_bytes // 1024 + 1} kB",
            hint="attach the part that matters",
        )
    try:
        content = base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ConfigError(f"the file {name} arrived damaged", hint="attach it again") from error
    return Attachment(name, decoded(name, content))


def decoded(name: str, content: bytes) -> str:
    """The bytes as text: UTF-8, or UTF-16 with its mark."""
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise binary_error(name) from error
    if CONTROL.search(text):
        raise binary_error(name)
    if not text.strip():
        raise ConfigError(f"the file {name} is empty", hint="choose a file with some text")
    return text.replace("\r\n", "\n")


def binary_error(name: str) -> ConfigError:
    """The error for a file that is no text."""
    return ConfigError(
        f"the file {name} is not a text file",
        expected="text, Markdown or code in UTF-8",
        got="binary data",
        hint="convert it to text first; images, PDF and Office files cannot be read",
    )


def clean_name(name: str) -> str:
    """A file's name without folders and signs that Markdown would read."""
    last = PurePosixPath(name.replace("\\", "/")).name
    return re.sub(r"[`\x00-\x1f<>\[\]]", "_", last)[:100] or "file"


def with_attachments(text: str, attachments: Sequence[Attachment]) -> str:
    """A message with its files before it, each in a fence that its own text cannot close."""
    parts = []
    for file in attachments:
        longest = max((len(run) for run in re.findall(r"`{3,}", file.text)), default=2)
        fence = "`" * (longest + 1)
        language = LANGUAGES.get(file.name.rsplit(".", 1)[-1].lower(), "")
        parts.append(f"`{file.name}`:\n\n{fence}{language}\n{file.text.rstrip()}\n{fence}\n\n")
    return "".join(parts) + text


__all__ = ["MAX_FILES", "MAX_FILE_BYTES", "Attachment", "read_attachment", "with_attachments"]
