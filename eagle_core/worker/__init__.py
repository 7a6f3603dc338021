"""The engine in a process of its own, so that the page neither waits for it nor slows it.

Both start at once, on a core each; what the model takes of memory is given back when its process ends, and
the page outlives it. ``session`` is the page's side, ``host`` the engine's, ``channel`` what is between them.
"""

from eagle_core.worker.session import Worker, WorkerSession, open_in_worker

__all__ = ["Worker", "WorkerSession", "open_in_worker"]
