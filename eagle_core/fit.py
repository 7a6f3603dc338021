"""Whether a model fits a machine, before anything is fetched: bytes from dimensions, a verdict, a proposal.

Pure: no torch, no network. What a machine has free comes in as a :class:`Machine` (``machine`` asks it), what
a model measures as a :class:`ModelSize`. Estimates are of the peak while answering at a full context; tests
compare them with measured peaks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle_core.catalog import PRECISIONS, CatalogEntry, Precision, default_entry, packaged
from eagle_core.config import TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.sizes import HeadSize, ModelSize, usual_head

Verdict = Literal["fits", "slow", "too-large"]
DeviceKind = Literal["cpu", "cuda", "mps"]
SENTENCES: dict[Verdict, str] = {
    "fits": "Fits",
    "slow": "May be slow",
    "too-large": "Won't fit",
}

# Of a linear layer, per weight. nf4: half a byte, and one byte of scale, quantized itself, for 64 weights.
LINEAR_BYTES: dict[Precision, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "int8": 1.0,
    "nf4": 0.5 + 1 / 64,
}
# On a CPU the kernels keep linear layers and LM head packed, in place of the plain weights: in float32 bytes
# per weight that bfloat16 holds exactly, and of others; in int8 one byte, and a scale for 64 weights.
PACKED_BYTES = {True: 2.0, False: 4.0}
PACKED_INT8_BYTES = 1.0625
TOKENIZER_BYTES = 1000  # of main memory per token of the vocabulary
FRAMEWORK_BYTES = 40_000_000  # modules and buffers that come with any model; measured
# What other programs, the framework itself and fragmentation are left.
MARGIN_BYTES: dict[DeviceKind, int] = {
    "cpu": 1_000_000_000,
    "cuda": 2_000_000_000,
    "mps": 2_000_000_000,
}
# A CPU reads about 20 GB of weights in a second; below 4 tokens a second reading is faster than the answer.
SLOW_READ_BYTES = 5_000_000_000
DEFAULT_CONTEXT = 8192  # as ``loading`` takes it where a model allows more
TREE_ROOM = 257  # rows beside the context, as ``session`` keeps them for the largest tree
CHUNK_ROWS = 256  # prompt tokens per forward, as ``engine`` reads them
# Tensors of the hidden size that a chunk's forward keeps at once: residual, norm, projections, the MLP's.
CHUNK_TENSORS = 16
LOGIT_COPIES = 4  # raw, processed, probabilities and the sorted ones

ORDER: dict[DeviceKind, tuple[Precision, ...]] = {
    # float32 first on a CPU: there answers are the same with and without drafting, to the token.
    "cpu": ("float32", "bfloat16", "int8", "nf4"),
    "cuda": ("bfloat16", "int8", "nf4"),
    "mps": ("bfloat16",),
}
SLOW_ON_CPU: tuple[Precision, ...] = ("nf4",)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is free now: on the device that would hold the model, and in main memory."""

    device: DeviceKind
    free_bytes: int
    free_ram_bytes: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by part."""

    weight_bytes: int
    head_bytes: int
    cache_bytes: int
    work_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What must be free: the peak of all parts together."""
        return self.weight_bytes + self.head_bytes + self.cache_bytes + self.work_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """A verdict on one model, precision and device. ``reason`` is a sentence, empty when all is well."""

    verdict: Verdict
    device: DeviceKind
    precision: Precision
    context_length: int
    estimate: Estimate
    free_bytes: int
    margin_bytes: int
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        return SENTENCES[self.verdict]


def estimate(
    base: ModelSize,
    head: HeadSize | None,
    precision: Precision,
    device: DeviceKind,
    context_length: int | None = None,
    tree: TreeConfig | None = None,
) -> Estimate:
    """The memory that a pair takes.

    Args: context_length: tokens of prompt and answer; None: what is loaded by default.
    """
    is_wide = precision == "float32" or (precision == "int8" and device == "cpu")
    value_bytes = 4 if is_wide else 2  # of activations, cache and head
    rows = _context(base, context_length) + TREE_ROOM
    outside = base.n_parameters - base.n_linear
    weights = base.n_linear * LINEAR_BYTES[precision] + outside * value_bytes
    packed_bytes = 0.0
    if device == "cpu" and is_wide:
        packed_bytes = PACKED_INT8_BYTES if precision == "int8" else PACKED_BYTES[base.is_bfloat16]
        plain_head = 0 if base.is_tied else base.n_lm_head  # else it stays, as the embedding
        weights = (outside - plain_head) * value_bytes
        weights += (base.n_linear + base.n_lm_head) * packed_bytes
    cache = 2 * base.n_layers * base.n_kv_heads * base.head_dim * rows * value_bytes
    head_bytes = 0
    if head is not None:
        head_weights = head.n_parameters
        # Without an LM head of its own, the scorer is a slice of the base's.
        head_weights += head.n_draft_vocabulary * base.hidden_size
        head_bytes = round(head_weights * (value_bytes + PACKED_BYTES[True] * (packed_bytes > 0)))
        cache += 2 * head.n_layers * head.n_kv_heads * head.head_dim * rows * value_bytes
    n_nodes = 1 + (tree or TreeConfig()).max_nodes
    work = LOGIT_COPIES * n_nodes * base.vocab_size * 4
    work += CHUNK_TENSORS * CHUNK_ROWS * base.hidden_size * value_bytes
    if device != "cuda":
        work += TOKENIZER_BYTES * base.vocab_size + FRAMEWORK_BYTES
    return Estimate(round(weights), head_bytes, cache, work)


