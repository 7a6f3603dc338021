"""A preallocated KV cache whose rows can be kept, dropped and gathered, as tree checking needs.

transformers' caches only grow and lose their tail; after a tree forward the accepted rows lie
scattered and must move together. Here a forward writes its rows *behind* the committed ones, and
they count only once ``keep`` or ``advance`` says so: a forward that is thrown away, or fails
half-way, leaves nothing to undo. Serves the target, and a draft head with as many layers as it has.
A forward that is captured as a graph of a device knows no length: it writes where a tensor says
(``KVCache.fixed``).

Index example: length 4, a forward over 5 nodes writes rows 4..8; keep([0, 2, 4]) moves rows 4, 6
and 8 to 4, 5 and 6 and sets the length to 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from eagle_core.errors import ContextOverflow
from eagle_core.kernels import recording


class PreallocatedLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: [B, H, capacity, d] each, allocated at the first update."""

    is_sliding = False  # all rows stay; a window is only a matter of the mask

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.length = 0
        self.fixed: tuple[Tensor, int] | None = None  # see KVCache.fixed

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the buffers for states shaped [B, H, T, d]."""
        self.device, self.dtype = key_states.device, key_states.dtype
        # Plain tensors even under inference mode, so that any later mode may write into them.
        with torch.inference_mode(False):
            self.keys = _buffer(key_states, self.capacity)
            self.values = _buffer(value_states, self.capacity)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [B, H, T, d] behind the committed rows; the length stays.

        Returns: views [B, H, length + T, d] of keys and values.
        Raises: ContextOverflow when the buffer is full.
        """
        if self.fixed is not None:
            return self._write_fixed(key_states, value_states, *self.fixed)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        if end > self.capacity:
            raise ContextOverflow(
                "the KV cache is full",
                expected=f"at most {self.capacity} rows",
                got=str(end),
                hint="shorten the prompt or load the model with a longer context",
            )
        recorder = recording.active()
        if recorder is None:
            return self._write(key_states, value_states, end)
        assert self.keys is not None
        assert self.values is not None
        recorder.append(self.keys, key_states)
        recorder.append(self.values, value_states)
        with recorder.paused():
            return self._write(key_states, value_states, end)

    def _write(self, key_states: Tensor, value_states: Tensor, end: int) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        return self.keys[..., :end, :], self.values[..., :end, :]

    def _write_fixed(
        self, key_states: Tensor, value_states: Tensor, slots: Tensor, n_keys: int
    ) -> tuple[Tensor, Tensor]:
        """Write [B, H, T, d] at ``slots`` [T]; returns views [B, H, n_keys, d]."""
        assert self.keys is not None, "buffers are allocated before a forward is captured"
        assert self.values is not None
        self.keys.index_copy_(-2, slots, key_states)
        self.values.index_copy_(-2, slots, value_states)
        return self.keys[..., :n_keys, :], self.values[..., :n_keys, :]

    def clear_behind(self) -> None:
        """Make zeros of all rows behind the committed ones."""
        for buffer in (self.keys, self.values):
            if buffer is not None:
                buffer[..., self.length :, :].zero_()

    def gather(self, rows: Tensor, first: int) -> None:
        """Copy rows ([K] i64, absolute) to first .. first + K - 1; the two may overlap."""
        if self.keys is None or self.values is None:  # a layer that shares another one's states
            return
        rows = rows.to(self.keys.device)
        end = first + rows.shape[0]
        for buffer in (self.keys, self.values):
            buffer[..., first:end, :] = buffer.index_select(-2, rows)  # copies before it writes

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that the next forward attends to, and the position of the first."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Committed rows."""
        return self.length

    def get_max_length(self) -> int:
        """Rows that fit."""
        return self.capacity

    get_max_cache_shape = get_max_length  # the name before transformers 5.24

    def reset(self) -> None:
        """Forget all rows; the buffers stay."""
        self.length = 0


def _buffer(states: Tensor, capacity: int) -> Tensor:
    shape = (*states.shape[:-2], capacity, states.shape[-1])
    return torch.empty(shape, dtype=states.dtype, device=states.device)


