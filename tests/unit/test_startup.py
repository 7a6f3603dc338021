"""Imports without the collector: it is off for as long as they take, and no longer."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from eagle_core.startup import child_environment, models_scanned_once, quick_imports

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


IMPORTED = """
from eagle_core.startup import models_scanned_once
with models_scanned_once():
    import transformers.models
from pathlib import Path
from transformers.utils import import_utils

file = Path(transformers.models.__file__)
folders = [path for path in file.parent.rglob("*") if path.is_dir() and path.name != "__pycache__"]
n_scanned = import_utils.create_import_structure_from_path.cache_info().misses
wanted = import_utils.define_import_structure(file)
assert transformers.models._import_structure.keys() == set().union(
    *(part.keys() for part in wanted.values())
)
print(len(folders), n_scanned)
"""


def test_transformers_looks_through_its_models_once() -> None:
    run = subprocess.run(
        [sys.executable, "-c", IMPORTED], env=child_environment(), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    n_folders, n_scanned = map(int, run.stdout.split())
    assert n_folders <= n_scanned < 1.2 * n_folders


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A transformers of another kind, without its models."""
    package, utils = ModuleType("transformers"), ModuleType("import_utils")
    package.__file__ = "/libraries/transformers/__init__.py"
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "transformers.utils.import_utils", utils)
    monkeypatch.delitem(sys.modules, "transformers.models", raising=False)
    return utils


def test_only_the_second_look_at_the_models_is_spared(library: ModuleType) -> None:
    looked: list[str | Path] = []
    library.create_import_structure_from_path = before = looked.append  # type: ignore[attr-defined]
    with models_scanned_once():
        library.create_import_structure_from_path("/libraries/transformers/models/__init__.py")
        library.create_import_structure_from_path("/libraries/transformers/models/llama")
    folder = Path("/libraries/transformers/models")
    assert looked == [folder, str(folder / "llama")]
    assert library.create_import_structure_from_path == before


def test_a_transformers_that_does_otherwise_is_left_as_it_is(library: ModuleType) -> None:
    with models_scanned_once():
        assert not hasattr(library, "create_import_structure_from_path")
