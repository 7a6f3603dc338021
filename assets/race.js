/* Replays answers that were recorded one after the other on one clock, side by side, with live numbers.

Used by the Compare page and by the file that it saves. Texts enter through textContent only. The clock ticks fifteen times
a second while a race is on, and not at all otherwise. */
(() => {
  "use strict";

  const TICK_MS = 66;

  function make(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const number = (value, digits = 1) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
  const times = (value) => (value === null || value === undefined ? "–" : `${Number(value).toFixed(2)}×`);
  const range = (pair) => (pair ? ` (95% interval ${pair[0].toFixed(2)}–${pair[1].toFixed(2)})` : "");
  const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)}%`);

  const MEANINGS = {
    "tok/s": "Tokens per second from the first token to the last; reading the prompt is left out",
    tokens: "Length of the answer",
    "τ": "Tokens that one pass of the model makes final; plain decoding: 1.00",
    drafted: "Share of the answer that was guessed ahead and confirmed by the model",
    "end to end": "How many times less time the whole request takes, reading the prompt included",
  };

  function fact(value, label, title = MEANINGS[label]) {
    const place = make("span");
    place.title = title;
    place.append(make("b", "", value), ` ${label}`);
    return place;
  }

  /* ------------------------------------------------------------ one lane ------------------------- */
  function createLane(setup, index) {
    const root = make("section", "lane");
    root.style.setProperty("--lane", `var(--lane-${index})`);
    root.setAttribute("aria-label", setup.name);
    const header = make("header");
    const title = make("h3", "", setup.name);
    const done = make("span", "done");
    title.append(done);
    const live = make("div", "live");
    const rate = fact("–", "tok/s");
    rate.firstChild.className = "rate";
    const parts = [rate, fact("0", "tokens"), fact("–", "τ"), fact("–", "drafted")];
    live.append(...parts);
    const note = make("div", "about");
    header.append(title, make("div", "about", setup.about), note, live);
    const track = make("div", "track");
    const bar = make("span");
    track.append(bar);
    const text = make("div", "text");
    text.tabIndex = 0;
    text.setAttribute("role", "region");
    text.setAttribute("aria-label", `Answer of ${setup.name}`);
    root.append(header, track, text);

    const lane = { root, data: null, shown: 0 };

    lane.load = (data) => {
      Object.assign(lane, { data, shown: 0 });
      note.textContent = (data.notices || []).join(" ");
      text.replaceChildren();
      done.textContent = data.problem || "";
      done.className = "done";
      bar.style.transform = "scaleX(0)";
      numbers();
    };

    lane.advance = (ms) => {
      /* Show what was final after `ms`; returns whether the lane is over. */
      const { moments } = lane.data;
      const before = lane.shown;
      while (lane.shown < moments.length && moments[lane.shown][0] <= ms) {
        append(moments[lane.shown]);
        lane.shown += 1;
      }
      if (lane.shown !== before) {
        text.scrollTop = text.scrollHeight;
        numbers();
      }
      return lane.shown >= moments.length;
    };

    lane.finish = (place) => {
      if (lane.data.problem || !lane.data.moments.length) return;
      done.textContent = `${(lane.data.total_ms / 1000).toFixed(2)} s${place === 0 ? " · first" : ""}`;
      done.className = place === 0 ? "done first" : "done";
      show(lane.data.decode_tok_s, lane.data.n_tokens, lane.data.tau, lane.data.share);
    };

    function append([, piece, runs]) {
      let at = 0;
      for (const run of runs ? runs.split(",") : []) {
        const size = Number(run.slice(1));
        const part = piece.slice(at, at + size);
        at += size;
        const last = text.lastChild;
        const isDrafted = run[0] === "d";
        if (last && (last.nodeType === Node.ELEMENT_NODE) === isDrafted) last.textContent += part;
        else text.append(isDrafted ? make("span", "d", part) : document.createTextNode(part));
      }
    }

    function numbers() {
      const { moments } = lane.data;
      if (!lane.shown) {
        show(null, 0, null, null);
        return;
      }
      const [firstMs, , , nFirst] = moments[0];
      const [lastMs, , , nTokens] = moments[lane.shown - 1];
      const nSteps = lane.shown - 1;
      const seconds = (lastMs - firstMs) / 1000;
      show(seconds > 0 ? (nTokens - nFirst) / seconds : null, nTokens, nSteps ? (nTokens - nFirst) / nSteps : null,
        nTokens ? (nTokens - lane.shown) / nTokens : null);
      bar.style.transform = `scaleX(${nTokens / Math.max(lane.data.n_tokens, 1)})`;
    }

    function show(perSecond, nTokens, tau, drafted) {
      const values = [number(perSecond), String(nTokens), number(tau, 2), share(drafted)];
      parts.forEach((part, index) => {
        if (part.firstChild.textContent !== values[index]) part.firstChild.textContent = values[index];
      });
    }

    return lane;
  }

  /* ------------------------------------------------------------ result --------------------------- */
  function card(title, { decode, total, tau, words, interval, more }) {
    const root = make("article", "card");
    const big = make("p", "big", times(decode));
    big.append(" ", make("small", "", `decoding speed${range(interval)}`));
    big.title = "How many times less time a token takes, from the first token to the last";
    const facts = make("p", "facts");
    facts.append(fact(times(total), "end to end"), fact(number(tau, 2), "tokens per step (τ)", MEANINGS["τ"]), ...(more || []));
    root.append(make("h3", "", title), big, facts, make("p", "words", words));
    return root;
  }

  function resultCards(data, race) {
    return race.verdicts.map((verdict, index) =>
      card(`${data.setups[index + 1].name} beside ${data.setups[0].name}`, {
        ...verdict,
        tau: race.lanes[index + 1].tau,
        more: [fact(share(race.lanes[index + 1].share), "drafted")],
      }));
  }

  function summaryCards(data) {
    return data.summary.map((one, index) =>
      card(`${data.setups[index + 1].name} beside ${data.setups[0].name}, ${one.n_races} prompts`, {
        decode: one.decode_speedup,
        total: one.total_speedup,
        tau: one.tau,
        interval: one.decode_interval,
        words: one.n_judged ? `${one.n_identical} of ${one.n_judged} answers identical.` : "Another model or other settings: texts are not compared.",
      }));
  }

  /* ------------------------------------------------------------ the whole ------------------------ */
  function mount(host, data) {
    host.eagleStop?.();
    const root = make("div", "race");
    host.replaceChildren(root);
    if (!data || !data.races || !data.races.length) return;
    const lanes = data.setups.map(createLane);
    const cards = make("div", "cards");
    const prompt = make("p", "prompt");
    const clock = make("span", "clock", "0.00 s");
    const again = make("button", "", "Replay");
    const skip = make("button", "", "To the end");
    const speed = make("select");
    for (const factor of [0.5, 1, 2, 4]) {
      const option = make("option", "", `${factor}× speed`);
      option.value = factor;
      option.selected = factor === 1;
      speed.append(option);
    }
    speed.setAttribute("aria-label", "Speed of the replay");
    const picture = make("button", "picture", "Save as picture");
    picture.addEventListener("click", () => window.eagleRacePicture.save(data, current));
    for (const button of [again, skip, picture]) button.type = "button";
    const tools = make("div", "tools");
    tools.append(again, skip, speed, clock, picture);
    const grid = make("div", "lanes");
    grid.append(...lanes.map((lane) => lane.root));
    const about = [data.model, data.machine, data.version, data.created].join(" · ");
    root.append(make("p", "model", about), cards, tools, prompt, grid);
    const openHere = (at) => {
      open(at);
      tools.scrollIntoView({ block: "nearest" });
    };
    if (data.races.length > 1) root.append(window.eagleRacePlot.spread(data, openHere), window.eagleRacePlot.rates(data, openHere));

    let current = 0;
    let timer = 0;
    let ms = 0;
    let places = [];
    const stop = () => {
      clearInterval(timer);
      timer = 0;
    };
    host.eagleStop = stop;

    function open(at) {
      const race = data.races[at];
      current = at;
      prompt.textContent = race.prompt;
      lanes.forEach((lane, index) => lane.load(race.lanes[index]));
      cards.replaceChildren(...(data.races.length > 1 ? summaryCards(data) : []), ...resultCards(data, race));
      start();
    }

    function start() {
      stop();
      ms = 0;
      places = [];
      lanes.forEach((lane) => lane.load(lane.data));
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
        toEnd();
        return;
      }
      let last = performance.now();
      timer = setInterval(() => {
        const now = performance.now();
        ms += (now - last) * Number(speed.value);
        last = now;
        tick();
      }, TICK_MS);
      tick();
    }

    function tick() {
      const over = lanes.filter((lane, index) => lane.advance(ms) && !places.includes(index) && ms >= lane.data.total_ms);
      for (const lane of over.sort((a, b) => a.data.total_ms - b.data.total_ms)) { // several may end between two ticks
        places.push(lanes.indexOf(lane));
        lane.finish(places.length - 1);
      }
      const end = Math.max(...lanes.map((lane) => lane.data.total_ms));
      clock.textContent = `${(Math.min(ms, end) / 1000).toFixed(2)} s`;
      if (places.length === lanes.length) stop();
    }

    function toEnd() {
      const order = lanes.map((lane, index) => [lane.data.total_ms, index]).sort((a, b) => a[0] - b[0]);
      for (const [total] of order) {
        ms = total;
        tick();
      }
      stop();
    }

    again.addEventListener("click", start);
    skip.addEventListener("click", toEnd);
    open(0);
    root.scrollIntoView({ block: "start" }); // the set-ups above fill a screen
  }

  window.eagleRace = { mount };
})();
