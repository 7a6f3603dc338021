"""The texts of the repository: merged cleanly, and every link and picture in them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("assets/*/*.md")])
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_has_no_marks_of_a_merge(path: Path) -> None:
    marks = ("<<<<<<< ", "=======", ">>>>>>> ")
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if line in marks]
    found += [line for line in path.read_text(encoding="utf-8").splitlines() if line[:8] in marks]
    assert not found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files_that_are_there(path: Path) -> None:
    targets = LINK.findall(path.read_text(encoding="utf-8"))
    missing = [target for target in targets if not (path.parent / target).exists()]
    assert not missing
