"""What can be said without a model is said without importing torch, which takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

# Runs command lines one after the other in one process; what each of them imported is told with its outcome.
PROGRAM = """
import contextlib, io, json, sys
from eagle_core.cli import main
found = []
for line in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(line.split())
    slow = sorted({"torch", "transformers", "gradio"} & set(sys.modules))
    found.append([code, said.getvalue(), slow])
print(json.dumps(found))
"""
LINES = {
    "--version": (0, "eagle-chat "),
    "--help": (0, "desktop"),
    "train fit --help": (0, "--out"),
    "no-such-command": (2, "invalid choice"),
    "generate --bass x": (2, "did you mean --base?"),
    "generate --prompt x --temperature 9": (2, "temperature is out of range"),
    "serve --port 99999": (2, "ports are 1 to 65535"),
    "serve --auth nocolon": (2, "the login is not user:password"),
    "serve --auth :nocolon": (2, "the login is not user:password"),
    "desktop --context-length 1": (2, "context_length is out of range"),
    "train fit --data /x --out /x --epochs -1": (2, "out of range"),
    "generate --prompt x --base no-such-model": (1, "no model is called"),
    "serve --base ./no/such/folder": (1, "does not exist"),
    "desktop --base no/such/folder/at/all": (1, "does not exist"),
    "chat --base no-such-file.gguf": (1, "does not exist"),
    "bench report no-such-file": (1, "not a benchmark file"),
    "verify --head ./no/such/head": (1, "does not exist"),
    "generate --prompt x --chat-template none-such": (1, "chat template is not known"),
    "models list": (0, "smollm2-135m"),
    "models show no-such-model": (1, "no model is called"),
}


def test_nothing_slow_is_imported_for_cheap_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(list(LINES)),
        env={**os.environ, "EAGLE_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=100, check=True, cwd=tmp_path,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) == len(LINES)
    for (line, (expected, words)), (code, said, slow) in zip(LINES.items(), found, strict=True):
        assert (code, slow) == (expected, []), (line, said)
        assert words in said, line
        assert "nocolon" not in said, "a login must not be repeated"
