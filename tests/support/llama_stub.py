"""A program that speaks the part of llama-server's API that the benchmark uses, for tests.

It writes what it was started with, and each request, into ``log.jsonl`` beside itself. The model file's text
says how it behaves: "fail" ends it at once, "broken" sends an answer without timings, "die" ends it at the
first question, "refuse" answers 400; anything else answers with the token ids 5, 6, 7, ... and as many of
them as were asked for, the last one an end of text if the text is "eos".
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SOURCE = """#!{python} -IS
import http.server, json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
manner = open(args["--model"]).read().strip()

def log(entry):
    with open(os.path.join(here, "log.jsonl"), "a") as file:
        file.write(json.dumps(entry) + "\\\\n")

log({{"pid": os.getpid(), "args": args}})
if manner == "fail":
    print("loading")
    print("error: this is no model")
    sys.exit(1)

class Handler(http.server.BaseHTTPRequestHandler):
    n_asked = 0

    def log_message(self, *args):
        pass

    def send(self, status, data):
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            Handler.n_asked += 1
            ready = Handler.n_asked > 1
            self.send(200 if ready else 503, {{"status": "ok"}} if ready else {{"error": "loading"}})
        else:
            self.send(200, {{"build_info": "b1234-stub"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        log(body)
        if manner == "die":
            os._exit(3)
        if manner == "refuse":
            return self.send(400, {{"error": {{"message": "the request is too large"}}}})
        n = body["n_predict"]
        ids = [5 + i for i in range(n)]
        if manner == "eos":
            ids[-1] = 2
        answer = {{"tokens": ids, "stop_type": "eos" if manner == "eos" else "limit", "truncated": False,
                  "timings": {{"cache_n": 0, "prompt_n": len(body["prompt"]), "prompt_ms": 20.0,
                              "predicted_n": n, "predicted_ms": 10.0 * (n - 1)}}}}
        if manner == "broken":
            del answer["timings"]
        self.send(200, answer)

http.server.HTTPServer((args["--host"], int(args["--port"])), Handler).serve_forever()
"""


def install_stub(folder: Path) -> Path:
    """Write the program into ``folder``, which may then be put on the PATH; returns its log."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-server"
    text = SOURCE.replace("{{", "{").replace("}}", "}").replace("\\\\n", "\\n")
    program.write_text(text.replace("{python}", sys.executable))
    program.chmod(0o755)
    return folder / "log.jsonl"


def path_with(folder: Path) -> str:
    """The PATH with ``folder`` in front."""
    return os.pathsep.join([str(folder), os.environ.get("PATH", "")])


def model_file(folder: Path, manner: str) -> Path:
    """A "model" that makes the stub behave in a manner."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{manner or 'plain'}.gguf"
    path.write_text(manner)
    return path
