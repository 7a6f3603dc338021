"""Loading bases and heads: every source, every refusal, and that nothing runs code that came with a model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from eagle_core import convert_gguf, loading, sources
from eagle_core.config import LoadConfig
from eagle_core.errors import (
    CheckpointMismatch,
    ConfigError,
    EagleError,
    IncompatibleHead,
    ModelError,
    ModelNotFound,
    OutOfMemory,
)
from eagle_core.events import Event, LoadProgress
from eagle_core.heads.eagle1 import Eagle1Head, config_for_base
from eagle_core.loading import load_base, load_head
from eagle_core.loading_head import head_source
from tests.support.tiny_models import HIDDEN, save_llama, write_gguf

F32 = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(original, tmp_path / "model"))


@pytest.fixture(scope="module")
def base(original: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(original)
    assert isinstance(model, LlamaForCausalLM)
    return model


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_loads_a_folder(original: Path) -> None:
    events: list[Event] = []
    loaded = load_base(LoadConfig(base=str(original), **F32), events.append)
    assert loaded.context_length == 128
    assert loaded.name == str(original)
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.config._attn_implementation in ("sdpa", "eagle_rows")
    assert loaded.tokenizer.decode(loaded.tokenizer("a cat 😀")["input_ids"]) == "a cat 😀"
    assert LoadProgress(f"loading {original}") in events


def test_dtype_is_what_was_asked_for(original: Path) -> None:
    loaded = load_base(LoadConfig(base=str(original), dtype="bfloat16", device="cpu"))
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}


def test_auto_dtype_is_exact_on_a_cpu() -> None:
    assert loading.resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert loading.resolve_dtype("auto", torch.device("mps")) == torch.bfloat16


def test_pickled_weights_are_read_only_as_tensors(folder: Path) -> None:
    weights = folder / "model.safetensors"
    torch.save(load_file(weights), folder / "pytorch_model.bin")
    weights.unlink()
    loaded = load_base(LoadConfig(base=str(folder), **F32))
    assert loaded.model.get_input_embeddings().weight.shape[1] == HIDDEN

    marker = folder / "it-ran"
    torch.save({"model.norm.weight": RunsCode(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError):
        load_base(LoadConfig(base=str(folder), **F32))
    assert not marker.exists()


class RunsCode:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize(
    ("base_name", "message"),
    [
        ("no/such/deep/folder", "does not exist"),
        ("missing.gguf", "does not exist"),
        ("smolm2-135m", "did you mean smollm2-135m"),
    ],
)
def test_names_that_lead_nowhere(base_name: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message):
        load_base(LoadConfig(base=base_name, **F32))


def test_a_folder_without_config_or_weights(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        load_base(LoadConfig(base=str(tmp_path / "empty"), **F32))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="has no weights"):
        load_base(LoadConfig(base=str(folder), **F32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "not a causal language model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "not a causal language"),
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "code.Config"}},
            "its own code, which is never run",
        ),
        ({"model_type": "not-yet-known"}, "a newer transformers"),
    ],
)
def test_models_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit_json(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=message):
        load_base(LoadConfig(base=str(folder), **F32))


def test_a_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        load_base(LoadConfig(base=str(folder), **F32))
    (folder / "config.json").write_text("[]")
    with pytest.raises(CheckpointMismatch, match="expected an object"):
        load_base(LoadConfig(base=str(folder), **F32))


def test_missing_and_misshapen_weights_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    norm = state.pop("model.layers.1.post_attention_layernorm.weight")
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match=r"missing: model\.layers\.1\.post_attention"):
        load_base(LoadConfig(base=str(folder), **F32))
    state["model.layers.1.post_attention_layernorm.weight"] = norm[:-1].clone()
    save_file(state, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match=r"wrong shape: model\.layers\.1\.post_attention"):
        load_base(LoadConfig(base=str(folder), **F32))


def test_damaged_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointMismatch, match="are damaged"):
        load_base(LoadConfig(base=str(folder), **F32))


def test_a_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(CheckpointMismatch, match="tokenizer"):
        load_base(LoadConfig(base=str(folder), **F32))


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")]
)
def test_too_little_memory(
    original: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(OutOfMemory, match="smaller model"):
        load_base(LoadConfig(base=str(original), **F32))


def test_eager_attention_where_the_fused_one_is_refused(
    original: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = loading.AutoModelForCausalLM.from_pretrained
    asked: list[str] = []

    def refuse_sdpa(path: Path, attn_implementation: str, **options: Any) -> object:
        asked.append(attn_implementation)
        if attn_implementation == "sdpa":
            raise ValueError(
                "does not support torch.nn.functional.scaled_dot_product_attention yet"
            )
        return plain(path, attn_implementation=attn_implementation, **options)

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", refuse_sdpa)
    loaded = load_base(LoadConfig(base=str(original), **F32))
    assert asked == ["sdpa", "eager"]
    assert loaded.model.config._attn_implementation == "eager"


@pytest.mark.parametrize("device", ["toaster", "cuda:99", "cpu:3"])
def test_devices_that_are_not_there(device: str, original: Path) -> None:
    with pytest.raises(ConfigError, match="device"):
        load_base(LoadConfig(base=str(original), device=device))


def test_context_length(original: Path) -> None:
    loaded = load_base(LoadConfig(base=str(original), context_length=100, **F32))
    assert loaded.context_length == 100
    with pytest.raises(ConfigError, match="at most 128"):
        load_base(LoadConfig(base=str(original), context_length=129, **F32))
    assert sources.resolve_context(None, {"max_position_embeddings": 131_072}) == 8192
    assert sources.resolve_context(None, {}) == 8192


def test_a_local_gguf_is_converted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "own.gguf")
    loaded = load_base(LoadConfig(base=str(path), **F32))
    assert loaded.model.get_input_embeddings().weight.shape[1] == HIDDEN
    assert path.is_file()
    assert capsys.readouterr() == ("", ""), "progress is told in events"

    def forbidden(*args: object) -> None:
        raise AssertionError("converted twice")

    monkeypatch.setattr(convert_gguf, "convert", forbidden)
    config = LoadConfig(base=str(path), **F32)
    converted = sources.base_folder(config)
    assert convert_gguf.is_converted(converted)
    os.utime(path, ns=(1, 1))  # the file was changed
    with pytest.raises(AssertionError, match="converted twice"):
        sources.base_folder(config)


def test_files_that_are_no_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "cache"))
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for data in [b"", b"not a model at all, but some text", whole[:100], whole[:-5000]]:
        (tmp_path / "bad.gguf").write_bytes(data)
        with pytest.raises(EagleError, match="GGUF"):
            load_base(LoadConfig(base=str(tmp_path / "bad.gguf"), **F32))
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.suffix != ".lock"]


@pytest.fixture
def head_folder(tmp_path: Path, base: LlamaForCausalLM) -> Path:
    """A head for the tiny base, as :meth:`Eagle1Head.save` writes it."""
    head = Eagle1Head(config_for_base(base.config, draft_vocab_size=16))
    head.reset_parameters()
    head.draft_vocabulary = torch.arange(16)
    head.save(tmp_path / "head", dtype=torch.float32)
    return tmp_path / "head"


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Change or remove (None) tensors of a head; ``__`` in a name stands for a dot."""
    state = load_file(folder / "model.safetensors")
    for key, value in changes.items():
        name = key.replace("__", ".")
        state.pop(name, None)
        if value is not None:
            state[name] = value
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def test_loads_a_head_with_its_draft_vocabulary(head_folder: Path, base: LlamaForCausalLM) -> None:
    head = load_head(head_folder, base)
    assert head.draft_vocabulary is not None
    assert head.draft_vocabulary.tolist() == list(range(16))
    assert not head.training
    assert torch.equal(head.fc.weight[:, HIDDEN:], torch.eye(HIDDEN))


