"""Who is answered and what is logged, asked over HTTP of the app as it is served."""

from __future__ import annotations

import base64
import logging
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from eagle_core.errors import ModelNotFound
from eagle_core.history import SqliteHistory
from eagle_core.ui.access import Credentials
from eagle_core.ui.app import Running, listen, serve
from eagle_core.ui.backend import SessionSlot
from tests.support.chat_page import DEFAULTS
from tests.support.fake_session import FakeSession
from tests.support.http_page import call

pytestmark = [
    pytest.mark.usefixtures("_gradio_cleans_up"),
    # Sockets and event loops that Gradio leaves to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SECRET = "xyzzy-the-users-own-words"
PASSWORD = "correct:horse"
JOIN = "gradio_api/queue/join"


@pytest.fixture(scope="module")
def session() -> FakeSession:
    return FakeSession(default=f"You said {SECRET}.", step_s=0.0)


@pytest.fixture(scope="module")
def running(session: FakeSession) -> Iterator[Running]:
    served = serve(session, history=SqliteHistory(None))  # type: ignore[arg-type]
    yield served
    served.close()


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    served = serve(
        FakeSession(),
        history=SqliteHistory(None),
        auth=Credentials("me", PASSWORD),  # type: ignore[arg-type]
    )
    yield served
    served.close()


def ask(
    url: str, data: bytes | None = None, method: str | None = None, **headers: str
) -> tuple[int, Any]:
    """Status and headers of a response, errors included; a header's name has _ for -."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers


def test_it_listens_on_this_machine_alone(running: Running) -> None:
    addresses = {
        listener.getsockname()[0]
        for server in running.app.server.servers
        for listener in server.sockets
    }
    assert addresses == {"127.0.0.1"}
    port = int(running.url.rstrip("/").rsplit(":", 1)[1])
    with socket.socket() as client, pytest.raises(OSError, match="refused"):
        client.connect(("127.0.0.2", port))


def test_other_names_are_not_answered(running: Running, session: FakeSession) -> None:
    assert ask(running.url)[0] == 200
    assert ask(running.url, host="localhost")[0] == 200
    for host in ("evil.example", "evil.example:7860", "127.0.0.1.evil.example"):
        assert ask(running.url, host=host)[0] == 400
        assert ask(running.url + JOIN, b"{}", host=host)[0] == 400
    assert session.seen == []


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_pages_of_other_sites_can_do_and_read_nothing(
    running: Running, session: FakeSession, origin: str
) -> None:
    n_seen = len(session.seen)
    for status, _ in (
        ask(running.url, origin=origin),
        ask(running.url + "config", origin=origin),
        ask(running.url + JOIN, b"{}", origin=origin, content_type="application/json"),
        ask(running.url + JOIN, b"{}", origin=origin, content_type="text/plain"),
        ask(running.url + "eagle/lag/x", b"", origin=origin),
    ):
        assert status == 403
    assert len(session.seen) == n_seen
    assert ask(running.url, origin=running.url.rstrip("/"))[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_a_browser_is_not_told_that_another_site_may_ask(running: Running, origin: str) -> None:
    wanted = {"origin": origin, "access_control_request_method": "POST"}
    _, headers = ask(running.url + JOIN, method="OPTIONS", **wanted)
    assert "access-control-allow-origin" not in headers
    _, headers = ask(running.url, origin=origin)
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "",
        "config",
        "compare",
        "models",
        "gradio_api/info",
        JOIN,
        "gradio_api/queue/data",
        "eagle/lag/x",
        "theme.css",
    ],
)
def test_without_the_password_nothing_is_told(locked: Running, path: str) -> None:
    status, headers = ask(locked.url + path)
    assert status == 401
    assert headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    ("login", "status"),
    [
        (f"me:{PASSWORD}", 200),
        ("me:correct", 401),
        (f"you:{PASSWORD}", 401),
        ("", 401),
        (f"me:{PASSWORD}x", 401),
    ],
)
def test_only_the_right_login_is_let_in(locked: Running, login: str, status: int) -> None:
    given = base64.b64encode(login.encode()).decode()
    assert ask(locked.url, authorization=f"Basic {given}")[0] == status


@pytest.mark.parametrize("header", ["Basic", "Basic ***", "Bearer abc", f"Digest {PASSWORD}"])
def test_a_login_that_is_none_is_refused(locked: Running, header: str) -> None:
    assert ask(locked.url, authorization=header)[0] == 401


def test_no_message_shows_the_password() -> None:
    assert PASSWORD not in repr(Credentials("me", PASSWORD))


def test_no_prompt_and_no_answer_in_the_log(
    running: Running,
    session: FakeSession,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO)
    chat = call(running.app, "send", [SECRET, *DEFAULTS])
    assert SECRET in str(chat[0])
    assert session.seen[-1][-1]["content"] == SECRET
    too_long = SECRET * 200
    assert "context holds" in str(call(running.app, "send", [too_long, *DEFAULTS], tab="other"))
    written = capfd.readouterr()
    assert SECRET not in caplog.text + written.out + written.err


def test_no_path_in_the_log_when_a_model_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def fail(_: Any) -> Any:
        raise ModelNotFound(f"/home/{SECRET} does not exist", hint="check the path")

    slot = SessionSlot()
    slot._open(fail)
    assert SECRET in slot.opening.message
    assert "model-not-found" in caplog.text
    assert SECRET not in caplog.text


def test_a_port_that_is_taken_meanwhile_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    class Blocks:
        def launch(self, server_port: int, **_: Any) -> None:
            tried.append(server_port)
            if len(tried) < 3:
                raise OSError("taken")

    listen(Blocks(), "127.0.0.1", 0)  # type: ignore[arg-type]
    assert len(tried) == 3
