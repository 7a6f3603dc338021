/* Finds the raw character behind every rendered one, so that drafted text can be colored without touching the Markdown.

`createSource` keeps an answer's raw text as it grows: per append it classifies only the new lines. `alignBlock` walks
one rendered block over it, from where the block before it ended. White space is ignored, Markdown's own characters are
known, and after a mismatch the nearest place where several characters in a row agree is looked for. Knows no DOM. */
(() => {
  "use strict";

  const RUN = 6; // characters in a row that must agree after a mismatch
  const MAX_SKIP_RENDERED = 40;
  const MAX_SKIP_RAW = 1500;
  const MAX_WORK = 60000; // comparisons after mismatches per block; beyond it the rest stays plain

  const LITERAL = 0; // shown
  const SOFT = 1; // emphasis marks and the like: shown or not
  const HARD = 2; // fences, link targets, list markers: hardly ever shown
  const CODE = 3; // shown, and no Markdown

  const FENCE = /^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}|~{3,})/;
  const PREFIX = /^(?:[ \t]*(?:>|[-*+](?=[ \t]|$)|\d{1,9}[.)](?=[ \t]|$)))*[ \t]*(?:#{1,6}(?=[ \t]|$))?[ \t]*(?:\[[ xX]\](?=[ \t]))?/;
  const TABLE_RULE = /^[ \t>]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
  const RULE = /^[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+|-+)[ \t]*$/;
  const REFERENCE = /^[ \t]{0,3}\[[^\]]+\]:[ \t]+\S+/;
  const PUNCTUATION = /[!-/:-@[-`{-~]/;
  const ENTITY = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/;
  const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
  const MATH = /\$\$[^]{1,2000}?\$\$|\\\[[^]{1,2000}?\\\]|\\\([^]{1,2000}?\\\)/g;
  const MATH_REACH = 2100;
  const SPACE = /\s/;

  const isSpace = (code) => code <= 32 || (code > 126 && SPACE.test(String.fromCharCode(code)));

  /* ------------------------------------------------------------ raw text ------------------------- */
  function createSource() {
    /* The solid (not white) characters of the text so far: code, place in the text, kind. */
    const source = { text: "", codes: [], places: [], kinds: [], hasMath: false };
    let lineStart = 0; // where the last, incomplete line begins
    let nSolid = 0; // solid characters before it
    let fence = null; // the open fence before it

    source.append = (more) => {
      if (!more) return;
      const before = source.text.length;
      source.text += more;
      source.codes.length = source.places.length = source.kinds.length = nSolid;
      let end = source.text.indexOf("\n", lineStart);
      while (end >= 0) {
        fence = addLine(source, lineStart, end, fence);
        lineStart = end + 1;
        end = source.text.indexOf("\n", lineStart);
      }
      nSolid = source.codes.length;
      addLine(source, lineStart, source.text.length, fence);
      if (source.hasMath) markMath(source, Math.max(0, before - MATH_REACH));
    };
    source.expectMath = () => {
      if (source.hasMath) return;
      source.hasMath = true;
      markMath(source, 0);
    };
    return source;
  }

  function addLine(source, start, end, fence) {
    /* Classify one line, add its solid characters, and return the fence that is open after it. */
    const line = source.text.slice(start, end);
    const kinds = new Uint8Array(line.length);
    const replaced = new Map();
    const opening = line.match(FENCE);
    let after = fence;
    if (fence) {
      kinds.fill(CODE);
      if (opening && opening[1][0] === fence.sign && opening[1].length >= fence.size && line.trimEnd().endsWith(opening[1])) {
        kinds.fill(HARD);
        after = null;
      } else if (fence.isQuoted) {
        kinds.fill(HARD, 0, line.match(/^[ \t]*>?/)[0].length);
      }
    } else if (opening && !(opening[1][0] === "`" && line.slice(opening[0].length).includes("`"))) {
      kinds.fill(HARD);
      after = { sign: opening[1][0], size: opening[1].length, isQuoted: opening[0].includes(">") };
    } else if (RULE.test(line) || (line.includes("|") && TABLE_RULE.test(line)) || REFERENCE.test(line)) {
      kinds.fill(HARD);
    } else {
      const prefix = line.match(PREFIX)[0].length;
      kinds.fill(HARD, 0, prefix);
      const closing = line.slice(prefix).match(/[ \t]#+[ \t]*$/);
      inline(line, prefix, kinds, replaced);
      if (closing && line.slice(0, prefix).includes("#")) kinds.fill(SOFT, line.length - closing[0].length);
    }
    for (let at = 0; at < line.length; at += 1) {
      const code = replaced.get(at) ?? line.charCodeAt(at);
      if (isSpace(code)) continue;
      source.codes.push(code);
      source.places.push(start + at);
      source.kinds.push(kinds[at]);
    }
    return after;
  }

  function inline(line, start, kinds, replaced) {
    const end = line.length;
    let at = start;
    while (at < end) {
      const sign = line[at];
      if (sign === "\\" && at + 1 < end && PUNCTUATION.test(line[at + 1])) {
        kinds[at] = SOFT;
        at += 2;
      } else if (sign === "`") {
        at = codeSpan(line, at, kinds);
      } else if (sign === "]" && (line[at + 1] === "(" || line[at + 1] === "[")) {
        const close = closing(line, at + 1);
        kinds[at] = SOFT;
        if (close > 0) kinds.fill(HARD, at, close + 1);
        at = close > 0 ? close + 1 : at + 1;
      } else if (sign === "&") {
        at = entity(line, at, kinds, replaced);
      } else {
        if ("*_~[]|".includes(sign)) kinds[at] = SOFT;
        at += 1;
      }
    }
  }

  function codeSpan(line, at, kinds) {
    let size = 1;
    while (line[at + size] === "`") size += 1;
    const ticks = "`".repeat(size);
    let close = line.indexOf(ticks, at + size);
    while (close >= 0 && (line[close + size] === "`" || line[close - 1] === "`")) {
      let past = close;
      while (line[past] === "`") past += 1;
      close = line.indexOf(ticks, past);
    }
    kinds.fill(SOFT, at, at + size);
    if (close < 0) return at + size;
    kinds.fill(SOFT, close, close + size);
    return close + size;
  }

  function entity(line, at, kinds, replaced) {
    const found = line.slice(at, at + 12).match(ENTITY);
    if (!found) return at + 1;
    const code = found[1] ? parseInt(found[1], 10) : found[2] ? parseInt(found[2], 16) : 0;
    const shown = found[3] ? NAMED[found[3]] : code <= 0x10ffff ? String.fromCodePoint(code) : "";
    const size = shown.length === 1 ? 1 : 0;
    if (size) replaced.set(at, shown.charCodeAt(0));
    kinds.fill(HARD, at + size, at + found[0].length);
    return at + found[0].length;
  }

  function closing(line, open) {
    /* Index of the bracket that closes the one at `open`, or -1. */
    const [left, right] = line[open] === "(" ? ["(", ")"] : ["[", "]"];
    let depth = 0;
    for (let at = open; at < line.length; at += 1) {
      if (line[at] === "\\") at += 1;
      else if (line[at] === left) depth += 1;
      else if (line[at] === right && (depth -= 1) === 0) return at;
    }
    return -1;
  }

  function markMath(source, from) {
    /* Mathematics is drawn, not written: its characters are not shown. */
    for (const found of source.text.slice(from).matchAll(MATH)) {
      const start = from + found.index;
      const end = start + found[0].length;
      for (let at = firstAt(source.places, start); at < source.places.length && source.places[at] < end; at += 1) {
        if (source.kinds[at] !== CODE) source.kinds[at] = HARD;
      }
    }
  }

  function firstAt(places, wanted) {
    /* Index of the first place that is not before `wanted`. */
    let low = 0;
    let high = places.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /* ------------------------------------------------------------ alignment ------------------------ */
  function alignBlock(rendered, source, start) {
    /* Align the solid characters of one block (codes) with the source from its solid character `start` on.

       Returns: found, the place in the raw text of every rendered character or -1; matched; pending, how many at the
       end may still find their place when more text comes; next, where the block after this one starts. */
    const found = new Int32Array(rendered.length).fill(-1);
    const state = { work: 0 };
    let matched = 0;
    let at = 0;
    let next = start;
    while (at < rendered.length && next < source.codes.length) {
      const hit = step(rendered[at], source, next);
      if (hit >= 0) {
        found[at] = source.places[hit];
        matched += 1;
        at += 1;
        next = hit + 1;
        continue;
      }
      const resumed = state.work < MAX_WORK ? resume(rendered, at, source, next, state) : null;
      if (!resumed) {
        at += 1;
        continue;
      }
      at = resumed.at;
      for (const place of resumed.hits) {
        found[at] = source.places[place];
        matched += 1;
        at += 1;
        next = place + 1;
      }
    }
    return { found, matched, pending: rendered.length - at, next };
  }

  function step(code, source, next) {
    /* The raw character that `code` is, if only Markdown's own characters lie between; else -1. */
    const { codes, kinds } = source;
    let at = next;
    while (at < codes.length && kinds[at] === HARD) at += 1;
    while (at < codes.length && codes[at] !== code && (kinds[at] === SOFT || kinds[at] === HARD)) at += 1;
    return at < codes.length && codes[at] === code ? at : -1;
  }

  function resume(rendered, at, source, next, state) {
    /* The nearest place where RUN characters in a row agree; leaving raw characters out is the cheaper step. */
    const limit = Math.min(MAX_SKIP_RAW, source.codes.length - next);
    for (let cost = 0; cost <= limit + 4 * MAX_SKIP_RENDERED; cost += 1) {
      for (let skipped = 0; skipped <= MAX_SKIP_RENDERED && 4 * skipped <= cost; skipped += 1) {
        const left = cost - 4 * skipped;
        if (left > limit || at + skipped >= rendered.length) continue;
        const hits = agreeing(rendered, at + skipped, source, next + left, state);
        if (state.work >= MAX_WORK) return null;
        if (hits) return { at: at + skipped, hits };
      }
    }
    return null;
  }

  function agreeing(rendered, at, source, next, state) {
    const { codes } = source;
    state.work += 1;
    if (codes[next] !== rendered[at]) return null;
    const size = Math.min(RUN, rendered.length - at);
    const hits = [next];
    for (let ahead = 1; ahead < size; ahead += 1) {
      state.work += 1;
      const exact = hits[ahead - 1] + 1;
      const hit = codes[exact] === rendered[at + ahead] ? exact : step(rendered[at + ahead], source, exact);
      if (hit < 0) return null;
      hits.push(hit);
    }
    return hits;
  }

  /* ------------------------------------------------------------ origins -------------------------- */
  function createFlags() {
    /* 1 for every UTF-16 unit that was drafted. `take` reads runs as `d4,t12`, usually the old ones and more; it returns
       whether the old ones still hold. */
    const flags = { units: new Uint8Array(4096), size: 0 };
    let runs = "";
    let nRead = 0;

    flags.take = (value) => {
      if (value === runs) return true;
      const goesOn = value.startsWith(runs) && (!nRead || value[nRead] === ",");
      if (!goesOn) {
        flags.units.fill(0, 0, flags.size);
        flags.size = nRead = 0;
      }
      const more = value.slice(nRead ? nRead + 1 : 0);
      for (const run of more ? more.split(",") : []) {
        const end = flags.size + Number(run.slice(1));
        while (end > flags.units.length) {
          const larger = new Uint8Array(2 * flags.units.length);
          larger.set(flags.units);
          flags.units = larger;
        }
        if (run[0] === "d") flags.units.fill(1, flags.size, end);
        flags.size = end;
      }
      runs = value;
      nRead = value.length;
      return goesOn;
    };
    return flags;
  }

  const api = { alignBlock, createFlags, createSource, isSpace };
  if (typeof module !== "undefined") module.exports = api;
  else window.eagleAlign = api;
})();
