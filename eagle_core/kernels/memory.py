"""Packed weights in one place, on large pages.

A forward reads every weight once. With pages of 4 KB it looks up a new one every 64 cache lines; on a
virtual machine that took a tenth to a fifth of the products' time. Linux gives pages of 2 MB to memory that
asks for them.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

from eagle_core.pages import LARGE_PAGE, PagesAhead, large_pages

REGION = 32 << 20  # bytes asked for at once; what is not written to takes no memory
LINE = 64  # bytes that are read at once: where a weight may begin


def give_back() -> None:
    """Return memory that was freed to the system, where the C library keeps it for later (glibc)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return
    trim(0)


class LargePages:
    """Hands out places side by side on large pages; a region is freed when nothing in it is used any more.

    Args: ahead: what was touched for it meanwhile; it is used first.
    """

    def __init__(self, ahead: PagesAhead | None = None) -> None:
        self._ahead = ahead
        self._memory: mmap.mmap | None = None
        self._region: Tensor | None = None  # [bytes] u8, of the memory
        self._used = 0
        self._is_possible = True

    def empty(self, n_bytes: int) -> Tensor:
        """A place of [n_bytes] u8, not written to; an ordinary one where there are no large pages."""
        n_lines = -(-n_bytes // LINE)
        if self._is_possible and self._left() < n_lines * LINE:
            self._take_region(n_lines * LINE)
        if self._region is None:
            return torch.empty(n_bytes, dtype=torch.uint8)
        place = self._region[self._used : self._used + n_bytes]
        self._used += n_lines * LINE
        return place

    def give_back_rest(self) -> None:
        """Return what was touched and is not used to the system, when all is in its place."""
        begin = -(-self._used // LARGE_PAGE) * LARGE_PAGE
        if self._memory is not None and begin < len(self._memory):
            self._memory.madvise(mmap.MADV_DONTNEED, begin, len(self._memory) - begin)

    def _left(self) -> int:
        return self._region.shape[0] - self._used if self._region is not None else 0

    def _take_region(self, n_bytes: int) -> None:
        self.give_back_rest()
        ahead, self._ahead = self._ahead, None
        region = ahead.take() if ahead is not None else None
        if region is None or len(region) < n_bytes:
            region = large_pages(max(n_bytes, REGION))
        self._is_possible = region is not None
        self._memory, self._used = region, 0
        self._region = None if region is None else torch.frombuffer(region, dtype=torch.uint8)


__all__ = ["LargePages", "give_back"]
