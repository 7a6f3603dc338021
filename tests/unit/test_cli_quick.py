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
    "generate --prompt-file no-such-file": (1, "cannot read the prompt"),
    "generate --prompt x --device toaster": (1, "device is not known"),
    "generate --prompt x --device cuda:x": (1, "device is not known"),
    "generate --prompt x --offline": (1, "is not on this machine yet"),
    "generate --prompt x": (1, "pip could not download"),
    "generate --prompt x --base org/name --offline": (1, "is not on this machine"),
    "generate --prompt x --base model --head org/name --offline": (1, "is not on this machine"),
    "generate --prompt x --base model --context-length 129": (1, "at most 128"),
    "generate --prompt x --base model --head folder": (1, "folder has no config.json"),
    "generate --prompt x --base folder": (1, "folder has no config.json"),
    "generate --prompt x --quantization int8 --dtype bfloat16": (1, "int8 works on a CPU alone"),
    "serve --device toaster": (1, "device is not known"),
    "serve --host 192.0.2.1": (1, "cannot listen on 192.0.2.1"),
    "desktop": (1, "no display to open a window on"),
    "verify --out folder": (1, "cannot write"),
    "verify --out file/certificate.json": (1, "file is a file"),
    "bench run --prompts none --out x": (1, "cannot read the questions"),
    "bench run --prompts questions --out file/x": (1, "file is a file"),
    "bench run --prompts questions --out file": (1, "exists already"),
    "bench run --prompts questions --out folder --resume": (1, "it is a folder"),
    "bench run --prompts questions --out rows --resume": (1, "measured with other settings"),
    "bench run --prompts questions --out x --base model": (1, "no EAGLE head is known"),
    "bench replay --answers none --prompts questions": (1, "not a benchmark file"),
    "bench replay --answers rows --prompts questions": (1, "no answer of plain decoding"),
    "bench replay --answers rows --prompts questions --limit 0": (2, "no whole number"),
    "bench report rows --out file/x.html": (1, "file is a file"),
    "bench gpu --device toaster": (1, "device is not known"),
    "bench gpu --out file/x": (1, "file is a file"),
    "bench gpu --prompts none": (1, "cannot read the questions"),
    "train collect --out file": (1, "it is a file"),
    "train collect --out x --base no-such-model": (1, "no model is called"),
    "train collect --out x --base model --conversations none": (1, "cannot read none"),
    "train collect --out x --base model --conversations file": (1, "line 1 of file is no"),
    "train collect --out x --base model --openings none": (1, "cannot read none"),
    "train fit --data folder --out file/x": (1, "file is a file"),
    "train fit --data folder --out x --base model --init folder": (1, "folder has no config.json"),
    "train eval --prompts none": (1, "cannot read the questions"),
    "train eval --prompts questions --limit -1": (2, "no whole number"),
    "models list": (0, "smollm2-135m"),
    "models show no-such-model": (1, "no model is called"),
    "models pull no-such-model": (1, "no model is called"),
    "models fit no-such-model": (1, "no model is called"),
    "models fit --device toaster": (1, "device is not known"),
}
FILES = {
    "file": "no conversation\n",
    "questions": '{"question_id": 1, "category": "qa", "turns": ["hello"]}\n',
    "rows": '{"type": "header", "format": 1, "settings": {}}\n',
    "model/config.json": '{"model_type": "llama", "max_position_embeddings": 128}',
}


def test_nothing_slow_is_imported_for_cheap_answers(tmp_path: Path) -> None:
    for folder in ("folder", "model"):
        (tmp_path / folder).mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    names = ("EAGLE_CACHE", "EAGLE_DATA", "HF_HOME")
    env = {name: value for name, value in os.environ.items() if "DISPLAY" not in name}
    env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "EAGLE_KERNELS": "off"}
    env |= dict.fromkeys(names, str(tmp_path / "own")) | {
        "PYTHONPATH": str(Path(__file__).parents[2])
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(list(LINES)), env=env, cwd=tmp_path,
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert len(found) == len(LINES)
    for (line, (expected, words)), (code, said, slow) in zip(LINES.items(), found, strict=True):
        assert (code, slow) == (expected, []), (line, said)
        assert words in said, line
        assert "nocolon" not in said, "a login must not be repeated"
    assert not (tmp_path / "x").exists(), "what was refused must leave nothing"
