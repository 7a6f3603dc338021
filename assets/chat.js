/* The chat page around the conversation: tools under each message, the list of chats, attached files, the context's
use, keys, and scrolling that yields to the reader.

The server sends plain data; every text enters the page through textContent. What the reader does goes back through
two events, `act` for what is done at once and `answer` for what makes the model write. */
(() => {
  "use strict";

  const state = { now: {}, list: {}, send: null, shown: null, sticks: true };
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const act = (what, data = {}) => state.send?.act({ do: what, ...data });
  const answer = (what, data = {}) => {
    state.sticks = true;
    state.send?.answer({ do: what, ...data });
  };
  const say = (text) => window.eagleChat?.say(text);
  const drawers = window.eagleDrawers;
  const found = window.eagleFound;

  /* ------------------------------------------------------------ small parts --------------------- */
  const PATHS = {
    copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
    edit: "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3z",
    again: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
    go: "M4 3.5l5 4.5-5 4.5zM12 3.5v9",
    branch: "M5 3v10M5 9c4 0 6-1.500 6-5M3.500 3h3M9.500 4h3",
    bin: "M3 4.5h10M6.500 4.500V3h3v1.500M4.500 4.500l.6 8.500h5.800l.6-8.500",
    left: "M10 3.500L5.500 8l4.500 4.500",
    right: "M6 3.500L10.500 8 6 12.500",
    more: "M3.500 8h.01M8 8h.01M12.500 8h.01",
    clip: "M12 7.500l-4.600 4.600a2.600 2.600 0 0 1-3.700-3.700l5-5a1.700 1.700 0 0 1 2.500 2.500l-4.800 4.800a.8.8 0 0 1-1.200-1.200L9.500 5.200",
    list: "M2.500 4h11M2.500 8h11M2.500 12h7",
    gear: "M2.500 4.500h6M11.500 4.500h2M2.500 11.500h2M7.500 11.500h6M10 3v3M6 10v3",
    half: "M8 2.500a5.500 5.500 0 1 0 0 11zM8 2.500a5.500 5.500 0 0 1 0 11",
    help: "M6 6a2 2 0 1 1 2.800 1.900c-.6.300-.8.700-.8 1.400M8 11.800h.01",
    plus: "M8 3v10M3 8h10",
    down: "M8 3v9M4 8.500L8 12.500l4-4",
    close: "M4 4l8 8M12 4l-8 8",
    chart: "M2.500 13.500h11M4.500 11V7.500M8 11V3M11.500 11V5.500",
  };

  function make(name, options = {}, ...children) {
    /* An element; text is text, `on` holds listeners, what is left are attributes. */
    const { text, on = {}, ...attributes } = options;
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) {
      if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
    }
    for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
    made.append(...children.filter(Boolean));
    return made;
  }

  function icon(name) {
    const NS = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS(NS, "path");
    path.setAttribute("d", PATHS[name]);
    svg.append(path);
    return svg;
  }

  const tool = (name, label, run, more = {}) =>
    make("button", { type: "button", class: "tool", "aria-label": label, title: label, on: { click: run }, ...more }, icon(name));

  function ask({ title, text = "", value = null, ok = "OK", label = "" }) {
    /* A small dialog; resolves with true or the typed text, or null. */
    return new Promise((resolve) => {
      const field = value === null ? null : make("input", { type: "text", value, "aria-label": label || title, maxlength: 200 });
      const dialog = make("dialog", { class: "ask", "aria-label": title },
        make("h2", { text: title }), text && make("p", { text }), field,
        make("div", { class: "row" },
          make("button", { type: "button", text: "Cancel", on: { click: () => dialog.close("") } }),
          make("button", { type: "button", class: "primary", text: ok, on: { click: () => dialog.close("ok") } })));
      field?.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !event.isComposing) dialog.close("ok");
      });
      dialog.addEventListener("close", () => {
        dialog.remove();
        resolve(dialog.returnValue === "ok" ? (field ? field.value : true) : null);
      });
      document.body.append(dialog);
      dialog.showModal();
      (field || $(".primary", dialog)).focus();
      field?.select();
    });
  }

  function when(selector, then) {
    /* Parts of the page come one after the other. */
    const place = $(selector);
    if (place) then(place);
    else setTimeout(() => when(selector, then), 60);
  }

  function copy(text) {
    navigator.clipboard?.writeText(text).then(() => say("Copied"), () => say("Copying is not allowed here"));
  }

  /* ------------------------------------------------------------ messages ------------------------ */
  const rows = () => $$("#chat .message-row");
  const turns = () => state.now.turns || [];
  let isQueued = false;

  function schedule() {
    if (isQueued) return;
    isQueued = true;
    requestAnimationFrame(() => {
      isQueued = false;
      decorate();
      follow();
      showFound();
    });
  }

  function decorate() {
    const all = turns();
    const firstSent = all.findIndex((turn) => turn.is_sent);
    // Code that is wider than the page is scrolled with the keyboard, too.
    if (!state.now.is_busy) for (const code of $$("#chat .message pre:not([tabindex])")) code.tabIndex = 0;
    rows().forEach((row, index) => {
      const turn = all[index];
      const host = $(":scope > .flex-wrap > div", row) || row;
      const old = $(":scope > .turn", host);
      row.classList.toggle("left-out", Boolean(turn && !turn.is_sent));
      divide(row, turn && index === firstSent && firstSent > 0 ? firstSent : 0);
      if (!turn) {
        old?.remove();
        return;
      }
      const key = `${state.now.is_busy} ${index === all.length - 1} ${turn.key}`;
      if (old?.eagleKey === key || (old && row.classList.contains("editing"))) return;
      const tools = tray(turn, index === all.length - 1, row);
      tools.eagleKey = key;
      if (old) old.replaceWith(tools);
      else host.append(tools);
    });
  }

  function divide(row, nLeftOut) {
    const old = $(":scope > .divider", row);
    if (!nLeftOut) {
      old?.remove();
      return;
    }
    const text = `The context is full: ${nLeftOut} older message${nLeftOut === 1 ? " is" : "s are"} not sent to the model`;
    if (old) old.textContent = text;
    else row.prepend(make("p", { class: "divider", role: "note", text }));
  }

  function tray(turn, isLast, row) {
    /* The tools and the figures under one message. */
    const isUser = turn.role === "user";
    const off = { disabled: Boolean(state.now.is_busy) };
    const tools = make("div", { class: "tools", role: "group", "aria-label": isUser ? "Your message" : "Answer" });
    if (turn.n_versions > 1) {
      const turnTo = (id) => () => act("version", { message: id });
      tools.append(make("span", { class: "versions" },
        tool("left", "Previous version", turnTo(turn.before), { disabled: !turn.before || off.disabled }),
        make("span", { text: `${turn.version} / ${turn.n_versions}` }),
        tool("right", "Next version", turnTo(turn.after), { disabled: !turn.after || off.disabled })));
    }
    tools.append(
      tool("copy", "Copy", () => copy(turn.text)),
      tool("edit", "Edit", () => edit(turn, row), off));
    if (!isUser || isLast) tools.append(tool("again", isUser ? "Answer" : "Regenerate", () => answer("regenerate", { message: turn.id }), off));
    if (!isUser && isLast) tools.append(tool("go", "Continue", () => answer("continue", { message: turn.id }), off));
    tools.append(
      tool("branch", "Branch into a new chat", () => act("branch", { message: turn.id }), off),
      tool("bin", "Delete", () => remove(turn), off));
    const made = make("div", { class: "turn" }, tools);
    if (!isUser) made.prepend(...figures(turn));
    return made;
  }

  function figures(turn) {
    const parts = [];
    if (turn.is_written) parts.push(make("p", { class: "flag", text: "Being written in another tab" }));
    else if (!turn.is_finished) parts.push(make("p", { class: "flag", text: "Interrupted; Continue goes on from here" }));
    if (!turn.line.length) return parts;
    const summary = make("summary", { title: "More figures" },
      ...turn.line.map(({ value, label, title }) =>
        make("span", { title }, make("b", { text: value }), label ? ` ${label}` : "")));
    const list = make("dl", {}, ...turn.details.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
    const meanings = turn.line.filter(({ label, title }) => label && title);
    const meant = make("ul", { class: "meanings" }, ...meanings.map(({ label, title }) => make("li", {}, make("b", { text: label }), `: ${title}`)));
    const unfold = (event) => event.target.open && event.target.scrollIntoView({ block: "nearest" });
    parts.push(make("details", { class: "stats", on: { toggle: unfold } }, summary, list, meant));
    return parts;
  }

  async function remove(turn) {
    const text = turn.role === "user"
      ? "The message and everything that answers it are deleted."
      : "This answer and everything after it are deleted. Other versions stay.";
    if (await ask({ title: "Delete this message?", text, ok: "Delete" })) act("delete-message", { message: turn.id });
  }

  function edit(turn, row) {
    if (row.classList.contains("editing")) return;
    const isUser = turn.role === "user";
    const stuck = state.sticks;
    const field = make("textarea", { "aria-label": isUser ? "Edit your message" : "Edit the answer", rows: 3 });
    field.value = turn.text;
    const done = () => {
      row.classList.remove("editing");
      editor.remove();
      state.sticks = stuck;
      schedule();
    };
    const cancel = () => {
      done();
      $("#box textarea")?.focus();
    };
    const finish = () => {
      const text = field.value;
      done();
      if (isUser) answer("edit", { message: turn.id, text });
      else if (text !== turn.text) act("edit-answer", { message: turn.id, text });
      $("#box textarea")?.focus();
    };
    const editor = make("div", { class: "editor" }, field,
      make("div", { class: "row" },
        make("span", { class: "hint", text: `${isUser ? "A new version; the old one stays" : "Kept as another version"}. Ctrl+Enter ${isUser ? "sends" : "saves"}` }),
        make("button", { type: "button", text: "Cancel", on: { click: cancel } }),
        make("button", { type: "button", class: "primary", text: isUser ? "Send" : "Save", on: { click: finish } })));
    field.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") cancel();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) finish();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    field.addEventListener("input", () => grow(field));
    row.classList.add("editing");
    ($(":scope > .flex-wrap > div", row) || row).append(editor);
    grow(field);
    state.sticks = false; // the end of the chat must not pull the first line out of sight
    field.focus({ preventScroll: true });
    field.scrollTop = 0;
    editor.scrollIntoView({ block: "nearest" });
  }

  function grow(field) {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, innerHeight * 0.5)}px`;
  }

  /* ------------------------------------------------------------ scrolling ----------------------- */
  const log = () => $('#chat [role="log"]');
  let lastTop = 0;

  function follow() {
    const place = log();
    if (!place) return;
    if (state.sticks) place.scrollTop = rows().length ? place.scrollHeight : 0; // the welcome is read from its top
    const button = $("#to-end");
    if (button) button.hidden = state.sticks || !rows().length;
  }

  function showFound() {
    /* Mark the message that a search found; bring it into sight until the reader does something else. */
    const { hit } = state;
    const index = hit ? turns().findIndex((turn) => turn.id === hit.message) : -1;
    const row = rows().length === turns().length ? rows()[index] : null;
    for (const other of $$("#chat .message-row.found")) other.classList.toggle("found", other === row);
    row?.classList.add("found");
    const word = found.paint(row && $(".message", row), hit?.query || "");
    const place = log();
    if (!row || !hit.isSought) return;
    const top = (word || row).getBoundingClientRect().top - place.getBoundingClientRect().top;
    place.scrollTop += top - place.clientHeight / 4;
  }

  function letGo() {
    if (state.hit) state.hit.isSought = false;
  }

  function onScroll(event) {
    /* Only the reader scrolls up; growth of the text never does. Reaching the end follows again. */
    const place = event.target;
    if (place !== log()) return;
    const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
    if (isAtEnd) state.sticks = true;
    else if (place.scrollTop < lastTop - 2) state.sticks = false;
    lastTop = place.scrollTop;
    const button = $("#to-end");
    if (button) button.hidden = state.sticks;
  }

  /* ------------------------------------------------------------ composer ------------------------ */
  function composer(root, read, watch, send) {
    state.send = send;
    const host = $(".composer", root) || root;
    const picker = make("input", { type: "file", multiple: true, hidden: true, id: "attach-file", on: {
      change: () => {
        attach([...picker.files]);
        picker.value = "";
      },
    } });
    host.replaceChildren(picker,
      tool("clip", "Attach a text file", () => picker.click(), { id: "attach" }),
      make("div", { class: "files", id: "files", role: "list", "aria-label": "Attached files" }),
      make("div", { class: "meter", id: "meter" }));
    const main = $("#main");
    main?.append(tool("down", "To the latest message", () => {
      state.sticks = true;
      follow();
    }, { id: "to-end", hidden: true }));
    main?.addEventListener("dragover", (event) => event.preventDefault());
    main?.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      attach([...event.dataTransfer.files]);
    });
    watch(() => take(read()));
    when("#chat", (place) => new MutationObserver(schedule).observe(place, { childList: true, characterData: true, subtree: true }));
    document.addEventListener("scroll", onScroll, true);
    for (const name of ["wheel", "touchmove", "pointerdown", "keydown"]) document.addEventListener(name, letGo, { capture: true, passive: true });
    for (const name of ["change", "input"]) $("#settings")?.addEventListener(name, settingsChanged);
    document.addEventListener("visibilitychange", () => document.hidden || act("look"));
    restoreSettings();
    act("start", { chat: sessionStorage.getItem("eagle-chat"), kept: keptHere() });
  }

  /* ------------------------------------------------------------ settings ------------------------ */
  let pending = 0;

  function settingsChanged() {
    /* The server checks them and says what differs from the defaults; that is what the browser keeps. */
    clearTimeout(pending);
    pending = setTimeout(() => (state.now.is_busy ? settingsChanged() : act("measure")), 400);
  }

  function keepSettings(settings) {
    if (state.now.is_private) return; // a private chat leaves nothing behind
    const preset = $("#preset input")?.value;
    store("eagle-panel", JSON.stringify({ settings, preset }));
  }

  function restoreSettings() {
    let kept = null;
    try {
      kept = JSON.parse(stored("eagle-panel"));
    } catch {
      /* not what this page wrote */
    }
    if (kept?.settings) state.send.restore({ ...kept, chat: sessionStorage.getItem("eagle-chat") });
  }

  function take(value) {
    if (!value || value.chat === undefined) return;
    if (value.turns.length > turns().length && state.shown === value.chat) state.hit = null; // the chat goes on
    state.now = { ...value, turns: value.turns.map((turn) => ({ ...turn, key: JSON.stringify(turn) })) };
    if (value.is_private || !value.id) sessionStorage.removeItem("eagle-chat");
    else sessionStorage.setItem("eagle-chat", value.id);
    if (state.shown !== value.chat) {
      state.shown = value.chat;
      const isHit = value.turns.some((turn) => turn.id === state.hit?.message);
      if (!isHit) state.hit = null;
      state.sticks = !isHit;
      let prompt = "";
      const past = [];
      for (const turn of value.turns) {
        if (turn.role === "user") prompt = turn.text;
        else past.push({ index: past.length, text: turn.text, runs: turn.runs, counts: turn.counts, prompt });
      }
      window.eagleChat?.restore(value.chat, past);
      for (const row of $$("#chat .editing")) row.classList.remove("editing");
      for (const editor of $$("#chat .editor")) editor.remove();
    }
    document.body.dataset.private = value.is_private ? "on" : "off";
    const secret = $("#private-switch");
    if (secret) secret.checked = value.is_private;
    clearTimeout(state.waiting);
    if (value.turns.some((turn) => turn.is_written) && !value.is_busy) {
      state.waiting = setTimeout(() => act("refresh", { chat: value.id }), 1500);
    }
    drawFiles(value.attachments);
    drawMeter(value.meter);
    if (value.settings) keepSettings(value.settings);
    schedule();
  }

  function drawFiles(files) {
    $("#files")?.replaceChildren(...files.map((file, index) =>
      make("span", { class: "file", role: "listitem" },
        make("span", { text: file.name }), make("small", { text: ` ${size(file.n_bytes)}` }),
        tool("close", `Remove ${file.name}`, () => act("detach", { index })))));
  }

  const size = (n) => (n < 1024 ? `${n} B` : `${(n / 1024).toFixed(n < 10240 ? 1 : 0)} kB`);

  function drawMeter(meter) {
    const place = $("#meter");
    if (!place) return;
    place.hidden = !meter;
    if (!meter) return;
    if (!place.firstChild) {
      place.append(
        make("span", { class: "track", role: "meter", "aria-label": "Context used", "aria-valuemin": 0 },
          ...meter.parts.map((part, index) => make("span", { class: `part part-${index}` }))),
        make("span"), make("span", { class: "kept" }));
    }
    const [track, words, room] = place.children;
    const left = meter.n_left_out ? `, ${meter.n_left_out} messages left out` : "";
    const text = `${meter.used.toLocaleString()} of ${meter.length.toLocaleString()} tokens${left}`;
    place.dataset.level = meter.n_left_out ? "full" : meter.level;
    place.title = `Context: ${meter.parts.map(([name, n]) => `${name}: ${n.toLocaleString()}`).join(", ")}`;
    track.setAttribute("aria-valuemax", meter.length);
    track.setAttribute("aria-valuenow", Math.min(meter.used, meter.length));
    track.setAttribute("aria-valuetext", text);
    meter.parts.forEach(([, n], index) => (track.children[index].style.width = `${(100 * n) / meter.length}%`));
    words.textContent = text;
    room.textContent = `${meter.parts[2][1].toLocaleString()} kept for the answer`;
  }

  function used(nTokens) {
    /* While an answer grows, the room that is kept for it becomes conversation. */
    const { meter } = state.now;
    if (!meter || nTokens <= meter.used) return;
    const [system, , room] = meter.parts;
    const nKept = Math.max(0, Math.min(room[1] - (nTokens - meter.used), meter.length - nTokens));
    const level = meter.level === "ok" && nTokens >= meter.warn_at ? "high" : meter.level;
    const parts = [system, [meter.parts[1][0], nTokens - system[1]], [room[0], nKept]];
    drawMeter({ ...meter, used: nTokens, parts, level });
  }

  function attach(files) {
    for (const file of files) {
      if (file.size > state.now.max_file_bytes) {
        act("attach", { name: file.name, n_bytes: file.size });
        continue;
      }
      const reader = new FileReader();
      reader.onload = () => act("attach", { name: file.name, n_bytes: file.size, content: reader.result.split(",")[1] || "" });
      reader.readAsDataURL(file);
    }
    $("#box textarea")?.focus();
  }

  /* ------------------------------------------------------------ the list of chats --------------- */
  function chats(root, read, watch) {
    const host = $(".chats", root) || root;
    let pending = 0;
    const search = make("input", { type: "search", placeholder: "Search chats", "aria-label": "Search chats", id: "search", maxlength: 500, on: {
      input: () => {
        clearTimeout(pending);
        pending = setTimeout(look, 180);
      },
      keydown: (event) => {
        if (event.isComposing) return;
        if (event.key === "ArrowDown") $("#chat-list .open")?.focus();
        else if (event.key !== "Enter" || !search.value.trim()) return;
        else if (state.list.query === search.value) openFirst();
        else {
          state.entered = search.value;
          look();
        }
        event.preventDefault();
      },
    } });
    const look = () => {
      clearTimeout(pending);
      act("search", { query: search.value });
    };
    const picker = make("input", { type: "file", accept: ".json,.md,.markdown", hidden: true, id: "import-file", on: {
      change: async () => {
        const [file] = picker.files;
        if (file) act("import", { name: file.name, text: await file.text() });
        picker.value = "";
      },
    } });
    const plain = (text, run, more = {}) => make("button", { type: "button", text, on: { click: run }, ...more });
    host.replaceChildren(
      make("div", { class: "chats-top" },
        make("button", { type: "button", id: "new-chat", title: "New chat (Ctrl+Shift+O)", on: { click: fresh } }, icon("plus"), "New chat"),
        make("button", { type: "button", class: "tool", "data-close": "chats", "aria-label": "Close chats", title: "Close" }, icon("close")),
        search),
      make("nav", { id: "chat-list", "aria-label": "Chats", on: { keydown: walkList } }),
      make("div", { class: "chats-bottom" },
        make("label", { class: "switch", title: "A private chat is written nowhere and ends with this page" },
          make("input", { type: "checkbox", id: "private-switch", on: { change: (event) => act("private", { is_on: event.target.checked }) } }),
          "Private chat"),
        picker,
        make("div", { class: "row" }, plain("Import", () => picker.click(), { id: "import" }), plain("Export all", () => act("export-all"), { id: "export-all" }))));
    watch(() => listed(read()));
    listed(read());
    document.addEventListener("pointerdown", (event) => closeMenus(event.target), true);
    drawers.arrange();
  }

  function walkList(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches(".open")) return;
    const all = $$("#chat-list .open");
    const next = all.indexOf(event.target) + step;
    (next < 0 ? $("#search") : all[next])?.focus();
    event.preventDefault();
  }

  function open(item) {
    state.hit = item.message ? { message: item.message, query: state.list.query, isSought: true } : null;
    act("open", { chat: item.id, message: item.message });
    drawers.closeOver();
  }

  function openFirst() {
    const [item] = state.list.items;
    if (item) open(item);
  }

  function fresh() {
    act("new");
    drawers.closeOver();
    $("#box textarea")?.focus();
  }

  function listed(value) {
    if (!value || !value.items) return;
    const isNewSearch = value.query !== (state.list.query ?? "");
    const isNewDownload = value.download && value.download !== state.list.download;
    state.list = value;
    if (value.kept) keepHere(value.kept);
    if (isNewDownload) download(value.download);
    const list = $("#chat-list");
    if (!list) return;
    const focused = document.activeElement?.closest?.("#chat-list [data-id]")?.dataset.id;
    const parts = [];
    let group = null;
    for (const item of value.items) {
      if (item.group !== group) {
        group = item.group;
        parts.push(make("h2", { text: group }), make("ul", {}));
      }
      parts[parts.length - 1].append(entry(item, value.current));
    }
    if (value.n_more) parts.push(make("p", { class: "muted", text: `${value.n_more} older chats: search to find them.` }));
    if (!parts.length) parts.push(make("p", { class: "muted", text: value.query ? "No chat holds these words." : `Your chats appear here. ${value.is_kept ? "They stay on this machine." : value.kept ? "This browser keeps them, nobody else." : "They end with this page: export what matters."}` }));
    list.replaceChildren(...parts);
    if (focused) $(`#chat-list [data-id="${focused}"] .open`)?.focus();
    if (!isNewSearch) return;
    const n = value.items.length + value.n_more;
    if (value.query) say(n === 1 ? "1 chat found" : `${n || "No"} chats found`);
    else state.hit = null;
    if (value.query && value.query === state.entered) openFirst();
    state.entered = null;
    schedule();
  }

  function entry(item, current) {
    const shown = item.found ?? { title: [item.title], snippet: [item.snippet], tags: item.tags.map((tag) => [tag]) };
    const text = (name, parts) => found.fill(make("span", { class: name }), parts);
    const opener = make("button", { type: "button", class: "open", title: item.title, "aria-current": item.id === current ? "true" : null, on: { click: () => open(item) } },
      text("name", shown.title),
      item.snippet && text("snippet", shown.snippet),
      item.tags.length > 0 && make("span", { class: "tags" }, ...shown.tags.map((tag) => text("tag", tag))));
    const choice = (text, run) => make("button", { type: "button", role: "menuitem", text, on: { click: () => {
      closeMenus(null);
      run();
    } } });
    const menu = make("details", { class: "menu" },
      make("summary", { "aria-label": `Options of ${item.title}`, title: "Options" }, icon("more")),
      make("div", { role: "menu", class: "choices" },
        choice(item.is_pinned ? "Unpin" : "Pin", () => act("pin", { chat: item.id, is_on: !item.is_pinned })),
        choice("Rename", async () => {
          const title = await ask({ title: "Rename chat", value: item.title, ok: "Rename" });
          if (title !== null) act("rename", { chat: item.id, title });
        }),
        choice("Tags", async () => {
          const tags = await ask({ title: "Tags", text: "With commas between.", value: item.tags.join(", "), ok: "Save" });
          if (tags !== null) act("tags", { chat: item.id, tags });
        }),
        choice("Export as Markdown", () => act("export", { chat: item.id, format: "md" })),
        choice("Export as JSON", () => act("export", { chat: item.id, format: "json" })),
        choice("Delete", async () => {
          if (await ask({ title: "Delete this chat?", text: item.title, ok: "Delete" })) act("delete", { chat: item.id });
        })));
    menu.addEventListener("toggle", () => {
      if (!menu.open) return;
      const box = $("summary", menu).getBoundingClientRect();
      const choices = $(".choices", menu);
      choices.style.left = `${Math.max(8, Math.min(box.left, innerWidth - choices.offsetWidth - 8))}px`;
      choices.style.top = `${Math.min(box.bottom + 2, innerHeight - choices.offsetHeight - 8)}px`;
      $("button", choices).focus();
    });
    menu.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || !menu.open) return;
      const all = $$(".choices button", menu);
      all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
      event.preventDefault();
    });
    return make("li", { "data-id": item.id }, opener, menu);
  }

  function closeMenus(target) {
    for (const menu of $$("#chat-list .menu[open], #top details[open]")) {
      if (target && menu.contains(target)) continue;
      if (menu.contains(document.activeElement)) $("summary", menu).focus();
      menu.open = false;
    }
  }

  function download({ name, text }) {
    const type = name.endsWith(".md") ? "text/markdown" : "application/json";
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    say(`${name} is saved`);
  }

  /* ------------------------------------------------------------ drawers, theme, help ------------ */
  const stored = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  };
  const store = (key, value) => {
    try {
      localStorage.setItem(key, value);
    } catch {
      /* a browser that keeps nothing */
    }
  };
  /* Where strangers share the app this browser keeps the chats, one entry each, and the server forgets them. */
  const KEPT = "eagle-kept:";

  function keptHere() {
    const kept = {};
    try {
      for (const key of Object.keys(localStorage)) {
        if (key.startsWith(KEPT)) kept[key.slice(KEPT.length)] = localStorage.getItem(key);
      }
    } catch {
      /* a browser that keeps nothing */
    }
    return kept;
  }

  function keepHere({ put, drop }) {
    try {
      for (const id of drop) localStorage.removeItem(KEPT + id);
      for (const [id, text] of Object.entries(put)) localStorage.setItem(KEPT + id, text);
    } catch {
      say("This browser keeps no more chats: delete some, or export them");
    }
  }

  function bar(root) {
    for (const button of $$("[data-drawer]", root)) {
      button.append(icon({ chats: "list", settings: "gear", details: "chart" }[button.dataset.drawer]));
      button.setAttribute("aria-expanded", String(document.body.dataset[button.dataset.drawer] === "open"));
      button.addEventListener("click", () => drawers.toggle(button.dataset.drawer));
    }
    for (const button of $$("[data-close]", root)) button.append(icon("close"));
    const theme = $("[data-theme]", root);
    theme?.append(icon("half"));
    theme?.addEventListener("click", () => {
      const isDark = !document.body.classList.contains("dark");
      store("eagle-theme", isDark ? "dark" : "light");
      paintTheme();
    });
    const help = $("[data-help]", root);
    help?.append(icon("help"));
    help?.addEventListener("click", showHelp);
    if (theme) paintTheme();
  }

  function paintTheme() {
    const chosen = stored("eagle-theme");
    if (chosen) document.body.classList.toggle("dark", chosen === "dark");
    document.documentElement.style.colorScheme = document.body.classList.contains("dark") ? "dark" : "light";
  }

  const KEYS = [
    ["Enter", "Send the message"],
    ["Shift+Enter", "New line"],
    ["Esc", "Stop the answer"],
    ["Ctrl+Enter", "Regenerate the last answer (message box empty)"],
    ["Alt+Enter", "Continue the last answer"],
    ["↑", "Edit your last message (message box empty)"],
    ["← →", "Versions of the last answer (outside text fields)"],
    ["Ctrl+Shift+O", "New chat"],
    ["Ctrl+K", "Search chats; then Enter opens the first, ↓ ↑ walk the list"],
    ["Ctrl+B", "Show or hide the chats"],
    ["Ctrl+,", "Show or hide the settings"],
    ["/", "Go to the message box (outside text fields)"],
    ["?", "This sheet (outside text fields)"],
  ];

  function showHelp() {
    if ($("dialog.help")) return;
    const dialog = make("dialog", { class: "ask help", "aria-label": "Keyboard shortcuts" },
      make("h2", { text: "Keyboard shortcuts" }),
      make("dl", {}, ...KEYS.flatMap(([keys, what]) => [make("dt", {}, make("kbd", { text: keys })), make("dd", { text: what })])),
      make("p", { class: "muted", text: "On a Mac, Cmd works like Ctrl." }),
      make("div", { class: "row" }, make("button", { type: "button", class: "primary", text: "Close", on: { click: () => dialog.close() } })));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  /* ------------------------------------------------------------ keys ---------------------------- */
  const isTyping = (target) => Boolean(target.closest?.("input, textarea, select, [contenteditable]"));

  function onKey(event) {
    if (event.isComposing || $("dialog[open]")) return;
    const { key } = event;
    const hasControl = event.ctrlKey || event.metaKey;
    const box = $("#box textarea");
    const isBoxEmpty = event.target === box ? box.value === "" : !isTyping(event.target);
    const all = turns();
    const last = all[all.length - 1];
    const isFree = !state.now.is_busy && Boolean(last);
    let run = null;
    if (key === "Escape") {
      closeMenus(null);
      if (!drawers.closeOver()) return;
      event.stopPropagation(); // the answer goes on
      return;
    }
    if (hasControl && event.shiftKey && key.toLowerCase() === "o") run = fresh;
    else if (hasControl && !event.shiftKey && key.toLowerCase() === "k") run = () => {
      drawers.set("chats", true);
      $("#search")?.focus();
    };
    else if (hasControl && !event.shiftKey && key.toLowerCase() === "b") run = () => drawers.toggle("chats");
    else if (hasControl && key === ",") run = () => drawers.toggle("settings");
    else if (hasControl && key === "Enter" && isBoxEmpty && isFree) run = () => answer("regenerate", { message: last.id });
    else if (event.altKey && key === "Enter" && isFree && last.role === "assistant") run = () => answer("continue", { message: last.id });
    else if (key === "ArrowUp" && event.target === box && isBoxEmpty && isFree) run = editLast;
    else if (hasControl || event.altKey || isTyping(event.target)) return;
    else if ((key === "ArrowLeft" || key === "ArrowRight") && isFree && !event.target.closest(".menu")) {
      const id = key === "ArrowLeft" ? last.before : last.after;
      if (id) run = () => act("version", { message: id });
    } else if (key === "/") run = () => box?.focus();
    else if (key === "?") run = showHelp;
    if (!run) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  }

  function editLast() {
    const all = turns();
    const index = all.map((turn) => turn.role).lastIndexOf("user");
    if (index >= 0 && rows()[index]) edit(all[index], rows()[index]);
  }

  when("#main, #compare, #models", paintTheme);
  document.addEventListener("keydown", onKey, true);
  window.eaglePage = { composer, chats, bar, settingsChanged, used, peek: () => state.now };
})();
