"""Replays a model's forward on an accelerator as one graph, instead of launching its operations from Python.

``tape`` does this on the CPU. Here the device's own primitive captures a forward (``cuda_graphs``; a
:class:`Capture` is all that this module knows of it), and what changes from step to step lies in buffers
that stay: ids, positions, the rows of the cache to write, the mask. Rows and keys are padded to a few sizes,
one graph for each pair; the rows added are written behind the real ones and seen by nobody. The third forward
of a pair is captured and compared with the model's own, so is a later one at another cache length, and from
then on the graph is replayed. What cannot be captured, or differs, stays what it was. Nothing here waits for
the device but the two comparisons. Nothing here knows an architecture.

Example: 5 rows behind 300 committed ones are padded to 8, and see the first 384 rows of the cache, all but
305 of them hidden.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from eagle_core.errors import Cancelled
from eagle_core.kernels.recording import Unrecordable
from eagle_core.kernels.tape import Forward, Tensors

logger = logging.getLogger(__name__)

ROW_BUCKETS = (1, 8, 16, 32, 64)
SMALLEST_KEYS = 256  # a cache of fewer rows is a test's, and soon gone
FIRST_CAPTURED = 3  # use of a pair of buckets that is captured
MOST_GRAPHS = 24  # the one used longest ago makes room
MOST_BYTES = 1 << 30  # of device memory for all graphs of a deck
MOST_FAILURES = 3  # captures that may fail before no more are tried
# Rows behind the committed ones are hidden by a weight of zero, and zero times infinity is no number: what is
# cached must be finite, which float16 does not promise.
KEPT_FINITE = (torch.float32, torch.bfloat16)
# Relative to the spread of a row. Float32: a hundred times the rounding between two kernels (2e-6). 16 bits:
# rounding was measured at up to 0.11 on the default model, a wrong position at 0.49 and more.
TOLERANCES = {torch.float32: 2e-4}
COARSE_TOLERANCE = 0.25

Key = tuple[int, int]  # rows, keys
Run = Callable[[], Tensors]


class CaptureFailed(Exception):
    """The device failed at capturing itself; after this nothing more is captured with the same object."""


class Capture(Protocol):
    """Captures forwards that share memory for what lies between inputs and results."""

    @property
    def n_bytes(self) -> int:
        """Device memory taken by what was captured."""

    def __call__(self, run: Run) -> Run:
        """Run once or more to warm up, then capture.

        Returns: what replays it; its results are overwritten by the next replay of any graph.
        Raises: CaptureFailed, or what ``run`` raises when it is warmed up.
        """


Captures = Callable[[], Capture]


@dataclass(slots=True, weakref_slot=True)
class Graph:
    """A captured forward of R rows over K keys, on one cache."""

    inputs: Tensors  # [R, ...] each
    order: Tensor  # [R] i64, 0 .. R - 1
    slots: Tensor  # [R] i64, cache rows to write
    mask: Tensor  # [1, 1, R, K] additive
    length: int  # of the cache when it was captured
    run: Run
    is_checked: bool = False

    def replay(self, inputs: Tensors, mask: Tensor | None, length: int) -> Tensors:
        """The forward behind ``length`` committed rows; the results are new tensors."""
        n_rows = inputs[0].shape[0]
        for own, new in zip(self.inputs, inputs, strict=True):
            own[:n_rows].copy_(new)
            if n_rows < own.shape[0]:
                own[n_rows:].zero_()
        torch.add(self.order, length, out=self.slots)
        write_mask(self.mask[0, 0], mask, n_rows, length)
        return tuple(output[:n_rows].clone() for output in self.run())


class GraphDeck:
    """Graphs of one model on one cache, by rows and keys; the interface of ``tape.TapeDeck``.

    Args:
        forward: the model's own: inputs, whose first dimension is the rows, an additive mask [1, 1, N, S] or
            None (each row sees what is committed, the rows before it and itself), and a KVCache. A bound
            method is held weakly: the deck must not keep the model.
        captures: makes what captures; called anew for each cache.
        dtype: of mask and activations.
        min_rows: rows that every forward has at least.
        is_exact: only what is bit for bit the model's own is used.
        smallest_keys: the first size that keys are padded to; None: SMALLEST_KEYS.
    """

    def __init__(
        self,
        forward: Forward,
        captures: Captures,
        dtype: torch.dtype,
        min_rows: int = 1,
        *,
        is_exact: bool = False,
        smallest_keys: int | None = None,
    ) -> None:
        is_method = inspect.ismethod(forward)
        self._own: Callable[[], Forward | None] = (
            weakref.WeakMethod(forward) if is_method else lambda: forward
        )
        self._captures, self._dtype = captures, dtype
        self._min_rows, self._smallest_keys = min_rows, smallest_keys or SMALLEST_KEYS
        self.problem = ""  # why the model's own forward was kept, the last time that it was
        self._tolerance = 0.0 if is_exact else TOLERANCES.get(dtype, COARSE_TOLERANCE)
        self._refused: set[Key] = set()
        self._n_failures = 0
        self._cache: weakref.ref[Any] | None = None
        self._capture: Capture | None = None
        self._graphs: dict[Key, Graph] = {}  # the one used last is the last
        self._n_uses: dict[Key, int] = {}

    def run(self, inputs: Tensors, mask: Tensor | None, cache: Any) -> Tensors:
        """A forward, replayed where that is known to be the same."""
        key = self._key(inputs[0].shape[0], cache)
        if key is None or key in self._refused or not self._knows(cache):
            return self._forward(inputs, mask, cache)
        graph = self._graphs.pop(key, None)
        if graph is not None:
            self._graphs[key] = graph
            if graph.is_checked:
                return graph.replay(inputs, mask, cache.length)
            return self._check(key, graph, inputs, mask, cache)
        self._n_uses[key] = self._n_uses.get(key, 0) + 1
        if self._n_uses[key] < FIRST_CAPTURED or self._n_failures >= MOST_FAILURES:
            return self._forward(inputs, mask, cache)
        return self._capture_one(key, inputs, mask, cache)

    def n_replayed(self) -> int:
        """Kinds of forwards that are replayed."""
        return sum(graph.is_checked for graph in self._graphs.values())

    def is_replayed(self, n_rows: int, cache: Any) -> bool:
        """Whether a forward of so many rows, behind what the cache now holds, is replayed."""
        key = self._key(n_rows, cache)
        graph = self._graphs.get(key) if key is not None and self._knows(cache) else None
        return graph is not None and graph.is_checked

    @property
    def n_bytes(self) -> int:
        """Device memory taken by the graphs."""
        return self._capture.n_bytes if self._capture is not None else 0

    def _forward(self, inputs: Tensors, mask: Tensor | None, cache: Any) -> Tensors:
        forward = self._own()
        assert forward is not None, "the model outlives its forwards"
        return forward(inputs, mask, cache)

    def _key(self, n_rows: int, cache: Any) -> Key | None:
        """The sizes to pad to; None where there are none, or the cache has no room for the rows added."""
        wanted = max(n_rows, self._min_rows)
        rows = next((size for size in ROW_BUCKETS if size >= wanted), None)
        is_small = cache.capacity < self._smallest_keys
        if rows is None or is_small or cache.length + rows > cache.capacity:
            return None
        return rows, padded_keys(cache.length + rows, cache.capacity, self._smallest_keys)

    def _knows(self, cache: Any) -> bool:
        """Graphs hold addresses of one cache; another one is taken over when that one is gone."""
        known = self._cache() if self._cache is not None else None
        if known is None:
            graphs: dict[Key, Graph] = {}
            # The graphs and their memory go with the cache, not only when the next one comes.
            self._cache = weakref.ref(cache, lambda _: graphs.clear())
            self._graphs, self._n_uses, self._capture = graphs, {}, None
            known = cache
        return known is cache

    def _capture_one(self, key: Key, inputs: Tensors, mask: Tensor | None, cache: Any) -> Tensors:
        """The model's own forward; beside it a graph is made, and kept if it gives the same."""
        try:
            if self._capture is None:
                self._capture = self._captures()
                cache.clear_behind()
            graph = self._new_graph(key, inputs, cache)
            found = graph.replay(inputs, mask, cache.length)
        except Cancelled:
            raise
        except Exception as reason:
            # Whatever a model does that a graph cannot bear: its own forward is there.
            is_over = isinstance(reason, CaptureFailed)
            is_known = is_over or isinstance(reason, Unrecordable)
            self._n_failures = MOST_FAILURES if is_over else self._n_failures + 1
            text = "forwards of %d rows, %d keys are not captured: %s"
            logger.info(text, *key, reason, exc_info=not is_known)
            self._refuse(key, str(reason).split("\n")[0] or type(reason).__name__)
            return self._forward(inputs, mask, cache)
        wanted = self._forward(inputs, mask, cache)  # last: the cache holds the model's own rows
        if self._capture.n_bytes > MOST_BYTES:
            logger.info("no memory is left for a graph of %d rows, %d keys", *key)
            self._refuse(key, "the graphs take all the memory that they may")
        elif self._is_same(key, wanted, found):
            self._graphs[key] = graph
            while len(self._graphs) > MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
        return wanted

    def _new_graph(self, key: Key, inputs: Tensors, cache: Any) -> Graph:
        """Raises: whatever capturing raises."""
        assert self._capture is not None
        rows, keys = key
        device = inputs[0].device
        # Plain tensors even under inference mode, so that any later mode may write into them.
        with torch.inference_mode(False):
            own = tuple(
                torch.zeros((rows, *one.shape[1:]), dtype=one.dtype, device=device)
                for one in inputs
            )
            order = torch.arange(rows, device=device)
            slots = order + cache.length
            mask = torch.zeros((1, 1, rows, keys), dtype=self._dtype, device=device)
        write_mask(mask[0, 0], None, rows, cache.length)

        def run() -> Tensors:
            with cache.fixed(slots, keys):
                return self._forward(own, mask, cache)

        return Graph(own, order, slots, mask, cache.length, self._capture(run))

    def _check(
        self, key: Key, graph: Graph, inputs: Tensors, mask: Tensor | None, cache: Any
    ) -> Tensors:
        if cache.length == graph.length:
            return self._forward(inputs, mask, cache)
        found = graph.replay(inputs, mask, cache.length)
        wanted = self._forward(inputs, mask, cache)
        graph.is_checked = self._is_same(key, wanted, found)
        return wanted

    def _is_same(self, key: Key, wanted: Tensors, found: Tensors) -> bool:
        """Whether a graph gives the model's own results; if not it is used no more."""
        if all(
            agree(left, right, self._tolerance) for left, right in zip(wanted, found, strict=True)
        ):
            return True
        logger.warning(
            "a captured forward of %d rows, %d keys differs: the model's own is used", *key
        )
        self._refuse(key, "a captured forward differs from the model's own")
        return False

    def _refuse(self, key: Key, problem: str) -> None:
        self._refused.add(key)
        self._graphs.pop(key, None)
        self.problem = problem


