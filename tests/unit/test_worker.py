"""The engine in another process: the same events, the same errors, and nothing left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.errors import ConfigError, EagleError, EngineStopped, ModelNotFound
from eagle_core.events import Event, Failed, Finished, LoadProgress, StepDone, TextDelta
from eagle_core.session import Session
from eagle_core.ui.backend import SessionSlot
from eagle_core.worker import Worker, WorkerSession, open_in_worker
from tests.support.tiny_models import save_llama
from tests.support.worker_stub import COMMAND, ElsewhereSession

ROOT = Path(__file__).parents[2]
HELLO: Any = [{"role": "user", "content": "hello"}]
SHORT: Any = [{"role": "user", "content": "short"}]
SETTINGS = (GenerationConfig(), DraftConfig())


def start_stub() -> Worker:
    return Worker(COMMAND)


def opened(base: str = "any", events: list[Event] | None = None) -> WorkerSession:
    heard = events if events is not None else []
    return WorkerSession(LoadConfig(base=base), start_stub(), heard.append, start_stub)


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerSession]:
    session = opened()
    yield session
    session.close()


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def wait_until_gone(pid: int) -> None:
    for _ in range(500):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} still runs")


def test_an_answer_and_its_tokens_are_those_of_the_session(shared: WorkerSession) -> None:
    here = ElsewhereSession()
    found = list(shared.chat(HELLO, *SETTINGS))
    assert text_of(found) == text_of(list(here.chat(HELLO, *SETTINGS)))
    assert isinstance(found[-1], Finished)
    ids = {t.id for event in found if isinstance(event, StepDone) for t in event.tokens}
    assert {shared.token_text(i) for i in ids} == {here.token_text(i) for i in ids}
    assert shared.count_tokens(HELLO) == here.count_tokens(HELLO)
    assert shared.encode_chat(HELLO) == here.encode_chat(HELLO)
    difference = shared.explain_difference([1], [1, 2], [1, 3], SETTINGS[0])
    assert difference is not None
    assert difference.index == 1


def test_stop_is_passed_on(shared: WorkerSession) -> None:
    cancel = threading.Event()
    found = []
    for event in shared.chat(HELLO, *SETTINGS, cancel=cancel):
        found.append(event)
        if len(found) == 5:
            cancel.set()
    assert isinstance(found[-1], Finished)
    assert found[-1].reason == "cancelled"


def test_leaving_an_answer_frees_the_engine(shared: WorkerSession) -> None:
    answer = shared.chat(HELLO, *SETTINGS)
    next(answer)
    answer.close()  # type: ignore[attr-defined]
    started = time.monotonic()
    assert text_of(list(shared.chat(SHORT, *SETTINGS))) == "Yes."
    assert time.monotonic() - started < 2.0  # a whole answer takes longer than that


def test_two_answers_at_once_keep_apart(shared: WorkerSession) -> None:
    texts: dict[str, str] = {}

    def ask(name: str, messages: Any) -> None:
        texts[name] = text_of(list(shared.chat(messages, *SETTINGS)))

    threads = [threading.Thread(target=ask, args=pair) for pair in (("a", HELLO), ("b", SHORT))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert texts["b"] == "Yes."
    assert len(texts["a"]) > 100


def test_what_changes_shows_in_info_and_errors_keep_their_hint(shared: WorkerSession) -> None:
    shared.set_reproducible(False)
    assert not shared.info.reproducible
    shared.set_reproducible(True)
    shared.use_template("vicuna")
    assert shared.info.chat_template == "vicuna"
    with pytest.raises(ConfigError) as caught:
        shared.use_template("none-such")
    assert caught.value.hint
    with pytest.raises(EagleError, match="TypeError") as surprise:
        shared.count_tokens([1])  # type: ignore[list-item]
    assert "doctor" in surprise.value.hint


def test_progress_is_heard_and_printing_breaks_nothing() -> None:
    events: list[Event] = []
    session = opened("some-model", events)
    pid = session._worker.pid
    session.close()
    session.close()
    assert events == [LoadProgress("loading some-model")]
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("base", "kind", "words"),
    [
        ("missing", ModelNotFound, "look again"),
        ("surprise", EagleError, "what nobody expected"),
        ("silence", EngineStopped, "exit code 3"),
    ],
)
def test_what_cannot_be_opened_is_told_on_the_page(
    base: str, kind: type[EagleError], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    workers: list[Worker] = []

    def open_it(on_event: Any) -> Any:
        workers.append(start_stub())
        return WorkerSession(LoadConfig(base=base), workers[0], on_event, start_stub)

    with pytest.raises(kind) as caught:
        open_it(lambda _: None)
    assert words in str(caught.value)
    assert not psutil.pid_exists(workers.pop().pid)
    slot = SessionSlot()
    with caplog.at_level(logging.CRITICAL):
        slot.open_in_background(open_it)
        for _ in range(1000):
            if slot.opening.has_failed:
                break
            time.sleep(0.01)
    assert slot.opening.has_failed
    assert slot.opening.message in str(caught.value)
    assert slot.opening.hint == caught.value.hint != ""
    wait_until_gone(workers[0].pid)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_a_killed_process_is_told_and_started_again() -> None:
    session = opened()
    try:
        session.use_template("vicuna")
        session.set_reproducible(False)
        found: list[Event] = []
        for event in session.chat(HELLO, *SETTINGS):
            if not found:
                os.kill(session._worker.pid, signal.SIGKILL)
            found.append(event)
        failed = found[-1]
        assert isinstance(failed, Failed)
        assert failed.code == "out-of-memory"
        assert "starts it again" in failed.hint
        assert text_of(list(session.chat(SHORT, *SETTINGS))) == "Yes."
        assert session.info.chat_template == "vicuna"
        assert not session.info.reproducible
    finally:
        session.close()
    (late,) = session.chat(SHORT, *SETTINGS)
    assert isinstance(late, Failed)
    assert late.code == "engine-stopped"


def test_it_ends_with_the_process_that_started_it() -> None:
    code = (
        "import os\n"
        "from eagle_core.config import LoadConfig\n"
        "from tests.support.worker_stub import COMMAND\n"
        "from eagle_core.worker import Worker, WorkerSession\n"
        "worker = Worker(COMMAND)\n"
        "WorkerSession(LoadConfig(), worker, lambda _: None)\n"
        "print(worker.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 1, done.stderr
    wait_until_gone(int(done.stdout))


def test_the_pages_process_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "import eagle_core.ui.app, eagle_core.worker, eagle_core.session_info\n"
        "print(sorted({'torch', 'transformers', 'scipy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_real_model_answers_as_it_does_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(ROOT / ".pytest_cache" / "eagle-chat"))
    config = LoadConfig(base=str(save_llama(tmp_path)), dtype="float32", device="cpu")
    generation = GenerationConfig(max_new_tokens=12)
    draft = DraftConfig(drafter="ngram")
    here = Session.open(config)
    expected = [e for e in here.chat(HELLO, generation, draft) if isinstance(e, Finished)]
    events: list[Event] = []
    there = open_in_worker(config, events.append)
    try:
        found = [e for e in there.chat(HELLO, generation, draft) if isinstance(e, Finished)]
        assert found[0].token_ids == expected[0].token_ids != ()
        assert there.info == here.info
        assert there.machine("cpu").device == "cpu"
    finally:
        there.close()
    assert any(isinstance(event, LoadProgress) for event in events)
