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

from eagle_core.catalog import CatalogEntry, default_entry, default_tree, packaged
from eagle_core.config import TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.precision import (
    CHOSEN,
    DTYPE_BYTES,
    PRECISIONS,
    QUANTIZED_BYTES,
    WORKING,
    DeviceKind,
    spelled,
)
from eagle_core.precision import PrecisionName as Precision
from eagle_core.sizes import HeadSize, ModelSize, usual_head

Verdict = Literal["fits", "slow", "too-large"]
Place = Literal["cpu", "cuda", "mps", "split"]  # split: over all graphics cards
SENTENCES: dict[Verdict, str] = {
    "fits": "Fits",
    "slow": "May be slow",
    "too-large": "Won't fit",
}

TOKENIZER_BYTES = 1000  # of main memory per token of the vocabulary
FRAMEWORK_BYTES = 38_000_000  # modules and buffers that come with any model; measured
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
CHUNK_ROWS = 512  # prompt tokens per forward, as ``engine`` reads them
# Tensors of the hidden size that a chunk's forward keeps at once: residual, norm, projections, the MLP's.
CHUNK_TENSORS = 8
LOGIT_COPIES = 3  # in float32, beside the raw ones: processed, probabilities and the sorted ones

SLOW_ON_CPU: tuple[Precision, ...] = ("nf4",)
ON_THE_PROCESSOR = "too large for the graphics card; the processor can compute it"
ON_ALL_CARDS = "too large for one graphics card: it is spread over all of them"


@dataclass(frozen=True, slots=True)
class Machine:
    """What is free now: on the device that would hold the model, and in main memory.

    ``all_bytes`` is what all graphics cards have together, where there are several; ``lacks`` are precisions
    that do not work here; ``has_kernels``: the processor keeps linear layers packed.
    """

    device: DeviceKind
    free_bytes: int
    free_ram_bytes: int
    name: str = ""
    all_bytes: int = 0
    lacks: tuple[Precision, ...] = ()
    has_kernels: bool = True

    def alone(self) -> Machine:
        """The device, and nowhere else to go."""
        return dataclasses.replace(self, free_ram_bytes=0, all_bytes=0)

    def together(self) -> Machine:
        """All graphics cards as one."""
        return dataclasses.replace(self.alone(), free_bytes=max(self.all_bytes, self.free_bytes))


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
    device: Place
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
    *,
    is_packed: bool = True,
) -> Estimate:
    """The memory that a pair takes.

    Args:
        context_length: tokens of prompt and answer; None: what is loaded by default.
        is_packed: the kernels for CPUs are there.
    """
    meant = spelled(precision, device)
    value_bytes = meant.other_bytes  # of activations, cache and head
    rows = _context(base, context_length) + TREE_ROOM
    outside = base.n_parameters - base.n_linear
    weights = base.n_linear * meant.linear_bytes + outside * value_bytes
    packed_bytes = 0.0
    if device == "cpu" and is_packed and meant.dtype == "float32":
        packed_bytes = _packed_bytes(base, precision)
        plain_head = 0 if base.is_tied else base.n_lm_head  # else it stays, as the embedding
        weights = (outside - plain_head) * value_bytes
        weights += (base.n_linear + base.n_lm_head) * packed_bytes
    cache = 2 * base.n_layers * base.n_kv_heads * base.head_dim * rows * value_bytes
    head_bytes = 0
    if head is not None:
        head_weights = head.n_parameters
        if not head.has_lm_head:  # the scorer is a slice of the base's
            head_weights += head.n_draft_vocabulary * base.hidden_size
        head_bytes = round(
            head_weights * (QUANTIZED_BYTES["int8"] if packed_bytes else value_bytes)
        )
        cache += 2 * head.n_layers * head.n_kv_heads * head.head_dim * rows * value_bytes
    n_nodes = 1 + (tree or TreeConfig()).max_nodes
    work = n_nodes * base.vocab_size * (value_bytes + LOGIT_COPIES * 4)
    work += CHUNK_TENSORS * CHUNK_ROWS * base.hidden_size * value_bytes
    if device != "cuda":
        work += TOKENIZER_BYTES * base.vocab_size + FRAMEWORK_BYTES
    return Estimate(round(weights), head_bytes, cache, work)


def _packed_bytes(base: ModelSize, precision: Precision) -> float:
    """Of a weight that the kernels for CPUs keep: bfloat16 where that holds it exactly."""
    if precision == "int8":
        return QUANTIZED_BYTES["int8"]
    return DTYPE_BYTES["bfloat16" if base.is_bfloat16 else "float32"]


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
    found = estimate(
        base, head, precision, machine.device, context_length, tree, is_packed=machine.has_kernels
    )
    verdict: Verdict = "fits"
    reason = ""
    n_read = _read_bytes(base, precision, machine)
    if found.needed_bytes > free:
        verdict, reason = "too-large", f"needs {_gb(found.needed_bytes)}, {_gb(free)} are free"
    elif found.needed_bytes + margin > free:
        verdict = "slow"
        reason = f"leaves {_gb(free - found.needed_bytes)} of memory, less than {_gb(margin)}"
    elif machine.device == "cpu" and precision in SLOW_ON_CPU:
        verdict, reason = "slow", f"{precision} saves memory on a CPU, not time"
    elif machine.device == "cpu" and n_read > SLOW_READ_BYTES:
        verdict = "slow"
        reason = f"a CPU reads {_gb(n_read)} of weights for every token"
    context = _context(base, context_length)
    return Fit(verdict, machine.device, precision, context, found, free, margin, reason)


