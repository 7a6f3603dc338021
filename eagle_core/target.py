"""The base model, seen as prefill and tree forwards: the only file that knows transformers' internals.

The model is called through its public forward, so quantised layers, logit softcaps and multi-device
placement stay its own business. Features are the hidden states after the final norm, right before
the LM head (arXiv 2401.15077, 3.1), or states between chosen layers for heads that fuse several
(EAGLE-3, arXiv 2503.01840). Forwards write their rows behind the committed ones of the cache;
``prefill_chunk`` commits them, ``forward_tree`` leaves that to the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from eagle_core.cache import KVCache, StateCache
from eagle_core.capture import captured_states, check_states, decoder_layers
from eagle_core.errors import ConfigError, ModelError
from eagle_core.kernels.attention import NAME as ROWS_ATTENTION
from eagle_core.kernels.attention import (
    set_attention,
    use_rows_attention,
    uses_rows_attention,
)
from eagle_core.kernels.graphs import KEPT_FINITE, Captures, GraphDeck
from eagle_core.kernels.tape import FIXED_ROPES, TapeDeck
from eagle_core.masks import MaskBuffer, limited, uniform_kind, visibility
from eagle_core.tree import DraftTree

MOST_LIKE_ROWS = 32  # products in 16 bits on a CPU give a row the same bits beside up to so many
MIN_CPU_ROWS, MIN_DEVICE_ROWS = 2, 32  # rows of a reproducible forward in 16 bits
DEFAULT_CONTEXT_LENGTH = 8192  # longest context when none is asked for; long caches cost memory
_KNOWN_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_KNOWN_ATTENTION = frozenset({"sdpa", "eager", ROWS_ATTENTION})


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """``logits`` [R, V] and ``features`` [T, D]; R is T for a tree and 1 for a prefill chunk.

    With n feature layers the features are [T, n D], the layers' states side by side.
    """

    logits: Tensor
    features: Tensor


class Target:
    """A causal language model of transformers that can check trees.

    Args:
        model: the model, in eval mode, with sdpa or eager attention.
        context_length: longest prompt plus answer in tokens; None: the model's own, at most 8192.
        feature_layers: states that serve as features (``capture``); none: the one after the final norm.
    A model that keeps recurrent state (``has_state``) takes one token at a time, no tree.

    Raises:
        ModelError: no causal language model, or its attention takes no mask.
        ConfigError: context_length is beyond the model's own.
        IncompatibleHead: the model has no such feature layers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context_length: int | None = None,
        feature_layers: Sequence[int] = (),
    ) -> None:
        self.model = model
        self._config: Any = model.config.get_text_config()
        parameters = inspect.signature(model.forward).parameters
        self.has_state = _has_state(model, self._config, parameters)
        self._layer_types = () if self.has_state else _check_model(model, self._config)
        self.chains_only = False  # set when the self-test finds that only the causal path is right
        self.context_length = _context_length(self._config, context_length)
        self.hidden_size = int(self._config.hidden_size)
        self.vocab_size = int(self._config.vocab_size)
        self.n_layers = int(self._config.num_hidden_layers)
        self._takes_positions = "position_ids" in parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self._embedding = _module(model, "get_input_embeddings")
        self._lm_head = _module(model, "get_output_embeddings")
        self._decoder = _module(model, "get_decoder")
        self.feature_layers = check_states(feature_layers, self.n_layers)
        self._layers = (
            decoder_layers(self._decoder, self.n_layers) if feature_layers else nn.ModuleList()
        )
        self._mask = MaskBuffer(self.dtype, self.device)
        self._captures: Captures | None = None
        self.graphs: GraphDeck | None = None  # where forwards are replayed as graphs of the device
        self.set_reproducible(uses_rows_attention(self._config))

    def set_reproducible(self, is_on: bool) -> None:
        """Compute a row alike alone and beside others, as far as that can be done here; 16 bits only.

        On the CPU attention goes by positions, in float32, and no row is computed alone: products of one
        row round differently there. On an accelerator every forward has at least as many rows as a small
        tree, since the library chooses its products by their count. Whether that is enough, the self-test
        measures. In float32 nothing changes. What is cached must be dropped by the caller.
        """
        is_coarse = self.dtype in (torch.bfloat16, torch.float16)
        is_on = is_on and not self.has_state
        if is_coarse and self.device.type == "cpu":
            if is_on:
                use_rows_attention(self.model)
            else:
                set_attention(self.model, ROWS_ATTENTION, "sdpa")
            is_on = uses_rows_attention(self._config)
        self._min_rows = 1
        if is_coarse and is_on:
            self._min_rows = MIN_CPU_ROWS if self.device.type == "cpu" else MIN_DEVICE_ROWS
        can_record = uses_rows_attention(self._config) and _is_repeatable(self._config)
        self._tapes = TapeDeck(self._plain) if can_record else None
        self.use_graphs(self._captures)

    def use_graphs(self, captures: Captures | None) -> None:
        """Replay forwards as graphs of the device from now on; None: launch every operation from Python.

        Without effect where a forward cannot be repeated as it is: with layers that see a window or keep
        state, rotations that change with the text's length, float16, or parts on several devices.
        """
        self._captures, self.graphs = captures, None
        if captures is not None and self._can_be_captured():
            self.graphs = GraphDeck(
                self._plain, captures, self.dtype, self._min_rows, is_exact=self.is_reproducible
            )

    def _can_be_captured(self) -> bool:
        is_fit = self._takes_positions and not self.has_state and self.dtype in KEPT_FINITE
        is_fit = is_fit and not uses_rows_attention(self._config)
        devices = {parameter.device for parameter in self.model.parameters()}
        return is_fit and _is_repeatable(self._config) and devices == {self.device}

    @property
    def is_reproducible(self) -> bool:
        """Whether forwards in 16 bits are made to give a row the same alone and beside others."""
        return self._min_rows > 1

    @property
    def device(self) -> torch.device:
        """Where everything but the model's own parts lives: beside the LM head.

        A model that is spread over several devices moves its inputs itself, and brings its logits back.
        """
        return execution_device(self._lm_head)

    @property
    def dtype(self) -> torch.dtype:
        """Of activations and cache."""
        return self.model.dtype

    @property
    def has_experts(self) -> bool:
        """Whether tokens are routed to experts: then a row's rounding depends on where the others go."""
        names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
        return any(getattr(self._config, name, None) for name in names)

    @property
    def output_embeddings(self) -> nn.Module:
        """The LM head as a module, for a drafter that scores a part of the vocabulary."""
        return self._lm_head

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [..., D] of ids [...], as the model itself feeds them to its first layer."""
        embedded: Tensor = self._embedding(ids)
        return embedded.to(self.device)

    @torch.inference_mode()
    def lm_head(self, features: Tensor) -> Tensor:
        """Scores [..., V] of features [..., D] by the LM head alone, without a softcap or scale."""
        scores: Tensor = self._lm_head(features)
        return scores

    def new_cache(self, capacity: int | None = None) -> KVCache:
        """An empty cache for ``capacity`` rows (None: the context length)."""
        capacity = capacity or self.context_length
        if self.has_state:
            return StateCache(lambda: DynamicCache(config=self.model.config), capacity)
        return KVCache(self.n_layers, capacity)

    @torch.inference_mode()
    def prefill_chunk(self, ids: Tensor, cache: KVCache) -> TargetOutput:
        """Read prompt tokens and commit their rows.

        Args: ids: [T] i64, at positions cache.length .. cache.length + T - 1.
        Returns: logits [1, V] of the last token, features [T, D].
        """
        _check_ids(ids)
        if self.has_state and cache.length > 0 and ids.shape[0] > 1:
            # A state goes on by single tokens: several at once start from an empty one in transformers.
            outputs = [self.prefill_chunk(token, cache) for token in torch.split(ids, 1)]
            return TargetOutput(outputs[-1].logits, torch.cat([out.features for out in outputs]))
        if self.is_reproducible and self.device.type == "cpu" and ids.shape[0] > MOST_LIKE_ROWS:
            outputs = [self.prefill_chunk(part, cache) for part in torch.split(ids, MOST_LIKE_ROWS)]
            return TargetOutput(outputs[-1].logits, torch.cat([out.features for out in outputs]))
        n_tokens = ids.shape[0]
        ids = ids.to(self.device)
        if (
            n_tokens < self._min_rows <= cache.room
        ):  # a row that is read alone must be like all others
            output = self.forward_tree(DraftTree.chain(ids[0], ids[1:]), cache)
            cache.advance(n_tokens)
            return TargetOutput(output.logits[-1:], output.features)
        positions = torch.arange(cache.length, cache.length + n_tokens, device=ids.device)  # [T]
        output = self._forward(ids, positions, None, cache, n_logits=1)
        cache.advance(n_tokens)
        return output

    @torch.inference_mode()
    def forward_tree(self, tree: DraftTree, cache: KVCache) -> TargetOutput:
        """Evaluate every node of a tree at once; its N rows stay uncommitted in the cache.

        A one-node tree takes the model's ordinary path, with no mask; so does every chain when
        ``chains_only`` is set, and then nothing but a chain may come. A tree with fewer rows than
        :meth:`set_reproducible` wants is filled up with rows that are dropped.
        Returns: logits [N, V], features [N, D].
        """
        device = self.device
        if tree.n_nodes < self._min_rows <= cache.room:
            whole = self.forward_tree(self._filled(tree), cache)
            return TargetOutput(whole.logits[: tree.n_nodes], whole.features[: tree.n_nodes])
        tokens = tree.tokens.to(device)  # [N]
        if tree.n_nodes == 1:
            positions = torch.full((1,), cache.length, dtype=torch.int64, device=device)
            return self._forward_rows(tokens, positions, None, cache)
        assert not self.has_state, "a state cannot branch"
        if self.chains_only:
            positions = torch.arange(
                cache.length, cache.length + tree.n_nodes, device=device
            )  # [N]
            return self._forward(tokens, positions, None, cache, n_logits=tree.n_nodes)
        positions = tree.depths.to(device) + cache.length  # [N]
        mask = self._tree_mask(tree.ancestor_mask.to(device), positions, tree.max_depth, cache)
        return self._forward_rows(tokens, positions, mask, cache)

    def record_on(self, cache: KVCache) -> None:
        """Forwards on this cache are what will be repeated: recordings are made of them, and of no others."""
        if self._tapes is not None:
            self._tapes.record_on(cache)

    def is_settled(self, n_rows: int) -> bool:
        """Whether a tree forward of ``n_rows`` takes from now on what it always will: nothing is recorded."""
        if self._tapes is None:
            return True
        n_rows = max(n_rows, self._min_rows)
        return self._tapes.is_settled(n_rows, is_alone=n_rows == 1)

    def _filled(self, tree: DraftTree) -> DraftTree:
        """The tree and further nodes up to the least count of rows, which no other node sees."""
        n_more = self._min_rows - tree.n_nodes
        tokens = torch.cat((tree.tokens, tree.tokens[:1].expand(n_more)))  # [N + M]
        if self.chains_only or tree.n_nodes == 1:
            return DraftTree.chain(tokens[0], tokens[1:])
        parents = torch.cat((tree.parents, tree.parents.new_zeros(n_more)))  # [N + M]
        return DraftTree(tokens, parents, tree.max_depth)

    def _forward_rows(
        self, ids: Tensor, positions: Tensor, mask: Any, cache: KVCache
    ) -> TargetOutput:
        """A forward that wants the logits of all its rows, replayed from a recording where that works."""
        deck = self.graphs or self._tapes
        if deck is None:
            return self._forward(ids, positions, mask, cache, n_logits=ids.shape[0])
        one_mask = next(iter(mask.values())) if isinstance(mask, dict) else mask
        return TargetOutput(*deck.run((ids, positions), one_mask, cache))

    def _plain(
        self, inputs: tuple[Tensor, ...], mask: Tensor | None, cache: KVCache
    ) -> tuple[Tensor, ...]:
        """The model's own forward; layers that have kinds get their one kind's mask by its name."""
        ids, positions = inputs
        masks = {self._layer_types[0]: mask} if self._layer_types and mask is not None else mask
        output = self._forward(ids, positions, masks, cache, n_logits=ids.shape[0])
        return output.logits, output.features

    @torch.inference_mode()
    def batch_features(self, ids: Tensor, layers: Sequence[int] = ()) -> Tensor:
        """Features of whole texts [B, T] i64 at once, without a cache; for training data.

        Returns: [B, T, D], the state after the final norm; with n ``layers`` theirs too, [B, T, (1 + n) D].
        """
        blocks = decoder_layers(self._decoder, self.n_layers) if layers else nn.ModuleList()
        with captured_states(blocks, check_states(layers, self.n_layers)) as states:
            features: Tensor = self._decoder(input_ids=ids.to(self.device), use_cache=False)[0]
        return torch.cat([features, *(states[layer] for layer in layers)], dim=-1)

    def _forward(
        self, ids: Tensor, positions: Tensor, mask: Any, cache: KVCache, *, n_logits: int
    ) -> TargetOutput:
        """ids [T], positions [T] -> logits [n_logits, V], features [T, D]."""
        finals: list[Tensor] = []

        def capture(_module: nn.Module, _inputs: Any, output: Any) -> None:
            finals.append(output[0])

        arguments: dict[str, Any] = {self._cache_argument: cache.states}
        if self._takes_positions:
            arguments["position_ids"] = positions.unsqueeze(0)
        if self._keeps_logits:
            arguments["logits_to_keep"] = n_logits
        handle = self._decoder.register_forward_hook(capture)
        try:
            with captured_states(self._layers, self.feature_layers) as states:
                output = self.model(
                    input_ids=ids.unsqueeze(0),
                    attention_mask=mask,
                    use_cache=True,
                    **arguments,
                )
        finally:
            handle.remove()
        logits = output.logits[0, -n_logits:].to(self.device)  # [n_logits, V]
        return TargetOutput(logits, self._features(finals[0], states).to(self.device))

    def _features(self, final: Tensor, states: Mapping[int, Tensor]) -> Tensor:
        """[1, T, D] after the final norm, and the captured states -> [T, D], or [T, n D] of n layers."""
        if not self.feature_layers:
            return final[0]
        chosen = [states[layer][0].to(final.device) for layer in self.feature_layers]
        return torch.cat(chosen, dim=-1)  # [T, n D]

    def _tree_mask(
        self, ancestors: Tensor, positions: Tensor, max_depth: int, cache: KVCache
    ) -> Tensor | dict[str, Tensor]:
        """Additive mask(s) [1, 1, N, length + N]: all committed rows, and ancestors or self."""
        full = self._mask.write(ancestors, cache.length, cache.capacity)  # [1, 1, N, S]
        masks: dict[str, Tensor] = {}
        for kind in self._layer_types or (uniform_kind(self._config),):
            sees = visibility(self._config, kind, cache.length + max_depth)
            masks[kind] = full if sees is None else limited(full, positions, cache.length, sees)
        return masks if self._layer_types else next(iter(masks.values()))

    @torch.inference_mode()
    def plain_logits(self, ids: Tensor) -> Tensor:
        """Logits [T, V] of a text [T] by the model's own forward, without a cache; for checks."""
        logits: Tensor = self.model(input_ids=ids.to(self.device)[None], use_cache=False).logits[0]
        return logits

    def eos_ids(self, tokenizer: Any = None) -> frozenset[int]:
        """Tokens that end an answer, by the generation config and the tokenizer."""
        generation = getattr(self.model, "generation_config", None)
        ids = getattr(generation, "eos_token_id", None)
        ids = self._config.eos_token_id if ids is None else ids
        found = set(ids) if isinstance(ids, (list, tuple)) else {ids}
        found.add(getattr(tokenizer, "eos_token_id", None))
        return frozenset(int(token) for token in found if token is not None)


