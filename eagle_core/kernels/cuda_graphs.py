"""Captures forwards as CUDA graphs (``torch.cuda.graph``), for ``graphs``.

Knows no model. A forward that reads a value on the host is found out before it is captured, since a capture
that breaks off leaves PyTorch's allocator in a state that nothing more should be captured in.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eagle_core.kernels.graphs import CaptureFailed, Captures, Run
from eagle_core.kernels.recording import READS_HOST, Unrecordable
from eagle_core.kernels.tape import Tensors

COMPOSITE_READS = frozenset({"aten::item", "aten::nonzero_numpy", "aten::allclose"})
COPIES = frozenset({"aten::copy_", "aten::_to_copy", "aten::to"})


def graph_captures(device: torch.device) -> Captures | None:
    """What captures forwards on a device; None where graphs are not known to work: all but NVIDIA's."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return partial(CudaCapture, device)


class CudaCapture:
    """CUDA graphs that share a pool of memory: the next one that is replayed overwrites another's results."""

    _one_at_a_time = (
        threading.Lock()
    )  # of all in this process: PyTorch cannot do two captures at once

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Warm-up and capture on one stream: workspaces of the libraries belong to streams, and are made once.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self._alive: weakref.WeakSet[CudaReplay] = weakref.WeakSet()
        self._n_bytes = 0
        self._is_broken = False

    @property
    def n_bytes(self) -> int:
        """Memory that was reserved while capturing."""
        return self._n_bytes

    def __call__(self, run: Run) -> Run:
        """Warm up, then capture.

        Raises: CaptureFailed when that breaks off; Unrecordable, or what ``run`` raises, before.
        """
        if self._is_broken:
            raise CaptureFailed("an earlier capture broke off")
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                run()
                with NoHostReads():  # type: ignore[no-untyped-call]
                    run()
            current.wait_stream(self._stream)
            try:
                # A capture that breaks off leaves its own stream the current one.
                with self._one_at_a_time, torch.cuda.stream(current):
                    replay = self._captured(run)
            except Exception as error:
                self._is_broken = True
                raise CaptureFailed(str(error).split("\n")[0]) from error
        self._alive.add(replay)
        return replay

    def _captured(self, run: Run) -> CudaReplay:
        if not self._alive:  # a pool whose graphs are all gone cannot be used again
            self._pool, self._n_bytes = torch.cuda.graph_pool_handle(), 0
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on using the device: only what this one does is captured, or forbidden.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            before = torch.cuda.memory_reserved(self._device)
            outputs = run()
            self._n_bytes += torch.cuda.memory_reserved(self._device) - before
        return CudaReplay(graph, outputs)


class CudaReplay:
    """A captured graph and where its results are."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Tensors) -> None:
        self._graph, self._outputs = graph, outputs

    def __call__(self) -> Tensors:
        """Replay on the current stream."""
        self._graph.replay()
        return self._outputs


class NoHostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, an operation that waits for the device, as a capture cannot, raises Unrecordable instead."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(func.name()).split(".")[0]
        leaves = tree_leaves((args, kwargs or {}))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if name in READS_HOST or name in COMPOSITE_READS or _picks(name, tensors):
            raise Unrecordable(f"{name} reads a value on the host")
        result = func(*args, **(kwargs or {}))
        if name in COPIES and isinstance(result, Tensor):
            kinds = {tensor.device.type for tensor in (*tensors, result)}
            if len(kinds) > 1:
                raise Unrecordable(f"{name} moves a value between host and device")
        return result


def _picks(name: str, tensors: list[Tensor]) -> bool:
    """Whether an operation selects by a mask: the size of its result is known on the device only."""
    masks = [tensor for tensor in tensors[1:] if tensor.dtype in (torch.bool, torch.uint8)]
    return name == "aten::index" and bool(masks)


__all__ = ["CudaCapture", "NoHostReads", "graph_captures"]