def order(machine: Machine, precisions: Sequence[Precision]) -> tuple[Precision, ...]:
    """Which of these are tried on a machine, the most exact first.

    Raises: ConfigError when none of them works on its device.
    """
    working = [
        one for one in WORKING[machine.device] if one in precisions and one not in machine.lacks
    ]
    chosen = CHOSEN[machine.device]
    if "bfloat16" in machine.lacks:
        chosen = ("float32", *chosen)
    asked = [one for one in precisions if one in DTYPE_BYTES and one in WORKING[machine.device]]
    # What is never chosen is taken where nothing else is left, and 16 bits that are slow where asked for.
    found = tuple(one for one in working if one in chosen) or tuple(working) or tuple(asked)
    if not found:
        raise ConfigError(
            "none of these precisions works on this device",
            expected=", ".join(one for one in WORKING[machine.device] if one not in machine.lacks),
            got=", ".join(precisions),
            hint="choose bfloat16",
        )
    return found


def best_fit(
    base: ModelSize,
    head: HeadSize | None,
    machine: Machine,
    precisions: Sequence[Precision] = PRECISIONS,
    context_length: int | None = None,
    tree: TreeConfig | None = None,
) -> Fit:
    """The best way to run a pair: the finest precision that fits, else the finest that is only slow.

    What does not fit a graphics card may fit several, or the processor; that is slow at best.

    Raises: ConfigError when the pair has no precision for this device.
    """
    tried = order(machine, precisions)
    here = [judge(base, head, one, machine, context_length, tree) for one in tried]
    fitting = [fit for fit in here if fit.verdict == "fits"]
    slow = [fit for fit in here if fit.verdict == "slow"]
    if fitting:
        return fitting[0]
    if slow:
        return _best_of_slow(base, slow, machine)
    if machine.all_bytes > machine.free_bytes:
        spread = best_fit(base, head, machine.together(), precisions, context_length, tree)
        if spread.verdict != "too-large":
            reason = spread.reason or ON_ALL_CARDS
            return dataclasses.replace(spread, device="split", reason=reason)
    if machine.device == "cuda" and machine.free_ram_bytes > 0:
        lacks: set[Precision] = {"int8", *machine.lacks} - {"bfloat16"}  # of it less is known
        ram = machine.free_ram_bytes
        memory = Machine("cpu", ram, ram, lacks=tuple(lacks), has_kernels=machine.has_kernels)
        there = best_fit(base, head, memory, precisions, context_length, tree)
        if there.verdict != "too-large":
            return dataclasses.replace(there, verdict="slow", reason=ON_THE_PROCESSOR)
    return min(here, key=lambda fit: fit.estimate.needed_bytes)


def _best_of_slow(base: ModelSize, slow: Sequence[Fit], machine: Machine) -> Fit:
    """The finest, but not float32 where bfloat16 leaves more memory free or reads less."""
    finest, half = slow[0], next((fit for fit in slow if fit.precision == "bfloat16"), None)
    if half is None or finest.precision != "float32":
        return finest
    is_short = finest.estimate.needed_bytes + finest.margin_bytes > finest.free_bytes
    read_bytes = [_read_bytes(base, one.precision, machine) for one in (finest, half)]
    reads_more = (
        read_bytes[0] > 1.1 * read_bytes[1]
    )  # norms, which are kept as they are, don't count
    return half if is_short or reads_more else finest


def fit_entry(
    entry: CatalogEntry, machine: Machine, context_length: int | None = None
) -> Fit | None:
    """The best way to run a known pair, from the numbers in the catalogue; None where it has none."""
    if entry.size is None:
        return None
    has_head = entry.head is not None and entry.method != "ngram"
    head = usual_head(entry.size, entry.method, entry.n_head_parameters or 0) if has_head else None
    tree = default_tree(entry, machine.device)
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


def _read_bytes(base: ModelSize, precision: Precision, machine: Machine) -> int:
    """Weights read for one token; the embedding is looked up, not read."""
    share = base.n_read / max(base.n_parameters, 1)
    meant = spelled(precision, machine.device)
    n_linear, linear_bytes = base.n_linear, meant.linear_bytes
    if machine.device == "cpu" and machine.has_kernels and meant.dtype == "float32":
        n_linear, linear_bytes = n_linear + base.n_lm_head, _packed_bytes(base, precision)
    embedding = 0 if base.is_tied else base.n_lm_head
    rest = max(base.n_parameters - n_linear - embedding, 0) * meant.other_bytes
    return round((n_linear * linear_bytes + rest) * share)


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


__all__ = [
    "SENTENCES",
    "SLOW_ON_CPU",
    "Estimate",
    "Fit",
    "Machine",
    "Verdict",
    "best_fit",
    "estimate",
    "fit_entry",
    "judge",
    "order",
    "recommend",
]
