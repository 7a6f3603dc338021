"""bitsandbytes on the CPU: 4 and 8 bits load, are checked at load, and write the same with every drafter."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eagle_core.certificate.loaded import model_checks
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError, ModelError
from eagle_core.events import Event, LoadProgress, Notice
from eagle_core.fast_layers import RowLinear
from eagle_core.fit import Machine, estimate
from eagle_core.head_precision import compute_dtype, head_dtype_name, place_head
from eagle_core.heads.scorer import draft_scorer
from eagle_core.kernels import ops
from eagle_core.kernels.attention import use_rows_attention
from eagle_core.loading import LoadedBase, load_base
from eagle_core.models import folder_size
from eagle_core.packing import count_let_go, pack_layers
from eagle_core.precision import OUTLIERS_REASON, SLOW_ON_CPU, PrecisionName
from eagle_core.quantization import (
    CastFilter,
    bitsandbytes_config,
    n_quantized_layers,
)
from eagle_core.selftest import self_test
from eagle_core.session import Session
from eagle_core.target import Target
from eagle_core.testing import tiny_model
from tests.support.tiny_answers import HIDDEN, PROMPT, TREE, ideal, ids, save_base
from tests.support.tiny_heads import tiny_head
from tests.support.tiny_models import byte_level_tokenizer

pytest.importorskip("bitsandbytes")

DRAFTERS = [
    DraftConfig("eagle", TREE),
    DraftConfig("ngram"),
    DraftConfig("eagle", TreeConfig("chain")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def _own_filters() -> Iterator[None]:
    library = logging.getLogger("bitsandbytes.autograd._functions")
    before = list(library.filters)
    yield
    library.filters[:] = before


def load(folder: Path, quantization: Any, **settings: Any) -> LoadedBase:
    config = LoadConfig(base=str(folder), quantization=quantization, device="cpu", **settings)
    return load_base(config)


def open_session(base: LoadedBase, **settings: Any) -> Session:
    return Session(base, tiny_head(HIDDEN, head_dim=16), "head", **settings)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("quantization", ["nf4", "fp4", "int8-bnb"])
def test_loads_passes_the_self_test_and_writes_the_same(
    folder: Path, quantization: str, dtype: str
) -> None:
    base = load(folder, quantization, dtype=dtype)
    # Seven linear layers in each of two blocks; the LM head and the embedding stay.
    assert n_quantized_layers(base.model) == 14
    assert type(base.model.get_input_embeddings()) is nn.Embedding
    assert base.model.dtype == (torch.bfloat16 if dtype == "auto" else torch.float32)
    session = open_session(base)
    info = session.info
    assert (info.drafting, info.drafting_reason, info.rounding_reason) == ("tree", "", "")
    assert info.quantization == quantization
    assert "not time" in info.precision_note
    plain_model = tiny_model("llama", vocab=base.model.config.vocab_size, hidden_size=HIDDEN)
    assert info.n_parameters == plain_model.num_parameters()
    for temperature in (0.0, 0.8):
        plain = ids(session, DraftConfig("none"), temperature)
        assert len(set(plain)) > 3
        for draft in DRAFTERS if temperature == 0 else DRAFTERS[:1]:
            assert ids(session, draft, temperature) == plain
        kept = ideal(session, plain, temperature)
        assert kept.token_ids == plain
        assert kept.stats.n_accepted >= len(plain) // 2


def test_quantized_weights_are_near_the_plain_ones(folder: Path) -> None:
    """Far from each other they would be noise: NF4 keeps a weight to about a tenth of its block's spread."""
    text = torch.tensor(PROMPT)
    exact = Target(load(folder, "none", dtype="float32").model).plain_logits(text)
    for quantization, limit in (("int8-bnb", 0.1), ("nf4", 0.7)):
        logits = Target(load(folder, quantization, dtype="float32").model).plain_logits(text)
        assert 0 < (logits - exact).norm() / exact.norm() < limit


def test_outlier_columns_are_said_to_be_inexact(folder: Path) -> None:
    heard: list[Event] = []
    base = load(folder, "llm-int8")
    assert base.inexact_reason == OUTLIERS_REASON
    session = open_session(base, on_event=heard.append)
    # This model's activations reach the threshold, and the self-test sees that rows depend on each other.
    assert session.info.drafting == "none"
    assert OUTLIERS_REASON in session.info.drafting_reason
    assert heard == [LoadProgress(session.info.drafting_reason)]
    events = list(session.generate(PROMPT, GenerationConfig(8), DRAFTERS[0]))
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert OUTLIERS_REASON in notice.message


