"""Makes the README's moving picture: a race on the real default model, replayed at its own speed.

``python -m tests.support.demo [file]``, best on a machine with nothing else to do. The app measures the race
in a browser that rests. Its saved file is then replayed under a clock that this script moves on, so that the
picture shows the measured times exactly, however slowly the frames are taken.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from eagle_core.config import LoadConfig
from eagle_core.history import SqliteHistory
from eagle_core.session import Session
from eagle_core.ui import launch

PROMPT = "Write a Python function that returns the n-th Fibonacci number, and explain each line."
N_TOKENS = 200
FRAME_MS = 100
HOLD_MS = 2500  # the result, at the end
MOST_FRAMES = 150
MOST_BYTES = 3_000_000
SIZE = {"width": 1000, "height": 640}
QUALITIES = (75, 60, 45)


def measure(browser: Any, url: str, folder: Path) -> Path:
    """Race in the app; returns the saved file."""
    page = browser.new_page(viewport=SIZE, accept_downloads=True)
    page.set_default_timeout(300_000)
    page.goto(f"{url.rstrip('/')}/compare")
    page.wait_for_selector("#race-go")
    page.fill("#race-max-new-tokens input", str(N_TOKENS))
    page.fill("#race-prompt textarea", PROMPT)
    page.press("#race-prompt textarea", "Tab")
    page.click("#race-go")
    page.wait_for_selector(".race .lane")
    with page.expect_download() as download:
        page.click("#race-save")
    saved = folder / "comparison.html"
    download.value.save_as(saved)
    page.close()
    return saved


def replay(browser: Any, saved: Path) -> list[Image.Image]:
    """One picture for every frame of the replay."""
    page = browser.new_page(viewport=SIZE)
    page.clock.install(time=0)
    page.goto(saved.as_uri())
    page.evaluate("document.querySelector('.race .tools').scrollIntoView({block: 'start'})")
    page.click("text=Replay")
    frames = [picture(page)]
    while page.locator(".race .done:not(:empty)").count() < 2 and len(frames) < MOST_FRAMES:
        page.clock.run_for(FRAME_MS)
        frames.append(picture(page))
    page.evaluate("scrollTo(0, 0)")
    frames.append(picture(page))
    print(page.inner_text(".race .cards"), file=sys.stderr)
    page.close()
    return frames


def picture(page: Any) -> Image.Image:
    """What the page shows."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def write(frames: list[Image.Image], file: Path) -> None:
    """Assemble the frames in the best quality that is small enough."""
    durations = [FRAME_MS] * (len(frames) - 1) + [HOLD_MS]
    for quality in QUALITIES:
        frames[0].save(
            file, save_all=True, append_images=frames[1:], duration=durations, loop=0,
            quality=quality, method=6,
        )  # fmt: skip
        if file.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{file} takes {file.stat().st_size} bytes: race fewer tokens")


def main(file: Path) -> None:
    """Serve, race, replay, write."""
    session = Session.open(LoadConfig(offline=True))
    history = SqliteHistory(None)
    app = launch(session, open_browser=False, prevent_thread_lock=True, history=history)
    try:
        with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
            executable = shutil.which("chromium") or os.environ.get("CHROMIUM")
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            write(replay(browser, measure(browser, str(app.local_url), Path(folder))), file)
            browser.close()
    finally:
        app.close()
        session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("assets/demo.webp"))
