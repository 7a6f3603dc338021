/* Takes answers from the side channel, and keeps colors, Tokens view, footers and the page's small comforts up to date.

The server sends, apart from the messages, each answer's raw text, the origin of every character and its tokens; all three
only grow. What is drawn from them is in color.js and tokens.js; a frame draws once, whatever arrived before it. */
(() => {
  "use strict";

  const color = window.eagleColor;
  const { draw, showTip } = window.eagleTokens;
  const answers = new Map(); // index -> answer; all of one chat
  let chat = -1;
  let isQueued = false;
  let isStale = true; // whether another message than the last may have changed

  const messages = () => document.querySelectorAll('#chat .message.bot [data-testid="bot"]');
  const isTokensView = () => document.body.dataset.view === "tokens";

  function repaint() {
    isQueued = false;
    if (newest) complainIfLate(newest);
    newest = null;
    const elements = messages();
    elements.forEach((element, index) => {
      const answer = answers.get(index);
      const row = element.closest(".message");
      if (!answer) {
        row.removeAttribute("data-footer");
        return;
      }
      if (row.dataset.footer !== answer.footer) row.dataset.footer = answer.footer;
      const isDue = isStale || index === elements.length - 1;
      if (isDue && color.canPaint && !isTokensView()) color.paint(answer.marks, element);
    });
    isStale = isTokensView();
    for (const [index, answer] of answers) if (index >= elements.length) color.forget(answer.marks);
    color.show();
    sayIfPlain(answers.get(elements.length - 1));
    const host = document.querySelector("#tokens .tokens");
    if (host && isTokensView() && draw(host, chat, answers)) schedule();
  }

  function sayIfPlain(latest) {
    const note = document.querySelector(".plain-note");
    if (!note || !color.canPaint) return;
    const isPlain = Boolean(color.isColored && latest && latest.isOver && latest.marks.total && !latest.marks.isPainted);
    if (note.hidden === !isPlain) return;
    note.hidden = !isPlain;
    note.textContent = isPlain ? "This answer could not be colored exactly; see Tokens." : "";
  }

  /* ------------------------------------------------------------ pace ----------------------------- */
  const LATE_MS = 250;
  const COMPLAINT_MS = 400; // between two complaints
  let newest = null; // the latest frame that is not drawn yet
  let least = Infinity; // shortest way of a frame so far: the two clocks may differ
  let paceKey = "";
  let complained = 0;

  function complainIfLate({ pace, sent_ms: sent, is_over: isOver }) {
    /* A frame that is drawn later than others were means that they come too fast. */
    if (!pace || isOver) return;
    const now = Date.now();
    if (pace !== paceKey) least = Infinity;
    paceKey = pace;
    least = Math.min(least, now - sent);
    if (now - sent - least < LATE_MS || now - complained < COMPLAINT_MS) return;
    complained = now;
    fetch(`eagle/lag/${pace}`, { method: "POST", keepalive: true }).catch(() => {});
  }

  function schedule() {
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(repaint);
  }

  /* ------------------------------------------------------------ side channel --------------------- */
  let serial = 0;

  function update(value) {
    if (!value || typeof value.text !== "string") return;
    if (value.chat !== chat) {
      for (const index of [...answers.keys()]) drop(index);
      chat = value.chat;
      say("");
    }
    newest = value;
    if (!value.is_over) window.eaglePage?.used(value.used);
    if (value.index >= 0) take(value);
    showCounts();
    schedule();
  }

  function showCounts() {
    const latest = answers.get(Math.max(-1, ...answers.keys()));
    for (const [kind, count] of Object.entries(latest ? latest.counts : { d: 0, t: 0 })) {
      const place = document.querySelector(`#views [data-count="${kind}"]`);
      if (place && place.textContent !== String(count)) place.textContent = count;
    }
  }

  function take(value) {
    let answer = answers.get(value.index);
    if (!answer || !value.tokens.startsWith(answer.lines)) {
      serial += 1;
      drop(value.index);
      isStale = true;
      answer = { serial, lines: "", tokens: [], counts: { d: 0, t: 0 }, marks: color.createMarks() };
      answers.set(value.index, answer);
      for (const index of [...answers.keys()]) if (index > value.index) drop(index);
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
    color.take(answer.marks, value.text, value.runs);
    answer.footer = value.footer;
    answer.isOver = value.is_over;
  }

  function drop(index) {
    const answer = answers.get(index);
    if (answer) color.forget(answer.marks);
    answers.delete(index);
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
      schedule();
    });
    root.addEventListener("change", (event) => {
      if (!event.target.matches("[data-colors]")) return;
      setColored(event.target.checked);
      keep("eagle-colors", event.target.checked ? "on" : "off");
    });
    if (kept("eagle-colors") === "off") {
      root.querySelector("[data-colors]").checked = false;
      setColored(false);
    }
    if (!color.canPaint) {
      const note = root.querySelector(".plain-note");
      note.hidden = false;
      note.textContent = "This browser cannot color answers in place; see Tokens.";
    }
    watchChat();
  }

  function setColored(isColored) {
    color.isColored = isColored;
    document.body.dataset.colors = isColored ? "on" : "off";
    schedule();
  }

  function kept(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // a browser that keeps nothing
    }
  }

  function keep(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {
      /* a browser that keeps nothing */
    }
  }

  function watchChat() {
    const place = document.getElementById("chat");
    const box = document.getElementById("box");
    if (!place || !box) {
      setTimeout(watchChat, 100);
      return;
    }
    const quiet = () => {
      place.querySelector('[role="log"][aria-live="polite"]')?.setAttribute("aria-live", "off");
      place.querySelector('.examples[role="list"]')?.setAttribute("role", "group"); // its buttons are no list's items
    };
    new MutationObserver((records) => {
      const last = [...messages()].pop();
      isStale ||= records.some(({ target }) => !last?.contains(target));
      color.noteChanges(records);
      quiet();
      schedule();
    }).observe(place, { childList: true, characterData: true, subtree: true });
    quiet();
    const label = () => {
      box.querySelector(".submit-button")?.setAttribute("aria-label", "Send");
      box.querySelector(".stop-button")?.setAttribute("aria-label", "Stop");
    };
    new MutationObserver(label).observe(box, { childList: true, subtree: true });
    label();
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
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    showTip(null);
    document.querySelector("#box .stop-button")?.click();
  });

  function restore(id, past) {
    /* The answers of a chat that came into view: their texts and origins are known, steps and probabilities are not. */
    for (const index of [...answers.keys()]) drop(index);
    chat = id;
    isStale = true;
    for (const { index, text, runs, prompt, counts } of past) {
      serial += 1;
      const marks = color.createMarks();
      color.take(marks, text, runs);
      answers.set(index, {
        serial, text, prompt, runs, marks, lines: "", tokens: [], counts: { d: counts[0], t: counts[1] }, footer: "", isOver: true,
      });
    }
    showCounts();
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
        matched: answer.marks.matched,
        total: answer.marks.total,
        isPainted: answer.marks.isPainted,
        nRanges: answer.marks.nRanges,
        counts: answer.counts,
      })),
  };
})();