def test_outlier_columns_that_random_tokens_do_not_show_are_said_with_every_drafted_answer(
    folder: Path,
) -> None:
    base = load(folder, "llm-int8")
    for module in base.model.modules():
        if hasattr(module, "state") and hasattr(module.state, "threshold"):
            module.state.threshold = 1e9  # no activation is that large
    session = open_session(base)
    assert (session.info.drafting, session.info.rounding_reason) == ("tree", OUTLIERS_REASON)
    for draft, n_notices in ((DraftConfig("none"), 0), (DRAFTERS[0], 1)):
        events = list(session.generate(PROMPT, GenerationConfig(8), draft))
        notices = [event.message for event in events if isinstance(event, Notice)]
        assert notices == [OUTLIERS_REASON] * n_notices
    assert len(list(model_checks(session))) == 5, "the certificate bears the notice"


def test_a_row_depends_on_its_neighbours_only_with_outlier_columns(folder: Path) -> None:
    leaks = {}
    for quantization in ("int8-bnb", "llm-int8"):
        target = Target(load(folder, quantization).model)
        leaks[quantization] = self_test(target).drafting
    assert leaks == {"int8-bnb": "tree", "llm-int8": "none"}


def test_8_bits_do_not_warn_at_every_product(folder: Path, caplog: Any) -> None:
    base = load(folder, "int8-bnb")
    with caplog.at_level(logging.WARNING):
        ids(open_session(base), DraftConfig("none"))
        logging.getLogger("bitsandbytes.autograd._functions").warning("something else")
    said = [r.getMessage() for r in caplog.records if r.name.startswith("bitsandbytes")]
    assert said == ["something else"]
    load(folder, "int8-bnb")
    filters = logging.getLogger("bitsandbytes.autograd._functions").filters
    assert sum(isinstance(found, CastFilter) for found in filters) == 1


def test_auto_takes_four_bits_when_memory_is_short(folder: Path, monkeypatch: Any) -> None:
    size = folder_size(folder)
    whole = load(folder, "none").model
    assert size.n_parameters == sum(p.numel() for p in whole.parameters()) + count_let_go(whole)

    def with_room_for(precision: PrecisionName) -> None:
        needed = estimate(size, None, precision, "cpu").needed_bytes + 1
        machine = Machine("cpu", needed, needed, lacks=("int8",))
        monkeypatch.setattr("eagle_core.loading.this_machine", lambda device: machine)

    monkeypatch.setattr("eagle_core.fit.MARGIN_BYTES", {"cpu": 0})
    with_room_for("nf4")
    heard: list[Event] = []
    base = load_base(LoadConfig(base=str(folder), device="cpu"), heard.append)
    assert base.quantization == "nf4"
    (said,) = [e.message for e in heard if isinstance(e, LoadProgress) and "GB" in e.message]
    assert SLOW_ON_CPU in said
    assert said == base.precision_note
    with_room_for("float32")
    assert load_base(LoadConfig(base=str(folder), device="cpu")).quantization == "none"


def test_a_checkpoint_that_is_quantized_already_is_loaded_as_it_is(
    folder: Path, tmp_path: Path
) -> None:
    base = load(folder, "nf4")
    base.model.save_pretrained(tmp_path)
    base.tokenizer.save_pretrained(tmp_path)
    again = load(tmp_path, "auto")
    assert again.quantization == "nf4"
    assert n_quantized_layers(again.model) == 14
    text = torch.tensor(PROMPT)
    wanted = Target(load(folder, "nf4").model).plain_logits(text)
    torch.testing.assert_close(Target(again.model).plain_logits(text), wanted)
    with pytest.raises(ConfigError, match="quantized already"):
        load(tmp_path, "int8-bnb")


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_weights_that_transformers_cannot_unpack_here_name_the_next_step(
    folder: Path, tmp_path: Path, method: str
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load(tmp_path, "auto")
    assert f"quantized by {method}" in caught.value.hint
    assert "--quantization nf4" in caught.value.hint


def test_a_model_with_layers_of_its_own_kind_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tiny_model("falcon", vocab=len(tokenizer), hidden_size=HIDDEN).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no layer of this model to quantize"):
        load(tmp_path, "nf4")


def test_experts_are_not_counted_as_linear(tmp_path: Path) -> None:
    model = tiny_model("mixtral", hidden_size=HIDDEN)
    model.save_pretrained(tmp_path)
    size = folder_size(tmp_path)
    assert size.n_parameters == model.num_parameters()
    n_attention = sum(p.numel() for n, p in model.named_parameters() if "_proj.weight" in n)
    assert size.n_linear <= n_attention + 2 * 4 * HIDDEN  # and the two routers


def test_weights_are_counted_whatever_the_files_are(tmp_path: Path) -> None:
    assert folder_size(tmp_path).n_parameters == 0
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1000))
    assert folder_size(tmp_path).n_parameters == 500
    (tmp_path / "config.json").write_text('{"model_type": "of no known size"}')
    assert folder_size(tmp_path).n_parameters == 500


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_faster_layers_leave_quantized_ones_alone(folder: Path, dtype: Any) -> None:
    model = load(folder, "nf4", dtype=dtype).model  # loading has swapped what can be
    assert n_quantized_layers(model) == 14
    names = {n: type(m) for n, m in model.named_modules() if n.endswith("_proj")}
    pack_layers(model)
    use_rows_attention(model)
    assert {n: type(m) for n, m in model.named_modules() if n.endswith("_proj")} == names
    assert {kind.__module__ for kind in names.values()} == {"bitsandbytes.nn.modules"}
    if dtype == "auto":
        assert not any(isinstance(module, RowLinear) for module in model.modules())


