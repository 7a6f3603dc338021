"""Settings of data collection and training: the one source of their defaults. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from eagle_core.config import check_limits, setting
from eagle_core.errors import ConfigError

OptimizerName = Literal["adamw", "muon"]
Arch = Literal["eagle1", "eagle3"]


@dataclass(frozen=True, slots=True)
class CollectConfig:
    """How the base model writes conversations, and how many."""

    arch: Arch = setting(
        "eagle1",
        "Kind of head that the data is for; eagle3 also stores the states of three layers.",
        choices=get_args(Arch),
    )
    n_tokens: int = setting(500_000, "Answer tokens to collect.", min=1, max=1_000_000_000)
    batch_size: int = setting(96, "Conversations written at once.", min=1, max=4096)
    max_length: int = setting(400, "Longest conversation, in tokens.", min=16, max=32_768)
    max_user_tokens: int = setting(
        72, "Longest self-written user turn, in tokens.", min=4, max=4096
    )
    max_answer_tokens: int = setting(400, "Longest answer, in tokens.", min=8, max=32_768)
    text_share: float = setting(
        0.0,
        "Share of the batches whose user turns carry a text to work on, made of earlier answers.",
        min=0.0,
        max=1.0,
    )
    max_text_tokens: int = setting(
        600,
        "Longest text in a user turn, in tokens; max_length bounds it, too.",
        min=64,
        max=32_768,
    )
    user_temperature: float = setting(
        0.9, "Temperature of self-written user turns.", min=0.05, max=2.0
    )
    temperatures: tuple[float, ...] = setting(
        (0.0, 0.0, 0.7, 1.0), "Temperatures of the answers, taken in turn; 0 is greedy."
    )
    top_k: int = setting(64, "Sample among this many likeliest tokens; 0: all.", min=0, max=100_000)
    seed: int = setting(0, "Seed of everything that is drawn.", min=0, max=2**31)

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.temperatures or not all(0.0 <= t <= 5.0 for t in self.temperatures):
            raise ConfigError(
                "temperatures is no list of temperatures",
                expected="one or more numbers from 0 to 5",
                got=str(self.temperatures),
                hint="for example 0,0.7,1",
            )


@dataclass(frozen=True, slots=True)
class FitConfig:
    """How a head is trained. The paper's values where it names them; notes where ours differ."""

    arch: Arch = setting(
        "eagle1",
        "Kind of head; eagle3 needs data that was collected for it, has its own LM head and no regression.",
        choices=get_args(Arch),
    )
    epochs: float = setting(2.0, "Passes over the data.", min=0.001, max=1000.0)
    max_minutes: float = setting(
        0.0,
        "End after this time with the learning rate fully decayed; 0: only by epochs.",
        min=0.0,
        max=100_000.0,
    )
    batch_tokens: int = setting(
        6144, "Tokens per optimiser step, padding included.", min=16, max=10_000_000
    )
    optimizer: OptimizerName = setting(
        "muon", "adamw (the paper), or muon: matrices by Muon, the rest by AdamW.",
        choices=get_args(OptimizerName),
    )  # fmt: skip
    learning_rate: float = setting(2e-3, "Peak learning rate.", min=1e-7, max=1.0)
    warmup: float = setting(0.02, "Share of the steps that warm up.", min=0.0, max=0.5)
    final_rate: float = setting(
        0.02, "Last learning rate as a share of the peak.", min=0.0, max=1.0
    )
    weight_decay: float = setting(0.01, "Decoupled weight decay.", min=0.0, max=1.0)
    beta1: float = setting(0.9, "AdamW's first beta (paper: 0.9).", min=0.0, max=0.9999)
    beta2: float = setting(0.95, "AdamW's second beta (paper: 0.95).", min=0.0, max=0.9999)
    clip: float = setting(0.5, "Largest gradient norm (paper: 0.5).", min=1e-4, max=1000.0)
    regression_weight: float = setting(
        0.3,
        "Weight of SmoothL1 on features divided by their standard deviation (paper: 1); for eagle1.",
        min=0.0,
        max=100.0,
    )
    token_weight: float = setting(
        1.0,
        "Weight of the soft cross-entropy on the LM head's distribution (paper: 0.1).",
        min=0.0,
        max=100.0,
    )
    noise: float = setting(
        0.1,
        "Half-width of uniform noise on input features, in standard deviations (paper: 0.1); for eagle1.",
        min=0.0, max=10.0,
    )  # fmt: skip
    unroll: int = setting(
        2,
        "Steps on the head's own predictions (HASS; EAGLE-3's paper: 7); 1: teacher forcing.",
        min=1,
        max=8,
    )
    unroll_decay: float = setting(0.85, "Weight of each further unrolled step.", min=0.0, max=1.0)
    loss_fraction: float = setting(
        0.25,
        "Share of the positions, drawn anew each batch, on which cross-entropy is taken.",
        min=0.01,
        max=1.0,
    )
    train_on_prompts: bool = setting(
        False,
        "Count prompt tokens in the loss, too; of use where the model wrote the prompts itself.",
    )
    draft_vocab_size: int = setting(
        8192, "Most frequent tokens of the data that the head scores; 0: the whole vocabulary.",
        min=0, max=1_000_000,
    )  # fmt: skip
    n_layers: int = setting(
        1, "Decoder layers of the head (published EAGLE-1 heads: 1).", min=1, max=4
    )
    feature_norm: bool = setting(
        True,
        "Give each fused state a norm of its own first (Eagle 3.1), as their sizes differ; for eagle3.",
    )
    held_out_shards: int = setting(
        2, "First shards of the data, kept for measuring.", min=1, max=1000
    )
    eval_every: int = setting(
        100, "Optimiser steps between held-out measurements.", min=1, max=1_000_000
    )
    checkpoint_every_s: float = setting(
        120.0, "Seconds between checkpoints.", min=0.0, max=86_400.0
    )
    seed: int = setting(0, "Seed of data order, noise and drawn positions.", min=0, max=2**31)

    def __post_init__(self) -> None:
        check_limits(self)


__all__ = ["Arch", "CollectConfig", "FitConfig", "OptimizerName"]
