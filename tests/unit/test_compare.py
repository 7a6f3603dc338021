"""Races: fair order, what is recorded, and verdicts that say no more than what holds."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest

from eagle_core.compare import (
    OneModel,
    Prompt,
    Race,
    Setup,
    by_precision,
    ratio,
    run_races,
    time_left_s,
)
from eagle_core.config import DraftConfig, GenerationConfig, TreeConfig
from eagle_core.differences import Difference
from eagle_core.errors import ConfigError
from eagle_core.race_figures import summarize
from eagle_core.ui.compare import FIRST_DRAFTERS, TREE_FIELDS, example_prompts, read_setups
from eagle_core.ui.races import about, races_data, report_html
from tests.support.fake_session import FakeSession

TEXT = "A *first* line.\nAnd 😀 a second one, a bit longer than the first."
GENERATION = GenerationConfig(max_new_tokens=64)
PLAIN = Setup("Plain decoding", DraftConfig("none"), GENERATION)
EAGLE = Setup("EAGLE", DraftConfig("eagle"), GENERATION)


class Session(FakeSession):
    """Writes down the order of requests; ``other`` is what the drafting set-up answers, if not the same."""

    def __init__(self, other: str | None = None) -> None:
        super().__init__(default=TEXT, step_s=0.002)
        self.order: list[tuple[str, int]] = []
        self._other, self._text = other, TEXT

    def chat(self, messages: Any, generation: Any, draft: Any, *, cancel: Any = None) -> Any:
        self.order.append((draft.drafter, generation.max_new_tokens))
        self.default = self._other if self._other and draft.drafter != "none" else self._text
        return super().chat(messages, generation, draft, cancel=cancel)

    def explain_difference(
        self, prompt_ids: Any, plain: Any, drafted: Any, generation: Any
    ) -> Difference | None:
        found = super().explain_difference(prompt_ids, plain, drafted, generation)
        return found and dataclasses.replace(
            found, gap=0.25, gap_float32=0.5, lead=0.25, rounding=1.0
        )


def races(session: Any, prompts: list[str], setups: list[Setup]) -> list[Any]:
    seen: list[Any] = []
    asked = [Prompt(text, f"kind {index % 2}") for index, text in enumerate(prompts)]
    found = list(run_races(OneModel(session), asked, setups, threading.Event(), seen.append))
    n_answers = len(prompts) * len(setups)
    assert {one.setup.name for one in seen} == {setup.name for setup in setups}
    assert {one.n_prompt for one in seen} == set(range(len(prompts)))
    assert [one.n_done for one in seen] == sorted(one.n_done for one in seen)
    assert seen[-1].n_done == n_answers - 1
    assert {one.n_answers for one in seen} == {n_answers}
    assert seen[0].left_s is None
    assert seen[-1].left_s is not None or n_answers == 1
    return found


def test_every_answer_reads_its_prompt_and_the_order_rotates() -> None:
    session = Session()
    found = races(session, ["one", "two"], [PLAIN, EAGLE])
    warm, counted = session.order[:2], session.order[2:]
    assert warm == [("none", 16), ("eagle", 16)]
    assert counted == [("none", 64), ("eagle", 64), ("eagle", 64), ("none", 64)]
    assert session.n_forgotten == 4
    assert [race.prompt for race in found] == ["one", "two"]
    assert [lane.setup.name for lane in found[1].lanes] == ["Plain decoding", "EAGLE"]


def test_moments_hold_the_whole_answer() -> None:
    (race,) = races(Session(), ["one"], [PLAIN, EAGLE])
    for lane in race.lanes:
        assert "".join(moment.text for moment in lane.moments) == TEXT
        assert lane.moments[-1].n_tokens == lane.stats.n_tokens == len(lane.token_ids)
        times = [moment.time_s for moment in lane.moments]
        assert times == sorted(times)
        for moment in lane.moments:
            assert sum(span.n_chars for span in moment.spans) == len(moment.text)
    drafted = [s.origin for m in race.lanes[1].moments for s in m.spans]
    assert "draft" in drafted


def test_the_same_answer_is_called_identical_and_fewer_steps_are_faster() -> None:
    (race,) = races(Session(), ["one"], [PLAIN, EAGLE])
    (verdict,) = race.verdicts
    assert verdict.is_identical is True
    assert "Identical answers" in verdict.words
    assert verdict.decode_speedup is not None
    assert verdict.decode_speedup > 1
    (total,) = summarize([race])
    assert (total["n_races"], total["n_identical"], total["n_judged"]) == (1, 1, 1)
    assert total["decode_speedup"] == pytest.approx(verdict.decode_speedup)
    assert total["tau"] == pytest.approx(race.lanes[1].stats.tau)


def test_a_difference_is_named_and_explained() -> None:
    (race,) = races(Session(other=TEXT.replace("second", "third")), ["one"], [PLAIN, EAGLE])
    (verdict,) = race.verdicts
    assert verdict.is_identical is False
    assert "First difference: token" in verdict.words
    assert "0.25 apart" in verdict.words
    assert "a rounding tie" in verdict.words
    assert summarize([race])[0]["n_identical"] == 0


def test_what_need_not_be_the_same_is_not_compared() -> None:
    warmer = dataclasses.replace(GENERATION, temperature=0.7)
    (race,) = races(Session(), ["one"], [PLAIN, dataclasses.replace(EAGLE, generation=warmer)])
    assert race.verdicts[0].is_identical is None
    assert "Other settings" in race.verdicts[0].words
    drawn = dataclasses.replace(warmer, rule="sampling")
    both = [dataclasses.replace(setup, generation=drawn) for setup in (PLAIN, EAGLE)]
    (race,) = races(Session(), ["one"], both)
    assert race.verdicts[0].is_identical is None
    assert "same distribution" in race.verdicts[0].words
    assert race.verdicts[0].decode_speedup is not None


def test_a_failed_answer_is_not_judged() -> None:
    (race,) = races(Session(), ["much " * 600], [PLAIN, EAGLE])
    assert race.lanes[0].transcript.error is not None
    assert race.verdicts[0].decode_speedup is None
    assert "an answer is missing" in race.verdicts[0].words
    data = races_data(FakeSession().info, [race], "a machine")  # type: ignore[arg-type]
    assert "the context holds" in data["races"][0]["lanes"][0]["problem"]
    assert data["summary"][0]["n_races"] == 0


def test_stopping_drops_the_race_in_progress() -> None:
    cancel = threading.Event()

    def stop_in_the_second(standing: Any) -> None:
        if standing.n_prompt == 1 and standing.setup is PLAIN and standing.transcript.tokens:
            cancel.set()

    prompts = [Prompt(text) for text in ("one", "two", "three")]
    stage = OneModel(Session())
    found = list(run_races(stage, prompts, [PLAIN, EAGLE], cancel, stop_in_the_second))
    assert [race.prompt for race in found] == ["one"]


def test_ratio_is_of_times_per_token() -> None:
    assert ratio(2.0, 100, 0.5, 50) == 2.0
    assert ratio(0.0, 100, 0.5, 50) is None
    assert ratio(2.0, 100, 0.5, 0) is None


# ---- the page's side --------------------------------------------------------------------------------

TREE = TreeConfig()
OWN = tuple(getattr(TREE, name) for name in TREE_FIELDS)


def controls(
    *drafters: str,
    temperature: str | None = None,
    precision: str = "loaded",
    shared: Any = (0.0, 0, 64),
) -> list[Any]:
    own = [(name, precision, temperature if name == "eagle" else "", *OWN) for name in drafters]
    return [*shared, *(value for lane in own for value in lane)]


def test_controls_make_setups() -> None:
    assert read_setups(controls(*FIRST_DRAFTERS), "float32") == [PLAIN, EAGLE]
    named = controls(*FIRST_DRAFTERS, precision="float32")
    assert read_setups(named, "float32") == [PLAIN, EAGLE]  # what is loaded, by its name
    three = read_setups(controls("none", "eagle", "eagle", temperature=" 0,7"), "float32")
    assert [setup.name for setup in three] == ["Plain decoding", "EAGLE A", "EAGLE B"]
    assert three[0].generation.temperature == 0.0
    assert three[1].generation.temperature == 0.7
    assert "auto tree, 10 looked up" in about(three[1], "float32")
    assert about(three[1], "float32").startswith("float32 · temperature 0.7 · ")
    other = read_setups(controls("none", "eagle", "off", precision="int8"), "float32")
    assert [setup.name for setup in other] == ["Plain decoding, int8", "EAGLE, int8"]
    assert about(other[0], "float32").startswith("int8 · ")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        (controls("none", "off", "off"), "no race"),
        (controls("none", "eagle", "off", shared=(0.0, None, 64)), "seed is empty"),
        (controls("none", "eagle", "off", temperature="9"), "temperature"),
        (controls("none", "eagle", "off", temperature="warm"), "temperature is no number"),
    ],
)
def test_wrong_controls_are_named(values: list[Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        read_setups(values, "float32")


def test_a_saved_file_holds_texts_as_data_and_loads_nothing() -> None:
    attack = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)> {data} é"
    session = Session()
    session.answers = {attack: attack}
    (race,) = races(session, [attack], [PLAIN, EAGLE])
    data = races_data(session.info, [race], attack)
    html = report_html(data)
    assert html.count("<script") == html.count("</script>") == 5
    assert "<img" not in html
    assert "default-src 'none'" in html
    assert "http://" not in html
    assert "https://" not in html
    start = html.index('id="data">') + len('id="data">')
    kept = json.loads(html[start : html.index("</script>", start)])
    assert kept["races"][0]["prompt"] == attack
    assert "".join(moment[1] for moment in kept["races"][0]["lanes"][1]["moments"]) == attack


def test_the_examples_are_prompts() -> None:
    prompts = example_prompts()
    assert len(prompts) == len({prompt.text for prompt in prompts}) >= 10
    categories = [prompt.category for prompt in prompts]
    assert all(categories.count(category) == 2 for category in categories)


# ---- over several prompts ---------------------------------------------------------------------------


def test_figures_of_a_batch() -> None:
    found = races(Session(), ["one", "two", "three", "four"], [PLAIN, EAGLE])
    (one,) = summarize(found)
    assert one["n_races"] == one["n_identical"] == one["n_judged"] == 4
    low, high = one["decode_interval"]
    assert 1 < low <= one["decode_speedup"] <= high
    assert one["total_interval"][0] <= one["total_speedup"] <= one["total_interval"][1]
    assert [(each["name"], each["n_races"]) for each in one["categories"]] == [
        ("kind 0", 2),
        ("kind 1", 2),
    ]
    pairs = [(race.lanes[0].stats, race.lanes[1].stats) for race in found[::2]]
    first = sum(a.decode_s for a, _ in pairs) / sum(a.n_tokens - 1 for a, _ in pairs)
    other = sum(b.decode_s for _, b in pairs) / sum(b.n_tokens - 1 for _, b in pairs)
    assert one["categories"][0]["decode_speedup"] == pytest.approx(first / other)


def test_one_race_has_no_interval() -> None:
    (one,) = summarize(races(Session(), ["one"], [PLAIN, EAGLE]))
    assert one["decode_speedup"] > 1
    assert one["decode_interval"] is None
    assert summarize([]) == []


def test_the_time_left() -> None:
    assert time_left_s([], 2, 2) is None
    assert time_left_s([(0, 4.0)], 2, 2) == 4.0 + 2 * 4.0
    assert time_left_s([(0, 4.0), (1, 2.0)], 2, 2) == 6.0
    assert time_left_s([(0, 4.0), (1, 2.0), (0, 2.0), (1, 2.0)], 2, 2) == 0.0


# ---- over several precisions ------------------------------------------------------------------------

INT8 = dataclasses.replace(EAGLE, name="EAGLE, int8", precision="int8")
INT8_PLAIN = dataclasses.replace(PLAIN, name="Plain, int8", precision="int8")


class Models:
    """A stage that writes down what it was asked for; each precision has a session of its own."""

    def __init__(self, other: str | None = None) -> None:
        self.taken: list[str] = []
        self.sessions = {"": Session(), "int8": Session()}
        if other is not None:
            self.sessions["int8"]._text = other

    def take(self, precision: str) -> Any:
        self.taken.append(precision)
        return self.sessions[precision]


def test_a_precision_is_taken_once_and_the_loaded_one_first() -> None:
    stage = Models()
    prompts = [Prompt("one"), Prompt("two")]
    setups = [INT8, PLAIN, EAGLE]
    assert by_precision(setups) == [[1, 2], [0]]
    found = list(run_races(stage, prompts, setups, threading.Event(), lambda standing: None))
    assert stage.taken == ["", "int8"]
    assert [lane.setup for lane in found[0].lanes] == setups
    loaded = stage.sessions[""].order
    assert [drafter for drafter, n in loaded if n == 64] == ["none", "eagle", "eagle", "none"]
    assert [drafter for drafter, n in stage.sessions["int8"].order if n == 64] == ["eagle"] * 2


def test_another_precision_is_another_model() -> None:
    found = one_race(Models(), [PLAIN, INT8, EAGLE])
    assert [verdict.is_identical for verdict in found.verdicts] == [None, True]
    assert "another model" in found.verdicts[0].words
    assert "Here it is the same" in found.verdicts[0].words
    assert found.verdicts[0].decode_speedup is not None
    parted = one_race(Models(other=TEXT.replace("second", "third")), [PLAIN, INT8])
    assert "Here it is another from token" in parted.verdicts[0].words
    warmer = dataclasses.replace(INT8, generation=dataclasses.replace(GENERATION, temperature=0.7))
    assert "not meant to be the same" in one_race(Models(), [PLAIN, warmer]).verdicts[0].words


def test_set_ups_of_one_other_precision_are_compared() -> None:
    stage = Models()
    found = one_race(stage, [INT8_PLAIN, INT8])
    assert stage.taken == ["int8"]
    assert found.verdicts[0].is_identical is True


def one_race(stage: Any, setups: list[Setup]) -> Race:
    prompts = [Prompt("one")]
    (found,) = run_races(stage, prompts, setups, threading.Event(), lambda standing: None)
    return found