def execution_device(module: nn.Module) -> torch.device:
    """Where a module computes; its weights may lie elsewhere until then (accelerate's hooks)."""
    hooked = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
    if hooked is not None:
        return torch.device(hooked)
    return next(module.parameters()).device


def _is_repeatable(config: Any) -> bool:
    """Whether a forward is alike at every length: one mask for all layers, rotations that do not change."""
    kinds = set(getattr(config, "layer_types", None) or ()) or {uniform_kind(config)}
    rope = getattr(config, "rope_parameters", None) or {}
    return kinds == {"full_attention"} and rope.get("rope_type", "default") in FIXED_ROPES


def _module(model: PreTrainedModel, getter: str) -> nn.Module:
    """Raises: ModelError when the model lacks the part that ``getter`` names."""
    part = getattr(model, getter)()
    if not isinstance(part, nn.Module):
        raise ModelError(
            "the model is no causal language model",
            expected="embeddings, a decoder and an LM head",
            got=f"{type(model).__name__} without {getter}",
            hint="choose a text generation model",
        )
    return part


def _has_state(model: PreTrainedModel, config: Any, parameters: Mapping[str, Any]) -> bool:
    """Whether the model keeps recurrent state, which cannot be taken back after a rejected draft.

    Raises: ModelError when the installed transformers has no common cache for it.
    """
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS)
    if not unknown and not getattr(model, "_is_stateful", False):
        return False
    if "cache" not in parameters and "past_key_values" not in parameters:
        raise ModelError(
            "this architecture keeps state in a cache of its own kind",
            expected="a model that takes transformers' common cache",
            got=", ".join(unknown) or type(model).__name__,
            hint="choose a model without recurrent layers, or install a newer transformers",
        )
    return True


