"""A graph without a device: the operations of one run, repeated on the storages that they had.

What a CUDA graph does, for tensors on the CPU. Every operation of PyTorch is noted with its arguments; a
replay calls it again and puts the result where it was. No Python of the run is called again, so a value that
came from the host is that of the capture for ever: a length, a slice, a number. Results and what lies between
are spoiled before each replay, of all graphs that were captured together, as a shared pool of memory would.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eagle_core.kernels.cuda_graphs import NoHostReads
from eagle_core.kernels.graphs import Run


class RecordedCapture:
    """Captures on the CPU."""

    def __init__(self) -> None:
        self.graphs: list[RecordedGraph] = []
        self.n_replays = 0

    @property
    def n_bytes(self) -> int:
        return sum(graph.n_bytes for graph in self.graphs)

    def __call__(self, run: Run) -> Run:
        with torch.inference_mode():
            run()
            with NoHostReads():
                run()
            graph = RecordedGraph()
            with _Notes(graph):
                graph.outputs = run()
        self.graphs.append(graph)
        self._spoil()

        def replay() -> tuple[Tensor, ...]:
            self.n_replays += 1
            with torch.inference_mode():
                self._spoil()
                graph.replay()
            return graph.outputs

        return replay

    @torch.inference_mode()
    def _spoil(self) -> None:
        for graph in self.graphs:
            for tensor in graph.made:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 1)


class RecordedGraph:
    """Operations with their arguments and results."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = []
        self.outputs: tuple[Tensor, ...] = ()
        self.made: list[Tensor] = []  # with storages of their own

    @property
    def n_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.made)

    def replay(self) -> None:
        for function, args, kwargs, results in self.steps:
            again = [
                one for one in tree_leaves(function(*args, **kwargs)) if isinstance(one, Tensor)
            ]
            for old, new in zip(results, again, strict=True):
                if storage(old) != storage(new):
                    old.copy_(new)


class _Notes(TorchDispatchMode):
    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read = {storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        results = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        self._graph.made += [one for one in results if storage(one) not in read]
        self._graph.steps.append((func, args, kwargs, results))
        return result


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
