"""Fetching a pair for the page that asks for it. Knows no page."""

from __future__ import annotations

import threading

from eagle_core import models
from eagle_core.config import LoadConfig
from eagle_core.errors import ModelNotFound
from eagle_core.ui.backend import OnEvent


def pull(config: LoadConfig, on_event: OnEvent, cancel: threading.Event) -> None:
    """Fetch a pair; that head and base belong together, and run at all, is looked at before their weights.

    Raises: what checking and downloading raise.
    """
    from eagle_core.loading import check_config
    from eagle_core.loading_head import check_before_download

    check_before_download(config, on_event)
    models.pull(models.resolve(config.base, config.head), on_event, cancel, check_config)


def need_network(config: LoadConfig) -> None:
    """Raises: ModelNotFound when what is not here may not be fetched; the model in use stays then."""
    if config.offline:
        raise ModelNotFound(
            f"{config.base} is not on this machine, and the app was started offline",
            hint="start it without --offline to fetch it",
        )


__all__ = ["need_network", "pull"]
