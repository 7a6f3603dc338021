/* The exact Tokens view: every token with its step, depth, node and probabilities. Of an answer from the history the origins
are kept: its runs stand where tokens would. Model text enters the page through textContent only. Tokens are drawn once; a
line of text is one block, so that a new token lays out one line. */
(() => {
  "use strict";

  const MAX_PER_FRAME = 600; // tokens drawn at once, so that a long answer does not block the page
  const LEGEND = "bar: a step begins; small number: tokens it gave";
  const firsts = new WeakMap(); // a step's part in a later line -> its part in the first one
  const facts = new WeakMap(); // element -> [id, origin, depth, step, probability, text, node, draft probability]
  const ORIGINS = { d: "drafted", t: "by the model" };

  function element(name, className, text = "") {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  }

  /* ------------------------------------------------------------ drawing -------------------------- */
  function draw(host, chat, answers) {
    /* Draw what is new of every answer (by index); returns whether tokens are left for another frame. */
    if (host.dataset.chat !== String(chat)) {
      host.replaceChildren();
      host.dataset.chat = String(chat);
    }
    if (!answers.size) {
      host.replaceChildren(element("p", "muted", "Tokens of the answers appear here, step by step."));
      return false;
    }
    host.querySelector(":scope > .muted")?.remove();
    const isAtEnd = host.scrollHeight - host.scrollTop - host.clientHeight < 60;
    let room = MAX_PER_FRAME;
    for (const [index, answer] of [...answers].sort((a, b) => a[0] - b[0])) {
      room -= drawAnswer(host, index, answer, room);
    }
    if (isAtEnd) host.scrollTop = host.scrollHeight;
    return room <= 0;
  }

  function sectionOf(host, index, answer) {
    let section = host.querySelector(`:scope > [data-index="${index}"]`);
    if (section && section.dataset.serial !== String(answer.serial)) {
      section.remove();
      section = null;
    }
    if (section) return section;
    section = element("section", "answer");
    Object.assign(section.dataset, { index, serial: answer.serial, drawn: 0 });
    const flow = element("div", "flow");
    flow.setAttribute("role", "group");
    flow.setAttribute("aria-label", `Tokens of answer ${index + 1}; arrow keys move`);
    section.append(element("h3", ""), flow);
    const after = [...host.children].find((other) => Number(other.dataset.index) > index);
    host.insertBefore(section, after || null);
    return section;
  }

  function drawAnswer(host, index, answer, room) {
    const section = sectionOf(host, index, answer);
    if (!answer.tokens.length) return answer.runs === undefined ? 0 : drawRuns(section, index, answer, room);
    const [title, flow] = section.children;
    const nSteps = answer.tokens.length ? answer.tokens[answer.tokens.length - 1][3] : 0;
    const text =
      `Answer ${index + 1}: ${answer.tokens.length} tokens, ${nSteps} steps, ` +
      `${answer.counts.d} drafted, ${answer.counts.t} by the model`;
    if (title.firstChild?.nodeValue !== text) title.replaceChildren(text, element("small", "", LEGEND));
    const nDrawn = Number(section.dataset.drawn);
    const more = answer.tokens.slice(nDrawn, nDrawn + Math.max(room, 0));
    for (const token of more) drawToken(flow, token);
    section.dataset.drawn = nDrawn + more.length;
    return more.length;
  }

  // Signs of terminals and of the direction of writing: unseen, they could turn the tokens around them.
  const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

  const visible = (text) =>
    text
      .replace(UNSEEN, (sign) => `⟨U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
      .replace(/\n/g, "↵\n");

  function drawRuns(section, index, answer, room) {
    /* An answer from the history: a group for each run of one origin. Text without a known origin is the model's. */
    const [title, flow] = section.children;
    if (title.textContent === "") {
      const { d, t } = answer.counts;
      const counts = d + t ? `${d + t} tokens, ${d} drafted, ${t} by the model; ` : "";
      title.textContent = `Answer ${index + 1}: ${counts}steps and probabilities are not kept`;
      answer.parts = partsOf(answer);
    }
    const nDrawn = Number(section.dataset.drawn);
    const more = answer.parts.slice(nDrawn, nDrawn + Math.max(room, 0));
    for (const part of more) drawToken(flow, part);
    section.dataset.drawn = nDrawn + more.length;
    return more.length;
  }

  function partsOf({ text, runs }) {
    /* The runs as tokens without figures, cut after line ends. */
    const parts = [];
    let start = 0;
    const add = (origin, end) => {
      for (const line of text.slice(start, end).match(/[^\n]*\n|[^\n]+/g) || []) parts.push([null, origin, null, null, null, line]);
      start = end;
    };
    for (const run of runs ? runs.split(",") : []) add(run[0], start + Number(run.slice(1)));
    if (start < text.length) add("t", text.length);
    return parts.map((part, index) => part.with(3, -1 - index)); // each its own group
  }

  function drawToken(flow, token) {
    const [, origin, , step, , text] = token;
    let line = flow.lastElementChild;
    const last = line?.lastElementChild?.lastElementChild;
    const endsLine = last && last.textContent.endsWith("\n");
    if (!line || endsLine) {
      line = element("div", "line");
      flow.append(line);
    }
    let group = line.lastElementChild;
    if (!group || group.dataset.step !== String(step)) {
      const before = endsLine && facts.get(last)[3] === step ? last.parentElement : null;
      group = element("span", token[0] === null ? "step old" : before ? "step continued" : "step");
      group.dataset.step = step;
      if (before) firsts.set(group, firsts.get(before) ?? before);
      line.append(group);
    }
    const made = element("span", `token-${origin}`, text === "" ? "∅" : visible(text));
    facts.set(made, token);
    made.tabIndex = last ? -1 : 0;
    group.append(made);
    const first = firsts.get(group) ?? group;
    first.dataset.n = Number(first.dataset.n || 0) + 1;
  }

  /* ------------------------------------------------------------ what a token is ------------------ */
  const share = (value) => (value === null || value === undefined ? "unknown" : Number(value).toFixed(3));

  function describe([id, origin, depth, step, probability, , node, draftProbability]) {
    if (id === null) return `${ORIGINS[origin]} · the step and probabilities of older answers are not kept`;
    const where = step === 0 ? "prefill" : `step ${step}`;
    if (origin !== "d") return `by the model · ${where} · model p = ${share(probability)} · id ${id}`;
    const place = node === null || node === undefined ? "" : ` · node ${node}`;
    return (
      `drafted at depth ${depth}${place} · ${where} · draft p = ${share(draftProbability)} · ` +
      `model p = ${share(probability)} · id ${id}`
    );
  }

  const tokenAt = (target) => target?.closest?.("#tokens .step > span") ?? null;

  function showTip(target) {
    let tip = document.getElementById("token-tip");
    const token = tokenAt(target);
    for (const other of document.querySelectorAll("#tokens [data-current]")) delete other.dataset.current;
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
    token.parentElement.dataset.current = "";
    tip.textContent = describe(facts.get(token));
    tip.hidden = false;
    const box = token.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.top > 48 ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
  }

  function onKey(event) {
    const token = tokenAt(event.target);
    if (!token) return;
    const all = [...token.closest(".flow").querySelectorAll(".step > span")];
    const at = all.indexOf(token);
    const step = facts.get(token)[3];
    const next = {
      ArrowRight: () => all[at + 1],
      ArrowLeft: () => all[at - 1],
      ArrowDown: () => all.slice(at).find((other) => facts.get(other)[3] !== step),
      ArrowUp: () => all.slice(0, at).findLast((other) => facts.get(other)[3] !== step),
      Home: () => all[0],
      End: () => all[all.length - 1],
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    token.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  document.addEventListener("pointerover", (event) => showTip(event.target));
  document.addEventListener("pointerdown", (event) => showTip(event.target));
  document.addEventListener("focusin", (event) => {
    const token = tokenAt(event.target);
    showTip(token);
    token?.setAttribute("aria-describedby", "token-tip");
  });
  document.addEventListener("keydown", onKey);

  window.eagleTokens = { draw, describe, showTip };
})();
