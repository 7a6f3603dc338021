"""The command line in this process, and a tiny random pair on disk for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_core.cli import main
from tests.support.cli import Output, Run, save_head
from tests.support.tiny_models import save_llama


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama."""
    return save_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def head(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for it."""
    return save_head(base, tmp_path_factory.mktemp("head"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line: exit code, stdout, stderr."""

    def run_command(*arguments: object) -> Output:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command
