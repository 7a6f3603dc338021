"""Command-line flags made from the config dataclasses, so that defaults and limits live there only."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from eagle_core.config import (
    DraftConfig,
    GenerationConfig,
    LoadConfig,
    LogitBias,
    Shape,
    TreeConfig,
    from_mapping,
    parse_logit_bias,
    parse_shape,
    parse_stop,
)
from eagle_core.errors import ConfigError

T = TypeVar("T")

# Where a field's own name says too little without its dataclass.
FLAG_NAMES = {(TreeConfig, "policy"): "tree"}
TITLES: dict[type[Any], str] = {
    LoadConfig: "model",
    GenerationConfig: "answer",
    DraftConfig: "drafting (changes the speed, never the text)",
    TreeConfig: "draft tree",
}


class UsageError(ConfigError):
    """The command line itself is wrong: exit code 2."""

    def __init__(self, message: str, *, hint: str = "", usage: str = "") -> None:
        super().__init__(message, hint=hint)
        self.usage = usage


LONGEST_USAGE = 4  # lines; a longer usage hides the message that follows it


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of ending the process, so that ``--json`` can report it too."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the usage if it is short; a word that is missing is named by its choices."""
        if self._subparsers is not None and message.startswith(
            "the following arguments are required"
        ):
            choices = next(action.choices for action in self._actions if action.choices)
            message = f"say what to do: {', '.join(map(str, choices))}"
        usage = self.format_usage()
        hint = f"see `{self.prog} --help`"
        raise UsageError(
            message, hint=hint, usage=usage if usage.count("\n") <= LONGEST_USAGE else ""
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but a flag that does not exist is named before one that is missing.

        Raises: UsageError.
        """
        if self._subparsers is None:
            self._check_flags(args or ())
        return super().parse_known_args(args, namespace)

    def _check_flags(self, args: Sequence[str]) -> None:
        known = self._option_string_actions
        for argument in args:
            name = argument.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and " " not in name and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                self.error(f"unknown flag {name}" + (f" (did you mean {near[0]}?)" if near else ""))


def add_config_flags(parser: argparse.ArgumentParser, *kinds: type[Any]) -> None:
    """A flag for each field of each dataclass but inner ones and those that are configs themselves."""
    for kind in kinds:
        summary = (kind.__doc__ or kind.__name__).partition(".")[0].lower()
        group = parser.add_argument_group(TITLES.get(kind, summary))
        hints = get_type_hints(kind)
        for spec in dataclasses.fields(kind):
            if not dataclasses.is_dataclass(hints[spec.name]) and not spec.metadata.get("is_inner"):
                _add_flag(group, kind, spec, hints[spec.name])


def _add_flag(
    group: argparse._ArgumentGroup, kind: type[Any], spec: dataclasses.Field[Any], hint: Any
) -> None:
    name = FLAG_NAMES.get((kind, spec.name), spec.name)
    flag = f"--{name.replace('_', '-')}"
    help_text = _help(spec)
    # SUPPRESS: a flag that was not given is absent, and the dataclass's own default holds.
    settings: dict[str, Any] = {"dest": _dest(kind, spec.name), "default": argparse.SUPPRESS}
    if hint is bool:
        # What is on by default has a flag that turns it off, too.
        action: Any = argparse.BooleanOptionalAction if spec.default else "store_true"
        group.add_argument(flag, action=action, help=help_text, **settings)
        return
    settings["type"], settings["metavar"] = _parser_of(hint)
    choices = spec.metadata.get("choices")
    if choices is not None:
        settings["choices"], settings["metavar"] = choices, "|".join(choices)
    if spec.metadata.get("repeats"):
        metavar = spec.metadata.get("metavar")  # of what is not text: no escapes there
        settings |= {"type": str if metavar else parse_stop, "metavar": metavar or "TEXT"}
        settings["action"] = "append"
    group.add_argument(flag, help=help_text, **settings)


def _help(spec: dataclasses.Field[Any]) -> str:
    default = spec.default
    text = str(spec.metadata["help"]).replace("%", "%%")
    if default is None or default == () or isinstance(default, bool):
        return text
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} (default: {shown})"


def _dest(kind: type[Any], name: str) -> str:
    return f"{kind.__name__}.{name}"


def _parser_of(hint: Any) -> tuple[Callable[[str], Any], str]:
    """How to read a value of type ``hint``, and what to call it in the help."""
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if hint == Shape:
        return _shape, '"0 1 00 01"'
    if hint == LogitBias:
        return _logit_bias, '"ID:BIAS ..."'
    if get_origin(hint) is tuple:
        return (parse_numbers, "X,Y") if get_args(hint)[0] is float else (parse_names, "A,B")
    if hint is int:
        return int, "N"
    if hint is float:
        return float, "X"
    return str, "TEXT"


def parse_names(text: str) -> tuple[str, ...]:
    """Comma-separated names: "a, b" is ("a", "b")."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_numbers(text: str) -> tuple[float, ...]:
    """Comma-separated numbers: "0, 0.7" is (0.0, 0.7)."""
    return tuple(float(name) for name in parse_names(text))


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises: argparse.ArgumentTypeError.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _shape(text: str) -> Shape:
    """Raises: argparse.ArgumentTypeError when the text is no tree shape."""
    try:
        shape = parse_shape(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error.message}; an example is '0 1 00 01'") from error
    if shape is None:
        raise argparse.ArgumentTypeError("the tree shape is empty; an example is '0 1 00 01'")
    return shape


def _logit_bias(text: str) -> LogitBias:
    """Raises: argparse.ArgumentTypeError when the text is no list of biases."""
    try:
        return parse_logit_bias(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{error.message}; {error.hint}") from error


def read_config(args: argparse.Namespace, kind: type[T], **fixed: Any) -> T:
    """The dataclass that the flags describe; ``fixed`` sets fields that have no flag.

    Raises: UsageError on a value outside its limits.
    """
    given = vars(args)
    values = {
        spec.name: given[_dest(kind, spec.name)]
        for spec in dataclasses.fields(kind)  # type: ignore[arg-type]
        if _dest(kind, spec.name) in given
    }
    try:
        return from_mapping(kind, {**values, **fixed})
    except ConfigError as error:
        text = f"{error.message} (expected {error.expected}; got {error.got})"
        raise UsageError(text, hint=error.hint) from error


def read_draft_config(args: argparse.Namespace) -> DraftConfig:
    """The drafter and its tree.

    Raises: UsageError as :func:`read_config`.
    """
    return read_config(args, DraftConfig, tree=read_config(args, TreeConfig))


__all__ = [
    "Parser",
    "UsageError",
    "add_config_flags",
    "parse_names",
    "parse_numbers",
    "positive",
    "read_config",
    "read_draft_config",
]