class KVCache(Cache):
    """All layers' rows. It is a transformers cache: pass it to a forward as it is."""

    def __init__(self, n_layers: int, capacity: int) -> None:
        self._rows = [PreallocatedLayer(capacity) for _ in range(n_layers)]
        super().__init__(layers=list(self._rows))
        self.capacity = capacity
        self._length = 0

    @property
    def states(self) -> Cache:
        """What the model's forward takes."""
        return self

    @property
    def can_rewind(self) -> bool:
        """Whether single rows can be taken back."""
        return True

    @property
    def length(self) -> int:
        """Committed rows."""
        return self._length

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self.capacity - self._length

    @property
    def n_bytes(self) -> int:
        """Memory taken by the buffers; 0 before the first forward."""
        buffers = [b for layer in self._rows for b in (layer.keys, layer.values) if b is not None]
        return sum(buffer.numel() * buffer.element_size() for buffer in buffers)

    @contextmanager
    def fixed(self, slots: Tensor, n_keys: int) -> Iterator[None]:
        """Inside, forwards write their rows at ``slots`` [T] i64 and get the first ``n_keys`` rows, whatever
        the length is: what a captured forward can repeat. Its mask must hide the rows that do not count.
        """
        for layer in self._rows:
            layer.fixed = slots, n_keys
        try:
            yield
        finally:
            for layer in self._rows:
                layer.fixed = None

    def clear_behind(self) -> None:
        """Make zeros of all rows behind the committed ones: a hidden row counts nothing if it is finite."""
        with torch.inference_mode():
            for layer in self._rows:
                layer.clear_behind()

    def keep(self, path: Sequence[int]) -> None:
        """Commit some of the rows that the last forward wrote, in this order, and drop the others.

        Args: path: rows counted from the first new one; rising.
        """
        n_in_place = 0
        while n_in_place < len(path) and path[n_in_place] == n_in_place:
            n_in_place += 1
        if n_in_place < len(path):
            first = self._length + n_in_place
            # The index travels to the device once, without waiting for it.
            rows = torch.tensor([self._length + row for row in path[n_in_place:]])  # [K]
            with torch.inference_mode():
                device_rows: dict[torch.device, Tensor] = {}
                for layer in self._rows:
                    if layer.keys is None:
                        continue
                    device = layer.keys.device
                    if device not in device_rows:
                        device_rows[device] = rows.to(device, non_blocking=True)
                    layer.gather(device_rows[device], first)
        self._set_length(self._length + len(path))

    def advance(self, n_rows: int) -> None:
        """Commit the first ``n_rows`` of the rows that the last forward wrote."""
        self._set_length(self._length + n_rows)

    def rewind(self, length: int) -> None:
        """Forget the rows from position ``length`` on."""
        assert 0 <= length <= self._length, f"cannot rewind {self._length} rows to {length}"
        self._set_length(length)

    def reset(self) -> None:
        """Forget all rows; the buffers stay."""
        self._set_length(0)

    def _set_length(self, length: int) -> None:
        assert 0 <= length <= self.capacity
        self._length = length
        for layer in self._rows:
            layer.length = length


class StateCache(KVCache):
    """transformers' own cache of a model with recurrent state: it only ever goes forward.

    There is nothing to take back one by one: a rewind to any other length, or after a forward that was not
    committed, forgets everything.

    Args: make: an empty cache of transformers for the model.
    """

    def __init__(self, make: Callable[[], Cache], capacity: int) -> None:
        super().__init__(0, capacity)
        self._make, self._states, self._n_written = make, make(), 0

    @property
    def states(self) -> Cache:
        """What the model's forward takes; whoever asks for it is about to write one row or more."""
        self._n_written = -1
        return self._states

    @property
    def can_rewind(self) -> bool:
        """Never."""
        return False

    def keep(self, path: Sequence[int]) -> None:
        """Commit the row that the last forward wrote."""
        assert tuple(path) == (0,), "a state cannot choose among rows"
        self.advance(1)

    def advance(self, n_rows: int) -> None:
        """Commit the rows that the last forward wrote: all of them."""
        self._n_written = 0
        super().advance(n_rows)

    def rewind(self, length: int) -> None:
        """Stay at ``length`` if that is where the state is; else forget everything."""
        if length != self.length or self._n_written:
            self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._states, self._n_written = self._make(), 0
        super().reset()


__all__ = ["KVCache", "PreallocatedLayer", "StateCache"]
