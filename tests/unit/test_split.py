"""A model that is spread out: over memory and disk here, over devices where there are several."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_core import loading, placement
from eagle_core.config import DraftConfig, LoadConfig
from eagle_core.errors import ConfigError, ModelError
from eagle_core.events import Event, LoadProgress
from eagle_core.fast_layers import RowLinear
from eagle_core.fit import Machine
from eagle_core.loading import LoadedBase, load_base
from eagle_core.packing import count_let_go
from eagle_core.session import Session
from eagle_core.target import Target, execution_device
from tests.support.tiny_answers import HIDDEN, PROMPT, TREE, ideal, ids, save_base
from tests.support.tiny_heads import tiny_head

EAGLE = DraftConfig("eagle", TREE)
PARTS = ("model.embed_tokens", "lm_head", "model.norm", "model.rotary_emb")
ON_DISK = {
    "a layer": {**dict.fromkeys(PARTS, "cpu"), "model.layers.0": "cpu", "model.layers.1": "disk"},
    "the LM head": {
        **dict.fromkeys(PARTS, "cpu"), "model.layers.0": "disk", "model.layers.1": "cpu",
        "lm_head": "disk",
    },
    "everything": {"": "disk"},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    return tmp_path


def load(folder: Path, device: str = "cpu", on_event: Any = None, **settings: Any) -> LoadedBase:
    settings = {"dtype": "float32"} | settings
    config = LoadConfig(base=str(folder), device=device, **settings)
    return load_base(config, on_event or (lambda event: None))


def load_as(folder: Path, device_map: Any, monkeypatch: Any) -> LoadedBase:
    """Spread out as told instead of as free memory has it."""
    original = placement.LoadPlan.device_map.fget  # type: ignore[attr-defined]

    def told(plan: placement.LoadPlan) -> Any:
        return device_map if plan.is_split else original(plan)

    with monkeypatch.context() as patch:
        patch.setattr(placement.LoadPlan, "device_map", property(told))
        return load(folder, "split")


@pytest.mark.parametrize(
    ("parts", "vocabulary"),
    [("a layer", None), ("the LM head", list(range(0, 260, 2))), ("everything", None)],
)
def test_a_model_that_lies_partly_on_disk_writes_the_same(
    folder: Path, parts: str, vocabulary: Any, monkeypatch: Any
) -> None:
    base = load_as(folder, ON_DISK[parts], monkeypatch)
    assert any(parameter.is_meta for parameter in base.model.parameters())
    session = Session(base, tiny_head(HIDDEN, head_dim=16, vocabulary=vocabulary), "head")
    assert (session.info.drafting, session.info.device) == ("tree", "cpu")
    loaded = load(folder)
    assert session.info.n_parameters == loaded.model.num_parameters() + count_let_go(loaded.model)
    whole = Session(loaded, None)
    for temperature in (0.0, 0.8):
        plain = ids(whole, DraftConfig("none"), temperature)
        assert len(set(plain)) > 3
        for draft in (DraftConfig("none"), EAGLE, DraftConfig("ngram")):
            assert ids(session, draft, temperature) == plain
        kept = ideal(session, plain, temperature)
        assert kept.token_ids == plain
        assert kept.stats.n_accepted >= len(plain) // 2


def test_split_on_one_device_with_room_is_that_device(folder: Path) -> None:
    base = load(folder, "split")
    assert {p.device.type for p in base.model.parameters()} == {"cpu"}
    text = torch.tensor(PROMPT)
    # Float32, layers that sum in another order.
    torch.testing.assert_close(
        Target(base.model).plain_logits(text),
        Target(load(folder).model).plain_logits(text),
        atol=1e-4,
        rtol=1e-4,
    )


def test_layers_with_hooks_are_not_swapped(folder: Path, monkeypatch: Any) -> None:
    base = load_as(folder, ON_DISK["a layer"], monkeypatch)
    assert not any(isinstance(module, RowLinear) for module in base.model.modules())


def test_what_does_not_fit_is_spread_out_and_says_so(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(loading, "this_machine", lambda device: Machine("cpu", 1000, 1000))
    heard: list[Event] = []
    base = load(folder, "auto", heard.append, dtype="bfloat16")
    assert "spread over all devices" in base.precision_note
    assert LoadProgress(base.precision_note) in heard
    assert "spread" not in load(folder, "cpu").precision_note


def test_the_folder_for_the_disk_lives_as_long_as_the_model(folder: Path, cache: Path) -> None:
    base = load(folder, "split")
    assert len(list(cache.glob("offload-*"))) == 1
    del base
    gc.collect()
    assert list(cache.glob("offload-*")) == []


def test_quantized_weights_cannot_lie_on_disk(folder: Path, monkeypatch: Any) -> None:
    pytest.importorskip("bitsandbytes")
    told = property(lambda plan: ON_DISK["a layer"])
    monkeypatch.setattr(placement.LoadPlan, "device_map", told)
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(folder, "split", quantization="nf4")
    assert "--quantization none" in caught.value.hint


def test_devices_are_those_where_modules_compute(folder: Path, monkeypatch: Any) -> None:
    base = load_as(folder, ON_DISK["everything"], monkeypatch)
    weight = base.model.get_output_embeddings().weight
    assert weight.device.type == "meta"
    assert execution_device(base.model.get_output_embeddings()).type == "cpu"
    assert execution_device(torch.nn.Linear(2, 2)).type == "cpu"


def test_a_misspelled_device_names_split(folder: Path) -> None:
    with pytest.raises(ConfigError, match="split"):
        load(folder, "splitt")
