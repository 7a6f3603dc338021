"""Starting processes. Imports that take seconds, a fourth faster.

Without the garbage collector: a process imports once, and hardly anything that an import makes ever becomes
garbage; yet the collector looks through all of it again and again while it grows. And without looking through
the same files twice. Knows no torch.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import eagle_core


@contextmanager
def quick_imports(module: str) -> Iterator[None]:
    """Put the collector off while ``module`` is imported; what is there afterwards it never looks at again.

    Without effect where the module is there already, or the collector is off.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def models_scanned_once() -> Iterator[None]:
    """Import transformers, and spare its package of models from looking through their files a second time.

    Both do it at import, some thousand files each, and both find the same; what was found is remembered, but
    for too few folders (a quarter to half a second). A transformers that does otherwise is left as it is.
    """
    import transformers

    library: Any = sys.modules.get("transformers.utils.import_utils")
    scan = getattr(library, "create_import_structure_from_path", None)
    if scan is None or "transformers.models" in sys.modules:
        yield
        return
    folder = Path(str(transformers.__file__)).parent / "models"

    def scan_once(path: str | Path) -> Any:
        return scan(folder if Path(path) == folder / "__init__.py" else path)

    library.create_import_structure_from_path = scan_once
    try:
        yield
    finally:
        library.create_import_structure_from_path = scan


def child_environment() -> dict[str, str]:
    """Where the other process finds this package, and nothing of the folder that it starts in."""
    package = str(Path(eagle_core.__file__).parent.parent)
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


__all__ = ["child_environment", "models_scanned_once", "quick_imports"]
