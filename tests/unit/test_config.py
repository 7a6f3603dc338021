"""Settings: defaults are valid, limits hold at their edges, nothing unknown is dropped."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from eagle_core import config
from eagle_core.config import (
    FIGURE_9,
    DraftConfig,
    GenerationConfig,
    LoadConfig,
    TreeConfig,
    from_mapping,
    parse_logit_bias,
    parse_shape,
    parse_stop,
)
from eagle_core.errors import ConfigError

KINDS = (GenerationConfig, TreeConfig, DraftConfig, LoadConfig)
LIMITED = [
    pytest.param(kind, spec, id=f"{kind.__name__}.{spec.name}")
    for kind in KINDS
    for spec in dataclasses.fields(kind)
    if "min" in spec.metadata or "max" in spec.metadata
]


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_valid_frozen_and_documented(kind: Any) -> None:
    value = kind()
    for spec in dataclasses.fields(kind):
        assert spec.metadata["help"].endswith("."), spec.name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, spec.name, getattr(value, spec.name))


@pytest.mark.parametrize(("kind", "spec"), LIMITED)
def test_limits_hold_at_their_edges(kind: Any, spec: Any) -> None:
    for side, beyond in [("min", -1), ("max", 1)]:
        edge = spec.metadata[side]
        assert getattr(kind(**{spec.name: edge}), spec.name) == edge
        with pytest.raises(ConfigError, match=spec.name):
            kind(**{spec.name: edge + beyond})


@pytest.mark.parametrize("value", [float("nan"), "0.5", True, [1]])
def test_a_number_must_be_a_number(value: Any) -> None:
    with pytest.raises(ConfigError, match="temperature is out of range"):
        GenerationConfig(temperature=value)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (TreeConfig, {"policy": "bush"}),
        (DraftConfig, {"drafter": "oracle"}),
        (LoadConfig, {"dtype": "float8"}),
    ],
)
def test_a_choice_must_be_one_of_them(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not one of the choices"):
        kind(**values)


def test_the_rule_follows_from_the_temperature() -> None:
    assert GenerationConfig(temperature=0).acceptance == "greedy"
    assert GenerationConfig(temperature=0, rule="sampling").acceptance == "greedy"
    assert GenerationConfig(temperature=0.7).acceptance == "match"
    assert GenerationConfig(temperature=0.7, rule="match").acceptance == "match"
    assert GenerationConfig(temperature=0.7, rule="sampling").acceptance == "sampling"


def test_an_unknown_key_is_an_error() -> None:
    assert from_mapping(TreeConfig, {"depth": 3}) == TreeConfig(depth=3)
    with pytest.raises(ConfigError, match=r"unknown setting a, deep .*policy, depth"):
        from_mapping(TreeConfig, {"deep": 3, "a": 1})


def test_figure_9_is_a_tree() -> None:
    config.check_shape(FIGURE_9)
    assert len(FIGURE_9) == 25
    assert max(map(len, FIGURE_9)) == 5


@pytest.mark.parametrize(
    "shape", [(), ((0,), (0,)), ((0, 0),), ((),), ((0,), (0, -1)), ((0,), (0, 0, 0))]
)
def test_shapes_that_are_no_tree(shape: Any) -> None:
    with pytest.raises(ConfigError, match="tree shape"):
        TreeConfig(shape=shape)


def test_a_static_tree_is_as_large_as_its_shape() -> None:
    assert (TreeConfig("static").head_nodes, TreeConfig("static").head_depth) == (25, 5)
    assert TreeConfig("static", shape=((0,), (0, 0))).head_nodes == 2
    assert TreeConfig("chain", depth=3).paths == ((0,), (0, 0), (0, 0, 0))
    assert TreeConfig("chain", depth=8, size=2).head_nodes == 2
    assert TreeConfig("dynamic", size=9, depth=3).head_nodes == 9
    looked_up = TreeConfig("dynamic", size=9, depth=3, lookup=5)
    assert (looked_up.max_nodes, looked_up.max_depth) == (14, 5)
    assert TreeConfig(depth=9, lookup=0).max_depth == 9
    assert TreeConfig("dynamic").paths is None


@pytest.mark.parametrize("field", ["depth", "branching", "size"])
def test_a_fraction_is_no_count(field: str) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        TreeConfig(**{field: 2.5})


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", None),
        ("0 1, 00 01", ((0,), (1,), (0, 0), (0, 1))),
        ("0 0.12", ((0,), (0, 12))),
    ],
)
def test_a_shape_is_read_from_text(text, shape):
    assert parse_shape(text) == shape


def test_a_word_that_is_no_path_is_named():
    with pytest.raises(ConfigError, match=r"'0\.a'"):
        parse_shape("0 0.a")


@pytest.mark.parametrize("bias", [{7: -5, 3: 2.5}, {"7": -5, "3": 2.5}, [(7, -5), (3, 2.5)]])
def test_a_bias_is_kept_as_pairs_by_id(bias):
    config = GenerationConfig(logit_bias=bias)
    assert config.logit_bias == ((3, 2.5), (7, -5.0))
    assert hash(config) == hash(from_mapping(GenerationConfig, {"logit_bias": bias}))
    assert parse_logit_bias("7:-5, 3:2.5") == config.logit_bias


@pytest.mark.parametrize(
    "bias", [{-1: 0}, {1: 101}, {1: float("nan")}, {"a": 1}, [(1, 2, 3)], [(1, 2), (1, 3)], 5]
)
def test_a_wrong_bias_is_named(bias):
    with pytest.raises(ConfigError, match="logit_bias"):
        GenerationConfig(logit_bias=bias)


def test_stop_strings_are_texts():
    assert GenerationConfig(stop="END").stop == ("END",)
    assert GenerationConfig(stop=["a", "b"]).stop == ("a", "b")
    assert GenerationConfig(stop=None).stop == ()
    for wrong in ([""], [3], ["a", None]):
        with pytest.raises(ConfigError, match="stop"):
            GenerationConfig(stop=wrong)
    assert parse_stop(r"\n\tx\\n\q") == "\n\tx\\n\\q"
