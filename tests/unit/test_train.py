"""Collection, losses and the training loop, on a tiny base."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from eagle_core.cli.train import head_shape
from eagle_core.errors import CheckpointMismatch, ConfigError
from eagle_core.heads.eagle1 import Eagle1Head, config_for_base
from eagle_core.heads.families import eagle3_for_base
from eagle_core.loading_head import read_head
from eagle_core.target import Target
from eagle_core.testing import tiny_model, tiny_target
from eagle_core.train.batches import epoch_batches, group_rows, make_batch
from eagle_core.train.config import FitConfig
from eagle_core.train.dataset import (
    CONVERSATIONS_NAME,
    Conversations,
    FeatureFolder,
    Sequence,
    extract_features,
)
from eagle_core.train.fit import START_CONFIDENCE, Trainer
from eagle_core.train.losses import draft_losses, head_losses, unroll_mask, unrolled_predictions
from eagle_core.train.plot import write_training_plot
from tests.support.tiny_heads import tiny_eagle3_head, tiny_head


def conversations(n=12, length=20, seed=0):
    random = np.random.default_rng(seed)
    rows = [
        random.integers(0, 250, size=length + int(random.integers(9))).tolist() for _ in range(n)
    ]
    return Conversations.from_lists(rows, [6] * n, [0.0] * n)


@pytest.fixture
def data(tmp_path):
    target = tiny_target("llama")
    folder = tmp_path / "data"
    for _ in extract_features(
        conversations(), folder, target.batch_features, base="tiny", shard_size=3, batch_tokens=64
    ):
        pass
    return FeatureFolder(folder)


LAYERS = (2, 1, 0)


@pytest.fixture
def layer_data(tmp_path):
    """Data with the states of three layers."""
    target = tiny_target("llama")
    folder = tmp_path / "layer-data"
    for _ in extract_features(
        conversations(), folder, lambda ids: target.batch_features(ids, LAYERS),
        base="tiny", layers=LAYERS, shard_size=3, batch_tokens=64,
    ):  # fmt: skip
        pass
    return FeatureFolder(folder)


def trainer(data, out, init=None, **settings):
    model = tiny_model("llama")
    defaults = {
        "epochs": 30.0, "batch_tokens": 120, "draft_vocab_size": 64, "eval_every": 10, "held_out_shards": 1,
        "learning_rate": 5e-3, "loss_fraction": 1.0,
    }  # fmt: skip
    config = FitConfig(**(defaults | settings))
    shape = config_for_base(model.config, draft_vocab_size=config.draft_vocab_size)
    if config.arch == "eagle3":
        shape = eagle3_for_base(
            model.config, data.feature_layers, draft_vocab_size=config.draft_vocab_size
        )
    embedding = model.get_input_embeddings().weight.detach()
    lm_weight = model.get_output_embeddings().weight.detach()
    return Trainer(shape, embedding, lm_weight, data, out, config, init)


def test_conversations_survive_a_round_trip(tmp_path):
    written = conversations()
    written.save(tmp_path / "set.npz")
    read = Conversations.load(tmp_path / "set.npz")
    assert read.token_ids.tolist() == written.token_ids.tolist()
    assert read.ids(3).tolist() == written.ids(3).tolist()
    assert read.n_response_tokens == written.n_response_tokens == len(written.token_ids) - 12 * 6


def test_a_damaged_set_is_refused(tmp_path):
    path = tmp_path / "set.npz"
    path.write_bytes(b"not a zip file")
    with pytest.raises(ConfigError, match="not a conversation set"):
        Conversations.load(path)


def test_extracted_features_are_the_bases(data):
    target = tiny_target("llama")
    for shard in data.shards:
        for row in data.read(shard):
            alone = target.prefill_chunk(row.token_ids, target.new_cache()).features
            # float16 on disk: 11 bits, so a relative error of 5e-4.
            torch.testing.assert_close(row.features.float(), alone, atol=2e-3, rtol=1e-3)


def test_extraction_goes_on_where_it_stopped(data, monkeypatch):
    target = tiny_target("llama")
    missing = data.shards[2]
    others = {shard: shard.stat().st_mtime_ns for shard in data.shards if shard != missing}
    missing.unlink()
    for _ in extract_features(
        conversations(),
        data.folder,
        target.batch_features,
        base="tiny",
        shard_size=3,
        batch_tokens=64,
    ):
        pass
    assert missing.exists()
    assert {shard: shard.stat().st_mtime_ns for shard in others} == others
    with pytest.raises(ConfigError, match="other data"):
        next(
            extract_features(
                conversations(seed=9, n=5), data.folder, target.batch_features, base="x"
            )
        )


def test_a_batch_pairs_each_feature_with_the_next_token():
    row = Sequence(torch.tensor([10, 11, 12, 13, 14]), torch.arange(5.0)[:, None].half(), 3)
    batch = make_batch([row])
    assert batch.next_tokens.tolist() == [[11, 12, 13, 14]]
    assert batch.features[0, :, 0].tolist() == [0, 1, 2, 3]
    assert batch.targets[0, :, 0].tolist() == [1, 2, 3, 4]
    # f_2 scores token 3, the answer's first; f_3 scores token 4; f_4 would score a token that is not there.
    assert batch.weights.tolist() == [[0, 1, 1, 0]]
    assert make_batch([row], has_prompts=True).weights.tolist() == [[1, 1, 1, 0]]


def test_batches_keep_their_size_and_order(data):
    rows = [row for shard in data.shards for row in data.read(shard)]
    groups = group_rows(rows, 60)
    assert sum(map(len, groups)) == len(rows)
    assert all(len(g) == 1 or len(g) * max(len(r.token_ids) for r in g) <= 60 for g in groups)

    def epoch(number, skip=0):
        batches = epoch_batches(data, data.shards, 60, seed=1, epoch=number, skip=skip)
        return [b.next_tokens.tolist() for b in batches]

    assert epoch(0) == epoch(0)
    assert epoch(0)[2:] == epoch(0, skip=2)
    assert epoch(0) != epoch(1)


def test_unroll_mask_by_hand():
    assert unroll_mask(3, 0).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    step_1 = unroll_mask(4, 1).int().tolist()
    assert step_1[3] == [1, 1, 1, 0, 0, 0, 0, 1]
    step_2 = unroll_mask(4, 2).int().tolist()
    assert step_2[3] == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_unrolled_steps_are_what_drafting_computes():
    head = tiny_head(32)
    random = torch.Generator().manual_seed(0)
    embeddings, features = torch.randn(2, 1, 7, 32, generator=random)
    with torch.no_grad():
        outputs = unrolled_predictions(head, embeddings, features, 3)
        for index in range(2, 7):
            # Draft a chain of three by hand: true features up to index - 2, then the head's own.
            known = features[:, : index - 1]
            for step, predicted in enumerate(outputs):
                length = known.shape[1]
                out = head(embeddings[:, :length], known, torch.arange(length)[None])
                # float32 in another order of summation.
                torch.testing.assert_close(
                    predicted[0, index - 2 + step], out[0, -1], atol=1e-4, rtol=1e-4
                )
                known = torch.cat((known, out[:, -1:]), dim=1)


def test_losses_are_zero_at_a_perfect_prediction():
    targets = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(2, 5)
    lm_weight = torch.randn(11, 8, generator=torch.Generator().manual_seed(1))
    options = {"feature_std": 1.0, "regression_weight": 1.0, "decay": 1.0}
    perfect = head_losses(
        [targets], targets, weights, weights > 0, lm_weight, token_weight=0.0, **options
    )
    assert float(perfect.total) == 0.0
    both = head_losses(
        [targets], targets, weights, weights > 0, lm_weight, token_weight=1.0, **options
    )
    entropy = torch.distributions.Categorical(logits=targets @ lm_weight.T).entropy().mean()
    assert float(both.token) == pytest.approx(float(entropy), rel=1e-5)
    worse = head_losses(
        [targets + 1.0], targets, weights, weights > 0, lm_weight, token_weight=1.0, **options
    )
    assert float(worse.total) > float(both.total)


def test_a_head_learns_one_batch_by_heart(data, tmp_path):
    for shard in data.shards[2:]:
        shard.unlink()
    data = FeatureFolder(data.folder)
    run = trainer(
        data, tmp_path / "head", noise=0.0, unroll=1, epochs=250.0, batch_tokens=300, eval_every=50,
        draft_vocab_size=0, learning_rate=1e-2,
    )  # fmt: skip
    events = list(run.run())
    assert events[-1].step == run.n_steps
    assert len(events[-1].acceptance) == 5
    batch = make_batch(data.read(run.training_shards()[0]))
    counted = batch.weights > 0
    with torch.no_grad():
        embeddings = run.embed_weight[batch.next_tokens]
        out = unrolled_predictions(run.head, embeddings, batch.features, 1)[0]
    agreed = (out @ run.lm_weight.T).argmax(-1) == (batch.targets @ run.lm_weight.T).argmax(-1)
    assert float(agreed[counted].float().mean()) > 0.9


def test_what_a_run_leaves_behind(data, tmp_path):
    run = trainer(data, tmp_path / "head", epochs=4.0)
    events = list(run.run())
    assert [event.step for event in events] == list(range(1, run.n_steps + 1))
    head = read_head(tmp_path / "head")
    assert head.fc.weight.dtype == torch.bfloat16
    most_frequent = data.token_counts(260).topk(64).values.min()
    assert data.token_counts(260)[head.draft_vocabulary].min() >= most_frequent
    write_training_plot(run.progress.history, tmp_path / "plot.png", run.config)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_tokens_are_counted_in_all_conversations_while_shards_are_still_made(data):
    counts = data.token_counts(260)
    assert int(counts.sum()) == data.meta["n_response_tokens"]
    conversations().save(data.folder / CONVERSATIONS_NAME)
    for shard in data.shards[1:]:
        shard.unlink()
    assert torch.equal(FeatureFolder(data.folder).token_counts(260), counts)
    (data.folder / CONVERSATIONS_NAME).unlink()
    assert int(FeatureFolder(data.folder).token_counts(260).sum()) < int(counts.sum())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_run_ends_like_one_that_was_not(data, tmp_path, optimizer):
    settings = {"optimizer": optimizer, "epochs": 4.0, "checkpoint_every_s": 0.0, "unroll": 3}
    whole = trainer(data, tmp_path / "whole", **settings)
    for _ in whole.run():
        pass
    killed = trainer(data, tmp_path / "killed", **settings)
    for event in killed.run():
        if event.step == 3:
            break
    resumed = trainer(data, tmp_path / "killed", **settings)
    assert resumed.progress.step == 3
    for _ in resumed.run():
        pass
    left, right = whole.head.state_dict(), resumed.head.state_dict()
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_a_checkpoint_of_another_head_is_refused(data, tmp_path):
    run = trainer(data, tmp_path / "head")
    run.save()
    with pytest.raises(CheckpointMismatch, match="does not fit"):
        trainer(data, tmp_path / "head", draft_vocab_size=32)


def test_time_ends_a_run_with_the_rate_decayed(data, tmp_path):
    run = trainer(data, tmp_path / "head", max_minutes=1e-5, epochs=1000.0)
    events = list(run.run())
    assert 1 <= len(events) < 5
    assert run.share_done() == 1.0
    assert run.learning_rate(1.0) == pytest.approx(run.config.learning_rate * run.config.final_rate)


def test_history_is_plain_data(data, tmp_path):
    run = trainer(data, tmp_path / "head", epochs=0.5)
    events = list(run.run())
    assert json.loads(json.dumps(run.progress.history))[0]["step"] == 1
    assert run.progress.history == [dataclasses.asdict(event) for event in events]


def test_training_can_start_from_a_trained_head(data, tmp_path):
    first = trainer(data, tmp_path / "first", epochs=4.0)
    for _ in first.run():
        pass
    head = read_head(tmp_path / "first").float()
    second = trainer(data, tmp_path / "second", init=head)
    left, right = second.head.state_dict(), head.state_dict()
    assert all(torch.equal(left[key], right[key]) for key in left)
    wider = trainer(data, tmp_path / "third", init=head, draft_vocab_size=32).head
    assert len(wider.draft_vocabulary.unique()) == 32
    assert torch.equal(wider.fc.weight, head.fc.weight)
    with pytest.raises(ConfigError, match="other shapes"):
        trainer(
            data, tmp_path / "fourth", init=Eagle1Head(dataclasses.replace(head.config, n_layers=2))
        )


def test_states_of_layers_are_stored_beside_the_features(layer_data, data):
    assert layer_data.feature_layers == LAYERS
    assert data.feature_layers == ()
    target = Target(tiny_model("llama"), feature_layers=LAYERS)
    row = layer_data.read(layer_data.shards[1], has_layers=True)[0]
    alone = target.prefill_chunk(row.token_ids, target.new_cache()).features
    # bfloat16 on disk: 8 bits, so a relative error of 4e-3.
    torch.testing.assert_close(row.layer_features.float(), alone, atol=1e-2, rtol=4e-3)
    same = data.read(data.shards[1])[0]
    assert torch.equal(row.features, same.features)
    assert layer_data.read(layer_data.shards[1])[0].layer_features is None
    batch = make_batch([row])
    assert batch.features.shape[-1] == 3 * 32
    assert torch.equal(batch.features[0], row.layer_features[:-1].float())
    assert torch.equal(batch.targets[0], row.features[1:].float())


def test_unrolled_steps_of_an_eagle3_head_are_what_drafting_computes():
    head = tiny_eagle3_head(32)
    random = torch.Generator().manual_seed(0)
    embeddings, states = (
        torch.randn(1, 7, 32, generator=random),
        torch.randn(1, 7, 96, generator=random),
    )
    with torch.no_grad():
        outputs = unrolled_predictions(head, embeddings, states, 3)
        fused = head.fuse(states)
        for index in range(2, 7):
            known = fused[:, : index - 1]
            for step, predicted in enumerate(outputs):
                length = known.shape[1]
                out = head(embeddings[:, :length], known, torch.arange(length)[None])
                # float32 in another order of summation; the states are about 30 large.
                torch.testing.assert_close(
                    predicted[0, index - 2 + step], out[0, -1], atol=1e-3, rtol=1e-4
                )
                known = torch.cat((known, out[:, -1:]), dim=1)


def test_draft_losses_count_what_the_draft_vocabulary_can_say():
    random = torch.Generator().manual_seed(0)
    targets, lm_weight = (
        torch.randn(40, 8, generator=random),
        torch.randn(11, 8, generator=random),
    )
    vocabulary = torch.tensor([1, 4, 5, 9])
    wanted = targets @ lm_weight.T
    counted = torch.isin(wanted.argmax(-1), vocabulary)
    assert 0 < int(counted.sum()) < 40
    exact = wanted[:, vocabulary]
    entropy = torch.distributions.Categorical(logits=exact[counted]).entropy().mean()
    losses = draft_losses([exact, exact], targets, lm_weight, vocabulary, decay=0.5)
    assert float(losses.token) == pytest.approx(float(entropy), rel=1e-5)
    assert float(losses.total) == pytest.approx(1.5 * float(entropy), rel=1e-5)
    noise = exact + 50.0 * torch.randn(exact.shape, generator=random) * ~counted[:, None]
    same = draft_losses([noise], targets, lm_weight, vocabulary, decay=1.0)
    assert float(same.total) == pytest.approx(float(entropy), rel=1e-5)
    whole = draft_losses([wanted], targets, lm_weight, None, decay=1.0)
    entropy = torch.distributions.Categorical(logits=wanted).entropy().mean()
    assert float(whole.total) == pytest.approx(float(entropy), rel=1e-5)
    none = draft_losses([exact[:0]], targets[:0], lm_weight, vocabulary, decay=1.0)
    assert float(none.total) == 0.0


def test_an_eagle3_head_learns_one_batch_by_heart(layer_data, tmp_path):
    unroll = 2
    for shard in layer_data.shards[2:]:
        shard.unlink()
    data = FeatureFolder(layer_data.folder)
    run = trainer(
        data, tmp_path / "head", arch="eagle3", unroll=unroll, epochs=150.0, batch_tokens=300,
        eval_every=50, draft_vocab_size=0, learning_rate=1e-2,
    )  # fmt: skip
    events = list(run.run())
    assert events[-1].step == run.n_steps
    batch = make_batch(data.read(run.training_shards()[0], has_layers=True))
    counted = batch.weights > 0
    counted[:, : unroll - 1] = False
    with torch.no_grad():
        embeddings = run.embed_weight[batch.next_tokens]
        outputs = unrolled_predictions(run.head, embeddings, batch.features, unroll)
    wanted = (batch.targets @ run.lm_weight.T).argmax(-1)
    for out in outputs:
        agreed = run.scores(out).argmax(-1) == wanted
        assert float(agreed[counted].float().mean()) > 0.9


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_killed_eagle3_run_ends_like_one_that_was_not(layer_data, tmp_path, optimizer):
    settings = {
        "arch": "eagle3", "optimizer": optimizer, "epochs": 4.0, "checkpoint_every_s": 0.0, "unroll": 3,
        "loss_fraction": 0.5,
    }  # fmt: skip
    whole = trainer(layer_data, tmp_path / "whole", **settings)
    for _ in whole.run():
        pass
    killed = trainer(layer_data, tmp_path / "killed", **settings)
    for event in killed.run():
        if event.step == 3:
            break
    resumed = trainer(layer_data, tmp_path / "killed", **settings)
    assert resumed.progress.step == 3
    for _ in resumed.run():
        pass
    left, right = whole.head.state_dict(), resumed.head.state_dict()
    assert all(torch.equal(left[key], right[key]) for key in left)


def test_a_trained_eagle3_head_is_read_back_as_it_is(layer_data, tmp_path):
    run = trainer(layer_data, tmp_path / "first", arch="eagle3", epochs=2.0)
    for _ in run.run():
        pass
    head = read_head(tmp_path / "first").float()
    assert head.config == run.head_config
    assert head.feature_layers == LAYERS
    assert torch.equal(head.draft_vocabulary, run.head.draft_vocabulary)
    saved = run.head.fc.weight.to(torch.bfloat16).float()
    assert torch.equal(head.fc.weight, saved)
    again = trainer(layer_data, tmp_path / "second", init=head, arch="eagle3").head
    left, right = again.state_dict(), head.state_dict()
    assert all(torch.equal(left[key], right[key]) for key in left)
    smaller = trainer(
        layer_data, tmp_path / "third", init=head, arch="eagle3", draft_vocab_size=32
    ).head
    assert smaller.lm_head.weight.shape[0] == 32
    assert torch.equal(smaller.fc.weight, head.fc.weight)
    with pytest.raises(ConfigError, match="other shapes"):
        trainer(layer_data, tmp_path / "fourth", init=head)


def test_a_head_with_norms_starts_from_states_of_one_size(layer_data, tmp_path):
    model = tiny_model("llama")
    config = FitConfig(arch="eagle3", draft_vocab_size=0, held_out_shards=1)
    shape = head_shape(config, model.config, LAYERS)
    assert shape.fc_norm
    plain = head_shape(dataclasses.replace(config, feature_norm=False), model.config, LAYERS)
    assert plain == dataclasses.replace(shape, fc_norm=False)
    lm_weight = model.get_output_embeddings().weight.detach()
    embedding = model.get_input_embeddings().weight.detach()
    run = Trainer(shape, embedding, lm_weight, layer_data, tmp_path / "head", config)
    batch = make_batch(layer_data.read(layer_data.shards[0], has_layers=True))
    scaled = batch.features.clone()
    scaled[..., -32:] *= 100.0
    for features in (batch.features, scaled):
        with torch.no_grad():
            fused = run.head.fuse(features)
        sizes = fused.pow(2).mean(-1).sqrt()[batch.weights > 0]
        torch.testing.assert_close(sizes, torch.ones_like(sizes), atol=1e-3, rtol=0)


def test_an_eagle3_head_starts_from_the_bases_own_scores(layer_data, tmp_path):
    norm = torch.full((32,), 2.0)
    model = tiny_model("llama")
    config = FitConfig(arch="eagle3", draft_vocab_size=16, held_out_shards=1)
    shape = eagle3_for_base(model.config, LAYERS, draft_vocab_size=16)
    lm_weight = model.get_output_embeddings().weight.detach()
    embedding = model.get_input_embeddings().weight.detach()
    run = Trainer(
        shape, embedding, lm_weight, layer_data, tmp_path / "head", config, norm_weight=norm
    )
    assert torch.equal(run.head.lm_head.weight, lm_weight[run.head.draft_vocabulary])
    torch.testing.assert_close(run.head.norm.weight.detach(), START_CONFIDENCE * norm)
    batch = make_batch(layer_data.read(layer_data.shards[0], has_layers=True))
    with torch.no_grad():
        embeddings = run.embed_weight[batch.next_tokens]
        out = unrolled_predictions(run.head, embeddings, batch.features, 1)[0]
    torch.testing.assert_close(out, batch.features[..., -32:])
