"""Training data on disk: conversations as token ids, and the base model's features for them.

Knows file formats only: no model, no loss. A conversation set is one ``.npz``; features lie beside it in
safetensors shards, so that an interrupted extraction goes on where it stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle_core.errors import ConfigError

META_NAME = "features.json"
CONVERSATIONS_NAME = "conversations.npz"


@dataclass(frozen=True, slots=True)
class Conversations:
    """Tokenized conversations, one after the other.

    ``token_ids [T]``; conversation i is ``token_ids[offsets[i]:offsets[i + 1]]`` and its answer starts at
    ``response_start[i]`` within it; ``temperature[i]`` is what the answer was sampled at.

    Example: offsets [0, 3, 5] holds two conversations, of 3 and of 2 tokens.
    """

    token_ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    response_start: NDArray[np.int32]
    temperature: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ids(self, index: int) -> NDArray[np.int32]:
        """Token ids of conversation ``index``."""
        return self.token_ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def n_response_tokens(self) -> int:
        """Number of answer tokens in the set."""
        return int((np.diff(self.offsets) - self.response_start).sum())

    @classmethod
    def from_lists(
        cls, ids: list[list[int]], response_start: list[int], temperature: list[float]
    ) -> Conversations:
        """Pack ragged lists of token ids."""
        lengths = [len(row) for row in ids]
        return cls(
            token_ids=np.asarray([t for row in ids for t in row], dtype=np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            response_start=np.asarray(response_start, dtype=np.int32),
            temperature=np.asarray(temperature, dtype=np.float32),
        )

    @classmethod
    def load(cls, path: Path) -> Conversations:
        """Read a set written by :meth:`save`.

        Raises: ConfigError when the file is missing or is no conversation set.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                found = cls(
                    token_ids=data["token_ids"].astype(np.int32),
                    offsets=data["offsets"].astype(np.int64),
                    response_start=data["response_start"].astype(np.int32),
                    temperature=data["temperature"].astype(np.float32),
                )
        except (OSError, KeyError, ValueError) as error:
            raise ConfigError(
                f"{path} is not a conversation set",
                expected="an .npz with token_ids, offsets, response_start and temperature",
                got=str(error),
                hint="make one with `eagle-chat train collect`",
            ) from error
        if len(found.response_start) != len(found) or found.offsets[-1] != len(found.token_ids):
            raise ConfigError(
                f"{path} is inconsistent",
                expected="offsets that end at len(token_ids), one response_start each",
                got=f"{len(found)} conversations, {len(found.response_start)} response starts",
                hint="the file was cut off: collect it again",
            )
        return found

    def save(self, path: Path) -> None:
        """Write the set atomically; token ids are stored as uint16 where they fit."""
        small = self.token_ids.size == 0 or int(self.token_ids.max()) < 2**16
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            np.savez_compressed(
                file,
                token_ids=self.token_ids.astype(np.uint16 if small else np.int32),
                offsets=self.offsets,
                response_start=self.response_start,
                temperature=self.temperature,
            )
        os.replace(part, path)


@dataclass(frozen=True, slots=True)
class Sequence:
    """One conversation with its features: ``token_ids [T] i64``, ``features [T, D] f16``.

    ``layer_features [T, n D] bf16``: states of the fused layers side by side, for heads that take them.
    """

    token_ids: Tensor
    features: Tensor
    response_start: int
    layer_features: Tensor | None = None


def shard_path(folder: Path, index: int) -> Path:
    """Where shard ``index`` of a feature folder lies."""
    return folder / f"features-{index:05d}.safetensors"


