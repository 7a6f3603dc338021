"""The window's start, end and mistakes, with a stub in place of pywebview."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import threading
import types
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core import instance
from eagle_core.cli import desktop as command
from eagle_core.cli import main
from eagle_core.errors import ConfigError
from eagle_core.ui import desktop
from tests.support.fake_session import FakeSession

pytestmark = [
    pytest.mark.usefixtures("_gradio_cleans_up"),
    # Sockets and event loops that Gradio leaves to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class StubEvent:
    """pywebview's event: functions are added with +=."""

    def __init__(self) -> None:
        self.functions: list[Any] = []

    def __iadd__(self, function: Any) -> StubEvent:
        self.functions.append(function)
        return self


class StubWindow:
    def __init__(self, title: str, url: str, **options: Any) -> None:
        self.title, self.url, self.options = title, url, options
        self.events = types.SimpleNamespace(minimized=StubEvent(), restored=StubEvent())
        self.calls: list[str] = []
        self.was_shown = threading.Event()

    def restore(self) -> None:
        self.calls.append("restore")

    def show(self) -> None:
        self.calls.append("show")
        self.was_shown.set()


class StubWebview(types.ModuleType):
    """The part of pywebview that the app uses; ``on_start`` is what happens while the window is open."""

    def __init__(self) -> None:
        super().__init__("webview")
        self.settings: dict[str, Any] = {"ALLOW_DOWNLOADS": False}
        self.renderer = "gtkwebkit2"
        self.windows: list[StubWindow] = []
        self.options: dict[str, Any] = {}
        self.guilib = types.ModuleType("webview.guilib")
        self.guilib.initialize = lambda: None  # type: ignore[attr-defined]
        self.on_start: Any = lambda window: None

    def create_window(self, title: str, url: str, **options: Any) -> StubWindow:
        self.windows.append(StubWindow(title, url, **options))
        return self.windows[-1]

    def start(self, function: Any = None, args: Any = None, **options: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.options = options
        self.on_start(self.windows[0])
        if function is not None:
            function(*args)


@pytest.fixture
def webview(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubWebview:
    stub = StubWebview()
    monkeypatch.setitem(sys.modules, "webview", stub)
    monkeypatch.setitem(sys.modules, "webview.guilib", stub.guilib)
    monkeypatch.setenv("EAGLE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(desktop, "PORT", free_port())
    return stub


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ClosingSession(FakeSession):
    n_closed = 0

    def close(self) -> None:
        self.n_closed += 1


def read(url: str, **options: Any) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, **options), timeout=60) as answer:
        return bytes(answer.read())


def test_the_window_shows_the_app_and_its_end_frees_everything(webview: StubWebview) -> None:
    session, seen, said = ClosingSession(), dict[str, Any](), list[str]()

    def use(window: StubWindow) -> None:
        seen["page"] = read(window.url)
        kept = instance.folder() / "instance.json"
        seen["mode"] = stat.S_IMODE(kept.stat().st_mode)
        seen["instance"] = json.loads(kept.read_text())
        # A second start, from another process, sees the lock held and asks for the window.
        seen["sentence"] = instance.bring_forward()
        assert window.was_shown.wait(30)

    webview.on_start = use
    with instance.only_instance():
        desktop.run_window(lambda _: session, say=said.append)  # type: ignore[arg-type, return-value]
    (window,) = webview.windows
    assert window.url == f"http://127.0.0.1:{desktop.PORT}/"
    assert b"EAGLE chat" in seen["page"]
    assert seen["mode"] == 0o600
    assert seen["instance"]["pid"] == os.getpid()
    assert seen["sentence"].endswith(f"(process {os.getpid()}); its window comes to the front.")
    assert window.calls == ["restore", "show"]
    assert webview.settings["ALLOW_DOWNLOADS"] is True
    assert webview.options == {
        "private_mode": False, "storage_path": str(instance.folder() / "storage")
    }  # fmt: skip
    assert window.options["text_select"] is True
    assert said == []
    # The end: the model is closed, the server gone, and the next start finds nobody.
    assert session.n_closed == 1
    with pytest.raises(OSError, match="refused"):
        read(window.url)
    assert not (instance.folder() / "instance.json").exists()
    with instance.only_instance() as is_only:
        assert is_only


def test_a_second_start_says_so_and_ends_well(
    webview: StubWebview, capsys: pytest.CaptureFixture[str]
) -> None:
    with instance.only_instance():
        assert main(["desktop"]) == 0
        assert "just starting" in capsys.readouterr().out
        instance.write_down(instance.Instance(f"http://127.0.0.1:{free_port()}/", "key", 4711))
        assert main(["desktop"]) == 0
        assert "(process 4711), but does not answer" in capsys.readouterr().out
    assert webview.windows == []


def test_only_who_knows_the_key_moves_the_window(webview: StubWebview) -> None:
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    window = desktop.Window(webview, "http://127.0.0.1/")
    client = TestClient(Starlette(routes=[desktop.forward_route([window], "secret")]))
    assert client.post(instance.FORWARD_PATH).status_code == 404
    assert (
        client.post(instance.FORWARD_PATH, headers={"x-window-key": "sécret".encode()}).status_code
        == 404
    )
    assert not window.native.calls
    assert client.post(instance.FORWARD_PATH, headers={"x-window-key": "secret"}).status_code == 204
    assert window.native.was_shown.wait(30)


def test_a_window_is_restored_only_where_that_shows_it(webview: StubWebview) -> None:
    webview.renderer = "edgechromium"
    window = desktop.Window(webview, "http://127.0.0.1/")
    window.bring_forward()  # a maximized window would lose its size by being restored
    assert window.native.calls == ["show"]
    for function in window.native.events.minimized.functions:
        function()
    window.bring_forward()
    for function in window.native.events.restored.functions:
        function()
    window.bring_forward()
    assert window.native.calls == ["show", "restore", "show", "show"]


def test_a_taken_port_is_told(
    webview: StubWebview, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desktop, "PORT", taken_port)
    said: list[str] = []
    with instance.only_instance():
        desktop.run_window(lambda _: FakeSession(), say=said.append)  # type: ignore[arg-type, return-value]
    assert said == [
        f"Port {taken_port} is taken: what the pages keep, such as light or dark, is not found."
    ]


class Never:
    """Opens nothing."""

    def __call__(self, _: Any) -> Any:
        raise AssertionError("nothing may be loaded")

    def close(self) -> None:
        """Nothing was started."""


never = Never()


def test_without_pywebview_a_sentence_and_serve(
    webview: StubWebview, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "webview", None)
    monkeypatch.setattr(command, "Opener", lambda load: never)
    assert main(["desktop"]) == 1
    error = capsys.readouterr().err
    assert "error: the window needs the package pywebview" in error
    assert "eagle-chat serve" in error
    assert "Traceback" not in error


def test_without_a_toolkit_a_sentence_and_serve(webview: StubWebview) -> None:
    def fail() -> None:
        raise RuntimeError("You must have either QT or GTK")

    webview.guilib.initialize = fail  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no toolkit") as caught:
        desktop.run_window(never)
    assert "eagle-chat serve" in caught.value.hint
    assert webview.windows == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no display to name")
def test_without_a_display_a_sentence_and_serve(
    webview: StubWebview, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ConfigError, match="no display") as caught:
        desktop.run_window(never)
    assert "eagle-chat serve" in caught.value.hint


def test_a_folder_that_cannot_be_written_is_named(webview: StubWebview, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="cannot be written") as caught, instance.only_instance():
        never(None)
    assert "EAGLE_DATA" in caught.value.hint
