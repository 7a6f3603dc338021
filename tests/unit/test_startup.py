"""Imports without the collector: it is off for as long as they take, and no longer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from eagle_core.startup import quick_imports

ABSENT = "a_module_that_is_nowhere"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_the_collector_is_off_meanwhile_and_leaves_alone_what_came() -> None:
    gc.unfreeze()
    with quick_imports(ABSENT):
        assert not gc.isenabled()
        kept = [[] for _ in range(10)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(kept)


def test_an_import_that_fails_turns_it_on_again() -> None:
    with pytest.raises(ImportError), quick_imports(ABSENT):
        raise ImportError(ABSENT)
    assert gc.isenabled()


def test_nothing_happens_for_what_is_there_or_without_a_collector() -> None:
    gc.unfreeze()
    with quick_imports("gc"):
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.disable()
    with quick_imports(ABSENT):
        pass
    assert not gc.isenabled()
