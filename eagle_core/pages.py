"""Large pages of memory, asked for and touched before they are needed.

The first touch of a page costs: the system clears it, and a virtual machine may first have to be given it by
its host (measured: half a second for 270 MB). A thread can pay for it while imports keep another core busy.
Knows no torch.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading

logger = logging.getLogger(__name__)

LARGE_PAGE = 2 << 20  # bytes
AT_ONCE = 8 << 20  # bytes touched between two looks at whether more is wanted: milliseconds


def large_pages(n_bytes: int) -> mmap.mmap | None:
    """Untouched memory of at least ``n_bytes`` on pages of 2 MB; None where there are none, or no memory."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        size = -(-n_bytes // LARGE_PAGE) * LARGE_PAGE
        region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        logger.info("no large pages: %s", error)
        return None
    return region


class PagesAhead:
    """A region that is touched in the background until somebody takes it, or leaves the ``with`` block.

    Args: n_bytes: how much is likely to be needed; 0: nothing is done.
    """

    def __init__(self, n_bytes: int) -> None:
        self._region = large_pages(n_bytes) if n_bytes > 0 else None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PagesAhead:
        if self._region is not None:
            self._thread = threading.Thread(
                target=self._touch, args=(self._region,), name="pages-ahead", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.take()

    def take(self) -> mmap.mmap | None:
        """The region, all zeros, for the one who asks first; what was not touched yet is touched in use."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        region, self._region = self._region, None
        return region

    def _touch(self, region: mmap.mmap) -> None:
        place = ctypes.addressof(ctypes.c_char.from_buffer(region))
        for begin in range(0, len(region), AT_ONCE):
            if self._is_over.is_set():
                return
            ctypes.memset(place + begin, 0, min(AT_ONCE, len(region) - begin))  # without the GIL


__all__ = ["LARGE_PAGE", "PagesAhead", "large_pages"]
