"""For tests of drafters, tools and apps: tiny models with random weights, and drafters with known manners.

Nothing here needs a download. The drafters cover what a real one can do to the loop: be right, be
wrong, be random, and break its contract.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from eagle_core.config import GenerationConfig, Shape
from eagle_core.drafters.base import Budget
from eagle_core.drafters.none import NoDrafter
from eagle_core.sampling import draw_candidates, stream_noise
from eagle_core.target import Target
from eagle_core.tree import (
    DraftTree,
    Draws,
    fit_shape,
    in_order_of_draws,
    tree_layout,
    without_idle_nodes,
)

Kind = Literal[
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "mixtral", "gpt_neox", "phi3", "olmo2",
    "falcon", "gpt2", "bloom", "mamba",
]  # fmt: skip
ALL_KINDS: tuple[Kind, ...] = get_args(Kind)
# Those that check any tree: bloom takes single paths only, mamba none.
KINDS: tuple[Kind, ...] = tuple(kind for kind in ALL_KINDS if kind not in ("bloom", "mamba"))
TIED_KINDS = ("gemma2", "gemma3", "falcon", "gpt2", "bloom", "mamba")  # by default
EAGER_KINDS = ("gemma2", "bloom")  # their classes know no sdpa
EOS_ID = 256
VOCABULARY_SIZE = 260  # 256 bytes, end of text, three spare

_CLASSES: dict[Kind, tuple[type[Any], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "gpt_neox": (GPTNeoXConfig, GPTNeoXForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "falcon": (FalconConfig, FalconForCausalLM),
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "bloom": (BloomConfig, BloomForCausalLM),
    "mamba": (MambaConfig, MambaForCausalLM),
}


def tiny_model(
    kind: Kind = "llama",
    *,
    vocab: int = VOCABULARY_SIZE,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    context_length: int = 512,
    hidden_size: int = 32,
    attention: Literal["sdpa", "eager"] | None = None,
) -> PreTrainedModel:
    """A two-layer model with random weights, large enough that its greedy text varies.

    Args:
        window: sliding window in tokens, for the families that have one.
        hidden_size: four heads share it.
        attention: None: sdpa, or eager where the family refuses sdpa.
    """
    settings: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": context_length,
        "initializer_range": 0.5,
        "eos_token_id": EOS_ID,
        "bos_token_id": None,
        "pad_token_id": None,
        "attn_implementation": attention or ("eager" if kind in EAGER_KINDS else "sdpa"),
    }
    if kind == "mamba":
        del settings["attn_implementation"]
    if kind in TIED_KINDS:
        settings["tie_word_embeddings"] = False  # random tied weights say the same token for ever
    settings |= _family_settings(kind, window, hidden_size // 4)
    config_class, model_class = _CLASSES[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(
            seed
        )  # transformers initialises from the global generator; it is put back
        model: Any = model_class(config_class(**settings))
    model.to(dtype).eval()
    return cast(PreTrainedModel, model)


def _family_settings(kind: Kind, window: int | None, head_dim: int) -> dict[str, Any]:
    """What a family needs beyond the common shapes."""
    if kind in ("gpt_neox", "bloom"):
        return {}
    if kind == "gpt2":
        return {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    if kind == "mamba":
        return {"state_size": 8, "use_mambapy": False}
    if kind == "falcon":
        return {"multi_query": True, "parallel_attn": True, "alibi": False}
    settings: dict[str, Any] = {"num_key_value_heads": 2}
    if kind in ("qwen3", "gemma2", "gemma3"):
        settings["head_dim"] = head_dim
    if kind in ("gemma2", "gemma3"):
        settings["layer_types"] = ["sliding_attention", "full_attention"]
        settings["query_pre_attn_scalar"] = head_dim
    if kind == "mixtral":
        settings |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if kind in ("mistral", "mixtral", "phi3", "gemma2", "gemma3"):
        settings["sliding_window"] = window
    elif window is not None:
        settings |= {"use_sliding_window": True, "sliding_window": window}
        settings["layer_types"] = ["sliding_attention", "full_attention"]
    if kind in ("gemma2", "gemma3") and window is None:
        settings["sliding_window"] = 4096
    return settings


def tiny_target(kind: Kind = "llama", **settings: Any) -> Target:
    """A :class:`Target` on a :func:`tiny_model`."""
    return Target(tiny_model(kind, **settings))


class ByteTokenizer:
    """Ids 0-255 are bytes, 256 ends the text; the parts of a transformers tokenizer that chat needs."""

    eos_token_id = EOS_ID
    eos_token = "<eos>"  # noqa: S105 - a token of text
    chat_template = "{role}: {content}\\n"
    all_special_ids: Sequence[int] = (EOS_ID,)

    def __len__(self) -> int:
        return EOS_ID + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:  # noqa: ARG002 - transformers' name
        """UTF-8 bytes."""
        return list(text.encode())

    def decode(
        self,
        ids: Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,  # noqa: ARG002 - transformers' name
    ) -> str:
        """Text of the ids; incomplete characters become U+FFFD, spare ids nothing."""
        parts: list[bytes] = []
        for token in ids:
            if token < EOS_ID:
                parts.append(bytes([token]))
            elif token == EOS_ID and not skip_special_tokens:
                parts.append(self.eos_token.encode())
        return b"".join(parts).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **_options: Any,
    ) -> list[int] | str:
        """``role: content`` lines."""
        text = "".join(f"{message['role']}: {message['content']}\n" for message in conversation)
        text += "assistant: " if add_generation_prompt else ""
        return self.encode(text) if tokenize else text


class OracleDrafter(NoDrafter):
    """Knows the true continuation and proposes it, each token beside ``n_wrong`` wrong siblings.

    Args:
        continuation: the tokens that the target writes after the prompt.
        n_prompt: prompt tokens, so that a position is known from ``length``.
        wrong_after: from this depth on even its main branch is wrong; None: never.
    """

    def __init__(
        self,
        continuation: Sequence[int],
        n_prompt: int,
        *,
        n_wrong: int = 1,
        wrong_after: int | None = None,
        vocab: int = VOCABULARY_SIZE,
    ) -> None:
        super().__init__()
        self.name = "oracle"
        self._continuation, self._n_prompt = list(continuation), n_prompt
        self._n_wrong, self._wrong_after, self._vocab = n_wrong, wrong_after, vocab

    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:
        """Per depth: the wrong siblings first, then the true token, whose child comes next."""
        first = self._length - self._n_prompt + 1  # index of the token after the pending one
        tokens, parents, trunk, depth = [int(pending)], [-1], 0, 0
        for truth in self._continuation[first : first + budget.max_depth]:
            n_nodes = min(self._n_wrong + 1, budget.max_nodes + 1 - len(tokens))
            if n_nodes <= 0:
                break
            siblings = [(truth + n_nodes - 1 - i) % self._vocab for i in range(n_nodes)]
            if self._wrong_after is not None and depth >= self._wrong_after:
                siblings = [(token + 1) % self._vocab for token in siblings]
            tokens += siblings
            parents += [trunk] * n_nodes
            trunk, depth = len(tokens) - 1, depth + 1
        device = pending.device
        return DraftTree(
            torch.tensor(tokens, device=device), torch.tensor(parents, device=device), depth
        )


class WrongDrafter(OracleDrafter):
    """Knows the true continuation and never proposes it."""

    def __init__(
        self, continuation: Sequence[int], n_prompt: int, *, vocab: int = VOCABULARY_SIZE
    ) -> None:
        super().__init__(continuation, n_prompt, n_wrong=1, wrong_after=0, vocab=vocab)
        self.name = "wrong"


class RandomTreeDrafter(NoDrafter):
    """Random parents and tokens; with ``continuation`` the right token is drawn about half the time."""

    def __init__(
        self,
        seed: int,
        *,
        continuation: Sequence[int] = (),
        n_prompt: int = 0,
        vocab: int = VOCABULARY_SIZE,
    ) -> None:
        super().__init__()
        self.name = "random"
        self._generator = torch.Generator().manual_seed(seed)
        self._continuation, self._n_prompt, self._vocab = list(continuation), n_prompt, vocab

    def _draw(self, high: int) -> int:
        return int(torch.randint(high, (), generator=self._generator))

    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:
        """A tree of a random size within the budget, siblings distinct."""
        first = self._length - self._n_prompt + 1
        tokens, parents, depths = [int(pending)], [-1], [0]
        taken: set[tuple[int, int]] = set()
        for _ in range(self._draw(budget.max_nodes + 1) if budget.max_depth else 0):
            parent = self._draw(len(tokens))
            index = first + depths[parent]
            is_right = index < len(self._continuation) and self._draw(2) == 0
            token = self._continuation[index] if is_right else self._draw(self._vocab)
            if depths[parent] >= budget.max_depth or (parent, token) in taken:
                continue
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
        device = pending.device
        return DraftTree(
            torch.tensor(tokens, device=device), torch.tensor(parents, device=device), max(depths)
        )


class TableDrafter(NoDrafter):
    """Draws every token from a table by the token before it, so that q is known to the last digit.

    Args:
        q: [V, V] f32; row t is the distribution after token t.
        shape: how many children each node gets.
        length: tokens that count as committed at the start.
    """

    def __init__(self, q: Tensor, shape: Shape, *, length: int = 0) -> None:
        super().__init__(length)
        self.name = "table"
        self._q, self._shape = q, shape

    def sample(self, pending: Tensor, budget: Budget, config: GenerationConfig) -> DraftTree:
        """A tree of the given shape, as far as the budget allows, with its draws."""
        shape = in_order_of_draws(fit_shape(self._shape, budget.max_nodes, budget.max_depth))
        if not shape:
            return DraftTree.single(pending)
        layout = tree_layout(shape)
        parents = layout.parents.tolist()
        nodes = sorted(set(parents[1:]))
        n_draws = max(layout.widths)
        numbers = stream_noise("draft", config.seed, self._length, len(nodes), n_draws)  # [R, K]
        candidates = torch.full((len(nodes), n_draws), -1)  # [R, K]
        tokens = torch.zeros(layout.n_nodes, dtype=torch.long)
        tokens[0] = pending
        for row, node in enumerate(nodes):
            children = [child for child, parent in enumerate(parents) if parent == node]
            found = draw_candidates(
                self._q[tokens[node]].unsqueeze(0),
                numbers[row : row + 1],
                n_draws,
                with_replacement=config.with_replacement,
            )[0, : len(children)]
            candidates[row, : len(children)] = found
            tokens[children] = found.clamp(min=0)
        draws = Draws(
            torch.tensor(nodes), self._q[tokens[nodes]], candidates, None, config.with_replacement
        )
        return without_idle_nodes(dataclasses.replace(layout.tree(tokens), draws=draws))


class OverBudgetDrafter(NoDrafter):
    """Breaks its contract: a chain one node longer than allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "over-budget"

    def propose(self, pending: Tensor, budget: Budget) -> DraftTree:
        """One node too many."""
        return DraftTree.chain(pending, pending.expand(budget.max_depth + 1))


__all__ = [
    "ALL_KINDS",
    "EOS_ID",
    "KINDS",
    "VOCABULARY_SIZE",
    "ByteTokenizer",
    "Kind",
    "OracleDrafter",
    "OverBudgetDrafter",
    "RandomTreeDrafter",
    "TableDrafter",
    "WrongDrafter",
    "tiny_model",
    "tiny_target",
]
