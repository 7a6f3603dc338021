"""Every published layout of a head, through the real Hub client: loads, drafts, and changes no text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import CheckpointMismatch, EagleError, IncompatibleHead, ModelNotFound
from eagle_core.events import Finished, Notice, StepDone
from eagle_core.loading import LoadedBase, load_base
from eagle_core.loading_head import load_head
from eagle_core.session import Session
from tests.support import published_heads as published
from tests.support.hub_server import HubServer, Repo
from tests.support.loopback import serving
from tests.support.tiny_models import byte_level_tokenizer, llama_config

VOCAB = len(byte_level_tokenizer())
LAYOUTS = published.eagle1_layouts(VOCAB) | published.eagle3_layouts(VOCAB)
REFUSED = published.refused_layouts(VOCAB)
PROMPT = list(range(30, 50))  # longer than max_position_embeddings of the heads
GENERATION = GenerationConfig(max_new_tokens=14, temperature=0.8, seed=3)
EAGLE = DraftConfig("eagle", TreeConfig("dynamic", depth=3, branching=6, size=20))
WEIGHTS = (".safetensors", ".bin", ".pt")


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of eight layers."""
    folder = tmp_path_factory.mktemp("base")
    config = llama_config(VOCAB)
    config.num_hidden_layers = published.N_BASE_LAYERS
    config.initializer_range = 0.3
    config.tie_word_embeddings = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(base_folder: Path) -> LoadedBase:
    return load_base(LoadConfig(base=str(base_folder), dtype="float32", device="cpu"))


@pytest.fixture(scope="module")
def plain_ids(base: LoadedBase) -> tuple[int, ...]:
    done = list(Session(base, None).generate(PROMPT, GENERATION, DraftConfig("none")))[-1]
    assert isinstance(done, Finished)
    assert len(set(done.token_ids)) > 10
    return done.token_ids


@pytest.fixture
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base_folder: Path
) -> Iterator[HubServer]:
    """A Hub whose ``org/head`` a test fills in, and whose ``org/base`` is the base."""
    files = {path.name: path.read_bytes() for path in base_folder.iterdir()}
    with serving({"org/base": files}, tmp_path, monkeypatch) as server:
        yield server


def sent_weights(server: HubServer) -> list[str]:
    return sorted(name for name in server.n_transfers if name.endswith(WEIGHTS))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_layout_loads_drafts_and_changes_no_text(
    layout: published.Published,
    server: HubServer,
    base: LoadedBase,
    plain_ids: tuple[int, ...],
) -> None:
    server.repos["org/head"] = Repo(layout.files)
    head: Any = load_head("org/head", base.model)
    for key, wanted in layout.expect.items():
        if key == "draft_ids":
            assert (head.draft_vocabulary is None) == (wanted is None)
            assert wanted is None or torch.equal(head.draft_vocabulary, wanted)
        else:
            assert getattr(head.config, key) == wanted, key
    assert not head.training
    assert not any(parameter.is_meta for parameter in head.parameters())
    session = Session(base, head, "head")
    events = list(session.generate(PROMPT, GENERATION, EAGLE))
    assert [e.text for e in events if isinstance(e, Notice)] == []
    done = events[-1]
    assert isinstance(done, Finished)
    assert done.token_ids == plain_ids
    drafted = {t for e in events if isinstance(e, StepDone) for t in e.tree.tokens[1:]}
    assert len(drafted) > 10, "the head says different things in different places"
    ids = layout.expect.get("draft_ids")
    assert ids is None or drafted <= set(ids.tolist())


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_of_another_kind_is_refused_by_name(
    name: str, server: HubServer, base: LoadedBase
) -> None:
    server.repos["org/head"] = Repo(REFUSED[name].files)
    with pytest.raises(IncompatibleHead, match=name.strip()) as caught:
        load_head("org/head", base.model)
    assert caught.value.hint
    config = json.loads(REFUSED[name].files["config.json"])
    is_told_by_config = config.keys() & {
        "speculators_model_type", "dflash_config", "medusa_num_heads", "hydra_num_heads",
        "eagle_config",
    } or config["model_type"] != "llama" or "MTP" in config["architectures"][0]  # fmt: skip
    assert bool(sent_weights(server)) != bool(is_told_by_config)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (published.config(hidden_size=64), "hidden size 32; got 64"),
        (published.config(target_hidden_size=64), "hidden size 32; got 64"),
        (published.config(vocab_size=999), f"vocabulary {VOCAB}; got 999"),
        (published.speculators(999), "trained for org/the-right-base"),
        (published.speculators(VOCAB, {"hidden_size": 48}), "hidden size 32; got 48"),
    ],
    ids=["hidden size", "target's hidden size", "vocabulary", "speculators", "nested"],
)
def test_another_bases_head_is_refused_before_any_weights_are_fetched(
    files: dict[str, bytes], problem: str, server: HubServer
) -> None:
    weights = published.safetensors(published.eagle1(1))
    server.repos["org/head"] = Repo(files | weights)
    with pytest.raises(IncompatibleHead, match=problem):
        Session.open(LoadConfig(base="org/base", head="org/head", dtype="float32", device="cpu"))
    assert sent_weights(server) == []
    assert set(server.n_transfers) == {"config.json"}


