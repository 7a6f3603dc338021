"""The device that ``bench gpu`` measures, found before anything slower than PyTorch is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle_core.devices import check_name
from eagle_core.errors import ConfigError

if TYPE_CHECKING:
    import torch


def accelerator(name: str) -> torch.device:
    """The device to measure.

    Raises: ConfigError with the next step when it is not there.
    """
    check_name(name)
    import torch

    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        has_cuda = torch.version.cuda is not None or torch.version.hip is not None
        raise ConfigError(
            "there is no such GPU here",
            expected=name,
            got=f"{torch.cuda.device_count()} GPUs, PyTorch {torch.__version__}",
            hint="run it on a machine with a GPU"
            + ("" if has_cuda else ", with PyTorch's CUDA build (this one knows no GPU)")
            + ", or try the command itself with --device cpu --shape tiny",
        )
    return device


__all__ = ["accelerator"]
