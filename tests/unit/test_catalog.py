"""The table of known models."""

from __future__ import annotations

import pytest

from eagle_core import catalog
from eagle_core.config import DEFAULT_BASE
from eagle_core.errors import ModelNotFound


def test_the_default_is_known_and_names_are_unique() -> None:
    entry = catalog.find(DEFAULT_BASE)
    assert entry.license == "Apache-2.0"
    assert entry.head == "smollm2-135m-eagle1"
    assert isinstance(entry.source, catalog.WheelSource)
    assert len(entry.source.member_sha256) == 64
    # The wheel and pip's copy of it, or the file and its conversion to bfloat16, must fit.
    source = entry.source
    converted_bytes = 2 * entry.n_parameters
    assert source.disk_bytes > 2 * source.wheel_bytes + source.member_bytes
    assert source.disk_bytes > source.member_bytes + converted_bytes
    assert len(set(catalog.names())) == len(catalog.CATALOG)


def test_lookup_ignores_case_and_gives_none_for_the_unknown() -> None:
    assert catalog.lookup("SmolLM2-135M") == catalog.find(DEFAULT_BASE)
    assert catalog.lookup("org/model") is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [("smollm2", "did you mean smollm2-135m"), ("zzz", "check the spelling or the path")],
)
def test_an_unknown_name_comes_with_near_matches(name: str, hint: str) -> None:
    with pytest.raises(ModelNotFound, match=hint) as caught:
        catalog.find(name)
    assert caught.value.got == repr(name)
    assert DEFAULT_BASE in caught.value.expected
