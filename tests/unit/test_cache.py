"""KVCache: rows written behind the committed ones, kept, dropped, gathered."""

from __future__ import annotations

import pytest
import torch

from eagle_core.cache import KVCache
from eagle_core.errors import ContextOverflow


def write(cache: KVCache, *values: int) -> list[list[int]]:
    """Write one row per value to every layer; return each layer's keys as numbers."""
    states = torch.tensor(values, dtype=torch.float32).reshape(1, 1, -1, 1)
    seen = []
    for layer in range(len(cache)):
        keys, minus_values = cache.update(states, -states, layer)
        assert torch.equal(keys, -minus_values)
        seen.append(keys.flatten().int().tolist())
    return seen


def test_rows_count_only_once_kept():
    cache = KVCache(2, 10)
    assert write(cache, 1, 2, 3) == [[1, 2, 3]] * 2
    assert cache.length == cache.get_seq_length() == 0
    cache.advance(2)
    assert cache.length == cache.get_seq_length() == cache.get_seq_length(1) == 2
    assert write(cache, 9) == [[1, 2, 9]] * 2


def test_example_of_the_module():
    cache = KVCache(2, 10)
    write(cache, 0, 1, 2, 3)
    cache.advance(4)
    write(cache, 4, 5, 6, 7, 8)
    cache.keep([0, 2, 4])
    assert cache.length == 7
    assert write(cache, 99) == [[0, 1, 2, 3, 4, 6, 8, 99]] * 2


def test_overlapping_moves():
    cache = KVCache(1, 20)
    write(cache, *range(8))
    cache.keep([0, 1, 3, 4, 5, 7])
    assert write(cache, 99) == [[0, 1, 3, 4, 5, 7, 99]]


def test_rewind_and_reset():
    cache = KVCache(1, 10)
    write(cache, *range(6))
    cache.advance(6)
    cache.rewind(2)
    assert write(cache, 50) == [[0, 1, 50]]
    cache.reset()
    assert cache.length == 0
    assert write(cache, 60) == [[60]]
    with pytest.raises(AssertionError):
        cache.rewind(3)


def test_full_cache_raises_and_stays_as_it_was():
    cache = KVCache(2, 4)
    write(cache, 1, 2, 3)
    cache.advance(3)
    assert cache.room == 1
    with pytest.raises(ContextOverflow):
        write(cache, 4, 5)
    assert write(cache, 4) == [[1, 2, 3, 4]] * 2


def test_sizes():
    cache = KVCache(3, 8)
    assert cache.n_bytes == 0
    write(cache, 1)
    assert cache.n_bytes == 3 * 2 * 8 * 4
    assert cache.get_max_length() == cache.capacity == 8
    assert cache.get_mask_sizes(5, 0) == (5, 0)