def test_a_published_layout_loads(head_folder: Path, base: LlamaForCausalLM) -> None:
    """With a copy of the embedding, a bias of fc, no draft vocabulary, pickled, and a bare config."""
    embedding = base.get_input_embeddings().weight.detach().clone()
    rewrite(
        head_folder,
        embed_tokens__weight=embedding,
        fc__bias=torch.ones(HIDDEN),
        draft_vocabulary=None,
    )
    weights = head_folder / "model.safetensors"
    torch.save(load_file(weights), head_folder / "pytorch_model.bin")
    weights.unlink()
    (head_folder / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 4}')
    head = load_head(head_folder, base)
    assert head.draft_vocabulary is None
    assert torch.equal(head.fc.bias, torch.ones(HIDDEN))


def test_keys_too_many_and_too_few_are_named(head_folder: Path, base: LlamaForCausalLM) -> None:
    rewrite(head_folder, norm__weight=torch.ones(HIDDEN))
    with pytest.raises(CheckpointMismatch, match=r"norm\.weight"):
        load_head(head_folder, base)
    rewrite(head_folder, norm__weight=None, layers__0__mlp__up_proj__weight=None)
    with pytest.raises(CheckpointMismatch, match=r"layers\.0\.mlp\.up_proj\.weight"):
        load_head(head_folder, base)
    rewrite(head_folder, fc__weight=None)
    with pytest.raises(IncompatibleHead, match="no EAGLE-1 head"):
        load_head(head_folder, base)


def test_heads_for_another_base(head_folder: Path, base: LlamaForCausalLM) -> None:
    rewrite(head_folder, embed_tokens__weight=torch.zeros(77, HIDDEN))
    with pytest.raises(IncompatibleHead, match="vocabulary"):
        load_head(head_folder, base)
    rewrite(head_folder, embed_tokens__weight=None, draft_vocabulary=torch.arange(16) + 10**6)
    with pytest.raises(IncompatibleHead, match="highest token id"):
        load_head(head_folder, base)
    other = LlamaForCausalLM(type(base.config)(**{**base.config.to_dict(), "hidden_size": 64}))
    rewrite(head_folder, draft_vocabulary=torch.arange(16))
    with pytest.raises(IncompatibleHead, match="hidden size 64; got 32"):
        load_head(head_folder, other)


def test_heads_that_are_missing_or_damaged(
    head_folder: Path, base: LlamaForCausalLM, tmp_path: Path
) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        load_head(tmp_path / "no" / "head" / "here", base)
    weights = head_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        load_head(head_folder, base)
    weights.unlink()
    with pytest.raises(ModelNotFound, match="holds no head"):
        load_head(head_folder, base)
    marker = tmp_path / "it-ran"
    torch.save({"fc.weight": RunsCode(marker)}, head_folder / "pytorch_model.bin")
    with pytest.raises(CheckpointMismatch, match="cannot be read"):
        load_head(head_folder, base)
    assert not marker.exists()
    torch.save([1, 2], head_folder / "pytorch_model.bin")
    with pytest.raises(CheckpointMismatch, match="a mapping of names to tensors"):
        load_head(head_folder, base)


def test_the_head_is_the_named_one_else_none_for_an_unknown_base() -> None:
    assert head_source(LoadConfig(base="org/model", head="org/head")) == "org/head"
    assert head_source(LoadConfig(base="org/model")) is None
