"""Opens the app's window on a scripted session, uses it as a person does, closes it; run as a program.

The last line of stdout is a JSON object with what was seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from eagle_core.instance import only_instance
from eagle_core.ui.desktop import run_window
from tests.support.fake_session import FakeSession

PATIENCE_S = 240.0
TYPE = """(() => {
  const box = document.querySelector("#box textarea");
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(box, "hi");
  box.dispatchEvent(new Event("input", {bubbles: true}));
  setTimeout(() => document.querySelector("#box .submit-button").click(), 300);
})()"""
ANSWERS = (
    "document.querySelectorAll(\"#chat .message.bot[data-footer]:not([data-footer=''])\").length"
)
CHATS = "document.querySelectorAll('#chat-list [data-id]').length"


class Session(FakeSession):
    """Counts how often it is closed."""

    n_closed = 0

    def close(self) -> None:
        self.n_closed += 1


def use(window: Any, seen: dict[str, Any]) -> None:
    """Chat, keep something, save a chat to a file, start a second time, close."""
    try:
        assert window.events.loaded.wait(PATIENCE_S)
        wait(lambda: window.evaluate_js("!!document.querySelector('#box textarea:enabled')"))
        seen["kept before"] = window.evaluate_js("localStorage.getItem('probe')")
        window.evaluate_js("localStorage.setItem('probe', 'kept')")
        window.evaluate_js(TYPE)
        wait(lambda: window.evaluate_js(ANSWERS))
        wait(lambda: window.evaluate_js(CHATS))
        seen["n_chats"] = window.evaluate_js(CHATS)
        seen["answer"] = window.evaluate_js(
            "document.querySelector('#chat .message.bot').innerText"
        )
        seen["n_colored"] = window.evaluate_js("CSS.highlights?.get('eagle-draft')?.size ?? 0")
        if "gi" in sys.modules:
            save_a_chat(window, seen)
        second = subprocess.run(
            [sys.executable, "-m", "eagle_core", "desktop"],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        seen["second"] = [second.returncode, second.stdout, second.stderr]
    except Exception as error:  # noqa: BLE001 - the test reads what went wrong
        seen["problem"] = repr(error)
    finally:
        window.destroy()


def save_a_chat(window: Any, seen: dict[str, Any]) -> None:
    """Export all chats, and press Save in GTK's dialog."""
    from gi.repository import GLib, Gtk

    def press() -> bool:
        for dialog in Gtk.Window.list_toplevels():
            if isinstance(dialog, Gtk.FileChooserDialog) and dialog.get_visible():
                name = dialog.get_current_name()
                dialog.set_current_folder(os.environ["EAGLE_DATA"])
                dialog.set_current_name(name)
                seen["file"] = name
                GLib.timeout_add(500, dialog.response, Gtk.ResponseType.OK)
                return False
        return time.monotonic() < end

    end = time.monotonic() + PATIENCE_S
    GLib.timeout_add(200, press)
    saved = Path(os.environ["EAGLE_DATA"]) / "chats.json"
    saved.unlink(missing_ok=True)
    window.evaluate_js("document.querySelector('#export-all').click()")
    wait(lambda: saved.exists() and saved.stat().st_size)
    wait(lambda: is_json(saved))
    seen["n_saved"] = len(json.loads(saved.read_text(encoding="utf-8"))["conversations"])


def is_json(path: Path) -> bool:
    """Whether the file is complete."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def wait(is_true: Any) -> None:
    """Until it is. Raises: TimeoutError."""
    end = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


def main() -> None:
    """Open, use, close."""
    session, seen = Session(default="## Hello\n\nsome `code` and **bold** words.", step_s=0.01), {}
    with only_instance() as is_only:
        assert is_only
        run_window(lambda _: session, then=lambda window: use(window, seen))  # type: ignore[arg-type, return-value]
    seen["n_closed"] = session.n_closed
    seen["threads"] = [thread.name for thread in threading.enumerate() if not thread.daemon]
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
