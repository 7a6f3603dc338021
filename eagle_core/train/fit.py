"""Training loop of a head: frozen embedding, features from disk, atomic checkpoints.

An EAGLE-1 head learns the base's next feature, scored by the base's frozen LM head; an EAGLE-3 head learns
the next token's distribution alone, with an LM head of its own. The module that is trained is the one that
drafts. Knows of the base only its embedding and LM head.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagle_core.errors import CheckpointMismatch, ConfigError
from eagle_core.events import TrainStep
from eagle_core.heads.base import VOCABULARY_KEY, DraftHead
from eagle_core.heads.families import HeadConfig, make_head
from eagle_core.train.batches import Batch, epoch_batches, make_batch
from eagle_core.train.config import FitConfig
from eagle_core.train.dataset import FeatureFolder
from eagle_core.train.losses import Losses, draft_losses, head_losses, unrolled_predictions

CHECKPOINT_NAME = "checkpoint.pt"
HELD_OUT_ROWS = 24
EVAL_DEPTH = 5
# An own norm starts at this share of the base's: an untrained head as sure of itself as the base costs
# twice the cross-entropy of a modest one (15.8 against 7.9 for the default model; docs/LOG.md).
START_CONFIDENCE = 0.3


@dataclass(slots=True)
class _Progress:
    step: int = 0
    epoch: int = 0
    batch: int = 0
    elapsed_s: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Fits one head; resumes from ``out/checkpoint.pt`` when it is there.

    Args:
        embed_weight, lm_weight: [V, D], the base's frozen embedding and LM head.
        norm_weight: [D], the base's final norm, from which an own norm starts; None: from ones.
        out: folder for the checkpoint and the head.
        init: a trained head to start from; its draft vocabulary is kept if it is as large as the new
            one is to be. None: from scratch.
    """

    def __init__(
        self,
        head_config: HeadConfig,
        embed_weight: Tensor,
        lm_weight: Tensor,
        folder: FeatureFolder,
        out: Path,
        config: FitConfig,
        init: DraftHead | None = None,
        norm_weight: Tensor | None = None,
    ) -> None:
        self.config, self.folder, self.out = config, folder, out
        n_held = config.held_out_shards
        if len(folder.shards) <= n_held:
            raise ConfigError(
                "too few feature shards to keep some for measuring",
                expected=f"more than {n_held} shards",
                got=str(len(folder.shards)),
                hint="collect more conversations, or lower held_out_shards",
            )
        self.held_out = folder.shards[:n_held]
        self.embed_weight, self.lm_weight = embed_weight.float(), lm_weight.float()
        self.device = self.embed_weight.device
        self.head_config, self.head = head_config, make_head(head_config).float()
        self._init_weights(norm_weight)
        if init is not None:
            self._start_from(init)
        self.head.to(self.device)
        self.random = torch.Generator().manual_seed(config.seed)
        self.n_steps: int = max(
            1, round(config.epochs * folder.meta["n_tokens"] / config.batch_tokens)
        )
        self.optimizers = make_optimizers(self.head, config)
        self.progress = _Progress()
        self.feature_std = self._measure_std()
        self._resume()
        ids = self.head.draft_vocabulary
        self.draft_lm_weight = self.lm_weight if ids is None else self.lm_weight[ids]
        self._held: Batch | None = None
        self._held_argmax: Tensor | None = None

    @property
    def fuses_layers(self) -> bool:
        """Whether the head takes the states of several layers, and scores with an LM head of its own."""
        return self.head.lm_head is not None

    def _init_weights(self, norm_weight: Tensor | None) -> None:
        random = torch.Generator().manual_seed(self.config.seed)
        with torch.no_grad():
            for parameter in self.head.parameters():
                if parameter.ndim == 2:
                    parameter.normal_(0.0, 0.02, generator=random)
        self.head.reset_parameters()
        if self.head.draft_vocabulary is not None:
            counts = self.folder.token_counts(self.lm_weight.shape[0])
            most = torch.sort(counts, descending=True, stable=True).indices[
                : len(self.head.draft_vocabulary)
            ]
            self.head.draft_vocabulary.copy_(most.sort().values)
        if self.head.lm_head is not None:
            ids = self.head.draft_vocabulary
            state = {"lm_head.weight": self.lm_weight if ids is None else self.lm_weight[ids]}
            if norm_weight is not None:
                state["norm.weight"] = START_CONFIDENCE * norm_weight.float()
            self.head.load_state_dict(state, strict=False)

    def _start_from(self, init: DraftHead) -> None:
        found: Any = getattr(init, "config", None)
        n_scored = self.head_config.draft_vocab_size
        is_alike = type(found) is type(self.head_config)
        if not is_alike or replace(found, draft_vocab_size=n_scored) != self.head_config:
            raise ConfigError(
                "the head to start from has other shapes",
                expected=str(self.head_config),
                got=str(found),
                hint="set --arch and --n-layers to those of the head",
            )
        state = dict(init.state_dict())
        if found.draft_vocab_size != n_scored:
            state.pop(VOCABULARY_KEY, None)
            state.pop("lm_head.weight", None)
        self.head.load_state_dict({**self.head.state_dict(), **state})

    def _measure_std(self) -> float:
        rows = self.folder.read(self.held_out[0])
        return float(torch.cat([row.features for row in rows]).float().std())

    def training_shards(self) -> list[Path]:
        """Shards on disk now, without the held-out ones: an extraction may still be adding some."""
        found = FeatureFolder(self.folder.folder).shards
        return [shard for shard in found if shard not in self.held_out]

    def share_done(self) -> float:
        """How far the run is, by steps or by time, whichever is further: 0..1."""
        by_step = self.progress.step / self.n_steps
        limit_s = self.config.max_minutes * 60
        return min(1.0, max(by_step, self.progress.elapsed_s / limit_s if limit_s else 0.0))

    def run(self) -> Iterator[TrainStep]:
        """Train to the end, yielding one event per optimiser step."""
        progress, start, before = self.progress, time.perf_counter(), self.progress.elapsed_s
        saved = start
        while self.share_done() < 1.0:
            batches = epoch_batches(
                self.folder, self.training_shards(), self.config.batch_tokens,
                seed=self.config.seed, epoch=progress.epoch, skip=progress.batch,
                has_prompts=self.config.train_on_prompts, has_layers=self.fuses_layers,
            )  # fmt: skip
            for batch in batches:
                began = time.perf_counter()
                losses, rate = self.train_step(batch.to(self.device))
                progress.step += 1
                progress.batch += 1
                now = time.perf_counter()
                progress.elapsed_s = before + now - start
                is_last = self.share_done() >= 1.0
                is_eval = progress.step % self.config.eval_every == 0 or is_last
                event = TrainStep(
                    step=progress.step,
                    n_steps=self.n_steps,
                    loss=float(losses.total.detach()),
                    feature_loss=float(losses.regression),
                    token_loss=float(losses.token),
                    learning_rate=rate,
                    tokens_per_s=batch.next_tokens.numel() / (now - began),
                    elapsed_s=progress.elapsed_s,
                    acceptance=self.evaluate() if is_eval else (),
                )
                progress.history.append(asdict(event))
                if is_last or now - saved >= self.config.checkpoint_every_s:
                    self.save()
                    saved = time.perf_counter()
                yield event
                if is_last:
                    return
            progress.epoch += 1
            progress.batch = 0

    def train_step(self, batch: Batch) -> tuple[Losses, float]:
        """One optimiser step; returns the losses and the learning rate used."""
        config = self.config
        rate = self.learning_rate(self.share_done())
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        weights = batch.weights.clone()
        weights[:, : config.unroll - 1] = 0.0
        draws = torch.rand(weights.shape, generator=self.random).to(self.device)
        chosen = (weights > 0) & (draws < config.loss_fraction)
        losses = self._losses(batch, weights, chosen)
        losses.total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.head.parameters(), config.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return losses, rate

    def _losses(self, batch: Batch, weights: Tensor, chosen: Tensor) -> Losses:
        """What one batch costs.

        Args: weights [B, T] f32, the positions that count; chosen [B, T] bool, those drawn for cross-entropy.
        """
        config = self.config
        embeddings = self.embed_weight[batch.next_tokens]  # [B, T, D]
        if self.fuses_layers:
            outputs = unrolled_predictions(self.head, embeddings, batch.features, config.unroll)
            scores = [self.scores(out[chosen]) for out in outputs]  # [P, V'] each
            return draft_losses(
                scores, batch.targets[chosen], self.lm_weight, self.head.draft_vocabulary,
                decay=config.unroll_decay,
            )  # fmt: skip
        drawn = torch.rand(batch.features.shape, generator=self.random).to(self.device)
        noise = (drawn * 2 - 1) * (config.noise * self.feature_std)
        outputs = unrolled_predictions(self.head, embeddings, batch.features + noise, config.unroll)
        return head_losses(
            outputs, batch.targets, weights, chosen, self.draft_lm_weight,
            feature_std=self.feature_std, regression_weight=config.regression_weight,
            token_weight=config.token_weight, decay=config.unroll_decay,
        )  # fmt: skip

    def scores(self, states: Tensor) -> Tensor:
        """The head's states [.., D] -> logits [.., V'] over the draft vocabulary."""
        own = self.head.lm_head
        weight = own.weight if own is not None else self.draft_lm_weight
        return self.head.normed(states) @ weight.T

    def learning_rate(self, share_done: float) -> float:
        """Linear warm-up, then cosine to ``final_rate`` of the peak, by the share of the run that is done."""
        config = self.config
        if share_done < config.warmup:
            return config.learning_rate * max(share_done, 0.02 * config.warmup) / config.warmup
        done = (share_done - config.warmup) / (1 - config.warmup)
        share = config.final_rate + (1 - config.final_rate) * 0.5 * (1 + math.cos(math.pi * done))
        return config.learning_rate * share

    @torch.no_grad()
    def evaluate(self) -> tuple[float, ...]:
        """Held-out top-1 agreement with the base's argmax at depths 1..5, on the head's own predictions."""
        if self._held is None:
            rows = [
                row
                for shard in self.held_out
                for row in self.folder.read(shard, has_layers=self.fuses_layers)
            ]
            longest = sorted(rows, key=lambda r: len(r.token_ids))[-HELD_OUT_ROWS:]
            self._held = make_batch(longest).to(self.device)
        batch = self._held
        counted = batch.weights > 0
        counted[:, : EVAL_DEPTH - 1] = False
        if self._held_argmax is None:
            self._held_argmax = (batch.targets[counted] @ self.lm_weight.T).argmax(-1)  # [P]
        embeddings = self.embed_weight[batch.next_tokens]
        outputs = unrolled_predictions(self.head, embeddings, batch.features, EVAL_DEPTH)
        ids = self.head.draft_vocabulary
        rates = []
        for out in outputs:
            best = self.scores(out[counted]).argmax(-1)  # [P]
            best = best if ids is None else ids[best]
            rates.append(float((best == self._held_argmax).float().mean()))
        return tuple(rates)

    def save(self) -> None:
        """Write the checkpoint and the head, atomically."""
        self.out.mkdir(parents=True, exist_ok=True)
        part = self.out / (CHECKPOINT_NAME + ".part")
        torch.save(
            {
                "head": self.head.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "random": self.random.get_state(),
                "progress": asdict(self.progress),
                "config": asdict(self.config),
            },
            part,
        )
        os.replace(part, self.out / CHECKPOINT_NAME)
        self.head.save(self.out)

    def _resume(self) -> None:
        path = self.out / CHECKPOINT_NAME
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.head.load_state_dict(state["head"], strict=True)
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
            self.random.set_state(state["random"])
            self.progress = _Progress(**state["progress"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatch(
                f"{path} does not fit this training run",
                expected="a checkpoint of the same head and optimizer",
                got=str(error).splitlines()[0],
                hint="choose another --out folder, or remove this one",
            ) from error


def make_optimizers(head: DraftHead, config: FitConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices and AdamW for the rest, an LM head included."""
    uses_muon = config.optimizer == "muon"
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in head.named_parameters():
        is_matrix = uses_muon and parameter.ndim == 2 and not name.startswith("lm_head.")
        (matrices if is_matrix else others).append(parameter)
    adamw = torch.optim.AdamW(
        others,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(
        matrices,
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    return [muon, adamw]


__all__ = ["CHECKPOINT_NAME", "START_CONFIDENCE", "Trainer", "make_optimizers"]
