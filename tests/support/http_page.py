"""Uses the app's page over HTTP, as its script does: joins the queue and reads the stream of updates."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

PATIENCE_S = 100.0


def call(app: Any, name: str, data: list[Any], tab: str = "tab", **more: Any) -> list[Any]:
    """The final values of the event handler ``name``, for the outputs of its event."""
    index = next(key for key, fn in app.fns.items() if getattr(fn.fn, "__name__", "") == name)
    root = f"{app.local_url}gradio_api/queue"
    body = {"data": data, "fn_index": index, "session_hash": tab, "trigger_id": None, **more}
    asked = urllib.request.Request(
        f"{root}/join", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S):
        pass
    with urllib.request.urlopen(f"{root}/data?session_hash={tab}", timeout=PATIENCE_S) as stream:
        for line in stream:
            if not line.startswith(b"data:"):
                continue
            message = json.loads(line[5:])
            if message["msg"] == "process_completed":
                assert message["success"], message["output"]
                found: list[Any] = message["output"]["data"]
                return found
    raise AssertionError("the stream ended early")
