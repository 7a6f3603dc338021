"""What a head drafts from its own states: the tokens that it scores, and which of them to try.

Where an answer is drawn by the rule ``match``, the likeliest token is not the best guess. The draw is a race:
the token of the highest log p + head start wins, and the head starts are hashed from seed, position and token
(``sampling``). They are known before the target has computed anything, so a drafter whose scores are near
the target's can guess the winner itself (Daliri, Musco and Suresh, arXiv 2408.07978). The text cannot depend
on it: logits and head starts alone decide.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eagle_core.config import GenerationConfig
from eagle_core.errors import DraftError
from eagle_core.head_precision import is_int8
from eagle_core.heads.base import DraftHead
from eagle_core.heads.scorer import draft_scorer
from eagle_core.kernels.ops import has_kernels, top
from eagle_core.sampling import head_starts, position_noise

# Weight of the head starts beside the head's scores. Right scores would deserve 1; measured at temperatures
# 0.7 and 1, three quarters find the drawn token most often (docs/LOG.md).
FOLLOWED = 0.75


class Candidates:
    """Scores a head's states, and picks from them.

    Args: lm_head: the base's; sliced to a draft vocabulary. Of use unless the head has its own.
    """

    def __init__(self, head: DraftHead, lm_head: nn.Module) -> None:
        self.vocabulary = head.draft_vocabulary
        self._head = head
        self._lm_head = head.lm_head or draft_scorer(
            lm_head, self.vocabulary, is_int8=is_int8(head)
        )
        n_tokens = int(getattr(head.lm_head or lm_head, "out_features", 0)) or 1 << 30
        self.n_scored = len(self.vocabulary) if self.vocabulary is not None else n_tokens
        self._followed: GenerationConfig | None = None

    def follow(self, config: GenerationConfig) -> None:
        """Guess what is drawn so, from now on."""
        self._followed = config

    def token_ids(self, places: Tensor) -> Tensor:
        """The tokens at places among those that are scored."""
        return places if self.vocabulary is None else self.vocabulary[places]

    def score(self, states: Tensor) -> Tensor:
        """The head's states [R, D] -> logits [R, V'] over what it scores."""
        logits: Tensor = self._lm_head(self._head.normed(states))
        return logits

    def scores(self, features: Tensor) -> Tensor:
        """[R, D] -> [R, V'] f32, for a draw: an overflow counts as little, or as much, as can be."""
        _check_finite(features)
        return torch.nan_to_num(self.score(features).float(), nan=-1e9, posinf=1e9, neginf=-1e9)

    def likeliest(self, features: Tensor, width: int, position: int) -> tuple[Tensor, Tensor]:
        """The best candidates of each row, fewer where the vocabulary is smaller; see ``draft_plan.Pick``.

        Those that are likeliest to be chosen at ``position``, and how likely. A head that overflowed scores
        nothing, instead of poisoning the tree.
        Raises: DraftError on the host, where looking costs no wait.
        """
        _check_finite(features)
        n_candidates = min(width, self.n_scored)
        logits = self.score(features).float()
        if (starts := self._starts(position, logits)) is not None:
            logits = logits + starts
        if logits.device.type == "cpu" and has_kernels():
            return top(logits, n_candidates)
        scores = torch.nan_to_num(torch.log_softmax(logits, dim=-1), nan=-1e9, neginf=-1e9)
        best = scores.topk(n_candidates, dim=-1)
        return best.indices, best.values

    def _starts(self, position: int, logits: Tensor) -> Tensor | None:
        """What the draw at a position adds to logits [R, V'], [V'] f32; None where nothing is drawn."""
        config = self._followed
        if config is None or config.temperature == 0:
            return None
        tokens = self.vocabulary
        if tokens is None:
            tokens = torch.arange(logits.shape[1], device=logits.device)
        noise = position_noise(config.seed, position, 1)[0]
        return FOLLOWED * config.temperature * head_starts(noise, tokens)


def _check_finite(features: Tensor) -> None:
    """Raises: DraftError when features [R, D] on the host are no numbers."""
    if features.device.type == "cpu" and not bool(features.isfinite().all()):
        raise DraftError(
            "the head computed something that is no number",
            expected="finite features",
            hint="load the head again, or as float32",
        )


__all__ = ["FOLLOWED", "Candidates"]
