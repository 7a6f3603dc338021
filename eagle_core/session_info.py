"""What a session says of itself, and what it is asked: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

Drafting = Literal["tree", "chain", "none"]


class Message(TypedDict):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """What is loaded.

    ``drafting`` is what the self-test found the base able to check, ``drafting_reason`` why no trees.
    ``rounding_reason`` says why answers with and without drafting may part, "" where they cannot;
    ``reproducible`` is whether rows are computed so that they do not, where there is a choice.
    ``cuda_graphs`` is whether forwards are replayed as CUDA graphs once they are found to be the same.
    ``precision_note`` says what the precision costs. ``chat_template`` is "own", a built-in one's name or a
    file's, or None for a base model without one.
    """

    base: str
    head: str | None
    dtype: str
    device: str
    context_length: int
    n_parameters: int
    n_head_parameters: int
    weight_bytes: int = 0  # that one forward reads
    drafting: Drafting = "tree"
    drafting_reason: str = ""
    reproducible: bool = True
    rounding_reason: str = ""
    quantization: str = "none"
    precision_note: str = ""
    head_dtype: str | None = None
    chat_template: str | None = None
    cuda_graphs: bool = False

    @property
    def speed_facts(self) -> tuple[object, ...]:
        """All of it on which it depends how fast one part of a step is against another."""
        return (
            self.base, self.head, self.dtype, self.quantization, self.head_dtype, self.device,
            self.reproducible, self.cuda_graphs,
        )  # fmt: skip

    @property
    def precision(self) -> str:
        """What the weights are kept in: the quantization's name, else the dtype's."""
        return self.dtype if self.quantization == "none" else self.quantization


__all__ = ["Drafting", "Message", "SessionInfo"]
