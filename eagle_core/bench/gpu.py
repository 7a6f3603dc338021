"""What an accelerator makes of this engine: plain decoding, rows and drafts, timed.

Weights are random and of a large model's shape, so nothing has to be fetched. Everything is timed as the
engine runs it, through ``Target`` and ``EagleDrafter``: first with every operation launched from Python, then
with forwards replayed as the engine's own CUDA graphs, which shows what the launches cost.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from eagle_core.bench.accelerator import accelerator
from eagle_core.bench.config import GpuConfig
from eagle_core.bench.provenance import peak_process_bytes
from eagle_core.bench.random_model import SHAPES, count_parameters, random_head, random_model
from eagle_core.cache import KVCache
from eagle_core.config import GenerationConfig, TreeConfig
from eagle_core.drafters.base import Budget
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.drafters.none import NoDrafter
from eagle_core.engine import generate_tokens
from eagle_core.errors import EagleError, OutOfMemory
from eagle_core.events import Finished
from eagle_core.kernels.cuda_graphs import graph_captures
from eagle_core.kernels.graphs import Captures
from eagle_core.packing import bytes_read
from eagle_core.target import Target
from eagle_core.tree import DraftTree

Figures = dict[str, Any]

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 60, 64)
WARM, TIMES = 3, 15  # unmeasured and measured runs of each figure
MOST_STEPS = 12  # after which a forward is replayed, or never is
COPY_BYTES = {"cuda": 2 * 2**30, "cpu": 16 * 2**20}
DEPTH = 5
TREES = {"dynamic": TreeConfig("dynamic", depth=DEPTH, branching=8, size=59, lookup=0)}
HEADS = ("eagle1", "eagle3")
# Plain decoding over its bound, at least; 60 rows, and one draft step, over one row, at most.
BARS = {"plain_of_bound": 0.80, "verify_60": 1.20, "draft_step": 0.06}


class Meter:
    """Milliseconds of a call, after the device has done what it was asked to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def wait(self) -> None:
        """Until the device is idle."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def ms(self, run: Callable[[], object]) -> float:
        """The median of some runs, a few more being left out at first."""
        found = []
        for _ in range(WARM + TIMES):
            self.wait()
            start_s = time.perf_counter()
            run()
            self.wait()
            found.append(1e3 * (time.perf_counter() - start_s))
        return statistics.median(found[WARM:])

    def restart_peak(self) -> None:
        """Forget the peak of memory, where the device can."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int:
        """Since :meth:`restart_peak`; of the whole process on a CPU."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return peak_process_bytes()


def copy_bandwidth_bytes_s(device: torch.device, meter: Meter) -> float:
    """Bytes a second of a large copy on the device, those read and those written together."""
    n_bytes = COPY_BYTES.get(device.type, COPY_BYTES["cpu"])
    source = torch.ones(n_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / (meter.ms(lambda: target.copy_(source)) / 1e3)


def measure(config: GpuConfig, say: Callable[[str], None]) -> Iterator[tuple[str, Figures]]:
    """All parts, each as soon as it is measured: "copy", then one per precision.

    A part that cannot be measured has ``skipped`` with the reason, and nothing else.

    Args: say: hears what is being measured.
    Raises: ConfigError without the device.
    """
    device = accelerator(config.device)
    meter = Meter(device)
    deadline_s = time.monotonic() + 60 * config.max_minutes
    say("copying memory")
    bandwidth = copy_bandwidth_bytes_s(device, meter)
    yield "copy", {"bandwidth_bytes_s": bandwidth}
    for precision in config.precisions:
        if time.monotonic() > deadline_s:
            yield precision, {"skipped": f"{config.max_minutes:g} minutes are over"}
            continue
        try:
            yield precision, measure_precision(config, precision, device, meter, bandwidth, say)
        except EagleError as error:
            yield precision, {"skipped": str(error)}
        except torch.OutOfMemoryError as error:
            full = OutOfMemory(str(error).split(". ")[0], hint="free some memory, or a larger GPU")
            yield precision, {"skipped": str(full)}
        if device.type == "cuda":
            torch.cuda.empty_cache()


def measure_precision(
    config: GpuConfig,
    precision: str,
    device: torch.device,
    meter: Meter,
    bandwidth: float,
    say: Callable[[str], None],
) -> Figures:
    """Every figure of one precision. Raises: what making the model raises."""
    say(f"{config.shape} in {precision}: making random weights")
    meter.restart_peak()
    context = config.prompt_tokens + max(config.new_tokens, max(ROWS)) + 2 * max(ROWS)
    model = random_model(SHAPES[config.shape], device, precision, context)
    weights = bytes_read(model)
    target = Target(model, context)
    target.set_reproducible(False)
    bound_ms = 1e3 * weights / bandwidth
    say(f"{config.shape} in {precision}: plain decoding")
    plain = plain_figures(target, config)
    say(f"{config.shape} in {precision}: forwards of 1 to {max(ROWS)} rows")
    verify = {rows: verify_ms(target, rows, config.prompt_tokens, meter) for rows in ROWS}
    target.set_reproducible(True)
    reproducible = {
        rows: verify_ms(target, rows, config.prompt_tokens, meter) for rows in (1, 16, 60)
    }
    target.set_reproducible(False)
    say(f"{config.shape} in {precision}: drafts")
    drafts = {kind: draft_figures(model, kind, config, device, meter) for kind in HEADS}
    captures, graph = graph_captures(device), None
    if captures is not None:
        say(f"{config.shape} in {precision}: the same as CUDA graphs")
        graph = graph_figures(target, config, meter, captures)
    found: Figures = {
        "n_parameters": count_parameters(model),
        "weight_bytes": weights,
        "bound_ms": bound_ms,
        "plain_tok_s": plain["tok_s"],
        "plain_ms": 1e3 / plain["tok_s"],
        "verify_ms": verify,
        "verify_reproducible_ms": reproducible,
        "draft": drafts,
        "graph": graph,
        "peak_bytes": meter.peak_bytes(),
    }
    if graph is not None and {1, 60} <= graph["verify_ms"].keys():
        found["graph"] = graph | {"bars": bars(found | graph)}
    return found | {"bars": bars(found)}


def plain_figures(target: Target, config: GpuConfig) -> Figures:
    """The engine's own loop without drafts."""
    prompt = [1 + i % (target.vocab_size - 1) for i in range(config.prompt_tokens)]
    generation = GenerationConfig(max_new_tokens=config.new_tokens)
    for _ in range(2):  # the first one warms up
        cache = target.new_cache()
        events = generate_tokens(
            target, cache, NoDrafter(), prompt, generation, TreeConfig("chain", lookup=0), frozenset()
        )  # fmt: skip
        stats = next(event.stats for event in events if isinstance(event, Finished))
    assert stats.decode_tok_s is not None
    return {"tok_s": stats.decode_tok_s, "ttft_s": stats.ttft_s}