def padded_keys(n_keys: int, capacity: int, smallest: int) -> int:
    """The least of ``smallest``, 1.5 times it, its double, 3 times it, ... and ``capacity`` that suffices."""
    size = smallest
    while size < n_keys and size + size // 2 < n_keys:
        size *= 2
    return min(size if size >= n_keys else size + size // 2, capacity)


def write_mask(own: Tensor, mask: Tensor | None, n_rows: int, length: int) -> None:
    """Fill ``own`` [R, K] with the mask [1, 1, N, S] of the first N rows, or a causal one.

    Nothing else is seen, but that rows added look at the first key, so that they stay finite.
    """
    hidden = torch.finfo(own.dtype).min
    own.fill_(hidden)
    if mask is not None:
        own[:n_rows, : mask.shape[-1]].copy_(mask[0, 0])
    else:
        own[:n_rows, : length + 1].zero_()
        if n_rows > 1:
            later = own[:n_rows, length : length + n_rows]
            later.zero_().masked_fill_(torch.ones_like(later, dtype=torch.bool).triu(1), hidden)
    if n_rows < own.shape[0]:
        own[n_rows:, 0].zero_()


def agree(wanted: Tensor, found: Tensor, tolerance: float) -> bool:
    """Whether two results [N, D] are the same but for rounding, every row of them; 0: bit for bit.

    What is largest in one must be about the largest in the other, too: that is what a token is chosen by.
    """
    if tolerance == 0:
        return torch.equal(wanted, found)
    wanted, found = wanted.float(), found.float()
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm(dim=-1)  # [N]
    is_near = (wanted - found).norm(dim=-1) <= tolerance * spread
    chosen = wanted.gather(-1, found.argmax(-1, keepdim=True))[:, 0]  # [N]
    slack = tolerance / 2 * spread / wanted.shape[-1] ** 0.5
    return bool((is_near & (wanted.amax(-1) - chosen <= slack)).all())


__all__ = [
    "KEPT_FINITE", "Capture", "CaptureFailed", "Captures", "Graph", "GraphDeck", "Run", "agree",
    "padded_keys", "write_mask",
]  # fmt: skip
