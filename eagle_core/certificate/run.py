"""Runs all checks and puts the certificate together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from time import perf_counter

from eagle_core._version import __version__
from eagle_core.certificate.loaded import model_checks
from eagle_core.certificate.records import SECTIONS, Certificate, Check
from eagle_core.certificate.statistics import statistical_checks
from eagle_core.certificate.tokens import token_checks
from eagle_core.session import Session


def all_checks(session: Session) -> Iterator[Check]:
    """One after the other: the loaded model first, since it is what the user waits for."""
    yield from model_checks(session)
    yield from token_checks()
    yield from statistical_checks()


def certify(session: Session, on_check: Callable[[Check], None] | None = None) -> Certificate:
    """Check the engine and the session's model.

    Args: on_check: hears each check as it is done.
    Raises: ModelError when the model fails to answer at all.
    """
    started, checks = perf_counter(), list[Check]()
    for check in all_checks(session):
        checks.append(check)
        if on_check is not None:
            on_check(check)
    order = list(SECTIONS)
    checks.sort(key=lambda check: order.index(check.section))
    return Certificate(
        base=session.info.base,
        head=session.info.head,
        dtype=session.info.precision,
        device=session.info.device,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=__version__,
        elapsed_s=perf_counter() - started,
        checks=tuple(checks),
    )


__all__ = ["all_checks", "certify"]
