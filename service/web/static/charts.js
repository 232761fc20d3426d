// Curves by uPlot: one chart for each metric (its training and evaluation curves together), redrawn as points arrive.
(() => {
  const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
  const charts = new Set();
  const styles = () => getComputedStyle(document.documentElement);
  const colour = (name) => styles().getPropertyValue(name).trim();

  function words(value) {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
  }

  // Curves have steps of their own: one axis with all of them, and a gap where a curve has no value.
  function joined(curves) {
    return curves.length === 1 ? [curves[0].points[0], curves[0].points[1]] : uPlot.join(curves.map((each) => each.points));
  }

  class Chart {
    constructor(place, title, curves) {
      this.curves = curves;
      this.figure = document.createElement("figure");
      this.figure.className = "chart";
      this.caption = document.createElement("figcaption");
      const name = document.createElement("span");
      name.textContent = title;
      this.at = document.createElement("span");
      this.at.className = "at";
      this.caption.append(name, this.at);
      this.plot = document.createElement("div");
      this.plot.className = "plot";
      this.plot.setAttribute("role", "img");
      this.figure.append(this.caption, this.plot);
      place.append(this.figure);
      this.title = title;
      this.draw();
      this.watcher = new ResizeObserver(() => this.resize());
      this.watcher.observe(this.plot);
      charts.add(this);
    }

    draw() {
      this.uplot?.destroy();
      const ink = colour("--faint");
      const grid = { stroke: colour("--line"), width: 1 };
      const size = parseFloat(styles().fontSize);
      const font = `${Math.round(size * 0.78)}px ${styles().fontFamily}`;
      const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font };
      this.uplot = new uPlot({
        width: Math.max(200, this.plot.clientWidth), height: this.plot.clientHeight || 200, legend: { show: false }, cursor: { points: { size: 6 }, drag: { x: true, y: false } },
        scales: { x: { time: false } },
        axes: [{ ...axis, size: size * 1.9, values: (_, all) => all.map(words) }, { ...axis, size: size * 3.9, values: (_, all) => all.map(words) }],
        series: [{}, ...this.curves.map((each, at) => ({
          label: each.label, stroke: colour(`--series-${each.series ?? at % 8}`), width: 1.6, dash: DASHES[each.dash ?? 0],
          spanGaps: true, points: { show: each.points[0].length < 40, size: 4 },
        }))],
        hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx)] },
      }, joined(this.curves), this.plot);
      this.tell(null);
    }

    tell(at) {
      const data = this.uplot?.data;
      if (!data || !data[0].length) return;
      const last = (values) => { for (let n = values.length - 1; n >= 0; n--) if (values[n] != null) return values[n]; return null; };
      const many = this.curves.length > 1;
      const readings = this.curves.slice(0, 4).map((each, place) => `${many ? `${each.label} ` : ""}${words(at == null ? last(data[place + 1]) : data[place + 1][at])}`);
      const text = `${readings.join(" · ")} at ${words(at == null ? data[0][data[0].length - 1] : data[0][at])}`;
      this.at.textContent = at == null && this.curves.length > 2 ? "" : text;
      if (at == null) this.plot.setAttribute("aria-label", `${this.title}: ${text}`);
    }

    update() { this.uplot.setData(joined(this.curves)); this.tell(null); }
    resize() { if (this.plot.clientWidth && this.plot.clientWidth !== this.uplot.width) this.uplot.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight }); }
    remove() { this.watcher.disconnect(); this.uplot.destroy(); this.figure.remove(); charts.delete(this); }
  }

  document.addEventListener("finery:theme", () => charts.forEach((chart) => chart.draw()));

  function tabs(place, names, chosen, choose) {
    const row = document.createElement("div");
    row.className = "tabs";
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", "Stage");
    for (const name of names) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name || "run";
      button.setAttribute("aria-pressed", String(name === chosen));
      button.addEventListener("click", () => choose(name));
      row.append(button);
    }
    place.append(row);
    return row;
  }

  // The curves of one job: a row of stages, and the charts of the chosen one.
  function job(place) {
    const stages = new Map();
    let chosen = null, byHand = false, shown = "";

    function families(curves) {
      const byName = new Map();
      for (const metric of curves.keys()) {
        const name = metric.replace(/^eval_/, "");
        if (!byName.has(name)) byName.set(name, []);
        byName.get(name).push(metric);
      }
      return byName;
    }

    function show(force) {
      const able = [...stages].filter(([, curves]) => [...curves.values()].some((points) => points[0].length > 1)).map(([name]) => name);
      if (!able.length) {
        if (!place.querySelector(".chart")) { const words = place.querySelector(".placeholder"); if (words) words.textContent = place.dataset.waiting; }
        return;
      }
      if (!byHand || !able.includes(chosen)) chosen = able[able.length - 1];
      const curves = stages.get(chosen);
      const drawn = new Map([...curves].filter(([, points]) => points[0].length > 1));
      const key = JSON.stringify([able, chosen, [...drawn.keys()]]);
      if (key === shown && !force) { charts.forEach((chart) => chart.update()); return; }
      shown = key;
      const focus = document.activeElement?.closest?.(".tabs") && place.contains(document.activeElement);
      charts.forEach((chart) => chart.remove());
      place.replaceChildren();
      const row = tabs(place, able, chosen, (name) => { chosen = name; byHand = true; show(true); });
      if (focus) row.querySelector('[aria-pressed="true"]').focus();
      for (const [name, metrics] of families(drawn)) {
        const several = metrics.length > 1;
        new Chart(place, name.replaceAll("_", " "), metrics.map((metric, at) => ({
          label: several ? (metric.startsWith("eval_") ? "evaluation" : "training") : metric, points: drawn.get(metric), series: at, dash: at,
        })));
      }
    }

    return {
      all(entries) {
        stages.clear();
        for (const { stage, curves } of entries) stages.set(stage, new Map(Object.entries(curves)));
        show(true);
      },
      add(points) {
        for (const [stage, metric, step, value] of points) {
          if (!stages.has(stage)) stages.set(stage, new Map());
          const curves = stages.get(stage);
          if (!curves.has(metric)) curves.set(metric, [[], []]);
          const [steps, values] = curves.get(metric);
          while (steps.length && steps[steps.length - 1] >= step) { steps.pop(); values.pop(); } // run again after a resume
          steps.push(step);
          values.push(typeof value === "number" ? value : null);
        }
        show(false);
      },
    };
  }

  window.finery.Chart = Chart;
  const place = document.getElementById("curves");
  if (place) {
    place.querySelector(".placeholder").textContent = place.dataset.waiting;
    window.finery.charts = job(place);
  }
})();
