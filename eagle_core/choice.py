"""What ``auto`` drafts with in the step that begins: the head's tree, looked-up text alone, or nothing.

Text that stood before makes a step another one: the head then adds little, and costs the same. And what two
or three words recall is kept far less often than what more of them do. So such steps are judged apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_core.config import TreeConfig
from eagle_core.cost_pace import CostPace
from eagle_core.pace import Pace, PaceBook
from eagle_core.worth import Worth

WARM = 0.6  # temperature up to which answers are about as sure as the likeliest ones
WEAK_MATCH = 3  # words; with up to so many alike, what followed them once often does not again


@dataclass(frozen=True, slots=True)
class Way:
    """How a step is drafted: by the head in this tree, or without it; with looked-up text or without."""

    tree: TreeConfig | None
    looks_up: bool


class Choice:
    """Chooses the way of each step, by what the ways have brought so far.

    Args:
        tree: the configured tree, of policy ``auto``.
        paces: where what is measured is kept.
        temperature: of the answers; what is kept of drafts depends on it, so hot and cold ones are apart.
        on_host: whether the host sees the head's scores without waiting; then one tree is grown as far as it
            pays, else several fixed ones are tried.
    """

    def __init__(
        self, tree: TreeConfig, paces: PaceBook, *, on_host: bool, temperature: float = 0.0
    ) -> None:
        trees = (tree.largest,) if on_host else tree.ways
        self.worth: Worth | None = paces.worth if on_host else None
        drafted = [Way(one, looks_up=True) for one in trees]
        plain = Way(None, looks_up=False)
        looked_up = Way(None, looks_up=True)
        name = f"{', '.join(map(_name, trees))}; {tree.lookup} looked up{_warmth(temperature)}"
        if on_host:
            found = [*drafted, looked_up, plain]
            self._ways = [[*drafted, plain], found, found]
            names = [f"{name}; {what}" for what in ("nothing found", "little alike", "much alike")]
        else:
            self._ways = [[*drafted, looked_up, plain]]
            names = [name]
        self._paces: list[Pace | CostPace] = [
            paces.of(name, len(ways), has_costs=on_host)
            for name, ways in zip(names, self._ways, strict=True)
        ]

    def finish(self, n_tokens: int) -> None:
        """The step before has ended and yielded ``n_tokens``; the next proposal begins."""
        cost = self.worth.begin(n_tokens) if self.worth is not None else None
        for pace in self._paces:
            pace.finish(n_tokens, cost)

    def begin(self, repeat: Sequence[int], match: int) -> Way:
        """The way of the step that begins.

        Args: repeat: what was looked up; match: how many words were alike before it.
        """
        which = 0 if not repeat else 1 if match <= WEAK_MATCH else 2
        which = min(which, len(self._ways) - 1)
        return self._ways[which][self._paces[which].begin()]

    def pause(self) -> None:
        """An answer ended: the time until the next step is nobody's."""
        for pace in self._paces:
            pace.pause()
        if self.worth is not None:
            self.worth.pause()


def _warmth(temperature: float) -> str:
    if temperature == 0:
        return ""
    return "; warm" if temperature <= WARM else "; hot"


def _name(tree: TreeConfig) -> str:
    shape = f" {tree.shape}" if tree.policy == "static" else ""
    return f"{tree.policy} {tree.depth}/{tree.branching}/{tree.size}{shape}"


__all__ = ["WEAK_MATCH", "Choice", "Way"]
