"""Behind the Models page: the work's states, one session in place of another, loading, a token."""

from __future__ import annotations

import dataclasses
import gc
import logging
import re
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from eagle_core import catalog, hub, overview
from eagle_core.catalog import CatalogEntry, HubSource
from eagle_core.config import DEFAULT_BASE, LoadConfig
from eagle_core.errors import BadToken, Cancelled, ConfigError, EagleError, ModelNotFound
from eagle_core.events import DownloadProgress, LoadProgress
from eagle_core.fit import Machine
from eagle_core.overview import InUse, load_config
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.model_actions import ModelsHandlers
from eagle_core.ui.model_cards import card_html, rows_html, work_html
from eagle_core.ui.precision_choice import precision_choice
from eagle_core.work import Work
from tests.support.fake_session import FakeSession
from tests.support.hub_server import HubServer

GB = 1_000_000_000
CPU = Machine("cpu", 8 * GB, 8 * GB, "processor")
CUDA = Machine("cuda", 24 * GB, 64 * GB, "card")
TOKEN = "hf_secretsecret"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HubServer, Path]]:
    """A Hub that knows accounts, and where a token is kept."""
    path = tmp_path / "home" / "token"
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with HubServer({}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server, path


# ---- the work ----


def test_work_shows_bytes_and_speed_and_ends_with_a_sentence() -> None:
    work, go = Work(), threading.Event()

    def run(on_event: Any, cancel: threading.Event) -> str:
        on_event(DownloadProgress("org/base", 1 * GB, 4 * GB))
        time.sleep(0.01)
        on_event(DownloadProgress("org/base", 2 * GB, 4 * GB))
        go.wait(5)
        return "All is here."

    assert work.start("Fetching", run)
    assert not work.start("Another", run)  # one at a time
    while work.state.share != 0.5:
        time.sleep(0.001)
    assert work.state.message == "Downloading org/base: 2.0 GB of 4.0 GB"
    assert "MB/s" in work.state.pace
    assert "left" in work.state.pace
    assert "50%" in work_html(work.state)
    go.set()
    assert work.join(5)
    assert (work.state.done, work.state.error) == ("All is here.", None)
    assert work_html(work.state) == ""


def test_work_is_cancelled_and_failures_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()

    def stoppable(on_event: Any, cancel: threading.Event) -> str:
        assert cancel.wait(5)
        on_event(LoadProgress("nearly"))
        raise Cancelled("stopped", hint="start again")

    def broken(on_event: Any, cancel: threading.Event) -> str:
        raise ZeroDivisionError

    work.start("Fetching", stoppable)
    work.cancel()
    assert "Stopping" in work_html(work.state) or not work.state.is_running
    assert work.join(5)
    assert isinstance(work.state.error, Cancelled)
    with caplog.at_level(logging.ERROR):
        work.start("Fetching", broken)
        assert work.join(5)
    assert work.state.error is not None
    assert work.state.error.hint == "try again; the log has the details"


# ---- one session in place of another ----


def named(name: str) -> FakeSession:
    session = FakeSession()
    session.closed = threading.Event()  # type: ignore[attr-defined]
    session.close = session.closed.set  # type: ignore[attr-defined, method-assign]
    session.name = name  # type: ignore[attr-defined]
    return session


def opened(slot: SessionSlot) -> Any:
    deadline = time.monotonic() + 5
    while slot.session is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return slot.session


def failing(on_event: Any) -> Any:
    raise ModelNotFound("no such model", hint="check the spelling")


def nothing(*_: Any) -> None:
    return None


@pytest.mark.parametrize("beside", [True, False])
def test_the_old_session_is_let_go(beside: bool) -> None:
    slot = SessionSlot()
    slot.open_in_background(lambda report: named("old"))
    old = weakref.ref(opened(slot))
    was_there: list[bool] = []

    def open_new(report: Any) -> Any:
        gc.collect()
        was_there.append(old() is not None)
        return named("new")

    slot.swap(open_new, nothing, beside, nothing)
    assert slot.session is not None
    assert slot.session.name == "new"  # type: ignore[attr-defined]
    assert was_there == [beside]  # released before, or after
    gc.collect()
    assert old() is None


@pytest.mark.parametrize("beside", [True, False])
def test_when_the_new_one_fails_the_old_one_is_there(beside: bool) -> None:
    slot, n_opened = SessionSlot(), []

    def open_old(report: Any) -> Any:
        n_opened.append(1)
        return named("old")

    slot.open_in_background(open_old)
    opened(slot)
    said: list[str] = []
    with pytest.raises(ModelNotFound):
        slot.swap(failing, lambda event: said.append(event.message), beside, nothing)  # type: ignore[union-attr]
    assert slot.session is not None
    assert slot.session.name == "old"  # type: ignore[attr-defined]
    assert len(n_opened) == (1 if beside else 2)
    assert bool(said) is not beside  # that it is opened again is said
    with pytest.raises(ModelNotFound):  # and once more: the opener is still the old one's
        slot.swap(failing, nothing, False, nothing)
    assert slot.session.name == "old"  # type: ignore[attr-defined]


def test_a_session_that_cannot_be_opened_again_is_never_given_up_first() -> None:
    slot = SessionSlot(named("given"))  # type: ignore[arg-type]
    with pytest.raises(ModelNotFound):
        slot.swap(failing, nothing, False, nothing)
    assert slot.session is not None
    assert slot.session.name == "given"  # type: ignore[attr-defined]


def test_a_wait_that_is_cancelled_changes_nothing() -> None:
    new = named("new")
    slot = SessionSlot(named("old"))  # type: ignore[arg-type]

    def wait() -> None:
        raise Cancelled("stopped", hint="again")

    with pytest.raises(Cancelled):
        slot.swap(lambda report: new, nothing, True, wait)  # type: ignore[arg-type, return-value]
    assert slot.session.name == "old"  # type: ignore[union-attr]
    assert new.closed.is_set()  # type: ignore[attr-defined]


# ---- how a pair is shown and loaded ----


@pytest.mark.parametrize(
    ("precision", "machine", "dtype", "quantization"),
    [
        ("float32", CPU, "float32", "none"),
        ("bfloat16", CUDA, "bfloat16", "none"),
        ("int8", CPU, "auto", "int8"),
        ("int8", CUDA, "auto", "int8-bnb"),
        ("nf4", CUDA, "auto", "nf4"),
        ("auto", CPU, "auto", "auto"),
    ],
)
def test_a_precision_becomes_settings(
    precision: str, machine: Machine, dtype: str, quantization: str
) -> None:
    others = LoadConfig(context_length=1024, offline=True, chat_template="plain", dtype="bfloat16")
    config = load_config("m", "h", precision, machine, None, others)
    assert (config.base, config.head) == ("m", "h")
    assert (config.dtype, config.quantization, config.device) == (dtype, quantization, "auto")
    assert (config.context_length, config.offline) == (1024, True)  # these stay
    assert config.chat_template is None  # this belongs to the model before


def test_the_choice_of_precisions_says_what_each_means_here() -> None:
    rows = {row.entry.name: row for row in overview.catalogue(CPU)}
    shown = precision_choice(rows[DEFAULT_BASE], CPU, in_use="int8")
    labels = {name: label for label, name in shown["choices"]}
    assert shown["value"] == "float32"  # as before: the most exact that fits
    assert labels["float32"] == "float32 (exact weights; recommended)"
    assert "fastest here" in labels["int8"]
    assert "97.5% of the time" in labels["int8"]
    assert labels["int8"].endswith("; in use)")
    assert "1.9 times as fast" in shown["info"]
    other = precision_choice(rows["qwen3-1.7b"], CPU)
    assert "%" not in str(other["choices"])  # measured with the default model alone
    assert ("nf4 (least memory, slower)", "nf4") in other["choices"]
    assert [one for one, _ in other["choices"] if "recommended" in one] == [
        "bfloat16 (less memory, not faster; recommended)"
    ]


def test_nothing_is_said_to_be_fast_where_it_was_not_measured() -> None:
    row = next(row for row in overview.catalogue(CUDA) if row.entry.name == "qwen3-1.7b")
    for machine in (CUDA, dataclasses.replace(CPU, lacks=("int8",))):
        shown = precision_choice(row, machine)
        assert "fastest" not in str(shown["choices"])
        assert "times as fast" not in shown["info"]


def test_the_card_of_the_pair_in_use_says_so_and_is_neither_loaded_nor_deleted() -> None:
    entry = catalog.find("qwen3-1.7b")
    row = dataclasses.replace(
        overview.row_of(entry, None), is_here=True, disk_bytes=GB, download_bytes=0
    )
    html = card_html(row, in_use=InUse(entry, "int8"))
    assert "in use, in int8" in html
    assert 'data-do="load"' not in html
    assert 'data-do="choose"' in html
    assert "Another precision" in html
    assert re.search(r'data-do="delete"[^>]* disabled>', html)
    assert "can be deleted once another model is loaded" in html
    assert "disabled" not in card_html(row, in_use=InUse(catalog.find("vicuna-7b"), "int8"))
    with_other_head = dataclasses.replace(entry, head="org/another-head")
    html = card_html(row, in_use=InUse(with_other_head, "int8"))
    assert "in use, in" not in html
    assert 'data-do="load"' in html  # another pair
    assert re.search(r'data-do="delete"[^>]* disabled>', html)  # on the same base
    assert "A part of it is in use" in html


def test_what_only_the_processor_holds_is_loaded_there() -> None:
    row = next(r for r in overview.catalogue(CUDA) if r.fit is not None and r.fit.device == "cpu")
    assert row.fit is not None
    config = load_config(row.entry.name, None, row.fit.precision, CUDA, row.fit)
    assert config.device == "cpu"


def test_the_catalogue_has_a_proposal_on_top_and_too_large_ones_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))  # other tests may have fetched something
    rows = overview.catalogue(CPU)
    assert [row.is_proposed for row in rows] == [True] + [False] * (len(rows) - 1)
    verdicts = [row.fit.verdict == "too-large" for row in rows[1:] if row.fit and not row.is_here]
    assert verdicts == sorted(verdicts)
    assert {True, False} == set(verdicts)
    proposed, others = rows_html(rows, in_use=InUse(catalog.find("vicuna-7b"), "int8"))
    assert proposed.count("<article") == 1
    assert others.count("<article") == len(rows) - 1
    assert "Won&#x27;t fit" in others or "Won't fit" in others
    assert 'data-do="delete"' not in others  # nothing is here


