/* Colors drafted text without touching the rendered Markdown, and draws the exact Tokens view.

The server sends, apart from the messages, each answer's raw text and the origin of every character. Here the
rendered characters are aligned with the raw ones, the alignment is measured, and ranges are painted with the CSS
Custom Highlight API only if at least 98 % of the rendered characters found their place. Otherwise the answer
stays plain. The alignment ignores white space, knows Markdown's own characters, and after a mismatch looks for the
next place where several characters in a row agree. Model text enters the page through textContent only. */
(() => {
  "use strict";

  const THRESHOLD = 0.98;
  const RUN = 6; // characters in a row that must agree after a mismatch
  const MAX_SKIP_RENDERED = 40;
  const MAX_SKIP_RAW = 1500;
  const MAX_WORK = 400000; // comparisons per alignment; beyond this the answer stays plain

  /* ------------------------------------------------------------ Markdown's own characters ------- */
  const LITERAL = 0; // shown
  const SOFT = 1; // emphasis marks and the like: shown or not
  const HARD = 2; // fences, link targets, list markers: hardly ever shown

  const FENCE = /^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}|~{3,})/;
  const PREFIX = /^(?:[ \t]*(?:>|[-*+](?=[ \t]|$)|\d{1,9}[.)](?=[ \t]|$)))*[ \t]*(?:#{1,6}(?=[ \t]|$))?[ \t]*(?:\[[ xX]\](?=[ \t]))?/;
  const TABLE_RULE = /^[ \t>]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
  const RULE = /^[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|=+|-+)[ \t]*$/;
  const REFERENCE = /^[ \t]{0,3}\[[^\]]+\]:[ \t]+\S+/;
  const PUNCTUATION = /[!-/:-@[-`{-~]/;
  const ENTITY = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp));/;
  const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

  function classify(text, hasMath) {
    /* Class of every UTF-16 unit of the raw text, and replacements for entities. */
    const classes = new Uint8Array(text.length);
    const replaced = new Map();
    const mark = (start, end, kind) => classes.fill(kind, start, end);
    let fence = null;
    let start = 0;
    while (start < text.length) {
      let end = text.indexOf("\n", start);
      if (end < 0) end = text.length;
      const line = text.slice(start, end);
      const opening = line.match(FENCE);
      if (fence) {
        if (opening && opening[1][0] === fence[0] && opening[1].length >= fence.length &&
            line.trimEnd().endsWith(opening[1])) {
          mark(start, end, HARD);
          fence = null;
        } else if (fence.quoted) {
          mark(start, start + line.match(/^[ \t]*>?/)[0].length, HARD);
        }
      } else if (opening && !(opening[1][0] === "`" && line.slice(opening[0].length).includes("`"))) {
        mark(start, end, HARD);
        fence = Object.assign(new String(opening[1]), { quoted: opening[0].includes(">") });
      } else if (RULE.test(line) || (line.includes("|") && TABLE_RULE.test(line)) || REFERENCE.test(line)) {
        mark(start, end, HARD);
      } else {
        const prefix = line.match(PREFIX)[0].length;
        mark(start, start + prefix, HARD);
        const closing = line.slice(prefix).match(/[ \t]#+[ \t]*$/);
        if (closing && /#/.test(line.slice(0, prefix))) mark(end - closing[0].length, end, SOFT);
        inline(text, start + prefix, end, classes, replaced);
      }
      start = end + 1;
    }
    if (hasMath) {
      for (const match of text.matchAll(/\$\$[^]{1,2000}?\$\$|\\\[[^]{1,2000}?\\\]|\\\([^]{1,2000}?\\\)/g)) {
        mark(match.index, match.index + match[0].length, HARD);
      }
    }
    return { classes, replaced };
  }

  function inline(text, start, end, classes, replaced) {
    let at = start;
    while (at < end) {
      const sign = text[at];
      if (sign === "\\" && at + 1 < end && PUNCTUATION.test(text[at + 1])) {
        classes[at] = SOFT;
        at += 2;
      } else if (sign === "`") {
        let size = 1;
        while (text[at + size] === "`") size += 1;
        const ticks = "`".repeat(size);
        let close = text.indexOf(ticks, at + size);
        while (close >= 0 && (text[close + size] === "`" || text[close - 1] === "`")) {
          let past = close;
          while (text[past] === "`") past += 1;
          close = text.indexOf(ticks, past);
        }
        classes.fill(SOFT, at, at + size);
        if (close >= 0 && close < end) {
          classes.fill(SOFT, close, close + size);
          at = close + size;
        } else {
          at += size;
        }
      } else if (sign === "]" && (text[at + 1] === "(" || text[at + 1] === "[")) {
        const close = closing(text, at + 1, end);
        classes[at] = SOFT;
        if (close > 0) classes.fill(HARD, at, close + 1);
        at = close > 0 ? close + 1 : at + 1;
      } else if (sign === "&") {
        const entity = text.slice(at, Math.min(end, at + 12)).match(ENTITY);
        if (entity) {
          const code = entity[1] ? parseInt(entity[1], 10) : entity[2] ? parseInt(entity[2], 16) : 0;
          const shown = entity[3] ? NAMED[entity[3]] : code <= 0x10ffff ? String.fromCodePoint(code) : "";
          if (shown.length === 1) replaced.set(at, shown);
          classes.fill(HARD, at + (shown.length === 1 ? 1 : 0), at + entity[0].length);
          at += entity[0].length;
        } else {
          at += 1;
        }
      } else {
        if ("*_~[]|".includes(sign)) classes[at] = SOFT;
        at += 1;
      }
    }
  }

  function closing(text, open, end) {
    /* Index of the bracket that closes the one at `open`, or -1. */
    const [left, right] = text[open] === "(" ? ["(", ")"] : ["[", "]"];
    let depth = 0;
    for (let at = open; at < end; at += 1) {
      if (text[at] === "\\") at += 1;
      else if (text[at] === left) depth += 1;
      else if (text[at] === right && (depth -= 1) === 0) return at;
    }
    return -1;
  }

  /* ------------------------------------------------------------ alignment ------------------------ */
  const SPACE = /\s/;

  function solid(text, classes, replaced) {
    /* Raw characters that are not white space: what they show as, their place and class. */
    const signs = [];
    const places = [];
    const kinds = [];
    for (let at = 0; at < text.length; at += 1) {
      const sign = replaced.get(at) || text[at];
      if (SPACE.test(sign)) continue;
      signs.push(sign);
      places.push(at);
      kinds.push(classes[at]);
    }
    return { signs, places, kinds };
  }

  function align(rendered, text, hasMath = false) {
    /* Raw place of every rendered character (rendered holds no white space), -1 where none was found. */
    const { classes, replaced } = classify(text, hasMath);
    const raw = solid(text, classes, replaced);
    const found = new Int32Array(rendered.length).fill(-1);
    const state = { work: 0 };
    let matched = 0;
    let at = 0;
    let next = 0;
    while (at < rendered.length && state.work < MAX_WORK) {
      const hit = step(rendered[at], raw, next);
      if (hit >= 0) {
        found[at] = raw.places[hit];
        matched += 1;
        at += 1;
        next = hit + 1;
        continue;
      }
      const resumed = resume(rendered, at, raw, next, state);
      if (!resumed) {
        at += 1;
        continue;
      }
      at = resumed.at;
      for (const place of resumed.hits) {
        found[at] = raw.places[place];
        matched += 1;
        at += 1;
        next = place + 1;
      }
    }
    return { found, matched, total: rendered.length };
  }

  function step(sign, raw, next) {
    /* The raw character that `sign` is, if only Markdown's own characters lie between; else -1. */
    let at = next;
    while (at < raw.signs.length && raw.kinds[at] === HARD) at += 1;
    while (at < raw.signs.length && raw.signs[at] !== sign && raw.kinds[at] !== LITERAL) at += 1;
    return at < raw.signs.length && raw.signs[at] === sign ? at : -1;
  }

  function resume(rendered, at, raw, next, state) {
    /* The nearest place where RUN characters in a row agree; leaving raw characters out is the cheaper step. */
    const limit = Math.min(MAX_SKIP_RAW, raw.signs.length - next);
    for (let cost = 0; cost <= limit + 4 * MAX_SKIP_RENDERED; cost += 1) {
      for (let skipped = 0; skipped <= MAX_SKIP_RENDERED && 4 * skipped <= cost; skipped += 1) {
        const left = cost - 4 * skipped;
        if (left > limit || at + skipped >= rendered.length) continue;
        const hits = agreeing(rendered, at + skipped, raw, next + left, state);
        if (state.work >= MAX_WORK) return null;
        if (hits) return { at: at + skipped, hits };
      }
    }
    return null;
  }

  function agreeing(rendered, at, raw, next, state) {
    state.work += 1;
    if (raw.signs[next] !== rendered[at]) return null;
    const size = Math.min(RUN, rendered.length - at);
    const hits = [next];
    for (let ahead = 1; ahead < size; ahead += 1) {
      state.work += 1;
      const exact = hits[ahead - 1] + 1;
      const hit = raw.signs[exact] === rendered[at + ahead] ? exact : step(rendered[at + ahead], raw, exact);
      if (hit < 0) return null;
      hits.push(hit);
    }
    return hits;
  }

  function draftedFlags(text, runs) {
    /* 1 for every UTF-16 unit that was drafted. */
    const flags = new Uint8Array(text.length);
    let at = 0;
    for (const run of runs ? runs.split(",") : []) {
      const size = Number(run.slice(1));
      if (run[0] === "d") flags.fill(1, at, at + size);
      at += size;
    }
    return flags;
  }

  if (typeof module !== "undefined") module.exports = { align, classify, draftedFlags, THRESHOLD };
  if (typeof document === "undefined") return;

  /* ------------------------------------------------------------ painting ------------------------- */
  const answers = new Map(); // index -> answer; all of one chat
  let chat = -1;
  let isColored = true;
  let isQueued = false;
  const HIDDEN = ".katex, .mermaid, svg, button, style, script, .copy_code_button";

  const messages = () => [...document.querySelectorAll('#chat .message.bot [data-testid="bot"]')];

  function renderedText(element) {
    /* Characters that are shown, without white space, and where they are. */
    const signs = [];
    const nodes = [];
    const offsets = [];
    for (const block of element.querySelectorAll(".md")) {
      const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT, {
        acceptNode: (node) =>
          node.parentElement.closest(HIDDEN) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
      });
      while (walker.nextNode()) {
        const value = walker.currentNode.nodeValue;
        for (let at = 0; at < value.length; at += 1) {
          if (SPACE.test(value[at])) continue;
          signs.push(value[at]);
          nodes.push(walker.currentNode);
          offsets.push(at);
        }
      }
    }
    return { signs, nodes, offsets };
  }

  function rangesOf(shown, found, flags) {
    /* Ranges over drafted characters; white space between two of them joins them if it was drafted too. */
    const ranges = [];
    let open = null;
    const close = () => {
      if (!open) return;
      const range = new StaticRange({
        startContainer: open.node, startOffset: open.start, endContainer: open.node, endOffset: open.end,
      });
      ranges.push(range);
      open = null;
    };
    for (let at = 0; at < found.length; at += 1) {
      const place = found[at];
      if (place < 0 || !flags[place]) {
        close();
        continue;
      }
      const joins = open && open.node === shown.nodes[at] && flags.subarray(open.place, place).every((f) => f);
      if (joins) {
        open.end = shown.offsets[at] + 1;
        open.place = place;
      } else {
        close();
        open = { node: shown.nodes[at], start: shown.offsets[at], end: shown.offsets[at] + 1, place };
      }
    }
    close();
    return ranges;
  }

  function paint(answer, element) {
    const shown = renderedText(element);
    const hasMath = element.querySelector(".katex") !== null;
    const result = align(shown.signs, answer.text, hasMath);
    const ratio = result.total ? result.matched / result.total : 1;
    answer.matched = result.matched;
    answer.total = result.total;
    answer.isPainted = ratio >= THRESHOLD;
    answer.ranges = answer.isPainted ? rangesOf(shown, result.found, answer.flags) : [];
    answer.element = element;
    answer.probe = shown.nodes[shown.nodes.length - 1] || null;
  }

  function repaint() {
    isQueued = false;
    if (!("highlights" in CSS)) return;
    const elements = messages();
    const last = elements.length - 1;
    elements.forEach((element, index) => {
      const answer = answers.get(index);
      const row = element.closest(".message");
      if (!answer) {
        row.removeAttribute("data-footer");
        return;
      }
      if (row.dataset.footer !== answer.footer) row.dataset.footer = answer.footer;
      const isStale = answer.element !== element || !answer.probe || !answer.probe.isConnected;
      if (index === last || isStale) paint(answer, element);
    });
    const ranges = [];
    for (const [index, answer] of answers) if (index <= last) ranges.push(...answer.ranges);
    if (isColored && ranges.length) CSS.highlights.set("eagle-draft", new Highlight(...ranges));
    else CSS.highlights.delete("eagle-draft");
    const note = document.querySelector(".plain-note");
    const latest = answers.get(last);
    if (note) {
      const isPlain = isColored && latest && !latest.isPainted && latest.isOver;
      note.hidden = !isPlain;
      note.textContent = isPlain ? "This answer could not be colored exactly; see Tokens." : "";
    }
  }

  function schedule() {
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(repaint);
  }

  /* ------------------------------------------------------------ Tokens view ---------------------- */
  const isTokensView = () => document.body.dataset.view === "tokens";

  function drawTokens() {
    const host = document.querySelector("#tokens .tokens");
    if (!host || !isTokensView()) return;
    if (host.dataset.chat !== String(chat)) {
      host.replaceChildren();
      host.dataset.chat = String(chat);
    }
    if (!answers.size) {
      host.replaceChildren(element("p", "muted", "Tokens of the answers appear here, step by step."));
      return;
    }
    host.querySelector(":scope > .muted")?.remove();
    const isAtEnd = host.scrollHeight - host.scrollTop - host.clientHeight < 60;
    for (const [index, answer] of [...answers].sort((a, b) => a[0] - b[0])) drawAnswer(host, index, answer);
    if (isAtEnd) host.scrollTop = host.scrollHeight;
  }

  function element(name, className, text = "") {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  }

  function drawAnswer(host, index, answer) {
    if (!answer.tokens.length) return; // of an answer from the history only the origins are kept
    let section = host.querySelector(`:scope > [data-index="${index}"]`);
    if (section && section.dataset.serial !== String(answer.serial)) {
      section.remove();
      section = null;
    }
    if (!section) {
      section = element("section", "answer");
      section.dataset.index = index;
      section.dataset.serial = answer.serial;
      section.dataset.drawn = 0;
      section.append(element("h3", "", ""), element("div", "flow"));
      const after = [...host.children].find((other) => Number(other.dataset.index) > index);
      host.insertBefore(section, after || null);
    }
    const [title, flow] = section.children;
    const steps = answer.tokens.length ? answer.tokens[answer.tokens.length - 1][3] : 0;
    title.textContent =
      `Answer ${index + 1}: ${answer.tokens.length} tokens, ${steps} steps, ` +
      `${answer.counts.d} drafted, ${answer.counts.t} by the model`;
    for (const token of answer.tokens.slice(Number(section.dataset.drawn))) drawToken(flow, token);
    section.dataset.drawn = answer.tokens.length;
  }

  function drawToken(flow, [id, origin, depth, step, probability, text]) {
    let group = flow.lastElementChild;
    if (!group || group.dataset.step !== String(step)) {
      group = element("span", "step");
      group.dataset.step = step;
      flow.append(group);
    }
    const shown = text === "" ? "∅" : text.replace(/\n/g, "↵\n");
    const token = element("span", `token-${origin}`, shown);
    Object.assign(token.dataset, { id, depth, probability });
    group.append(token);
    group.dataset.n = group.childElementCount;
  }

  function describe(token) {
    const { id, depth, probability } = token.dataset;
    const origin = token.className === "token-d" ? `drafted at depth ${depth}` : "by the model";
    const step = token.parentElement.dataset.step;
    const where = step === "0" ? "prefill" : `step ${step}`;
    return `${origin} · ${where} · id ${id} · p = ${Number(probability).toFixed(3)}`;
  }

  function showTip(target) {
    let tip = document.getElementById("token-tip");
    const token = target && target.closest ? target.closest("#tokens .step > span") : null;
    if (!token) {
      if (tip) tip.hidden = true;
      return;
    }
    if (!tip) {
      tip = element("div", "token-tip");
      tip.id = "token-tip";
      tip.setAttribute("role", "tooltip");
      document.body.append(tip);
    }
    tip.textContent = describe(token);
    tip.hidden = false;
    const box = token.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.top > 48 ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  }

  /* ------------------------------------------------------------ side channel --------------------- */
  let serial = 0;

  function update(value) {
    if (!value || typeof value.text !== "string") return;
    if (value.chat !== chat) {
      answers.clear();
      chat = value.chat;
      say("");
    }
    if (value.index >= 0) take(value);
    showCounts();
    drawTokens();
    schedule();
  }

  function showCounts() {
    const latest = answers.get(Math.max(-1, ...answers.keys()));
    for (const [kind, count] of Object.entries(latest ? latest.counts : { d: 0, t: 0 })) {
      const place = document.querySelector(`#views [data-count="${kind}"]`);
      if (place) place.textContent = count;
    }
  }

  function take(value) {
    let answer = answers.get(value.index);
    if (!answer || !value.tokens.startsWith(answer.lines)) {
      serial += 1;
      answer = { serial, lines: "", tokens: [], counts: { d: 0, t: 0 }, ranges: [], element: null };
      answers.set(value.index, answer);
      for (const index of [...answers.keys()]) if (index > value.index) answers.delete(index);
      say("Generating");
    }
    for (const line of value.tokens.slice(answer.lines.length).split("\n")) {
      if (!line) continue;
      const token = JSON.parse(line);
      answer.tokens.push(token);
      answer.counts[token[1]] += 1;
    }
    if (value.is_over && !answer.isOver) say(value.footer);
    answer.lines = value.tokens;
    answer.text = value.text;
    answer.prompt = value.prompt;
    answer.flags = draftedFlags(value.text, value.runs);
    answer.footer = value.footer;
    answer.isOver = value.is_over;
    answer.element = null;
  }

  function say(text) {
    const region = document.querySelector("#views .say");
    if (region && region.textContent !== text) region.textContent = text;
  }

  /* ------------------------------------------------------------ page ----------------------------- */
  function bindViews(root) {
    document.body.dataset.view = "chat";
    root.addEventListener("click", (event) => {
      const button = event.target.closest("[data-view]");
      if (!button) return;
      document.body.dataset.view = button.dataset.view;
      for (const other of root.querySelectorAll("[data-view]")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      showTip(null);
      drawTokens();
      schedule();
    });
    root.addEventListener("change", (event) => {
      if (!event.target.matches("[data-colors]")) return;
      isColored = event.target.checked;
      document.body.dataset.colors = isColored ? "on" : "off";
      schedule();
    });
    if (!("highlights" in CSS)) {
      const note = root.querySelector(".plain-note");
      note.hidden = false;
      note.textContent = "This browser cannot color answers in place; see Tokens.";
    }
    watchChat();
  }

  function watchChat() {
    const place = document.getElementById("chat");
    if (!place) {
      setTimeout(watchChat, 100);
      return;
    }
    const quiet = () => place.querySelector('[role="log"]')?.setAttribute("aria-live", "off");
    new MutationObserver(() => {
      quiet();
      schedule();
    }).observe(place, { childList: true, characterData: true, subtree: true });
    quiet();
    const box = document.getElementById("box");
    const label = () => {
      box.querySelector(".submit-button")?.setAttribute("aria-label", "Send");
      box.querySelector(".stop-button")?.setAttribute("aria-label", "Stop");
    };
    new MutationObserver(label).observe(box, { childList: true, subtree: true });
    label();
    if (innerWidth < 768) closeSidebar(20);
  }

  function closeSidebar(tries) {
    /* On a narrow screen the settings would cover the page; the sidebar opens itself some time after loading. */
    document.querySelector(".sidebar.open .toggle-button")?.click();
    if (tries > 0) setTimeout(() => closeSidebar(document.querySelector(".sidebar.open") ? tries : tries - 4), 120);
  }

  function copyRaw(event) {
    /* Copy what the model or the user wrote, not the escaped form that is displayed. */
    const button = event.target.closest?.('#chat button[aria-label="Copy message"]');
    if (!button || !navigator.clipboard) return;
    const rows = [...document.querySelectorAll("#chat .message-buttons-left, #chat .message-buttons-right")];
    const own = rows.filter((row) => row.className.includes(button.closest(".message-buttons").className.includes("-left") ? "-left" : "-right"));
    const answer = answers.get(own.indexOf(button.closest(".message-buttons")));
    if (!answer) return;
    const text = button.closest(".message-buttons-left") ? answer.text : answer.prompt;
    if (typeof text !== "string" || !/<|!\[/.test(text)) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    navigator.clipboard.writeText(text).then(() => say("Copied"));
  }

  document.addEventListener("click", copyRaw, true);
  document.addEventListener("pointerover", (event) => showTip(event.target));
  document.addEventListener("pointerdown", (event) => showTip(event.target));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    showTip(null);
    document.querySelector("#box .stop-button")?.click();
  });

  function restore(id, past) {
    /* The answers of a chat that came into view: their texts and origins are known, their tokens are not. */
    answers.clear();
    chat = id;
    for (const { index, text, runs, prompt, counts } of past) {
      serial += 1;
      answers.set(index, {
        serial, text, prompt, lines: "", tokens: [], counts: { d: counts[0], t: counts[1] }, ranges: [], element: null,
        flags: draftedFlags(text, runs), footer: "", isOver: true,
      });
    }
    showCounts();
    drawTokens();
    schedule();
  }

  window.eagleChat = {
    update,
    restore,
    say,
    bindViews,
    report: () =>
      [...answers].map(([index, answer]) => ({
        index,
        matched: answer.matched ?? 0,
        total: answer.total ?? 0,
        isPainted: Boolean(answer.isPainted),
        nRanges: answer.ranges.length,
        counts: answer.counts,
      })),
  };
})();
