"""Stands in for the package ``spaces`` on ZeroGPU: one forked process per call, all is pickled on its way.

As the package does it: the generator runs in a child of the process that serves the page, what it is given
and what it yields goes through queues, closing the generator sets an event that is looked at after each
yield, and what is computed in the child is gone with it.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gradio as gr
from gradio.context import LocalContext

FORK = multiprocessing.get_context("fork")
END = "end"


@dataclass
class Calls:
    """What was asked of the lender: planned seconds per call, whether in a visitor's name, the children."""

    seconds: list[int] = field(default_factory=list)
    has_visitor: list[bool] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    refusal: str = ""


def install(monkeypatch: Any) -> Calls:
    """Make ``import spaces`` find the stand-in, on a ZeroGPU Space as far as the environment says."""
    calls = Calls()
    module = types.ModuleType("spaces")
    module.GPU = lambda task=None, *, duration=60: decorator(calls, task, duration)  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="spaces")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "spaces", module)
    for name, value in (("SYSTEM", "spaces"), ("SPACES_ZERO_GPU", "true")):
        monkeypatch.setenv(name, value)
    return calls


def decorator(calls: Calls, task: Any, duration: Any) -> Any:
    if task is None:
        return lambda given: decorator(calls, given, duration)
    assert inspect.isgeneratorfunction(task), "no plain generator"

    def call(*args: Any) -> Iterator[Any]:
        if calls.refusal:
            raise gr.Error(calls.refusal)
        calls.seconds.append(duration(*args) if callable(duration) else duration)
        calls.has_visitor.append(LocalContext.request.get(None) is not None)
        yield from in_a_child(calls, task, pickle.dumps(args))

    return call


def in_a_child(calls: Calls, task: Callable[..., Any], args: bytes) -> Iterator[Any]:
    results, stop = FORK.SimpleQueue(), FORK.Event()

    def work() -> None:
        try:
            running = task(*pickle.loads(args))
            for found in running:
                results.put(pickle.dumps(found))
                if stop.is_set():
                    running.close()
                    break
            results.put(END)
        except BaseException as error:  # noqa: BLE001 - the parent raises it, as the package does
            results.put(f"{type(error).__name__}: {error}")
        os._exit(0)

    child = FORK.Process(target=work, daemon=True)
    child.start()
    calls.pids.append(int(child.pid or 0))
    try:
        while (found := results.get()) != END:
            if isinstance(found, str):
                raise gr.Error(found)
            yield pickle.loads(found)
    except GeneratorExit:
        stop.set()
        while results.get() != END:
            pass
        raise
    finally:
        child.join(60)
        results.close()
