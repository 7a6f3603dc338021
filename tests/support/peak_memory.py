"""The peak memory of loading a pair and answering at a full context, measured in a process of its own.

``python -m tests.support.peak_memory WARM_UP_BASE BASE HEAD PRECISION CONTEXT`` prints bytes. A process
that did other things before would use the memory again that those left, and count less.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STATUS = Path("/proc/self/status")
POLL_S = 0.002


def peak_of(warm_up: Path, base: Path, head: Path, precision: str, context_length: int) -> int:
    """Bytes that the process takes above what it took after a tiny model's warm-up."""
    arguments = [str(warm_up), str(base), str(head), precision, str(context_length)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.support.peak_memory", *arguments],
        cwd=ROOT,
        env=os.environ | {"EAGLE_CACHE": str(ROOT / ".pytest_cache" / "eagle-chat")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def resident_bytes(kind: str) -> int:
    """Memory that this process holds: its own ("RssAnon"), or pages of mapped files ("RssFile")."""
    text = STATUS.read_text(encoding="ascii")
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if kind in line)


def fill_the_context(base: str, head: str | None, precision: str, context_length: int) -> Any:
    """Load, read a prompt that fills the context but for the answer, write that; the session."""
    from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
    from eagle_core.events import Finished
    from eagle_core.session import Session

    session = Session.open(
        LoadConfig(
            base=base,
            head=head,
            dtype="float32" if precision == "int8" else precision,  # type: ignore[arg-type]
            quantization="int8" if precision == "int8" else "none",
            device="cpu",
            context_length=context_length,
        )
    )
    prompt = [(7 * i * i + 3) % 300 for i in range(context_length - 20)]
    events = list(session.generate(prompt, GenerationConfig(max_new_tokens=30), DraftConfig()))
    assert isinstance(events[-1], Finished), events[-1]
    return session


def main(warm_up: str, base: str, head: str, precision: str, context_length: str) -> None:
    """Measure and print."""
    import torch

    torch.set_num_threads(1)
    fill_the_context(warm_up, None, precision, 128)
    start = peak = resident_bytes("RssAnon")
    start_mapped = resident_bytes("RssFile")
    is_done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_done.wait(POLL_S):
            peak = max(peak, resident_bytes("RssAnon"))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        session = fill_the_context(base, head, precision, int(context_length))
        # Weights that are used where they are mapped count; those that were only read from the file do not:
        # the system takes their pages back when it needs them.
        mapped = resident_bytes("RssFile") - start_mapped
        session.close()
    finally:
        is_done.set()
        thread.join()
    print(peak - start + mapped)


if __name__ == "__main__":
    main(*sys.argv[1:])