def extract_features(
    conversations: Conversations,
    folder: Path,
    features_of: Callable[[Tensor], Tensor],
    *,
    base: str,
    layers: tuple[int, ...] = (),
    seed: int = 0,
    shard_size: int = 64,
    batch_tokens: int = 2048,
) -> Iterator[tuple[int, int]]:
    """Run the frozen base over every conversation once and store its features as float16 shards.

    Conversations are shuffled once by ``seed``; within a shard, equal lengths share a right-padded batch
    (padding lies after every real token, so a causal model needs no mask).

    Args:
        features_of: ids [B, T] i64 -> features [B, T, D]; the base's hidden state after its final norm. With
            n ``layers`` their states behind it, [B, T, (1 + n) D].
        batch_tokens: tokens per forward, padding included.
    Yields: (shards done, shards in all); shards already on disk are skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = np.random.default_rng(seed).permutation(len(conversations))
    n_shards = -(-len(order) // shard_size)
    meta = {
        "base": base,
        "seed": seed,
        "shard_size": shard_size,
        "n_conversations": len(conversations),
        "n_tokens": int(conversations.offsets[-1]),
        "n_response_tokens": conversations.n_response_tokens,
        "n_shards": n_shards,
        **({"feature_layers": list(layers)} if layers else {}),
    }
    _write_or_check_meta(folder / META_NAME, meta)
    for index in range(n_shards):
        path = shard_path(folder, index)
        if not path.exists():
            members = order[index * shard_size : (index + 1) * shard_size]
            tensors = _shard_tensors(conversations, members, features_of, batch_tokens, len(layers))
            part = path.with_suffix(".part")
            save_file(tensors, part)
            os.replace(part, path)
        yield index + 1, n_shards


def _write_or_check_meta(path: Path, meta: dict[str, object]) -> None:
    if path.exists():
        found = json.loads(path.read_text())
        if found != meta:
            raise ConfigError(
                f"{path.parent} holds features of other data",
                expected=str(meta),
                got=str(found),
                hint="choose another --out folder, or remove this one",
            )
        return
    part = path.with_suffix(".part")
    part.write_text(json.dumps(meta, indent=1))
    os.replace(part, path)


def _shard_tensors(
    conversations: Conversations,
    members: NDArray[np.int64],
    features_of: Callable[[Tensor], Tensor],
    batch_tokens: int,
    n_layers: int,
) -> dict[str, Tensor]:
    rows = [torch.from_numpy(conversations.ids(int(i)).astype(np.int64)) for i in members]
    by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    found: list[Tensor | None] = [None] * len(rows)
    start = 0
    while start < len(by_length):
        stop = start + 1
        while (
            stop < len(by_length)
            and (stop + 1 - start) * len(rows[by_length[stop]]) <= batch_tokens
        ):
            stop += 1
        chunk = by_length[start:stop]
        width = len(rows[chunk[-1]])
        ids = torch.zeros(len(chunk), width, dtype=torch.long)  # [B, T]
        for row, i in enumerate(chunk):
            ids[row, : len(rows[i])] = rows[i]
        out = features_of(ids)  # [B, T, D]
        for row, i in enumerate(chunk):
            found[i] = out[row, : len(rows[i])].cpu()
        start = stop
    lengths = torch.tensor([0] + [len(row) for row in rows])
    features = torch.cat([f for f in found if f is not None])  # [T, (1 + n) D]
    width = features.shape[1] // (1 + n_layers)
    # Between layers some numbers are larger than float16 can hold.
    states = {"layer_features": features[:, width:].to(torch.bfloat16)} if n_layers else {}
    return {
        "token_ids": torch.cat(rows).to(torch.int32),
        "offsets": torch.cumsum(lengths, 0),
        "response_start": torch.from_numpy(conversations.response_start[members].astype(np.int32)),
        "features": features[:, :width].to(torch.float16),
        **states,
    }


class FeatureFolder:
    """A folder of feature shards, read on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.meta = json.loads((folder / META_NAME).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder} holds no features",
                expected=f"a folder with {META_NAME} and features-*.safetensors",
                got=str(error),
                hint="run `eagle-chat train collect` first",
            ) from error
        self.shards = sorted(folder.glob("features-*.safetensors"))
        if not self.shards:
            raise ConfigError(
                f"{folder} holds no feature shard yet",
                expected="at least one features-*.safetensors",
                got="none",
                hint="let `eagle-chat train collect` finish",
            )

    def n_tokens(self, shard: Path) -> int:
        """Tokens in one shard, read from its header."""
        with safe_open(shard, framework="pt") as file:
            return int(file.get_slice("token_ids").get_shape()[0])

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each token occurs in answers: [V] i64.

        Of all conversations where their file lies beside the shards (an extraction may still be going on),
        else of the shards.
        """
        counts = torch.zeros(vocab_size, dtype=torch.long)
        path = self.folder / CONVERSATIONS_NAME
        if path.exists():
            found = Conversations.load(path)
            answers = [found.ids(i)[found.response_start[i] :] for i in range(len(found))]
            every = torch.from_numpy(np.concatenate(answers).astype(np.int64))
            return torch.bincount(every, minlength=vocab_size)
        for shard in self.shards:
            with safe_open(shard, framework="pt") as file:
                ids, offsets = (
                    file.get_tensor("token_ids").long(),
                    file.get_tensor("offsets").tolist(),
                )
                starts = file.get_tensor("response_start").tolist()
            for begin, end, start in zip(offsets, offsets[1:], starts, strict=False):
                counts += torch.bincount(ids[begin + start : end], minlength=vocab_size)
        return counts

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The layers whose states are in the shards, too."""
        return tuple(int(layer) for layer in self.meta.get("feature_layers", ()))

    def read(self, shard: Path, *, has_layers: bool = False) -> list[Sequence]:
        """All conversations of one shard; ``has_layers``: with the states of layers."""
        with safe_open(shard, framework="pt") as file:
            ids, offsets = file.get_tensor("token_ids").long(), file.get_tensor("offsets").tolist()
            starts, features = (
                file.get_tensor("response_start").tolist(),
                file.get_tensor("features"),
            )
            states = file.get_tensor("layer_features") if has_layers else None
        return [
            Sequence(ids[a:b], features[a:b], start, None if states is None else states[a:b])
            for a, b, start in zip(offsets, offsets[1:], starts, strict=False)
        ]
