"""The rehearsal: what it records and measures, that it gives way, and that it leaves no trace."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from eagle_core import rehearsal
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import OutOfMemory
from eagle_core.events import Finished
from eagle_core.folders import ignore_event
from eagle_core.queueing import TicketQueue
from eagle_core.rehearsal import (
    RECORDED,
    ROUNDS,
    TIMED,
    Rehearsal,
    in_idle_moments,
    rehearse_in_background,
)
from eagle_core.row_costs import RowCosts
from eagle_core.session import Session
from eagle_core.target import Target
from eagle_core.testing import tiny_target
from eagle_core.worker.host import open_with_engine
from tests.support.cli import save_head
from tests.support.tiny_heads import eagle_drafter
from tests.support.tiny_models import save_llama

EAGLE = DraftConfig("eagle")
SHORT = GenerationConfig(max_new_tokens=12)
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    base = save_llama(root / "base", seed=4)
    return base, save_head(base, root / "head")


@pytest.fixture
def session(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    base, head = folders
    return Session.open(LoadConfig(base=str(base), head=str(head), dtype="float32", device="cpu"))


def answer(session: Session, prompt: list[int] | None = None) -> tuple[int, ...]:
    events = list(session.generate(prompt or PROMPT, SHORT, EAGLE))
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1].token_ids


def test_all_usual_forwards_are_settled_and_timed(session: Session) -> None:
    assert session.row_costs is None
    session.rehearse()
    costs = session.row_costs
    assert costs is not None
    assert costs.rows == TIMED
    assert list(costs.seconds) == sorted(costs.seconds)
    assert costs.level_s > 0
    assert all(session.target.is_settled(n_rows) for n_rows in RECORDED)


def test_the_next_start_knows_the_costs(session: Session, folders: tuple[Path, Path]) -> None:
    session.rehearse()
    base, head = folders
    again = Session.open(LoadConfig(base=str(base), head=str(head), dtype="float32", device="cpu"))
    assert again.row_costs == session.row_costs


@pytest.mark.parametrize(
    "known",
    [
        '{"seconds by rows": [[1], [2.0], 0]}',
        '{"seconds by rows": [[1, Infinity], [1.0, 2.0], 0, 1]}',
        "[]",
        "{",
        "[" * 100_000,
        '{"x": 1}',
    ],
    ids=["old", "endless", "list", "cut", "deep", "other"],
)
def test_costs_that_cannot_be_read_are_measured_again(
    session: Session, folders: tuple[Path, Path], known: str, tmp_path: Path
) -> None:
    session.rehearse()
    (file,) = (tmp_path / "pace").iterdir()
    file.write_text(known)
    base, head = folders
    again = Session.open(LoadConfig(base=str(base), head=str(head), dtype="float32", device="cpu"))
    assert again.row_costs is None
    again.rehearse()
    assert again.row_costs is not None
    assert RowCosts.read(json.loads(file.read_text())["seconds by rows"]) == again.row_costs


def test_answers_and_caches_are_the_same_with_it(session: Session) -> None:
    first = answer(session)
    n_cached = session._cache.length
    session.rehearse()
    assert session._cache.length == n_cached == session._eagle.length
    longer = [*PROMPT, *first, 9, 8, 7]
    behind = answer(session, longer)
    session.forget()
    assert answer(session) == first
    session.forget()
    assert answer(session, longer) == behind


def test_a_request_is_let_through_between_two_forwards(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rehearsal is still under way when the answer is there, and ends afterwards."""
    begun, order = threading.Event(), list[str]()
    forwards = Rehearsal._forwards

    def slowly(self, *arguments):
        begun.set()
        time.sleep(0.02)
        yield from forwards(self, *arguments)

    monkeypatch.setattr(Rehearsal, "_forwards", slowly)
    thread = threading.Thread(target=lambda: (session.rehearse(), order.append("rehearsed")))
    thread.start()
    assert begun.wait(30)
    answer(session)
    order.append("answered")
    thread.join(60)
    assert order == ["answered", "rehearsed"]
    assert session.row_costs is not None


def test_a_forward_that_runs_ends_before_its_next_layer(session: Session) -> None:
    asked = 0

    def wanted_in_the_second_layer() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    played = Rehearsal(session.target, session._cache, None)
    played.go_on(wanted_in_the_second_layer)
    assert asked == 4  # before the forward, in its two layers, and after it
    assert not played.is_done
    assert session._cache.length == 0
    assert played.costs() is None
    played.go_on()
    assert played.is_done
    assert played.costs() is not None


def test_closing_ends_it(session: Session) -> None:
    session.close()
    session.rehearse()
    assert session.row_costs is None