def filled_cache(target: Target, n_tokens: int) -> KVCache:
    """A cache that holds a prompt of ``n_tokens`` tokens."""
    cache = target.new_cache()
    ids = torch.arange(n_tokens, device=target.device) % target.vocab_size  # [T]
    target.prefill_chunk(ids, cache)
    return cache


def bushy_tree(n_rows: int, device: torch.device) -> DraftTree:
    """A binary tree of ``n_rows`` nodes; its tokens are its nodes' numbers."""
    parents = torch.tensor([-1, *((node - 1) // 2 for node in range(1, n_rows))])  # [N]
    depth = n_rows.bit_length() - 1
    return DraftTree(torch.arange(n_rows, device=device), parents.to(device), depth)


def verify_ms(target: Target, n_rows: int, n_prompt: int, meter: Meter) -> float:
    """A forward over a tree of ``n_rows`` nodes behind a prompt."""
    cache = filled_cache(target, n_prompt)
    tree = bushy_tree(n_rows, target.device)
    return meter.ms(lambda: target.forward_tree(tree, cache))


def replayed_ms(
    target: Target, rows: Sequence[int], n_prompt: int, meter: Meter
) -> dict[int, float]:
    """The same forwards by rows, replayed as graphs; what is not replayed is left out."""
    found: dict[int, float] = {}
    if target.graphs is None:
        return found
    cache = filled_cache(target, n_prompt)
    for n_rows in rows:
        tree = bushy_tree(n_rows, target.device)
        cache.rewind(n_prompt)
        for _ in range(MOST_STEPS):  # captured, then checked at another length
            if target.graphs.is_replayed(n_rows, cache):
                found[n_rows] = meter.ms(partial(target.forward_tree, tree, cache))
                break
            target.forward_tree(tree, cache)
            cache.advance(1)
    return found


def graph_figures(
    target: Target, config: GpuConfig, meter: Meter, captures: Captures
) -> Figures | None:
    """What the engine's own graphs make of it: the same figures, and ``reason`` why some are missing.

    None where this model's forwards are not captured at all.
    """
    n_prompt, device = config.prompt_tokens, target.device
    target.use_graphs(captures)
    target.set_reproducible(True)
    reproducible = replayed_ms(target, (1, 16, 60), n_prompt, meter)
    reason = target.graphs.problem if target.graphs is not None else ""
    target.set_reproducible(False)
    if target.graphs is None:
        return None
    verify = replayed_ms(target, ROWS, n_prompt, meter)
    plain = plain_figures(target, config)
    found: Figures = {
        "reason": target.graphs.problem or reason,
        "verify_ms": verify,
        "verify_reproducible_ms": reproducible,
        "plain_tok_s": plain["tok_s"],
        "plain_ms": 1e3 / plain["tok_s"],
    }
    target.use_graphs(None)
    model: Any = target.model
    drafts = {kind: draft_figures(model, kind, config, device, meter, captures) for kind in HEADS}
    return found | {"draft": drafts}


def draft_figures(
    model: Any,
    kind: str,
    config: GpuConfig,
    device: torch.device,
    meter: Meter,
    captures: Captures | None = None,
) -> Figures:
    """A random head's chain and tree behind a prompt: milliseconds of a step, and of a whole proposal."""
    head = random_head(config.shape, kind, device)
    target = Target(model, None, head.feature_layers)
    target.set_reproducible(False)
    cache = target.new_cache(config.prompt_tokens + 2)
    ids = torch.arange(config.prompt_tokens, device=device) % target.vocab_size  # [T]
    features = target.prefill_chunk(ids, cache).features  # [T, D']

    def drafter(tree: TreeConfig) -> Callable[[], object]:
        made = EagleDrafter(
            head, target.embed, target.output_embeddings, tree, config.prompt_tokens + 8,
            captures=captures,
        )  # fmt: skip
        made.commit(ids, features, ids[0])
        budget = Budget(tree.max_nodes, tree.max_depth)
        return lambda: made.propose(ids[0], budget)

    chains = {
        depth: meter.ms(drafter(TreeConfig("chain", depth=depth, size=depth, lookup=0)))
        for depth in (1, DEPTH)
    }
    return {
        "n_parameters": count_parameters(head),
        "step_ms": max((chains[DEPTH] - chains[1]) / (DEPTH - 1), 0.0),
        "chain_ms": chains[DEPTH],
        "tree_ms": {name: meter.ms(drafter(tree)) for name, tree in TREES.items()},
    }


def bars(found: Figures) -> dict[str, Figures]:
    """What is aimed at, and what was measured."""
    one = found["verify_ms"][1]
    steps = [draft["step_ms"] for draft in found["draft"].values()]
    values = {
        "plain_of_bound": found["bound_ms"] / found["plain_ms"],
        "verify_60": found["verify_ms"][60] / one,
        "draft_step": min(steps) / one,
    }
    return {
        name: {
            "value": value,
            "bar": BARS[name],
            "is_met": value >= BARS[name] if name == "plain_of_bound" else value <= BARS[name],
        }
        for name, value in values.items()
    }


__all__ = [
    "BARS",
    "ROWS",
    "Meter",
    "bars",
    "bushy_tree",
    "copy_bandwidth_bytes_s",
    "graph_figures",
    "measure",
]
