"""The app on Hugging Face Spaces: started as there, with a stand-in that lends processes as ZeroGPU does."""

from __future__ import annotations

import os
import runpy
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import psutil
import pytest

from eagle_core.compare import Prompt, Setup
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.events import Failed, Finished, Notice, StepDone, TextDelta
from eagle_core.history import SqliteHistory, from_json
from eagle_core.session import Session
from eagle_core.ui import space
from eagle_core.ui.copies import BrowserCopies
from eagle_core.ui.shared import Limited, Limits
from eagle_core.ui.zero import LONGEST_S, ZeroSession, answer_seconds, race_seconds
from tests.support import spaces_stub
from tests.support.chat_page import DEFAULTS
from tests.support.cli import save_head
from tests.support.fake_session import FakeSession
from tests.support.http_page import call
from tests.support.spaces_stub import Calls
from tests.support.tiny_models import save_llama

ROOT = Path(__file__).parents[2]
SHORT = GenerationConfig(max_new_tokens=24)
EAGLE, PLAIN = DraftConfig("eagle", TreeConfig()), DraftConfig("none")
HELLO: list[Any] = [{"role": "user", "content": "the cat sat"}]

pytestmark = [
    pytest.mark.usefixtures("_gradio_cleans_up"),
    # Sockets and event loops that Gradio leaves to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # Newer Pythons warn of every fork in a process with threads, which is what ZeroGPU does.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> LoadConfig:
    root = tmp_path_factory.mktemp("pair")
    base = save_llama(root / "base", seed=4)
    return LoadConfig(str(base), str(save_head(base, root / "head")))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, load: LoadConfig) -> Calls:
    monkeypatch.setenv("EAGLE_BASE", load.base)
    monkeypatch.setenv("EAGLE_HEAD", str(load.head))
    return spaces_stub.install(monkeypatch)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def visit(app: gr.Blocks, seen: dict[str, Any]) -> None:
    """A visitor chats and compares, over HTTP."""
    request = urllib.request.Request(app.local_url, headers={"host": "someone-eagle.hf.space"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        seen["page"], seen["policy"] = answer.read(), answer.headers["content-security-policy"]
    chat = call(app, "send", ["the cat sat", *DEFAULTS[:4], 24, *DEFAULTS[5:]])
    seen["text"] = chat[0][-1]["content"][0]["text"]
    seen["kept"] = chat[7]["kept"]["put"]
    tree = [
        TreeConfig().policy,
        *(getattr(TreeConfig(), name) for name in ("depth", "branching", "size", "lookup")),
    ]
    setups = [[drafter, None, None, *tree] for drafter in ("none", "eagle", "off")]
    race = call(app, "race", ["the cat sat", 0.0, 0, 24, *setups[0], *setups[1], *setups[2]])
    seen["race"] = race[2]


def test_the_start_up_path_on_zerogpu(
    calls: Calls, load: LoadConfig, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(space, "PORT", free_port)
    monkeypatch.setattr(gr.Blocks, "block_thread", lambda app: visit(app, seen))
    runpy.run_path(str(ROOT / "app.py"), run_name="__main__")
    assert b"You share this app with others" in seen["page"]
    assert f"at most {LONGEST_S} seconds".encode() in seen["page"]
    assert "frame-ancestors https://huggingface.co" in seen["policy"]
    # The text is the one that the same pair writes in one process.
    with_session = Session.open(load)
    events = list(with_session.chat(HELLO, SHORT, EAGLE))
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert seen["text"].replace("&lt;", "<") == text.replace("&lt;", "<") != ""
    # It is kept in the visitor's browser, and nowhere else.
    ((_, kept),) = seen["kept"].items()
    (conversation,) = from_json(kept)
    assert [message.text for message in conversation.path] == ["the cat sat", text]
    # Both sides of the comparison in one call, which is planned with what it may take.
    (race,) = seen["race"]["races"]
    assert all(lane["n_tokens"] > 0 for lane in race["lanes"])
    assert race["verdicts"][0]["is_identical"] is True
    assert len(calls.pids) == 2
    assert os.getpid() not in calls.pids
    assert calls.has_visitor == [True, True]
    assert calls.seconds == [
        answer_seconds(0, None, SHORT, None),
        race_seconds(0, ["x"], [Setup("", PLAIN, SHORT)] * 2),
    ]


def test_planned_seconds_grow_with_what_is_asked_and_end() -> None:
    long = GenerationConfig(max_new_tokens=1_000_000)
    assert answer_seconds(0, None, SHORT, None) < answer_seconds(
        0, None, replace(SHORT, max_new_tokens=512), None
    )
    assert answer_seconds(0, None, long, None) == LONGEST_S
    one, two = [Setup("", PLAIN, SHORT)], [Setup("", PLAIN, SHORT)] * 2
    assert race_seconds(0, ["x"], one) < race_seconds(0, ["x", "y"], two) < LONGEST_S
    assert race_seconds(0, ["x"] * 9, [Setup("", PLAIN, long)]) == LONGEST_S


# ---- a lent process that takes its time -------------------------------------------------------------


class SlowPair:
    """A pair whose session is a scripted one."""

    text = None

    def info(self) -> Any:
        return replace(FakeSession().info, device="ZeroGPU")

    def session(self) -> FakeSession:
        return FakeSession(default="word " * 400, step_s=0.02)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> tuple[ZeroSession, Calls]:
    calls = spaces_stub.install(monkeypatch)
    import spaces

    return ZeroSession(SlowPair(), spaces.GPU), calls  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_stop_reaches_the_lent_process_and_keeps_what_was_written(
    slow: tuple[ZeroSession, Calls],
) -> None:
    session, calls = slow
    cancel, seen = threading.Event(), list[Any]()
    for event in session.chat(HELLO, GenerationConfig(), EAGLE, cancel=cancel):
        seen.append(event)
        if sum(isinstance(e, StepDone) for e in seen) == 3:
            cancel.set()
    last = seen[-1]
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert 3 <= len(last.token_ids) < 300
    assert not is_alive(calls.pids[0])
    # The next request is not stopped by the flag of the last one.
    again = list(session.chat(HELLO, GenerationConfig(max_new_tokens=8), EAGLE))
    assert again[-1].reason == "length"
    assert session.info.device == "ZeroGPU"


def test_a_closed_page_ends_the_lent_process(slow: tuple[ZeroSession, Calls]) -> None:
    session, calls = slow
    events = session.chat(HELLO, GenerationConfig(), EAGLE)
    while not isinstance(next(events), StepDone):
        pass
    events.close()  # type: ignore[attr-defined]
    assert not is_alive(calls.pids[0])


def test_a_refused_gpu_is_told_with_a_next_step(slow: tuple[ZeroSession, Calls]) -> None:
    session, calls = slow
    calls.refusal = "You have exceeded your GPU quota"
    (event,) = session.chat(HELLO, SHORT, EAGLE)
    assert isinstance(event, Failed)
    assert event.message == calls.refusal
    assert "Try again" in event.hint
    with pytest.raises(ConfigError, match="quota"):
        list(
            session.races(
                [Prompt("x")], [Setup("", PLAIN, SHORT)], threading.Event(), lambda _: None
            )
        )


# ---- limits -----------------------------------------------------------------------------------------


def test_answers_within_limits() -> None:
    inner = FakeSession(default="word " * 100, step_s=0.0)
    shared = Limited(inner, Limits(max_new_tokens=8, max_prompts=2))  # type: ignore[arg-type]
    asked = GenerationConfig(max_new_tokens=99, min_new_tokens=20)
    events = list(shared.chat(HELLO, asked, PLAIN))
    assert isinstance(events[0], Notice)
    assert "end after 8 tokens" in events[0].message
    assert inner.generations[-1][0] == replace(asked, max_new_tokens=8, min_new_tokens=8)
    assert events[-1].reason == "length"
    events = list(shared.chat(HELLO, GenerationConfig(max_new_tokens=4), PLAIN))
    assert not any(isinstance(event, Notice) for event in events)
    setups = [Setup("a", PLAIN, asked), Setup("b", EAGLE, asked)]
    races = list(
        shared.races(
            [Prompt("x"), Prompt("y"), Prompt("z")], setups, threading.Event(), lambda _: None
        )
    )
    assert [race.prompt for race in races] == ["x", "y"]
    assert all(len(lane.token_ids) == 8 for race in races for lane in race.lanes)


def test_nobody_changes_a_shared_session_for_the_others() -> None:
    shared = Limited(FakeSession(), Limits())  # type: ignore[arg-type]
    for change in (lambda: shared.set_reproducible(False), lambda: shared.use_template("vicuna")):
        with pytest.raises(ConfigError, match="fixed"):
            change()


def test_elsewhere_it_is_no_space_and_without_zerogpu_the_model_is_opened_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert space.load_space({}) is None
    found = space.load_space({"SYSTEM": "spaces"})
    assert found is not None
    assert found.load == LoadConfig()
    assert "place in the queue" in found.limits.words
    opened: list[LoadConfig] = []
    monkeypatch.setattr(
        space, "open_in_worker", lambda config, on_event: opened.append(config) or FakeSession()
    )
    assert callable(found.session)
    assert isinstance(found.session(lambda event: None), Limited)
    assert opened == [LoadConfig()]


def test_without_zerogpu_the_model_is_in_a_process_of_its_own(load: LoadConfig) -> None:
    environment = {"SYSTEM": "spaces", "EAGLE_BASE": load.base, "EAGLE_HEAD": str(load.head)}
    found = space.load_space(environment)
    assert found is not None
    assert callable(found.session)
    session = found.session(lambda event: None)
    try:
        children = psutil.Process().children()
        (child,) = [one for one in children if "eagle_core.worker" in one.cmdline()]
        last = list(session.chat(HELLO, SHORT, EAGLE))[-1]
        assert isinstance(last, Finished)
        assert len(last.token_ids) > 0
    finally:
        session.close()
    assert not child.is_running()


@pytest.mark.parametrize(("value", "has_package", "expected"), [
    ("true", True, True), ("1", True, True), ("", True, False), ("false", True, False),
    ("true", False, False),
])  # fmt: skip
def test_zerogpu_is_recognized(
    value: str, has_package: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SimpleNamespace() if has_package else None
    monkeypatch.setattr(space.importlib.util, "find_spec", lambda name: spec)
    assert space.has_zero_gpu({"SPACES_ZERO_GPU": value}) is expected


# ---- chats in the browser ---------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[SqliteHistory]:
    made = SqliteHistory(None)
    yield made
    made.close()


def test_a_browser_gets_what_changed_and_gives_it_back(store: SqliteHistory) -> None:
    copies = BrowserCopies()
    first = store.append(store.create(title="One"), None, "user", "hi")
    second = store.create(title="Two")
    assert copies.changes(store)["put"].keys() == {first.id, second.id}
    assert copies.changes(store) == {"put": {}, "drop": []}
    store.describe(second.id, title="Two, renamed")
    store.delete(first.id)
    changes = copies.changes(store)
    assert changes["put"].keys() == {second.id}
    assert changes["drop"] == [first.id]
    again, returned = SqliteHistory(None), BrowserCopies()
    assert returned.restore(again, changes["put"]) == 0
    (found,) = again.search()
    assert (found.id, found.title) == (second.id, "Two, renamed")
    assert returned.changes(again)["drop"] == []
    again.close()


@pytest.mark.parametrize(
    "kept",
    [
        {"0123456789": "no JSON"},
        {"0123456789": 7},
        {"../../etc": "{}"},
        {"0123456789": '{"format": "eagle-chat"}'},
    ],
)
def test_what_a_browser_sends_is_checked(store: SqliteHistory, kept: Any) -> None:
    assert BrowserCopies().restore(store, kept) == 1
    assert store.search() == []
    assert BrowserCopies().restore(store, ["not", "a", "mapping"]) == 0