def test_configs_are_those_of_the_papers() -> None:
    four = bitsandbytes_config("nf4", torch.bfloat16)
    assert (four.bnb_4bit_quant_type, four.bnb_4bit_use_double_quant) == ("nf4", True)
    assert four.bnb_4bit_compute_dtype == torch.bfloat16
    assert bitsandbytes_config("llm-int8", torch.bfloat16).llm_int8_threshold == 6.0
    assert bitsandbytes_config("int8-bnb", torch.bfloat16).llm_int8_threshold == 0.0


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dtype", ["auto", "float32", "bfloat16", "float16", "int8", "nf4"])
def test_the_heads_precision_changes_no_text(
    folder: Path, base_dtype: Any, head_dtype: Any
) -> None:
    if head_dtype == "int8" and not ops.has_kernels():
        pytest.skip("no C++ compiler here")
    base = load(folder, "none", dtype=base_dtype)
    session = open_session(base, head_dtype=head_dtype)
    by_itself = "int8" if base_dtype == "float32" and ops.has_fast_int8() else base_dtype
    assert session.info.head_dtype == (by_itself if head_dtype == "auto" else head_dtype)
    assert session.info.n_head_parameters == sum(
        p.numel() for p in tiny_head(HIDDEN, head_dim=16).parameters()
    )
    plain = ids(session, DraftConfig("none"))
    for draft in DRAFTERS:
        assert ids(session, draft) == plain


def test_the_heads_guesses_differ_by_rounding_alone() -> None:
    features = torch.randn(1, 5, HIDDEN, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(5)[None]
    exact = tiny_head(HIDDEN, head_dim=16).eval()
    with torch.no_grad():
        wanted = exact(features, features, positions)
    # 8 and 11 bits of mantissa; NF4 keeps a weight to about a tenth of its block's spread.
    limits = {"bfloat16": 0.05, "float16": 0.01, "int8": 0.05, "nf4": 0.4}
    for name, limit in limits.items():
        if name == "int8" and not ops.has_kernels():
            continue
        head = tiny_head(HIDDEN, head_dim=16)
        head = place_head(head, torch.device("cpu"), torch.float32, name)  # type: ignore[arg-type]
        dtype = compute_dtype(head)
        with torch.no_grad():
            found = head(features.to(dtype), features.to(dtype), positions).float()
        assert 0 < (found - wanted).norm() / wanted.norm() < limit, name
        assert head_dtype_name(head, name) == name  # type: ignore[arg-type]


@pytest.mark.parametrize("vocabulary", [None, [3, 5, 9]])
def test_scores_take_features_of_any_precision(vocabulary: list[int] | None) -> None:
    lm_head = nn.Linear(HIDDEN, 12, bias=False).requires_grad_(False)
    kept = None if vocabulary is None else torch.tensor(vocabulary)
    features = torch.randn(2, HIDDEN)
    wanted = lm_head(features.bfloat16().float())
    found = draft_scorer(lm_head, kept)(features.bfloat16())
    torch.testing.assert_close(found, wanted if kept is None else wanted[:, kept])


def test_a_head_in_int8_where_there_are_no_kernels_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("eagle_core.head_precision.has_kernels", lambda: False)
    with pytest.raises(ModelError, match="kernels"):
        place_head(tiny_head(HIDDEN, head_dim=16), torch.device("cpu"), torch.float32, "int8")


@pytest.mark.skipif(not ops.has_kernels(), reason="no C++ compiler here")
def test_scores_over_a_draft_vocabulary_are_int8_beside_such_a_head() -> None:
    lm_head = nn.Linear(HIDDEN, 300, bias=False).requires_grad_(False)
    kept = torch.arange(0, 300, 2)
    features = torch.randn(2, HIDDEN)
    exact = draft_scorer(lm_head, kept)(features)
    rounded = draft_scorer(lm_head, kept, is_int8=True)(features)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0)
