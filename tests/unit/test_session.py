"""The session: streams, prefix reuse, the queue, stopping, closing and failing."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.drafters.eagle import EagleDrafter
from eagle_core.errors import DraftError, NoChatTemplate
from eagle_core.events import (
    Failed,
    Finished,
    Notice,
    Queued,
    Started,
    StepDone,
    TextDelta,
)
from eagle_core.session import Session
from eagle_core.target import Target
from tests.support.cli import save_head
from tests.support.tiny_models import save_llama

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
EAGLE = DraftConfig("eagle", TreeConfig(branching=4, size=12, depth=3))
PLAIN = DraftConfig("none")
NGRAM = DraftConfig("ngram")
SHORT = GenerationConfig(max_new_tokens=16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    base = save_llama(root / "base", seed=4)
    return base, save_head(base, root / "head")


@pytest.fixture
def session(folders):
    base, head = folders
    opened = Session.open(LoadConfig(base=str(base), head=str(head), dtype="float32", device="cpu"))
    opened.tokenizer.chat_template = TEMPLATE
    return opened


def finished(events):
    last = list(events)[-1]
    assert isinstance(last, Finished), last
    return last


def ask(session, text, draft=EAGLE, generation=SHORT, cancel=None):
    return session.chat([{"role": "user", "content": text}], generation, draft, cancel=cancel)


def test_stream_is_in_order_and_adds_up(session):
    events = list(ask(session, "hello"))
    kinds = [type(event) for event in events if not isinstance(event, TextDelta)]
    assert kinds[0] is Started
    assert kinds[-1] is Finished
    ids = [t.id for e in events if isinstance(e, StepDone) for t in e.tokens]
    assert tuple(ids) == events[-1].token_ids
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    assert text == session.tokenizer.decode(ids, skip_special_tokens=True)
    for event in events:
        if isinstance(event, TextDelta):
            assert sum(span.n_chars for span in event.spans) == len(event.text)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_eagle_and_plain_write_the_same(session, temperature):
    generation = GenerationConfig(max_new_tokens=24, temperature=temperature, seed=5)
    plain = finished(ask(session, "tell me", PLAIN, generation))
    session.forget()
    assert finished(ask(session, "tell me", EAGLE, generation)).token_ids == plain.token_ids


def test_next_turn_reads_only_what_is_new(session):
    first = finished(ask(session, "hello"))
    answer = session.tokenizer.decode(first.token_ids, skip_special_tokens=True)
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "more"},
    ]
    events = list(session.chat(messages, SHORT, EAGLE))
    assert events[0].n_cached_tokens > 0
    session.forget()
    fresh = list(session.chat(messages, SHORT, EAGLE))
    assert fresh[0].n_cached_tokens == 0
    assert fresh[-1].token_ids == events[-1].token_ids


def test_same_prompt_again_gives_the_same_answer(session):
    assert finished(ask(session, "hello")).token_ids == finished(ask(session, "hello")).token_ids
    assert (
        finished(ask(session, "hello", PLAIN)).token_ids
        == finished(ask(session, "hello")).token_ids
    )


@pytest.mark.parametrize("n_events", [1, 2, 3, 5, 8])
def test_closing_at_any_event_leaves_the_session_usable(session, n_events):
    expected = finished(ask(session, "hello")).token_ids
    events = ask(session, "something else that is longer")
    for _ in range(n_events):
        next(events)
    events.close()
    assert finished(ask(session, "hello")).token_ids == expected


def test_stop_ends_the_stream_and_keeps_the_text(session):
    cancel = threading.Event()
    events = ask(session, "hello", generation=GenerationConfig(max_new_tokens=90), cancel=cancel)
    seen = []
    for event in events:
        seen.append(event)
        if isinstance(event, StepDone) and event.index == 2:
            cancel.set()
    assert seen[-1].reason == "cancelled"
    assert 2 < len(seen[-1].token_ids) < 90


def test_second_request_waits_its_turn_and_says_so(session):
    first = ask(session, "hello", generation=GenerationConfig(max_new_tokens=90))
    next(first)
    second = ask(session, "other")
    assert next(second) == Queued(1)
    result = []
    thread = threading.Thread(target=lambda: result.extend(second))
    thread.start()
    time.sleep(0.2)
    assert not result, "it must not start while the first holds the engine"
    first_done = finished(first)
    thread.join(timeout=30)
    assert isinstance(result[-1], Finished)
    session.forget()
    assert (
        first_done.token_ids
        == finished(ask(session, "hello", generation=GenerationConfig(max_new_tokens=90))).token_ids
    )


def test_a_waiting_request_can_be_stopped(session):
    first = ask(session, "hello")
    next(first)
    cancel = threading.Event()
    second = ask(session, "other", cancel=cancel)
    assert next(second) == Queued(1)
    cancel.set()
    last = list(second)[-1]
    assert last.reason == "cancelled"
    assert last.token_ids == ()
    finished(first)
    finished(ask(session, "hello"))


def test_a_prompt_longer_than_the_context_fails_with_a_hint(session):
    events = list(ask(session, "word " * 300))
    assert isinstance(events[-1], Failed)
    assert events[-1].code == "context-overflow"
    assert events[-1].hint
    finished(ask(session, "hello"))


def test_the_context_ends_an_answer(session):
    limit = session.info.context_length
    n_prompt = limit - 6
    last = list(session.generate([5] * n_prompt, GenerationConfig(max_new_tokens=90), EAGLE))[-1]
    assert last.reason in ("context", "eos")
    assert n_prompt + len(last.token_ids) <= limit


def test_empty_prompt_fails_with_a_hint(session):
    last = list(session.generate([], SHORT, EAGLE))[-1]
    assert isinstance(last, Failed)
    assert last.hint


def test_a_failing_proposal_is_one_notice_and_the_answer_is_right(session, monkeypatch):
    expected = finished(ask(session, "hello")).token_ids

    def broken(*_):
        raise DraftError("broken on purpose", hint="mend it")

    session.forget()
    with monkeypatch.context() as patch:
        patch.setattr(EagleDrafter, "propose", broken)
        events = list(ask(session, "hello"))
    assert finished(events).token_ids == expected
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "broken on purpose" in notice.message
    events = list(ask(session, "hello"))
    assert finished(events).token_ids == expected
    assert finished(events).stats.n_drafted > 0


def test_a_failing_commit_is_one_notice_and_the_next_answer_drafts(session, monkeypatch, caplog):
    expected = finished(ask(session, "hello")).token_ids
    session.forget()

    def broken(*_):
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr(EagleDrafter, "commit", broken)
        events = list(ask(session, "hello"))
    assert finished(events).token_ids == expected
    assert finished(events).stats.n_drafted == 0
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "secret" not in notice.message
    assert "secret detail" in caplog.text
    events = list(ask(session, "hello"))
    assert finished(events).token_ids == expected
    assert finished(events).stats.n_drafted > 0
    assert not any(isinstance(event, Notice) for event in events)


def test_an_unforeseen_error_becomes_one_sentence(session, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("secret detail")

    with monkeypatch.context() as patch:
        patch.setattr(Target, "forward_tree", broken)
        last = list(ask(session, "hello"))[-1]
    assert isinstance(last, Failed)
    assert "secret" not in last.message
    assert "secret detail" in caplog.text
    finished(ask(session, "hello"))


def test_without_a_head_earlier_text_is_looked_up_and_the_answer_is_the_same(folders):
    plain = Session.open(LoadConfig(base=str(folders[0]), dtype="float32", device="cpu"))
    wanted = finished(plain.generate([5, 6, 7], SHORT, PLAIN)).token_ids
    # The prompt holds the answer already, so that it is found there.
    prompt = [5, 6, 7, *wanted, 5, 6, 7]
    truth = finished(plain.generate(prompt, SHORT, PLAIN))
    for _ in range(2):  # the second time most of the prompt is in the cache
        events = list(plain.generate(prompt, SHORT, EAGLE))
        (notice,) = [event for event in events if isinstance(event, Notice)]
        assert "lookup" in notice.message
        assert finished(events).token_ids == truth.token_ids
        assert finished(events).stats.n_drafted > 0
    assert plain.info.head is None
    assert not [e for e in plain.generate(prompt, SHORT, NGRAM) if isinstance(e, Notice)]


def test_an_answer_that_is_continued_begins_where_it_ended(session):
    long = GenerationConfig(max_new_tokens=24)
    whole = session.encode_chat([{"role": "user", "content": "hello"}])
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "and then"}]
    ids = session.encode_chat(messages)
    assert ids[: len(whole)] == whole
    assert session.tokenizer.decode(ids[len(whole) :]) == "and then"
    assert session.count_tokens(messages) == len(ids)
    events = list(session.chat(messages, long, EAGLE))
    again = list(session.generate(ids, long, PLAIN))
    assert finished(events).token_ids == finished(again).token_ids


def test_no_chat_template_is_an_error_with_a_way_out(folders):
    plain = Session.open(LoadConfig(base=str(folders[0]), dtype="float32", device="cpu"))
    plain.tokenizer.chat_template = None
    with pytest.raises(NoChatTemplate, match="--raw"):
        plain.encode_chat([{"role": "user", "content": "hi"}])
    last = list(ask(plain, "hi"))[-1]
    assert isinstance(last, Failed)
    assert last.code == "no-chat-template"


def test_a_template_that_refuses_is_an_error_with_a_hint(session):
    session.tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    last = list(ask(session, "hi"))[-1]
    assert isinstance(last, Failed)
    assert "System role not supported" in last.message


def test_changing_the_tree_between_turns_keeps_the_text(session):
    expected = finished(ask(session, "hello", PLAIN)).token_ids
    for tree in (
        TreeConfig("static"),
        TreeConfig(branching=16, depth=8, size=64),
        TreeConfig("chain"),
    ):
        assert finished(ask(session, "hello", DraftConfig("eagle", tree))).token_ids == expected


def read(events):
    """Text and last event of a stream."""
    events = list(events)
    return "".join(e.text for e in events if isinstance(e, TextDelta)), events[-1]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_stop_string_ends_text_and_tokens_alike_with_and_without_drafts(session, temperature):
    whole = GenerationConfig(max_new_tokens=40, temperature=temperature, seed=3)
    text, full = read(ask(session, "tell me", PLAIN, whole))
    n_stopped = 0
    for start in range(0, len(text) - 3, 11):
        stop = text[start : start + 3]
        generation = dataclasses.replace(whole, stop=("never this", stop))
        found = {}
        for name, draft in (("plain", PLAIN), ("eagle", EAGLE)):
            found[name] = read(ask(session, "tell me", draft, generation))
        (shown, last), (drafted, drafted_last) = found["plain"], found["eagle"]
        assert shown == drafted == text[: text.index(stop)]
        assert last.reason == drafted_last.reason == "stop"
        assert last.token_ids == drafted_last.token_ids
        assert last.token_ids == full.token_ids[: len(last.token_ids)]
        assert last.stats.n_tokens == len(last.token_ids)
        decoded = session.tokenizer.decode(last.token_ids, skip_special_tokens=True)
        assert decoded.startswith(shown)
        n_stopped += len(last.token_ids) < len(full.token_ids)
    assert n_stopped > 2
    assert read(ask(session, "tell me", EAGLE, whole))[0] == text


def test_the_sampling_rule_reaches_the_drafter(session):
    generation = GenerationConfig(max_new_tokens=30, temperature=1.0, rule="sampling", seed=2)
    events = list(ask(session, "hello", EAGLE, generation))
    assert events[0].rule == "sampling"
    assert events[-1].stats.n_drafted > 0
    again = list(ask(session, "hello", EAGLE, generation))
    assert again[-1].token_ids == events[-1].token_ids


def test_every_processor_leaves_plain_and_eagle_equal(session):
    for temperature in (0.0, 0.8):
        generation = GenerationConfig(
            max_new_tokens=24, temperature=temperature, top_k=80, min_p=0.001, top_p=0.98,
            repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2,
            logit_bias={5: 4.0}, min_new_tokens=12,
        )  # fmt: skip
        plain = finished(ask(session, "tell me", PLAIN, generation))
        assert finished(ask(session, "tell me", EAGLE, generation)).token_ids == plain.token_ids
        assert len(plain.token_ids) >= 12


def test_a_bias_for_a_token_that_is_not_there_fails_with_a_hint(session):
    generation = GenerationConfig(logit_bias={10**6: 1.0})
    last = list(ask(session, "hello", PLAIN, generation))[-1]
    assert isinstance(last, Failed)
    assert (last.code, bool(last.hint)) == ("bad-config", True)


def test_the_auto_trees_measurements_outlive_the_session(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path))
    base, head = folders
    load = LoadConfig(base=str(base), head=str(head), dtype="float32", device="cpu")
    auto = DraftConfig("eagle")
    first = Session.open(load)
    for _ in first.generate([5, 6, 7], GenerationConfig(max_new_tokens=60), auto):
        pass
    (file,) = (tmp_path / "pace").iterdir()
    assert file.suffix == ".json"
    second = Session.open(load)
    for _ in second.generate([5, 6, 7], GenerationConfig(max_new_tokens=2), auto):
        pass
    assert max(rate for pace in second._paces.paces for rate in pace.rates) > 0
    other = Session.open(dataclasses.replace(load, dtype="bfloat16"))
    for _ in other.generate([5, 6, 7], GenerationConfig(max_new_tokens=2), auto):
        pass
    assert len(list((tmp_path / "pace").iterdir())) == 2


def test_auto_hears_of_the_answers_temperature(session, monkeypatch):
    heard = []
    configure = EagleDrafter.configure

    def listening(self, tree, temperature=0.0):
        heard.append(temperature)
        configure(self, tree, temperature)

    monkeypatch.setattr(EagleDrafter, "configure", listening)
    for temperature in (0.0, 0.9):
        generation = GenerationConfig(max_new_tokens=4, temperature=temperature)
        finished(ask(session, "hello", DraftConfig("eagle"), generation))
    assert heard == [0.0, 0.9]
