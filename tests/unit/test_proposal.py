"""The proposal on the chat page: when it is made, what it says, what its buttons start."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_core import models
from eagle_core.config import DEFAULT_BASE, LoadConfig
from eagle_core.errors import DiskFull
from eagle_core.events import DownloadProgress
from eagle_core.fit import Machine
from eagle_core.ui import model_actions, model_in_use
from eagle_core.ui.backend import SessionSlot
from eagle_core.ui.model_actions import ModelsHandlers
from eagle_core.ui.proposal import ProposalHandlers
from tests.support.fake_session import FakeSession

GB = 1_000_000_000


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """8 GB of a graphics card."""
    found = Machine("cuda", round(7.6 * GB), 16 * GB, "card")
    monkeypatch.setattr(model_in_use, "this_machine", lambda: found)
    monkeypatch.setattr(models, "is_here", lambda entry: entry.name == DEFAULT_BASE)
    return found


def handlers(base: str | None = DEFAULT_BASE, **settings: Any) -> ProposalHandlers:
    session = None
    if base is not None:
        session = FakeSession()
        session.info = dataclasses.replace(session.info, base=base)
    page = ModelsHandlers(SessionSlot(session), lambda: False, lambda *_: FakeSession(), **settings)  # type: ignore[arg-type, return-value]
    return ProposalHandlers(page)


def pressed(do: str, name: str = "") -> Any:
    return SimpleNamespace(_data={"do": do, "name": name})


@pytest.mark.parametrize("base", [None, DEFAULT_BASE])
def test_the_best_ungated_pair_is_proposed_while_the_default_answers(
    machine: Machine, base: str | None
) -> None:
    html, timer = handlers(base).show()
    assert "<b>Qwen3 4B</b>" in html
    assert "in nf4, about 8.5 GB to fetch" in html
    assert 'data-do="load" data-name="qwen3-4b"' in html
    assert "Until then SmolLM2 135M Instruct answers" in html
    assert timer["active"] is False


@pytest.mark.parametrize(
    "hidden",
    [
        {"base": "org/other"},
        {"base": None, "settings": LoadConfig(base="org/other")},
        {"can_change": False},
    ],
)
def test_nothing_is_proposed_to_who_has_chosen_or_may_not(machine: Machine, hidden: Any) -> None:
    assert handlers(**hidden).show()[0] == ""


def test_nothing_is_proposed_where_it_is_here_or_nothing_better_fits(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "is_here", lambda entry: True)
    assert handlers().show()[0] == ""
    small = Machine("cpu", GB, GB)
    monkeypatch.setattr(model_in_use, "this_machine", lambda: small)
    monkeypatch.setattr(models, "is_here", lambda entry: False)
    assert handlers().show()[0] == ""


def test_one_press_fetches_and_loads_it_and_shows_how_far_it_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, pulled = threading.Event(), []

    def pull(config: LoadConfig, on_event: Any, cancel: threading.Event) -> None:
        pulled.append((config.base, config.quantization))
        on_event(DownloadProgress("Qwen/Qwen3-4B", GB, 4 * GB))
        go.wait(10)

    monkeypatch.setattr(model_actions, "pull", pull)
    found = handlers()
    html, timer = found.act(pressed("load", "qwen3-4b"))
    assert "Loading qwen3-4b" in html
    assert timer["active"] is True
    assert "Loading qwen3-4b" in found.show()[0]  # a page that comes later sees it, too
    go.set()
    assert found._page.work.join(10)
    html, timer = found.tick()
    assert "qwen3-4b is in use" in html
    assert timer["active"] is False
    assert pulled == [("qwen3-4b", "nf4")]


def test_it_is_stopped_and_failures_are_said_with_the_proposal(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pull(config: LoadConfig, on_event: Any, cancel: threading.Event) -> None:
        assert cancel.wait(10)
        raise DiskFull("there is no room for it", hint="make room")

    monkeypatch.setattr(model_actions, "pull", pull)
    found = handlers()
    found.act(pressed("load", "qwen3-4b"))
    found.act(pressed("cancel"))
    assert found._page.work.join(10)
    html, _ = found.tick()
    assert "no room" in html
    assert "Make room" in html
    assert "Qwen3 4B" in html
    assert found.act(pressed("something else"))[1]["active"] is False
