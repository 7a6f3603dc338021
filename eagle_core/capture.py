"""Hooks between a decoder's layers while it runs: hidden states are caught there, and Stop is seen.

Nothing of the model is changed.

State i is the residual stream after i layers: 0 is the embedding, L the last layer's raw output, before the
final norm. (transformers' own ``hidden_states[L]`` is the normed one; all others are the same.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from eagle_core.errors import Cancelled, IncompatibleHead


def decoder_layers(decoder: nn.Module, n_layers: int) -> nn.ModuleList:
    """The decoder's layers, in order.

    Raises: IncompatibleHead when the model does not hold them in one list.
    """
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == n_layers:
            return module
    raise IncompatibleHead(
        "the base's layers cannot be looked into, as this head needs",
        expected=f"a list of {n_layers} layers",
        got=type(decoder).__name__,
        hint="choose an EAGLE-1 or EAGLE-2 head: it needs the last feature only",
    )


def check_states(states: Sequence[int], n_layers: int) -> tuple[int, ...]:
    """The states' numbers, if a decoder of ``n_layers`` has them.

    Raises: IncompatibleHead.
    """
    if any(not 0 <= state <= n_layers for state in states):
        raise IncompatibleHead(
            "the head reads layers that the base does not have",
            expected=f"states from 0 to {n_layers}",
            got=", ".join(map(str, states)),
            hint="choose a head that was trained for this base",
        )
    return tuple(states)


@contextmanager
def captured_states(layers: nn.ModuleList, states: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """A mapping that holds the chosen states [B, T, D] once the decoder has run inside the block."""
    found: dict[int, Tensor] = {}
    handles = []
    for state in set(states):

        def before(_: Any, args: Any, kwargs: Any, state: int = state) -> None:
            found[state] = args[0] if args else kwargs["hidden_states"]

        def after(_: Any, __: Any, output: Any, state: int = state) -> None:
            found[state] = output if isinstance(output, Tensor) else output[0]

        if state < len(layers):
            handles.append(layers[state].register_forward_pre_hook(before, with_kwargs=True))
        else:
            handles.append(layers[-1].register_forward_hook(after))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def interruptible(
    decoder: nn.Module, n_layers: int, is_cancelled: Callable[[], bool]
) -> Iterator[None]:
    """Forwards inside the block end before their next layer once ``is_cancelled``.

    A long prompt's forward takes seconds where the machine is slow, one of its layers a small part of that. A
    decoder whose layers are not in one list runs to its end.
    Raises: Cancelled; what the forward has written into a cache by then was not committed.
    """

    def check(*_: Any) -> None:
        if is_cancelled():
            raise Cancelled("the request was stopped")

    try:
        layers = decoder_layers(decoder, n_layers)
    except IncompatibleHead:
        layers = nn.ModuleList()
    handles = [layer.register_forward_pre_hook(check) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


__all__ = ["captured_states", "check_states", "decoder_layers", "interruptible"]