def test_names_are_escaped() -> None:
    entry = CatalogEntry(
        "x", '<img src=x onerror="a()">', HubSource('a"b/c'), 'a/"><script>', None, "<b>"
    )
    html = card_html(overview.row_of(entry, None))
    assert "<img" not in html
    assert "<script" not in html
    assert "<b>" not in html


# ---- the token ----


def test_a_token_is_checked_and_kept_for_its_user_alone(
    kept: tuple[HubServer, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, path = kept
    with caplog.at_level(logging.DEBUG):
        assert hub.save_token(f" {TOKEN}\n") == "tester"
    assert path.read_text() == TOKEN
    assert path.stat().st_mode & 0o777 == 0o600
    assert hub.has_token()
    assert TOKEN not in caplog.text
    assert list(path.parent.iterdir()) == [path]  # nothing half-written beside it
    assert hub.forget_token()
    assert not hub.forget_token()


def test_a_wrong_token_is_not_kept_nor_shown(kept: tuple[HubServer, Path]) -> None:
    server, path = kept
    server.unknown_tokens.add(TOKEN)
    with pytest.raises(BadToken) as caught:
        hub.save_token(TOKEN)
    assert TOKEN not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ConfigError):
        hub.save_token("two words")
    assert not path.exists()


# ---- the handlers ----


def handlers(can_change: bool = True, slot: SessionSlot | None = None) -> ModelsHandlers:
    def refuse(config: LoadConfig, on_event: Any) -> Any:
        raise EagleError("not in this test")

    slot = slot or SessionSlot(FakeSession())  # type: ignore[arg-type]
    return ModelsHandlers(slot, lambda: False, refuse, can_change=can_change)


def text_of(updates: list[Any]) -> str:
    return " ".join(update for update in updates if isinstance(update, str))


def test_strangers_only_look() -> None:
    page = handlers(can_change=False)
    shown = text_of(page.show())
    assert "models are changed where it runs" in shown
    assert "data-do=" not in shown
    for updates in (
        page.load("smollm2-135m", None),
        page.fetch("smollm2-135m", None),
        page.delete("smollm2-135m"),
        page.check("smollm2-135m", None),
        page.save_token(TOKEN),
        page.forget_token(),
        page.use_template("plain"),
    ):
        assert "models are changed where it runs" in text_of(updates)
    assert not page.work.state.is_running


def test_the_model_in_use_is_not_deleted() -> None:
    slot = SessionSlot(FakeSession())  # type: ignore[arg-type]
    assert "in use" in text_of(handlers(slot=slot).delete(FakeSession().info.base))


def test_the_model_in_use_is_known_by_any_of_its_names() -> None:
    session = FakeSession()
    repo = str(catalog.find("qwen3-1.7b").source)
    session.info = dataclasses.replace(session.info, base="qwen3-1.7b", dtype="float32")
    page = handlers(slot=SessionSlot(session))  # type: ignore[arg-type]
    assert "in use" in text_of(page.delete(repo))  # the same files
    assert "in use, in float32" in text_of(page.load("Qwen3-1.7B", None, "float32"))
    assert not page.work.state.is_running
    page.load("qwen3-1.7b", None, "int8")
    assert page.work.state.is_running or page.work.state.error is not None
    assert page.work.join(10)


def test_a_failed_load_says_so_and_keeps_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = handlers()
    before = page.slot.session
    page.load(str(tmp_path), None, "auto")
    assert page.work.join(10)
    assert "Not in this test" in text_of(page.tick())
    assert page.slot.session is before


def test_a_name_that_nobody_knows_is_refused_before_anything_starts() -> None:
    page = handlers()
    assert "did you mean" in text_of(page.load("qwen3-4", None)).lower()
    assert not page.work.state.is_running
    assert catalog.lookup("qwen3-4") is None