def _check_model(model: PreTrainedModel, config: Any) -> tuple[str, ...]:
    """The kinds of layers that the model lists, () when it lists none.

    Raises: ModelError when a tree forward could not be right.
    """
    kinds = tuple(sorted(set(getattr(config, "layer_types", None) or ())))
    if config.is_encoder_decoder:
        raise ModelError(
            "this is an encoder-decoder model",
            expected="a decoder with full, sliding or chunked attention",
            got=type(model).__name__,
            hint="choose a text generation model",
        )
    attention = getattr(config, "_attn_implementation", None)
    if attention not in _KNOWN_ATTENTION:
        raise ModelError(
            "this attention implementation takes no tree mask",
            expected=" or ".join(sorted(_KNOWN_ATTENTION)),
            got=str(attention),
            hint="load the model with attn_implementation='sdpa'",
        )
    return kinds


def _context_length(config: Any, asked: int | None) -> int:
    own = getattr(config, "max_position_embeddings", None)
    if asked is None:
        return min(int(own or DEFAULT_CONTEXT_LENGTH), DEFAULT_CONTEXT_LENGTH)
    if own is not None and asked > own:
        raise ConfigError(
            "the context length is beyond what the model was made for",
            expected=f"at most {own}",
            got=str(asked),
            hint="choose a shorter context or another model",
        )
    return asked


