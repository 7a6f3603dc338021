"""What can be done for a model while PyTorch is still being imported: memory for its packed weights.

Knows no torch.
"""

from __future__ import annotations

from eagle_core import models
from eagle_core.config import LoadConfig
from eagle_core.devices import is_surely_cpu
from eagle_core.errors import EagleError
from eagle_core.fit import estimate
from eagle_core.machine import free_ram_bytes
from eagle_core.pages import PagesAhead
from eagle_core.precision import PrecisionName

MOST_AHEAD = 1 << 30  # bytes; more is not touched within the time that imports take
MOST_SHARE = 0.25  # of the free memory


def pages_ahead(config: LoadConfig) -> PagesAhead:
    """Memory for the packed weights of ``config``'s base, touched from ``with`` on.

    None of it where they do not lie here yet, will not be packed, or are too many.
    """
    n_bytes = _packed_bytes(config)
    is_small = n_bytes <= min(MOST_AHEAD, MOST_SHARE * free_ram_bytes())
    return PagesAhead(n_bytes if is_small else 0)


def _packed_bytes(config: LoadConfig) -> int:
    is_packed = config.quantization in ("auto", "none", "int8") and config.dtype != "bfloat16"
    if not is_packed or not is_surely_cpu(config.device):
        return 0
    precision: PrecisionName = "int8" if config.quantization == "int8" else "float32"
    try:
        entry = models.resolve(config.base, config.head)
        if not models.is_here(entry):
            return 0
        base = models.measure(entry, offline=True).base
    except (EagleError, OSError):  # said when it is loaded
        return 0
    return estimate(base, None, precision, "cpu").weight_bytes


__all__ = ["pages_ahead"]
