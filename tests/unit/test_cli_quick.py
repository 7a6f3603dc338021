"""What can be said without a model is said without importing torch, which takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs a command line, then fails if something slow was imported.
PROGRAM = """
import sys
from eagle_core.cli import main
code = main(sys.argv[1:])
slow = sorted({"torch", "transformers", "gradio"} & set(sys.modules))
sys.stderr.write(f"imported: {slow}")
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("--version", 0, "eagle-chat "),
        ("--help", 0, "desktop"),
        ("train fit --help", 0, "--out"),
        ("no-such-command", 2, "invalid choice"),
        ("generate --bass x", 2, "did you mean --base?"),
        ("generate --prompt x --temperature 9", 2, "temperature is out of range"),
        ("serve --port 99999", 2, "no port"),
        ("serve --auth nocolon", 2, "the login is not user:password"),
        ("desktop --context-length 1", 2, "context_length is out of range"),
        ("train fit --data /x --out /x --epochs -1", 2, "out of range"),
        ("generate --prompt x --base no-such-model", 1, "no model is called"),
        ("serve --base ./no/such/folder", 1, "does not exist"),
        ("chat --base no-such-file.gguf", 1, "does not exist"),
        ("bench report no-such-file", 1, "not a benchmark file"),
        ("verify --head ./no/such/head", 1, "does not exist"),
        ("generate --prompt x --chat-template none-such", 1, "chat template is not known"),
        ("models list", 0, "smollm2-135m"),
        ("models show no-such-model", 1, "no model is called"),
    ],
)
def test_no_torch_for(line: str, code: int, words: str, tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line.split()],
        env={**os.environ, "EAGLE_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == code, found.stderr
    assert words in found.stdout + found.stderr
    assert found.stderr.endswith("imported: []"), found.stderr
    assert "nocolon" not in found.stdout + found.stderr
