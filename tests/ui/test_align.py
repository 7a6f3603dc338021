"""The alignment of rendered text with raw Markdown, run by node as it is (no browser)."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from eagle_core.assets import asset_path
from tests.support.nasty_markdown import CORPUS

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")

PRELUDE = """
const { alignBlock, createFlags, createSource, isSpace } = require(process.argv[1]);
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
const units = (text) => Array.from({ length: text.length }, (_, at) => text.charCodeAt(at));
const solid = (text) => units(text).filter((code) => !isSpace(code));
const whole = (text) => { const source = createSource(); source.append(text); return source; };
"""


def run(script: str, given: Any) -> Any:
    """What ``script`` returns for ``given``."""
    code = f"{PRELUDE} const answer = () => {{ {script} }}; console.log(JSON.stringify(answer()));"
    done = subprocess.run(
        [str(NODE), "-e", code, str(asset_path("align.js"))],
        input=json.dumps(given), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


ALIGN = """
const source = whole(given.raw);
if (given.math) source.expectMath();
const result = alignBlock(solid(given.shown), source, 0);
const { matched, pending, found } = result;
return { found: [...found], matched, total: found.length, pending };
"""


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("**bold** and *it*", "bold and it"),
        ("# Title\n\n- a\n- b", "Title a b"),
        ("```python\nx = 1 * 2\n```\nend", "x = 1 * 2 end"),
        ("[text](http://x.y/z_(1)) after", "text after"),
        ("A &amp; B &lt;tag&gt;", "A & B <tag>"),
        ("1\\. one \\*two\\*", "1. one *two*"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "a b 1 2"),
    ],
)
def test_every_shown_character_finds_its_place(raw: str, shown: str) -> None:
    result = run(ALIGN, {"raw": raw, "shown": shown})
    assert result["matched"] == result["total"]
    found = "".join(raw[place] for place in result["found"])
    if "&" not in raw:
        assert found == "".join(shown.split())


def test_mathematics_is_left_out() -> None:
    raw = "Before $$a + b$$ after."
    assert run(ALIGN, {"raw": raw, "shown": "Before after.", "math": True})["matched"] == 12


def test_foreign_text_is_not_matched() -> None:
    result = run(ALIGN, {"raw": "The quick brown fox", "shown": "Zażółć gęślą jaźń 12345 67890"})
    assert result["matched"] < 0.5 * result["total"]


def test_text_that_is_shown_before_it_is_known_is_pending() -> None:
    result = run(ALIGN, {"raw": "One two", "shown": "One two three"})
    assert (result["matched"], result["pending"]) == (6, 5)


@pytest.mark.parametrize("name", list(CORPUS))
def test_a_source_that_grows_equals_one_that_is_whole(name: str) -> None:
    """Fed in pieces of every size, a source ends as if it had got the text at once."""
    script = """
    const { codes, places, kinds } = whole(given);
    for (const size of [1, 2, 3, 7, 50]) {
      const source = createSource();
      for (let at = 0; at < given.length; at += size) source.append(given.slice(at, at + size));
      const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);
      const pairs = [[source.codes, codes], [source.places, places], [source.kinds, kinds]];
      if (!pairs.every(([a, b]) => same(a, b))) return size;
    }
    return 0;
    """
    assert run(script, CORPUS[name]) == 0


def test_blocks_one_after_the_other_equal_one_block() -> None:
    raw = "# One\n\n**two** three\n\n- four\n- five\n\n```\nsix\n```\n"
    script = """
    const source = whole(given.raw);
    let start = 0;
    const found = [];
    for (const block of given.blocks) {
      const result = alignBlock(solid(block), source, start);
      start = result.next;
      found.push(...result.found);
    }
    return found;
    """
    blocks = ["One", "two three", "four five", "six"]
    found = run(script, {"raw": raw, "blocks": blocks})
    assert "".join(raw[place] for place in found) == "Onetwothreefourfivesix"


def test_runs_grow_or_start_over() -> None:
    script = """
    const flags = createFlags();
    const shown = () => [...flags.units.subarray(0, flags.size)].join("");
    return given.map((runs) => [flags.take(runs), shown()]);
    """
    steps = ["d2,t1", "d2,t1,d3", "d2,t1,d3", "d2,t1,d30", "t1", "", "d5000,t1"]
    found = run(script, steps)
    assert found[:3] == [[True, "110"], [True, "110111"], [True, "110111"]]
    assert found[3] == [False, "110" + "1" * 30]
    assert found[4] == [False, "0"]
    assert found[6][1] == "1" * 5000 + "0"
