"""What is measured: the methods' names, how often they answer, and where llama.cpp finds its models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from eagle_core.config import TreePolicy, check_limits, setting
from eagle_core.errors import ConfigError

Shape = Literal["llama-8b", "tiny"]
GpuPrecision = Literal["bfloat16", "nf4"]

LLAMA = "llama.cpp"
TRANSFORMERS = "transformers"
TRANSFORMERS_LOOKUP = "transformers-lookup"
PEERS = (TRANSFORMERS, TRANSFORMERS_LOOKUP, LLAMA)

TITLES = {
    "none": "plain decoding",
    "ngram": "lookup alone",
    "eagle": "EAGLE",
    TRANSFORMERS: "transformers generate",
    TRANSFORMERS_LOOKUP: "transformers prompt lookup",
    LLAMA: "llama.cpp",
}


def family_of(method: str) -> str:
    """A method's name without its variant: ``eagle:dynamic`` is of the family ``eagle``."""
    return method.partition(":")[0]


def variant_of(method: str) -> str:
    """What stands behind the colon: a tree policy, or the name of a GGUF file; "" if nothing does."""
    return method.partition(":")[2]


def is_peer(method: str) -> bool:
    """Whether another program answers."""
    return family_of(method) in PEERS


def title_of(method: str) -> str:
    """A method's name for the eye. Example: ``eagle:chain`` is "EAGLE, chain"."""
    family, variant = family_of(method), variant_of(method)
    title = TITLES.get(family, family)
    return f"{title}, {variant}" if variant else title


def is_method(name: str) -> bool:
    """Whether ``name`` is the name of a method."""
    family, colon, variant = name.partition(":")
    if family == "eagle" and colon:
        return variant in get_args(TreePolicy)
    if family == LLAMA and colon:
        return bool(variant)
    return not colon and family in TITLES


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What is measured how often.

    ``llama_gguf`` holds NAME=FILE, one for each method ``llama.cpp:NAME``.
    """

    methods: tuple[str, ...] = setting(
        ("none", "eagle"),
        "Comma-separated: none (this engine's plain decoding), ngram, eagle (with the tree of the flags), "
        "eagle:POLICY (auto, dynamic, static, chain), transformers (its generate), transformers-lookup "
        "(its prompt lookup), llama.cpp (its server, the base's own GGUF file), llama.cpp:NAME.",
    )
    llama_gguf: tuple[str, ...] = setting(
        (), "A model file for the method llama.cpp:NAME. May be given again.",
        repeats=True, metavar="NAME=FILE",
    )  # fmt: skip
    repeats: int = setting(1, "Times each question is asked.", min=1, max=1000)
    limit: int | None = setting(
        None, "Ask only this many questions, evenly spaced; none given: all.", min=1, max=1_000_000
    )
    warmup: int = setting(
        1, "Questions that every method answers unmeasured first.", min=0, max=100
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "llama_gguf", tuple(self.llama_gguf))
        check_limits(self)
        is_distinct = len(set(self.methods)) == len(self.methods)
        if not self.methods or not is_distinct or not all(map(is_method, self.methods)):
            names = ", ".join((*TITLES, "eagle:POLICY", f"{LLAMA}:NAME"))
            raise ConfigError(
                "methods is not a list of distinct methods",
                expected=f"some of {names}",
                got=",".join(self.methods),
                hint="for example none,eagle",
            )
        self._check_files()

    def _check_files(self) -> None:
        """Raises: ConfigError unless the names of files and of llama.cpp's methods are the same."""
        wanted = {variant_of(name) for name in self.methods if family_of(name) == LLAMA} - {""}
        names = [one.partition("=")[0] for one in self.llama_gguf]
        if set(names) != wanted or len(set(names)) < len(names) or not all(self.files.values()):
            raise ConfigError(
                "llama_gguf does not name one file for each llama.cpp:NAME of the methods",
                expected=" ".join(f"{name}=FILE" for name in sorted(wanted)) or "none",
                got=" ".join(self.llama_gguf) or "none",
                hint="for example --methods none,llama.cpp:q8 --llama-gguf q8=model-Q8_0.gguf",
            )

    @property
    def files(self) -> dict[str, str]:
        """The GGUF files by their names."""
        return {name: file for name, _, file in (one.partition("=") for one in self.llama_gguf)}

    def file_of(self, method: str) -> Path | None:
        """The file given for a method ``llama.cpp:NAME``; None for any other."""
        file = self.files.get(variant_of(method)) if family_of(method) == LLAMA else None
        return Path(file).expanduser() if file else None


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """What is measured on an accelerator."""

    device: str = setting("cuda", "Where it is measured: cuda, cuda:1; cpu with --shape tiny.")
    shape: Shape = setting(
        "llama-8b", "Shape of the model with random weights. tiny: to try the command itself.",
        choices=get_args(Shape),
    )  # fmt: skip
    precisions: tuple[str, ...] = setting(
        ("bfloat16", "nf4"), "Comma-separated: bfloat16, nf4 (needs bitsandbytes)."
    )
    prompt_tokens: int = setting(
        512, "Tokens in the cache while forwards are timed.", min=8, max=100_000
    )
    new_tokens: int = setting(128, "Tokens of the plain decoding that is timed.", min=8, max=10_000)
    max_minutes: float = setting(
        7.0, "No further part is started after this time.", min=0.1, max=1000.0
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if not self.precisions or set(self.precisions) - set(get_args(GpuPrecision)):
            raise ConfigError(
                "precisions is not a list of known ones",
                expected=f"some of {', '.join(get_args(GpuPrecision))}",
                got=",".join(self.precisions),
                hint="for example bfloat16",
            )


__all__ = [
    "LLAMA",
    "PEERS",
    "TRANSFORMERS",
    "TRANSFORMERS_LOOKUP",
    "BenchConfig",
    "GpuConfig",
    "family_of",
    "is_method",
    "is_peer",
    "title_of",
    "variant_of",
]
