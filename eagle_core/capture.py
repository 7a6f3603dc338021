"""Hidden states between a decoder's layers, caught by hooks while it runs; nothing of the model is changed.

State i is the residual stream after i layers: 0 is the embedding, L the last layer's raw output, before the
final norm. (transformers' own ``hidden_states[L]`` is the normed one; all others are the same.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from eagle_core.errors import IncompatibleHead


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


__all__ = ["captured_states", "check_states", "decoder_layers"]