def test_what_fails_is_left_out(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_settings: object) -> None:
        raise OutOfMemory("the device ran out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(session.target), "forward_tree", fail)
        session.rehearse()
    assert session.row_costs is None
    assert len(answer(session)) == SHORT.max_new_tokens


def test_a_long_conversation_leaves_no_room_for_it(session: Session) -> None:
    length = session._cache.capacity - TIMED[-1] - 4
    list(session.generate(PROMPT, SHORT, EAGLE))
    session._cache.advance(length - session._cache.length)
    session.rehearse()
    assert session.row_costs is None
    assert session._cache.length == length


def test_a_slow_machine_is_not_kept_busy(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "MOST_S", 0.0)
    asked: list[int] = []
    forward = Target.forward_tree

    def counted(self, tree, cache):
        asked.append(tree.n_nodes)
        return forward(self, tree, cache)

    monkeypatch.setattr(Target, "forward_tree", counted)
    session.rehearse()
    assert session.row_costs is None
    assert len(asked) == 1
    assert not session.target.is_settled(RECORDED[-1])


def test_in_the_background_it_begins_by_itself(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "DELAY_S", 0.0)
    rehearse_in_background(session.rehearse)
    end = time.monotonic() + 60
    while session.row_costs is None and time.monotonic() < end:
        time.sleep(0.02)
    assert session.row_costs is not None


def test_a_program_that_ends_does_not_wait_for_it() -> None:
    """A thread that would rehearse for a minute ends with the main thread."""
    code = (
        "import time\n"
        "from eagle_core.rehearsal import rehearse_in_background\n"
        "class Slow:\n"
        "    def rehearse(self, is_over):\n"
        "        end = time.monotonic() + 60\n"
        "        while not is_over() and time.monotonic() < end: time.sleep(0.01)\n"
        "rehearse_in_background(Slow().rehearse)\n"
        "time.sleep(1.2)\n"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)
    assert time.monotonic() - start < 40


def test_a_head_is_tried_without_a_trace(session: Session) -> None:
    answer(session)
    drafter = session._eagle
    before = drafter.length, drafter._predicted.clone(), drafter._cache.length, drafter.tree
    tokens, features = torch.arange(3), torch.randn(3, session.target.hidden_size)
    read_s, draft_s = drafter.try_out(tokens, features, 3)
    assert read_s > 0 < draft_s
    after = drafter.length, drafter._predicted, drafter._cache.length, drafter.tree
    assert after[0] == before[0]
    assert torch.equal(after[1], before[1])
    assert after[2:] == before[2:]


@pytest.mark.parametrize(
    "settings", [{"vocab": 5}, {"kind": "gpt2", "context_length": 100}], ids=["few words", "gpt2"]
)
def test_neither_tokens_nor_positions_are_used_that_the_model_lacks(settings: dict) -> None:
    target = tiny_target(**settings)
    played = Rehearsal(target, target.new_cache(target.context_length + 257), None)
    played.go_on()
    assert played.costs() is not None


def test_no_room_for_one_row_in_one_round_is_no_measurement(session: Session) -> None:
    played = Rehearsal(session.target, session._cache, None)
    played.is_done = True
    played._seconds = {1: [0.1] * (ROUNDS - 1), 2: [0.1] * ROUNDS, 3: [0.1] * ROUNDS}
    assert played.costs() is None


def test_a_conversation_that_fills_the_heads_cache_leaves_no_room_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    target = tiny_target(context_length=120)
    wide = TreeConfig(policy="dynamic", depth=2, branching=8, size=10)
    drafter, cache = eagle_drafter(target, wide), target.new_cache(120 + 257)
    played = Rehearsal(target, cache, drafter)
    played.go_on(lambda: played._features is not None)
    ids = torch.arange(115)
    drafter.commit(ids, target.prefill_chunk(ids, cache).features, ids[0])
    assert not drafter.can_try_out(1, 5)
    with caplog.at_level(logging.INFO, logger=rehearsal.__name__):
        played.go_on()
    assert not caplog.records
    assert played.is_done
    assert cache.length == drafter.length == 115


def test_it_is_over_while_a_request_is_never_finished(session: Session) -> None:
    """And nobody who comes meanwhile is told that it stands before them."""
    events = session.generate(PROMPT, SHORT, EAGLE)
    next(events)
    asked, over = threading.Event(), threading.Event()

    def is_over() -> bool:
        asked.set()
        return over.is_set()

    thread = threading.Thread(target=session.rehearse, args=(is_over,), daemon=True)
    thread.start()
    assert asked.wait(30)
    thread.join(0.3)
    assert session._queue.n_tickets == 1
    over.set()
    thread.join(30)
    assert not thread.is_alive()
    events.close()


def test_nothing_begins_on_what_was_closed_meanwhile() -> None:
    answers = iter([False, True, True])
    played = list[bool]()
    queue = TicketQueue()
    in_idle_moments(queue, lambda: next(answers), lambda _is_wanted: bool(played.append(True)))
    assert played == []
    assert queue.n_tickets == 0


def test_what_was_reset_is_rehearsed_anew(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafters = list[object]()
    begin = Rehearsal.__init__

    def note(self, target, cache, drafter, known=None):
        drafters.append(drafter)
        begin(self, target, cache, drafter, known)

    monkeypatch.setattr(Rehearsal, "__init__", note)
    assert not session._rehearse(lambda: session.target.is_settled(2))
    session.set_reproducible(False)
    session.rehearse()
    assert all(session.target.is_settled(n_rows) for n_rows in RECORDED)
    assert len(drafters) == 2
    assert drafters[-1] is session._eagle


def test_a_head_that_cannot_be_prepared_is_said_by_the_request(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise OutOfMemory("the device ran out of memory")

    monkeypatch.setattr(session, "_new_eagle", fail)
    session.rehearse()
    assert session.row_costs is None
    assert session._queue.n_tickets == 0


def test_costs_belong_to_the_way_of_computing(session: Session, tmp_path: Path) -> None:
    assert session.info.reproducible
    session.rehearse()
    costs = session.row_costs
    session.set_reproducible(False)
    assert session.row_costs is None
    session.rehearse()
    assert len(list((tmp_path / "pace").iterdir())) == 2
    session.set_reproducible(True)
    assert session.row_costs.seconds == costs.seconds


def test_the_apps_model_is_rehearsed_anew_when_it_computes_in_another_way(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    monkeypatch.setattr(rehearsal, "DELAY_S", 0.0)
    base, head = folders
    config = LoadConfig(base=str(base), head=str(head), dtype="float32", device="cpu")
    session = open_with_engine()(config, ignore_event)
    for is_first in (True, False):
        if not is_first:
            session.set_reproducible(False)
        end = time.monotonic() + 60
        while session.row_costs is None and time.monotonic() < end:
            time.sleep(0.02)
        assert session.row_costs is not None
    session.close()
