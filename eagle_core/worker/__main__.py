"""``python -m eagle_core.worker``: the engine, for the process that starts it."""

from eagle_core.worker.host import run

if __name__ == "__main__":
    run()