def judge(
    base: ModelSize,
    head: HeadSize | None,
    precision: Precision,
    machine: Machine,
    context_length: int | None = None,
    tree: TreeConfig | None = None,
) -> Fit:
    """Whether a pair in one precision fits the machine's device."""
    free, margin = machine.free_bytes, MARGIN_BYTES[machine.device]
    found = estimate(base, head, precision, machine.device, context_length, tree)
    verdict: Verdict = "fits"
    reason = ""
    if found.needed_bytes > free:
        verdict, reason = "too-large", f"needs {_gb(found.needed_bytes)}, {_gb(free)} are free"
    elif found.needed_bytes + margin > free:
        verdict = "slow"
        reason = f"leaves {_gb(free - found.needed_bytes)} of memory, less than {_gb(margin)}"
    elif machine.device == "cpu" and precision in SLOW_ON_CPU:
        verdict, reason = "slow", f"{precision} saves memory on a CPU, not time"
    elif machine.device == "cpu" and _read_bytes(base, precision) > SLOW_READ_BYTES:
        verdict = "slow"
        reason = f"a CPU reads {_gb(_read_bytes(base, precision))} of weights for every token"
    context = _context(base, context_length)
    return Fit(verdict, machine.device, precision, context, found, free, margin, reason)


def best_fit(
    base: ModelSize,
    head: HeadSize | None,
    machine: Machine,
    precisions: Sequence[Precision] = PRECISIONS,
    context_length: int | None = None,
    tree: TreeConfig | None = None,
) -> Fit:
    """The best way to run a pair: the finest precision that fits, else the finest that is only slow.

    What does not fit an accelerator may still run on the processor; that is slow at best.

    Raises: ConfigError when the pair has no precision for this device.
    """
    order = [precision for precision in ORDER[machine.device] if precision in precisions]
    here = [judge(base, head, one, machine, context_length, tree) for one in order]
    if not here:
        raise ConfigError(
            "none of these precisions works on this device",
            expected=", ".join(ORDER[machine.device]),
            got=", ".join(precisions),
            hint="choose bfloat16",
        )
    fitting = [fit for fit in here if fit.verdict == "fits"]
    slow = [fit for fit in here if fit.verdict == "slow"]
    if fitting:
        return fitting[0]
    if slow:  # of the slow ones 16 bits read half of what 32 do
        return next((fit for fit in slow if fit.precision == "bfloat16"), slow[0])
    if machine.device == "cuda":
        memory = Machine("cpu", machine.free_ram_bytes, machine.free_ram_bytes)
        there = best_fit(base, head, memory, precisions, context_length, tree)
        if there.verdict != "too-large":
            reason = "too large for the graphics card; the processor can compute it"
            return dataclasses.replace(there, verdict="slow", reason=reason)
    return min(here, key=lambda fit: fit.estimate.needed_bytes)


def fit_entry(
    entry: CatalogEntry, machine: Machine, context_length: int | None = None
) -> Fit | None:
    """The best way to run a known pair, from the numbers in the catalogue; None where it has none."""
    if entry.size is None:
        return None
    has_head = entry.head is not None and entry.method != "ngram"
    head = usual_head(entry.size, entry.method, entry.n_head_parameters or 0) if has_head else None
    tree = entry.tree_for(machine.device)
    return best_fit(entry.size, head, machine, entry.precisions, context_length, tree)


def recommend(machine: Machine, entries: Sequence[CatalogEntry] | None = None) -> CatalogEntry:
    """The best ungated pair that fits ``machine`` well; the default model when no other does.

    Of the entries that are marked for it, the largest is the best: they are of one family and age.
    """
    candidates = [
        entry
        for entry in (packaged() if entries is None else entries)
        if entry.is_recommended and not entry.is_gated
    ]
    for entry in sorted(candidates, key=lambda entry: -(entry.n_parameters or 0)):
        fit = fit_entry(entry, machine)
        if fit is not None and fit.verdict == "fits":
            return entry
    return default_entry()


def _context(base: ModelSize, asked: int | None) -> int:
    return asked or min(base.context_length, DEFAULT_CONTEXT)


def _read_bytes(base: ModelSize, precision: Precision) -> int:
    """Weights read for one token; the embedding is looked up, not read."""
    share = base.n_read / max(base.n_parameters, 1)
    embedding = 0 if base.is_tied else base.n_lm_head
    linear = round(base.n_linear * LINEAR_BYTES[precision])
    rest = (base.n_parameters - base.n_linear - embedding) * (4 if precision == "float32" else 2)
    return round((linear + rest) * share)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


__all__ = [
    "SENTENCES",
    "Estimate",
    "Fit",
    "Machine",
    "Verdict",
    "best_fit",
    "estimate",
    "fit_entry",
    "judge",
    "recommend",
]