def test_a_pair_of_the_hub_opens(server: HubServer, plain_ids: tuple[int, ...]) -> None:
    server.repos["org/head"] = Repo(LAYOUTS["SpecForge"].files)
    config = LoadConfig(base="org/base", head="org/head", dtype="float32", device="cpu")
    session = Session.open(config)
    done = list(session.generate(PROMPT, GENERATION, EAGLE))[-1]
    assert isinstance(done, Finished)
    assert done.token_ids == plain_ids
    server.close()
    offline = LoadConfig(
        base="org/base", head="org/head", dtype="float32", device="cpu", offline=True
    )
    assert Session.open(offline).info.n_head_parameters == session.info.n_head_parameters


def test_a_head_of_another_tokenizer_is_refused(server: HubServer, base: LoadedBase) -> None:
    files = published.config(vocab_size=VOCAB, bos_token_id=300, eos_token_id=301)
    server.repos["org/head"] = Repo(files | published.safetensors(published.eagle1(1)))
    model: Any = base.model
    before = model.config.eos_token_id
    model.config.eos_token_id = [290, 291]
    try:
        with pytest.raises(IncompatibleHead, match="special tokens"):
            load_head("org/head", model)
        model.config.eos_token_id = [290, 301]  # one in common: instruct models add some
        assert load_head("org/head", model)
    finally:
        model.config.eos_token_id = before


def broken(**changes: torch.Tensor | None) -> dict[str, bytes]:
    """An official EAGLE-3 head with tensors changed or removed; ``__`` stands for a dot."""
    tensors = published.eagle3(11, VOCAB)
    for key, value in changes.items():
        name = key.replace("__", ".")
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    config = published.config(vocab_size=VOCAB, draft_vocab_size=published.N_DRAFT)
    return config | published.safetensors(tensors)


ZEROS = torch.zeros
BROKEN: dict[str, tuple[dict[str, bytes], type[EagleError], str]] = {
    "missing": (broken(midlayer__mlp__up_proj__weight=None), CheckpointMismatch, r"midlayer\.mlp\.up_proj"),
    "too many": (broken(surprise__weight=ZEROS(3)), CheckpointMismatch, r"surprise\.weight"),
    "a half bias": (
        broken(midlayer__self_attn__q_proj__bias=ZEROS(32)), CheckpointMismatch, r"k_proj\.bias"
    ),
    "misshapen": (broken(norm__weight=ZEROS(31)), CheckpointMismatch, r"norm\.weight \[32\]"),
    "no d2t": (broken(d2t=None), CheckpointMismatch, "does not say which"),
    "short d2t": (broken(d2t=ZEROS(9).long()), CheckpointMismatch, "does not say which"),
    "doubles": (broken(d2t=-torch.arange(64)), CheckpointMismatch, "a token twice"),
    "ids beyond": (broken(d2t=torch.full((64,), 999)), IncompatibleHead, "highest token id"),
    "other width": (broken(fc__weight=ZEROS(32, 100)), IncompatibleHead, "this base's features"),
    "too many fused": (broken(fc__weight=ZEROS(32, 128)), IncompatibleHead, "4 layers, by the width"),
    "two spellings": (
        broken(layers__0__mlp__up_proj__weight=ZEROS(48, 32)), CheckpointMismatch, "two tensors for"
    ),
    "embedding of another vocabulary": (
        broken(t2d=None, embed_tokens__weight=ZEROS(77, 32)), IncompatibleHead, "vocabulary"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_fit_is_named(name: str, tmp_path: Path, base: LoadedBase) -> None:
    files, error, problem = BROKEN[name]
    write(tmp_path, files)
    with pytest.raises(error, match=problem):
        load_head(tmp_path, base.model)


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).write_bytes(data)


def test_shards_that_are_missing_or_lie(tmp_path: Path, base: LoadedBase) -> None:
    files = dict(LAYOUTS["EAGLE-2, sharded"].files)
    shard = next(name for name in files if "00002-of" in name)
    write(tmp_path, files)
    (tmp_path / shard).unlink()
    with pytest.raises(ModelNotFound, match="lacks a part") as caught:
        load_head(tmp_path, base.model)
    assert shard in str(caught.value)
    index = json.loads(files["model.safetensors.index.json"])
    index["weight_map"]["norm.weight"] = shard
    (tmp_path / shard).write_bytes(files[shard])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointMismatch, match=r"lack norm\.weight"):
        load_head(tmp_path, base.model)
    index["weight_map"] = {"fc.weight": "../elsewhere.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match="lacks a part"):
        load_head(tmp_path, base.model)


@pytest.mark.parametrize("value", [["a"], [0, 10**6], {"ids": [1]}, [0.5, 1.5], []])
def test_a_frequency_file_that_holds_no_tokens(
    value: object, tmp_path: Path, base: LoadedBase
) -> None:
    files = dict(LAYOUTS["EAGLE-2, no bias, no embedding"].files)
    write(tmp_path, files | published.pickled(value, "freq_100.pt"))
    with pytest.raises(CheckpointMismatch, match="no token ids"):
        load_head(tmp_path, base.model)


def test_a_layer_norm_that_plain_heads_do_not_have_is_refused(
    tmp_path: Path, base: LoadedBase
) -> None:
    tensors = published.eagle1(2) | {"layers.0.input_layernorm.weight": torch.ones(32)}
    write(tmp_path, published.config(vocab_size=VOCAB) | published.safetensors(tensors))
    with pytest.raises(CheckpointMismatch, match=r"layers\.0\.input_layernorm\.weight"):
        load_head(tmp_path, base.model)
