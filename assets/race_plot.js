/* Plots of a batch of races: speed-ups with one dot per prompt, all together and by kind of prompt, and the rates.

Numbers come from the server; only their places on the axis are worked out here. */
(() => {
  "use strict";

  const times = (value) => (value === null || value === undefined ? "–" : `${Number(value).toFixed(2)}×`);
  const range = (pair) => (pair ? ` (${pair[0].toFixed(2)}–${pair[1].toFixed(2)})` : "");
  const cut = (text, n = 90) => (text.length > n ? `${text.slice(0, n - 2)}…` : text);

  function make(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function speedups(data, place, category) {
    /* [value, number of the race] of every race that has a speed-up. */
    return data.races
      .map((race, at) => [race.verdicts[place].decode, at, race.category])
      .filter(([value, , own]) => value !== null && (category === undefined || own === category));
  }

  function axisEnd(data) {
    const all = data.summary.flatMap((one, place) => [
      ...speedups(data, place).map(([value]) => value), ...(one.decode_interval || []),
    ]);
    return Math.max(1.5, Math.ceil(2.1 * Math.max(1, ...all)) / 2);
  }

  function ticks(end) {
    const step = end > 6 ? 2 : end > 3 ? 1 : 0.5;
    return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
  }

  const across = (value, end) => `${(100 * Math.min(Math.max(value, 0), end)) / end}%`;

  function strip(data, place, end, open, { value, interval, category }) {
    /* One axis: a line at 1 and at the value, the interval as a band, a dot for each prompt. */
    const root = make("div", "strip");
    root.style.setProperty("--lane", `var(--lane-${place + 1})`);
    for (const tick of ticks(end)) {
      const line = make("i", tick === 1 ? "tick one" : "tick");
      line.style.left = across(tick, end);
      root.append(line);
    }
    if (interval) {
      const band = make("i", "band");
      band.style.left = across(interval[0], end);
      band.style.width = across(interval[1] - interval[0], end);
      root.append(band);
    }
    if (value !== null) {
      const mark = make("i", "value");
      mark.style.left = across(value, end);
      root.append(mark);
    }
    for (const [one, at] of speedups(data, place, category)) {
      const dot = make("button", "dot");
      dot.type = "button";
      dot.style.left = across(one, end);
      dot.title = `${times(one)}: ${cut(data.races[at].prompt)}`;
      dot.setAttribute("aria-label", dot.title);
      dot.addEventListener("click", () => open(at));
      root.append(dot);
    }
    return root;
  }

  function row(data, end, open, name, figures, category) {
    const line = make("tr");
    const head = make("th", "", name);
    head.scope = "row";
    const cell = make("td");
    figures.forEach((one, place) => {
      const each = make("div", "strip-row");
      const label = data.summary.length > 1 ? `${data.setups[place + 1].name}: ` : "";
      const text = `${label}${times(one.decode_speedup)}${range(one.decode_interval)}`;
      const options = { value: one.decode_speedup, interval: one.decode_interval, category };
      each.append(strip(data, place, end, open, options), make("span", "", text));
      cell.append(each);
    });
    line.append(head, cell);
    return line;
  }

  function spread(data, open) {
    const table = make("table", "plot spread");
    const title = `Decoding speed beside ${data.setups[0].name}: a dot for each prompt, a band for the 95% interval`;
    table.append(make("caption", "", title));
    const end = axisEnd(data);
    const body = make("tbody");
    body.append(row(data, end, open, `All ${data.races.length} prompts`, data.summary));
    const categories = data.summary[0].categories;
    if (categories.length > 1) {
      categories.forEach(({ name, n_races: n }, index) => {
        const label = n > 1 ? `${name} (${n})` : name;
        body.append(row(data, end, open, label, data.summary.map((one) => one.categories[index]), name));
      });
    }
    const scale = make("div", "scale");
    for (const tick of ticks(end)) {
      const label = make("span", "", `${tick}×`);
      label.style.left = across(tick, end);
      scale.append(label);
    }
    const last = make("tr");
    const cell = make("td");
    const each = make("div", "strip-row");
    each.append(scale, make("span"));
    cell.append(each);
    last.append(make("th"), cell);
    last.setAttribute("aria-hidden", "true");
    body.append(last);
    table.append(body);
    return table;
  }

  function rates(data, open) {
    const table = make("table", "plot rates");
    table.append(make("caption", "", "Decoded tokens per second, by prompt"));
    const most = Math.max(1, ...data.races.flatMap((race) => race.lanes.map((lane) => lane.decode_tok_s || 0)));
    const body = make("tbody");
    data.races.forEach((race, at) => {
      const line = make("tr");
      const head = make("th");
      head.scope = "row";
      const button = make("button", "", cut(race.prompt));
      button.type = "button";
      button.addEventListener("click", () => open(at));
      head.append(button);
      const cell = make("td");
      race.lanes.forEach((lane, index) => {
        const each = make("div", "bar-row");
        const bar = make("i", `lane-${index}`);
        bar.style.setProperty("--lane", `var(--lane-${index})`);
        bar.style.width = `${(100 * (lane.decode_tok_s || 0)) / most}%`;
        const speed = index ? ` (${times(race.verdicts[index - 1].decode)})` : "";
        const rate = lane.decode_tok_s === null ? "–" : lane.decode_tok_s.toFixed(1);
        each.append(bar, make("span", "", `${rate}${speed} ${data.setups[index].name}`));
        cell.append(each);
      });
      line.append(head, cell);
      body.append(line);
    });
    table.append(body);
    return table;
  }

  window.eagleRacePlot = { spread, rates, speedups, axisEnd, ticks };
})();
