"""What a certificate says, and where the last one is kept. No torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_core.folders import cache_folder, disk_errors, make_cache_folder

SECTIONS = {
    "tokens": "The same tokens as plain decoding (tiny float32 model)",
    "statistics": "The right distribution (tiny exact target)",
    "planted": "Planted bugs that these tests must catch",
    "model": "The loaded model",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table. ``figures`` are what ``detail`` says in words, for programs."""

    section: str
    name: str
    passed: bool
    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Certificate:
    """All checks of one run. ``created`` is a UTC time in ISO 8601, ``dtype`` the precision."""

    base: str
    head: str | None
    dtype: str
    device: str
    created: str
    version: str
    elapsed_s: float
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed; a certificate without checks proves nothing."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ``passed`` and the number of checks included."""
        return {"passed": self.passed, "n_checks": len(self.checks), **dataclasses.asdict(self)}


def from_dict(data: dict[str, Any]) -> Certificate:
    """The certificate that :meth:`Certificate.to_dict` wrote.

    Raises: KeyError or TypeError when it is another kind of data.
    """
    names = [spec.name for spec in dataclasses.fields(Certificate)]
    values = {name: data[name] for name in names}
    values["checks"] = tuple(Check(**check) for check in data["checks"])
    return Certificate(**values)


def certificate_folder() -> Path:
    """Where certificates are kept."""
    return cache_folder() / "certificates"


def certificate_path(base: str, head: str | None, dtype: str) -> Path:
    """Where the last certificate of a base, a head and a precision is kept."""
    key = json.dumps([base, head, dtype])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    name = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(base).name) or "model"
    return certificate_folder() / f"{name[:40]}-{dtype}-{digest}.json"


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write it as JSON, whole or not at all.

    Raises: DiskFull; ConfigError when the folder cannot be written.
    """
    make_cache_folder(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with disk_errors("the certificate"):
        try:
            text = json.dumps(certificate.to_dict(), indent=1, ensure_ascii=False)
            partial.write_text(text + "\n", encoding="utf-8")
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def last_certificate(base: str, head: str | None, dtype: str) -> Certificate | None:
    """The last certificate; None when there is none, or none that can be read."""
    try:
        text = certificate_path(base, head, dtype).read_text(encoding="utf-8")
        return from_dict(json.loads(text))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def as_table(certificate: Certificate) -> str:
    """The certificate for the terminal: a block for each section, a line for each check."""
    lines = []
    for section, title in SECTIONS.items():
        checks = [check for check in certificate.checks if check.section == section]
        if not checks:
            continue
        lines += ["", title]
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark = "ok  " if check.passed else "FAIL"
            lines.append(f"  {mark}  {check.name.ljust(width)}  {check.detail}")
    n_failed = sum(not check.passed for check in certificate.checks)
    verdict = f"{n_failed} failed" if n_failed else "all passed"
    model = certificate.base + (f" with {certificate.head}" if certificate.head else ", no head")
    where = f"{model}, {certificate.dtype} on {certificate.device}"
    n_checks = len(certificate.checks)
    lines += ["", f"{where}: {n_checks} checks, {verdict}, {certificate.elapsed_s:.0f} s"]
    return "\n".join(lines[1:])


__all__ = [
    "SECTIONS",
    "Certificate",
    "Check",
    "as_table",
    "certificate_folder",
    "certificate_path",
    "from_dict",
    "last_certificate",
    "write_certificate",
]
