"""Processors: every node of a tree is scored as plain decoding scores the same prefix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_core.bench.transformers_peer import TransformersMethod
from eagle_core.config import GenerationConfig
from eagle_core.errors import ConfigError
from eagle_core.processors import CountPenalty, Processors, processors_for
from eagle_core.sampling import to_probabilities
from eagle_core.testing import tiny_model
from eagle_core.tree import DraftTree
from eagle_core.verify import _paths, verify

VOCAB = 12
EOS = frozenset({3, 7})
ALL: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top-k": {"top_k": 4},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.1},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 0.9},
    "frequency": {"frequency_penalty": 0.6},
    "bias": {"logit_bias": {2: 3.0, 5: -4.0}},
    "min new": {"min_new_tokens": 5},
}
EVERYTHING = {name: value for setting in ALL.values() for name, value in setting.items()}


def config_of(setting: dict[str, Any], **more: Any) -> GenerationConfig:
    return GenerationConfig(**{"temperature": 1.0} | setting | more)


def process(
    config: GenerationConfig, prompt: list[int], answer: list[int], paths: Any, logits: Any
):
    """Probabilities of nodes after ``prompt`` and ``answer``."""
    found = processors_for(config, prompt, EOS, VOCAB)
    if found is None:
        return to_probabilities(logits, config)
    found.extend(answer)
    return to_probabilities(found(logits, paths), config)


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(
    setting=st.sampled_from([*ALL.values(), EVERYTHING]),
    prompt=TOKENS,
    answer=TOKENS,
    nodes=st.lists(
        st.tuples(st.integers(0, 100), st.integers(0, VOCAB - 1)), min_size=1, max_size=7
    ),
    seed=st.integers(0, 1000),
)
def test_a_node_is_scored_as_its_own_prefix_is(setting, prompt, answer, nodes, seed):
    tokens = [answer[-1], *(token for _, token in nodes)]
    parents = [-1, *(parent % (i + 1) for i, (parent, _) in enumerate(nodes))]
    logits = torch.randn(len(tokens), VOCAB, generator=torch.Generator().manual_seed(seed)) * 2
    config = config_of(setting)
    paths = _paths(tokens, parents)
    in_tree = process(config, prompt, answer, paths, logits)
    for node, path in enumerate(paths):
        alone = process(config, prompt, answer + path, [()], logits[node : node + 1])
        torch.testing.assert_close(in_tree[node : node + 1], alone, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*ALL, "everything"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_generate_of_transformers_has_the_same_distribution(name, temperature):
    """Step by step along a text that ``generate`` wrote, with the settings that the benchmark passes it."""
    setting = ALL.get(name, EVERYTHING)
    config = config_of({"min_new_tokens": 2} | setting | {"temperature": temperature})
    model = tiny_model("llama", vocab=VOCAB, seed=4)
    prompt = [1, 2, 2, 9, 5]
    method = TransformersMethod(model, EOS, 64)
    from transformers import LogitsProcessorList

    from eagle_core.processors import count_penalty

    ids = torch.tensor([prompt])
    generator_state = torch.get_rng_state()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_config=method._settings(config, 8),
        logits_processor=LogitsProcessorList(count_penalty(config, len(prompt))),
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    torch.set_rng_state(generator_state)
    answer = out.sequences[0, len(prompt) :].tolist()
    assert len(answer) > 2
    for i, (scores, logits) in enumerate(zip(out.scores, out.logits, strict=True)):
        ours = process(config, prompt, answer[:i], [()], logits)
        # Ours subtracts the largest score before dividing by the temperature: float32's last bits differ.
        torch.testing.assert_close(ours, scores.float().softmax(-1), rtol=1e-5, atol=1e-6)


def test_the_benchmark_refuses_what_generate_has_not():
    method = TransformersMethod(tiny_model("llama", vocab=VOCAB), EOS, 64)
    with pytest.raises(ConfigError, match="stop string"):
        method.answer([1, 2], GenerationConfig(stop=("a",), max_new_tokens=4))
    greedy = GenerationConfig(max_new_tokens=6, frequency_penalty=2.0, min_new_tokens=6)
    answer = method.answer([1, 2], greedy)
    assert len(answer.token_ids) == 6
    assert not set(answer.token_ids[:-1]) & EOS


def test_greedy_follows_the_processed_scores():
    logits = torch.tensor([[0.0, 5.0, 4.0, 3.0]])
    tree = DraftTree.single(torch.tensor(1))

    def says(processors: Processors | None) -> int:
        return verify(tree, logits, 4, GenerationConfig(), processors).run[0]

    assert says(None) == 1
    config = GenerationConfig(frequency_penalty=1.5)
    found = processors_for(config, [2, 2], frozenset(), 4)
    assert found is not None
    found.extend([1])
    assert says(found) == 2, "1 came once in the answer, 2 in the prompt only"
    held = processors_for(GenerationConfig(min_new_tokens=1), [0], frozenset({1}), 4)
    assert says(held) == 2
    biased = processors_for(GenerationConfig(logit_bias={3: 4}), [0], frozenset(), 4)
    assert says(biased) == 3


def test_the_formula_of_openai():
    scores = torch.zeros(2, 4)
    context = torch.tensor([[3, 3, 1, 1, 2], [0, 0, 0, 0, 0]])
    found = CountPenalty(0.5, 0.25, n_prompt=2)(context, scores)
    assert found.tolist() == [[0.0, -1.0, -0.75, 0.0], [-1.25, 0.0, 0.0, 0.0]]


def test_nothing_is_built_when_nothing_is_asked_for():
    plain = GenerationConfig(temperature=0.8, top_k=3, top_p=0.5, min_p=0.1)
    assert processors_for(plain, [1], EOS, VOCAB) is None
    assert processors_for(GenerationConfig(min_new_tokens=4), [1], frozenset(), VOCAB) is None


def test_a_bias_for_an_unknown_token_is_an_error():
    with pytest.raises(ConfigError, match="does not have"):
        processors_for(GenerationConfig(logit_bias={VOCAB: 1.0}), [1], EOS, VOCAB)
