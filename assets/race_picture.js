/* A race's result as a PNG, drawn on a canvas by the browser itself: numbers, set-ups, prompt, machine, version.

Always on white, whatever the page's theme: it is made to be shown elsewhere. Nothing is fetched for it. */
(() => {
  "use strict";

  const WIDTH = 1200;
  const SCALE = 2;
  const EDGE = 48;
  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
  const INK = "#1f2937";
  const MUTED = "#526076";
  const LINE = "#cbd5e1";
  const SOFT = "#f4f6fa";
  const LANES = ["#64748b", "#0072b2", "#b45309"];

  const times = (value) => (value === null || value === undefined ? "–" : `${Number(value).toFixed(2)}×`);
  const number = (value, digits = 1) => (value === null || value === undefined ? "–" : Number(value).toFixed(digits));
  const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)}%`);
  const range = (pair) => (pair ? ` (95% interval ${pair[0].toFixed(2)}–${pair[1].toFixed(2)})` : "");

  function lines(context, text, width, most) {
    /* Words in lines of at most `width`; a word that is longer is broken. Control signs become spaces. */
    const found = [];
    let line = "";
    // Directions of writing could turn the line around, and a line break would not be seen.
    const plain = text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, " ");
    for (const word of plain.split(/\s+/).filter(Boolean)) {
      let rest = word;
      if (line && context.measureText(`${line} ${rest}`).width <= width) {
        line = `${line} ${rest}`;
        continue;
      }
      if (line) found.push(line);
      while (found.length <= most && context.measureText(rest).width > width) {
        let n = 1;
        const signs = [...rest];
        while (n < signs.length && context.measureText(signs.slice(0, n + 1).join("")).width <= width) n += 1;
        found.push(signs.slice(0, n).join(""));
        rest = signs.slice(n).join("");
      }
      line = rest;
      if (found.length > most) break;
    }
    if (line) found.push(line);
    if (found.length <= most) return found;
    return [...found.slice(0, most - 1), `${found[most - 1].slice(0, -1)}…`];
  }

  function pen(context) {
    /* Draws from top to bottom; `y` is where the next part goes. */
    const self = { y: EDGE };
    self.text = (text, { size = 18, weight = 400, color = INK, x = EDGE, width = WIDTH - 2 * EDGE, most = 1, gap = 6 } = {}) => {
      context.font = `${weight} ${size}px ${FONT}`;
      context.fillStyle = color;
      context.textBaseline = "top";
      for (const line of lines(context, text, width, most)) {
        context.fillText(line, x, self.y);
        self.y += Math.round(size * 1.35);
      }
      self.y += gap;
    };
    self.box = (x, y, width, height, color) => {
      context.fillStyle = color;
      context.beginPath();
      context.roundRect(x, y, width, height, 12);
      context.fill();
    };
    self.bar = (x, y, width, height, color) => {
      context.fillStyle = color;
      context.fillRect(x, y, Math.max(width, 2), height);
    };
    return self;
  }

  function results(data, at) {
    /* What the cards say: over all prompts of a batch, or of the one race. */
    if (data.races.length > 1) {
      return data.summary.map((one) => ({
        decode: one.decode_speedup, total: one.total_speedup, tau: one.tau, interval: one.decode_interval,
        words: one.n_judged
          ? `${one.n_identical} of ${one.n_judged} answers identical to those of ${data.setups[0].name}.`
          : "Another model or other settings: texts are not compared.",
      }));
    }
    const race = data.races[at];
    return race.verdicts.map((verdict, place) => ({
      ...verdict, tau: race.lanes[place + 1].tau, share: race.lanes[place + 1].share, interval: null,
    }));
  }

  function rate(data, at, index) {
    /* Decoded tokens a second: of the one race, or all tokens over all time of a batch. */
    if (data.races.length === 1) return data.races[at].lanes[index].decode_tok_s;
    const whole = data.races.map((race) => race.lanes[index]).filter((lane) => lane.decode_tok_s);
    const seconds = whole.reduce((sum, lane) => sum + (lane.n_tokens - 1) / lane.decode_tok_s, 0);
    return seconds ? whole.reduce((sum, lane) => sum + lane.n_tokens - 1, 0) / seconds : null;
  }

  function paint(context, data, at) {
    /* Draw all of it; returns the height that it takes. */
    const draw = pen(context);
    const isBatch = data.races.length > 1;
    draw.text("EAGLE chat: a comparison", { size: 34, weight: 680, gap: 2 });
    draw.text(data.model, { size: 19, weight: 550, color: MUTED, gap: 0 });
    draw.text(`${data.machine} · ${data.version} · ${data.created}`, { size: 16, color: MUTED, gap: 14 });
    const found = results(data, at);
    const gap = 20;
    const width = (WIDTH - 2 * EDGE - gap * (found.length - 1)) / found.length;
    const top = draw.y;
    const height = 226;
    found.forEach((one, place) => {
      const x = EDGE + place * (width + gap);
      const inside = { x: x + 22, width: width - 44 };
      draw.box(x, top, width, height, SOFT);
      draw.bar(x + 22, top + 18, 44, 6, LANES[place + 1]);
      draw.y = top + 32;
      draw.text(`${data.setups[place + 1].name} beside ${data.setups[0].name}`, { ...inside, size: 18, weight: 600, color: MUTED, gap: 0 });
      draw.text(times(one.decode), { ...inside, size: 58, weight: 700, gap: -2 });
      draw.text(`decoding speed${range(one.interval)}`, { ...inside, size: 16, color: MUTED, gap: 2 });
      const drafted = one.share === undefined ? "" : ` · ${share(one.share)} drafted`;
      draw.text(`${times(one.total)} end to end · ${number(one.tau, 2)} tokens per step (τ)${drafted}`, { ...inside, size: 16, gap: 0 });
      draw.text(one.words, { ...inside, size: 15, color: MUTED, most: 2, gap: 0 });
    });
    draw.y = top + height + 24;
    const rates = data.setups.map((_, index) => rate(data, at, index));
    const most = Math.max(1e-9, ...rates.map((value) => value || 0));
    const room = WIDTH - 2 * EDGE - 190;
    data.setups.forEach((setup, index) => {
      draw.text(`${setup.name} · ${setup.about}`, { size: 16, color: MUTED, gap: 0 });
      draw.bar(EDGE, draw.y, (room * (rates[index] || 0)) / most, 22, LANES[index]);
      const y = draw.y;
      draw.text(`${number(rates[index])} tok/s`, { size: 18, weight: 650, x: EDGE + (room * (rates[index] || 0)) / most + 14, width: 180, gap: 0 });
      draw.y = y + 34;
    });
    draw.y += 8;
    if (isBatch) dots(context, draw, data);
    draw.text(isBatch ? `${data.races.length} prompts, for example:` : "Prompt:", { size: 15, weight: 600, color: MUTED, gap: 0 });
    draw.text(data.races[at].prompt, { size: 16, most: isBatch ? 2 : 4, gap: 12 });
    draw.text("The set-ups answered one after the other, so that none slowed another.", { size: 14, color: MUTED, gap: 0 });
    return draw.y + EDGE - 12;
  }

  function dots(context, draw, data) {
    /* The speed-up of every prompt on one axis for each set-up. */
    const { speedups, axisEnd, ticks } = window.eagleRacePlot;
    const end = axisEnd(data);
    const left = EDGE;
    const width = WIDTH - 2 * EDGE;
    const at = (value) => left + (width * Math.min(Math.max(value, 0), end)) / end;
    draw.text(`Decoding speed beside ${data.setups[0].name}: a dot for each prompt, a band for the 95% interval`, { size: 15, weight: 600, color: MUTED, gap: 4 });
    const top = draw.y;
    const bottom = top + 34 * data.summary.length;
    for (const tick of ticks(end)) draw.bar(at(tick) - 1, top, tick === 1 ? 3 : 1, bottom - top, tick === 1 ? MUTED : LINE);
    data.summary.forEach((one, place) => {
      const middle = top + 34 * place + 17;
      if (one.decode_interval) {
        context.globalAlpha = 0.25;
        draw.bar(at(one.decode_interval[0]), middle - 13, at(one.decode_interval[1]) - at(one.decode_interval[0]), 26, LANES[place + 1]);
        context.globalAlpha = 1;
      }
      for (const [value] of speedups(data, place)) {
        context.fillStyle = LANES[place + 1];
        context.beginPath();
        context.arc(at(value), middle, 6, 0, 2 * Math.PI);
        context.fill();
      }
    });
    for (const tick of ticks(end)) {
      draw.y = bottom + 4;
      const x = Math.max(left, Math.min(at(tick) - 10, left + width - 26));
      draw.text(`${tick}×`, { size: 14, color: MUTED, x, width: 60, gap: 0 });
    }
    draw.y = bottom + 36;
  }

  function canvasOf(data, at) {
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    const height = Math.ceil(paint(context, data, at));
    canvas.width = WIDTH * SCALE;
    canvas.height = height * SCALE;
    context.scale(SCALE, SCALE);
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, WIDTH, height);
    paint(context, data, at);
    return canvas;
  }

  function save(data, at) {
    canvasOf(data, at).toBlob((blob) => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = "comparison.png";
      document.body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }, "image/png");
  }

  window.eagleRacePicture = { save };
})();