def _check_ids(ids: Tensor) -> None:
    if ids.ndim != 1 or ids.dtype != torch.int64 or ids.shape[0] == 0:
        raise ConfigError(
            "token ids have the wrong form",
            expected="[T] int64, T >= 1",
            got=f"{list(ids.shape)} {ids.dtype}",
        )


def self_check(target: Target, seed: int, *, n_prompt: int = 24, n_drafted: int = 12) -> float:
    """Compare a random tree's forward with the sequential forward of each of its paths.

    Returns: the largest absolute difference between logits. Float32: about 1e-5; bfloat16: about
        0.1 to 0.5; an architecture that cannot check trees: far more.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, count: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator)

    prompt = draw(target.vocab_size, n_prompt)
    parents = [-1, *(int(draw(node, 1)) for node in range(1, n_drafted + 1))]
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    tokens = draw(target.vocab_size, n_drafted + 1)
    tree = DraftTree(tokens, torch.tensor(parents), max(depths))
    n_rows = n_prompt + n_drafted + 1
    cache = target.new_cache(n_rows)
    target.prefill_chunk(prompt, cache)
    logits = target.forward_tree(tree, cache).logits.float()  # [N, V]
    difference = 0.0
    for leaf in set(range(len(parents))) - set(parents):
        path = tree.ancestor_mask[leaf].nonzero().flatten().tolist()  # root to leaf
        cache.rewind(n_prompt)
        for node in path:
            alone = target.forward_tree(DraftTree.single(tokens[node]), cache).logits.float()
            cache.advance(1)
            difference = max(difference, float((alone[0] - logits[node]).abs().max()))
    return difference


__all__ = ["DEFAULT_CONTEXT_LENGTH", "Target", "TargetOutput", "self_check"]
