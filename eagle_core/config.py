"""Settings as frozen dataclasses, validated on construction: the one source of defaults.

CLI flags, UI controls and the documentation's tables are made from these fields and their metadata
(``help``, ``min``, ``max``, ``step``, ``choices``). Knows no torch and no model.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args

from eagle_core.errors import ConfigError

TreePolicy = Literal["auto", "chain", "static", "dynamic"]
DrafterName = Literal["none", "ngram", "eagle"]
Rule = Literal["greedy", "match", "sampling"]
RuleChoice = Literal["auto", "match", "sampling"]
DType = Literal["auto", "float32", "bfloat16"]
HeadDType = Literal["auto", "float32", "bfloat16", "float16", "int8", "nf4"]
Quantization = Literal["auto", "none", "int8", "nf4", "fp4", "int8-bnb", "llm-int8"]
Overflow = Literal["drop", "stop"]
Shape = tuple[tuple[int, ...], ...]
LogitBias = tuple[tuple[int, float], ...]

DEFAULT_BASE = "smollm2-135m"

# Ranks from the root: (1, 0) is the best child of the second-best child. The paper's Figure 9 has the same
# idea: likelier branches are deeper and wider. 25 drafted nodes, depth 5.
FIGURE_9: Shape = (
    (0,), (1,), (2,), (3,),
    (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0),
    (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0),
    (0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2),
    (0, 0, 0, 0, 0), (0, 0, 0, 0, 1),
)  # fmt: skip

# Where the host sees the head's scores without waiting, ``auto`` grows one tree as far as it pays, at most to
# this depth, branching and size.
LARGEST_AUTO_TREE = (5, 2, 12)
# Elsewhere: those of the trees that ``auto`` tries beside plain steps and lookup alone; the first is what
# measured best on the default model as a fixed tree.
AUTO_TREES = ((2, 2, 3), (1, 2, 2), (5, 4, 16))

MAX_BIAS = 100  # OpenAI's limit: beyond it a token is as good as banned, or certain

T = TypeVar("T")


def setting(default: Any, help: str, **limits: Any) -> Any:
    """A dataclass field with its documentation and limits (``min``, ``max``, ``step``, ``choices``)."""
    return field(default=default, metadata={"help": help, **limits})


def check_limits(config: Any) -> None:
    """Compare every field of a dataclass with its own limits.

    Raises: ConfigError naming the field, the limits and the value.
    """
    for spec in dataclasses.fields(config):
        value, limits = getattr(config, spec.name), spec.metadata
        if value is None:
            continue
        choices = limits.get("choices")
        if choices is not None and value not in choices:
            raise ConfigError(
                f"{spec.name} is not one of the choices",
                expected=", ".join(map(str, choices)),
                got=repr(value),
                hint=f"{spec.name}: {limits['help']}",
            )
        if isinstance(spec.default, int) and not isinstance(value, int):
            raise ConfigError(
                f"{spec.name} is not a whole number",
                expected="a whole number",
                got=repr(value),
                hint=f"{spec.name}: {limits['help']}",
            )
        if "min" not in limits and "max" not in limits:
            continue
        low, high = limits.get("min", -math.inf), limits.get("max", math.inf)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            raise ConfigError(
                f"{spec.name} is out of range",
                expected=f"{low} to {high}",
                got=repr(value),
                hint=f"{spec.name}: {limits['help']}",
            )


def from_mapping(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a config dataclass from a mapping; an unknown key is an error, never dropped.

    Raises: ConfigError on an unknown key or a value outside its limits.
    """
    names = [spec.name for spec in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ConfigError(
            f"unknown setting {', '.join(unknown)}",
            expected=", ".join(names),
            got=", ".join(unknown),
            hint="check the spelling",
        )
    return kind(**values)


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How the answer is chosen. Under every rule but ``sampling`` these settings alone define the text.

    ``logit_bias`` may be given as a mapping and ``stop`` as any sequence; both are kept as tuples, so that
    a config stays immutable, hashable and the same after a trip through JSON.
    """

    max_new_tokens: int = setting(512, "Longest answer, in tokens.", min=1, max=1_000_000)
    temperature: float = setting(
        0.0, "0 takes the likeliest token; higher is more varied.", min=0.0, max=5.0, step=0.05
    )
    top_p: float = setting(
        1.0, "Sample among the likeliest tokens that hold this share of probability.",
        min=0.01, max=1.0, step=0.01,
    )  # fmt: skip
    seed: int = setting(
        0, "Same seed, same answer - with or without drafting.", min=0, max=2**63 - 1
    )
    top_k: int = setting(
        0, "Sample among this many likeliest tokens; 0: all.", min=0, max=1_000_000
    )
    min_p: float = setting(
        0.0, "Drop tokens less likely than this share of the likeliest one; 0: none.",
        min=0.0, max=1.0, step=0.01,
    )  # fmt: skip
    repetition_penalty: float = setting(
        1.0, "Above 1 makes tokens of prompt and answer less likely to come again; 1: off.",
        min=0.05, max=5.0, step=0.05,
    )  # fmt: skip
    presence_penalty: float = setting(
        0.0, "Taken off the score of every token that the answer already holds.",
        min=-2.0, max=2.0, step=0.05,
    )  # fmt: skip
    frequency_penalty: float = setting(
        0.0, "Taken off a token's score for each time that the answer already holds it.",
        min=-2.0, max=2.0, step=0.05,
    )  # fmt: skip
    logit_bias: LogitBias = setting(
        (), "Added to the scores of tokens, as id:bias, for example 123:-5 42:2.5."
    )
    min_new_tokens: int = setting(
        0, "No end of text before this many tokens.", min=0, max=1_000_000
    )
    stop: tuple[str, ...] = setting(
        (), "Ends the answer before this text; \\n is a new line, \\t a tab. There may be several.",
        repeats=True,
    )  # fmt: skip
    rule: RuleChoice = setting(
        "auto",
        "How drafts are accepted above temperature 0. match: same seed, same answer; sampling: the paper's "
        "Algorithm 1, equal in distribution only; auto: match.",
        choices=get_args(RuleChoice),
    )
    with_replacement: bool = setting(
        False, "Rule sampling: draw a node's children with replacement, as the paper does."
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))
        object.__setattr__(self, "stop", _texts(self.stop))
        check_limits(self)

    @property
    def acceptance(self) -> Rule:
        """The acceptance rule for a drafter that can follow any."""
        if self.temperature == 0:
            return "greedy"
        return "sampling" if self.rule == "sampling" else "match"


def _bias_pairs(bias: Any) -> LogitBias:
    """Pairs of token id and bias, by id, from a mapping (whose keys JSON may have made text) or pairs.

    Raises: ConfigError when an id is none, comes twice, or a bias is no number from -100 to 100.
    """
    try:
        pairs = [
            (int(token), float(value))
            for token, value in (bias.items() if isinstance(bias, Mapping) else bias or ())
        ]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "logit_bias is no mapping of token ids to numbers",
            expected="id:bias",
            got=repr(bias),
            hint="for example 123:-5 42:2.5",
        ) from error
    is_distinct = len({token for token, _ in pairs}) == len(pairs)
    if not is_distinct or not all(
        token >= 0 and math.isfinite(value) and abs(value) <= MAX_BIAS for token, value in pairs
    ):
        raise ConfigError(
            "logit_bias is out of range",
            expected=f"distinct ids from 0 on, biases from -{MAX_BIAS} to {MAX_BIAS}",
            got=repr(bias),
            hint="for example 123:-5 42:2.5",
        )
    return tuple(sorted(pairs))


def _texts(stop: Any) -> tuple[str, ...]:
    """Raises: ConfigError unless ``stop`` is a sequence of texts, none of them empty."""
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(
            "stop holds something other than text",
            expected="texts of at least one character",
            got=repr(stop),
            hint="leave it away for no stop strings",
        )
    return texts


def parse_logit_bias(text: str) -> LogitBias:
    """Token biases from words: ``123:-5 42:2.5`` is ((42, 2.5), (123, -5.0)).

    Raises: ConfigError naming what is no ``id:bias``.
    """
    return _bias_pairs([word.split(":") for word in text.replace(",", " ").split()])


def parse_stop(text: str) -> str:
    """A stop string as typed: ``\\n`` is a new line, ``\\t`` a tab, two backslashes are one."""
    return re.sub(r"\\([nt\\])", lambda found: {"n": "\n", "t": "\t"}.get(found[1], "\\"), text)


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Shape of the draft tree. It changes the speed only."""

    policy: TreePolicy = setting(
        "auto",
        "auto: what is fastest here, measured while it runs, or dynamic where depth, branching or size are "
        "set; chain: one path; static: a fixed shape; dynamic: grown by the head's confidence (EAGLE-2).",
        choices=get_args(TreePolicy),
    )
    depth: int = setting(
        2, "Draft steps: the longest path of drafted tokens (chain, dynamic).", min=1, max=16
    )
    branching: int = setting(
        2, "Nodes expanded per depth, and children drafted for each (dynamic).", min=1, max=64
    )
    size: int = setting(
        3,
        "Most drafted tokens in a tree (chain, dynamic); the target checks them at once.",
        min=1,
        max=256,
    )
    shape: Shape | None = setting(
        None,
        "Static tree as ranks from the root, for example 0 1 00 01; none: the paper's Figure 9 tree.",
    )
    lookup: int = setting(
        10, "Further nodes for text that stood here before (prompt lookup); 0: none.", min=0, max=64
    )
    start: TreeConfig | None = setting(
        None, "The tree that auto starts with, before it has measured any.", is_inner=True
    )

    def __post_init__(self) -> None:
        start: Any = self.start  # a mapping when it comes from JSON or TOML
        if isinstance(start, Mapping):
            object.__setattr__(self, "start", from_mapping(TreeConfig, start))
        if self.start is not None and self.start.policy == "auto":
            object.__setattr__(self, "start", None)
        check_limits(self)
        if self.policy == "auto" and (self.depth, self.branching, self.size) != AUTO_TREES[0]:
            object.__setattr__(self, "policy", "dynamic")
        if self.shape is not None:
            check_shape(self.shape)

    @property
    def ways(self) -> tuple[TreeConfig, ...]:
        """The trees that ``auto`` chooses among, the one to start with first; else the tree itself."""
        return _ways(self)

    @property
    def largest(self) -> TreeConfig:
        """The tree that ``auto`` grows as far as it pays, where the host sees the head's scores."""
        return TreeConfig("dynamic", *LARGEST_AUTO_TREE, lookup=self.lookup)

    @property
    def paths(self) -> Shape | None:
        """The fixed shape of a chain or a static tree; None for a tree that grows."""
        if self.policy in ("auto", "dynamic"):
            return None
        if self.policy == "chain":
            return tuple((0,) * depth for depth in range(1, min(self.depth, self.size) + 1))
        return self.shape if self.shape is not None else FIGURE_9

    @property
    def head_nodes(self) -> int:
        """Most nodes that the head drafts; a static shape says it itself."""
        return _head_limits(self)[0]

    @property
    def head_depth(self) -> int:
        """Most tokens on a path that the head drafts; a static shape says it itself."""
        return _head_limits(self)[1]

    @property
    def max_nodes(self) -> int:
        """Most drafted nodes, looked-up ones included."""
        return self.head_nodes + self.lookup

    @property
    def max_depth(self) -> int:
        """Most drafted tokens on a path, a looked-up one included."""
        return max(self.head_depth, self.lookup)


@lru_cache(maxsize=64)  # asked for in every step
def _ways(tree: TreeConfig) -> tuple[TreeConfig, ...]:
    if tree.policy != "auto":
        return (tree,)
    trees = [TreeConfig("dynamic", *sizes, lookup=tree.lookup) for sizes in AUTO_TREES]
    if tree.start is not None:
        start = dataclasses.replace(tree.start, lookup=tree.lookup)
        trees = [start, *(other for other in trees if other != start)]
    return tuple(trees)


@lru_cache(maxsize=64)
def _head_limits(tree: TreeConfig) -> tuple[int, int]:
    """Most nodes, and most tokens on a path, that the head drafts."""
    if tree.policy == "auto":
        limits = [_head_limits(one) for one in (tree.largest, *tree.ways)]
        return max(nodes for nodes, _ in limits), max(depth for _, depth in limits)
    paths = tree.paths
    return (tree.size, tree.depth) if paths is None else (len(paths), max(map(len, paths)))


def parse_shape(text: str) -> Shape | None:
    """A static tree from words of ranks: ``0 1 00 01`` or, for ranks above 9, ``0.12.3``. None if empty.

    Raises: ConfigError naming the word that is no path.
    """
    paths = []
    for word in text.replace(",", " ").split():
        ranks = word.split(".") if "." in word else list(word)
        if not all(rank.isascii() and rank.isdigit() for rank in ranks):
            raise ConfigError(
                f"{word!r} in the static shape is no path",
                expected="ranks as digits",
                got=word,
                hint="For example: 0 1 00 01 000.",
            )
        paths.append(tuple(int(rank) for rank in ranks))
    return tuple(paths) or None


def check_shape(shape: Shape) -> None:
    """Check a static tree: every path's parent is there, and no path twice.

    Raises: ConfigError naming the offending path.
    """
    paths = set(shape)
    if not paths or len(paths) != len(shape):
        raise ConfigError(
            "the tree shape is empty or names a path twice",
            expected="distinct paths of ranks",
            got=str(shape),
            hint="for example 0 1 00 01 000",
        )
    for path in shape:
        if not path or min(path) < 0 or (len(path) > 1 and path[:-1] not in paths):
            raise ConfigError(
                "a path of the tree shape has no parent",
                expected=f"{path[:-1]} before {path}",
                got=str(shape),
                hint="list every prefix of a path, for example 0 00 000",
            )


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Which drafter proposes, and in which tree."""

    drafter: DrafterName = setting(
        "eagle",
        "none: plain decoding; ngram: repeats of earlier text alone; eagle: the EAGLE head.",
        choices=get_args(DrafterName),
    )
    tree: TreeConfig = field(
        default_factory=TreeConfig, metadata={"help": "Shape of the draft tree."}
    )

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """Which base model and head to load, and how."""

    base: str = setting(
        DEFAULT_BASE, "Base model: a known name, a Hub id, a folder or a .gguf file."
    )
    head: str | None = setting(
        None, "EAGLE head: a Hub id or a folder; none given: the one known for the base."
    )
    dtype: DType = setting(
        "auto", "Precision of the base model's weights.", choices=get_args(DType)
    )
    quantization: Quantization = setting(
        "auto",
        "Smaller weights. none: as dtype says; int8: 8 bits on a CPU, the fastest there; by bitsandbytes: "
        "nf4, fp4: 4 bits; int8-bnb: 8 bits; llm-int8: 8 bits with outlier columns, not exact; auto: none if "
        "it fits into free memory, else fewer bits.",
        choices=get_args(Quantization),
    )
    head_dtype: HeadDType = setting(
        "auto",
        "Precision of the head: it changes what is drafted, never the text. auto: the base's, or int8 where "
        "a CPU multiplies bytes faster.",
        choices=get_args(HeadDType),
    )
    device: str = setting(
        "auto",
        "auto, cpu, cuda, cuda:1, mps, or split: over all devices, memory and disk.",
    )
    chat_template: str | None = setting(
        None,
        "How a chat becomes a prompt: chatml, llama-2, plain, vicuna, or a file of Jinja; none given: the "
        "model's own.",
    )
    context_length: int | None = setting(
        None, "Longest prompt plus answer, in tokens; none given: the model's own, at most 8192.",
        min=64, max=1_000_000,
    )  # fmt: skip
    offline: bool = setting(False, "Use only what is already on this machine.")
    reproducible: bool = setting(
        True,
        "In 16 bits: the same answer with and without drafting, where the device allows it.",
    )
    cuda_graphs: bool = setting(
        False,
        "On an NVIDIA GPU: replay forwards as CUDA graphs instead of launching every operation, where that "
        "is found to give the same. Not tried on a GPU yet, so only where asked for.",
    )

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """How a conversation is sent."""

    overflow: Overflow = setting(
        "drop",
        "When the chat no longer fits the context. drop: the oldest turns are not sent, and marked so; "
        "stop: nothing is sent, and you choose.",
        choices=get_args(Overflow),
    )

    def __post_init__(self) -> None:
        check_limits(self)


__all__ = [
    "DEFAULT_BASE",
    "FIGURE_9",
    "ChatConfig",
    "DType",
    "DraftConfig",
    "DrafterName",
    "GenerationConfig",
    "HeadDType",
    "LoadConfig",
    "LogitBias",
    "Overflow",
    "Quantization",
    "Rule",
    "RuleChoice",
    "Shape",
    "TreeConfig",
    "TreePolicy",
    "check_limits",
    "check_shape",
    "from_mapping",
    "parse_logit_bias",
    "parse_shape",
    "parse_stop",
    "setting",
]
