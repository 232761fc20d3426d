
"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const sections = JSON.parse(one("#data").textContent);

  // ---- weights ----------------------------------------------------------------------------------------------------
  const largest = (weights) => weights.reduce((a, b) => Math.max(a, b), 0) || 1;
  for (const section of sections) {
    const bytes = Uint8Array.from(atob(section.weights), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const size = section.queries.length * section.keys.length;
    section.maps.forEach((map, number) => {
      map.weights = new Float32Array(size);
      for (let place = 0; place < size; place++) map.weights[place] = view.getUint16(2 * (number * size + place), true) / 65535;
      map.rows = section.queries.map((_, row) => largest(map.weights.subarray(row * section.keys.length, (row + 1) * section.keys.length)));
      map.largest = largest(map.rows);
      map.section = section;
      map.number = number;
    });
    section.layers = [...new Set(section.maps.map((map) => map.layer))];
  }

  // ---- colours: each grows evenly in lightness, so that hue carries nothing -----------------------------------------
  const RAMPS = {
    light: [[255, 255, 255], [216, 228, 243], [158, 190, 224], [95, 143, 196], [40, 92, 160], [11, 43, 101]],
    dark: [[0, 28, 58], [34, 56, 108], [83, 90, 110], [127, 124, 117], [187, 171, 99], [255, 234, 70]],
  };
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const colour = (share) => {
    const ramp = isDark() ? RAMPS.dark : RAMPS.light;
    const at = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
    const low = Math.min(Math.floor(at), ramp.length - 2);
    return ramp[low].map((value, channel) => Math.round(value + (at - low) * (ramp[low + 1][channel] - value)));
  };
  /** The weight at `place` as a share of what the fullest colour stands for. */
  function share(map, place) {
    const scale = one("#scale").value, row = Math.floor(place / map.section.keys.length);
    return map.weights[place] / { row: map.rows[row], own: map.largest, one: 1 }[scale];
  }

  const state = { section: sections[0], map: null, row: null, column: null };

  function paint(canvas, map) {
    const rows = map.section.queries.length, columns = map.section.keys.length;
    canvas.width = columns;
    canvas.height = rows;
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    for (let place = 0; place < rows * columns; place++) image.data.set([...colour(share(map, place)), 255], 4 * place);
    context.putImageData(image, 0, 0);
  }

  // ---- the grid ---------------------------------------------------------------------------------------------------
  const fixed = (value, digits) => (value === null ? "–" : value.toFixed(digits));
  const numbers = (map) => `entropy ${fixed(map.entropy, 2)} bits` + (map.mean_distance === null ? "" : `, mean distance ${fixed(map.mean_distance, 2)} tokens`);

  /** As many maps in a row as there are heads, if they can still be told apart. */
  function widest(maps) {
    const heads = maps.filter((map) => map.layer === maps[0].layer).length;
    return Math.min(Math.max(Math.floor((one(".overview").clientWidth - 62) / heads) - 16, 42), 116);
  }

  function button(map, ordered, width) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "map";
    made.tabIndex = -1;
    made.setAttribute("aria-pressed", "false");
    made.setAttribute("aria-label", `Layer ${map.layer}, head ${map.head}: ${numbers(map)}`);
    made.title = `Layer ${map.layer}, head ${map.head}: ${numbers(map)}`;
    const canvas = document.createElement("canvas"), label = document.createElement("span"), small = document.createElement("span");
    paint(canvas, map);
    made.style.width = `${width + 8}px`;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${Math.min(Math.max(width * canvas.height / canvas.width, 16), 2 * width)}px`;
    label.className = "label";
    label.textContent = ordered ? (width < 60 ? `h ${map.head}` : `head ${map.head}`) : `${map.layer} · ${map.head}`;
    small.className = "small";
    for (const text of [`H ${fixed(map.entropy, 2)}`, ...(map.mean_distance === null ? [] : [`d ${fixed(map.mean_distance, 1)}`])]) {
      const part = document.createElement("span");
      part.textContent = text;
      small.append(part, " ");
    }
    made.append(canvas, label, small);
    made.map = map;
    made.addEventListener("focus", () => enlarge(map));
    made.addEventListener("click", () => { made.focus(); enlarge(map); });
    map.button = made;
    return made;
  }

  function sorted(maps) {
    const [what, way] = one("#order").value.split("-");
    if (what === "layer") return maps;
    const value = (map) => (what === "entropy" ? map.entropy : map.mean_distance ?? 0);
    return [...maps].sort((a, b) => (way === "up" ? value(a) - value(b) : value(b) - value(a)) || a.number - b.number);
  }

  function grid() {
    const place = one("#grid"), layer = one("#layer").value, ordered = one("#order").value === "layer";
    const maps = state.section.maps.filter((map) => layer === "" || map.layer === Number(layer)), width = widest(maps);
    place.replaceChildren();
    place.classList.toggle("flow", !ordered);
    if (ordered) {
      for (const number of new Set(maps.map((map) => map.layer))) {
        const row = document.createElement("div"), name = document.createElement("span");
        row.className = "row";
        name.className = "name";
        name.textContent = `layer ${number}`;
        row.append(name, ...maps.filter((map) => map.layer === number).map((map) => button(map, true, width)));
        place.append(row);
      }
    } else place.append(...sorted(maps).map((map) => button(map, false, width)));
    enlarge(maps.includes(state.map) ? state.map : one(".map", place).map);
  }

  function move(event) {
    const buttons = all(".map"), at = buttons.indexOf(document.activeElement);
    if (at < 0) return;
    const across = buttons.filter((each) => each.offsetTop === buttons[0].offsetTop).length;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across, ArrowUp: at - across, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    (buttons[to] ?? buttons[at]).focus();
  }

  // ---- the large map ----------------------------------------------------------------------------------------------
  let frame = null;

  function enlarge(map) {
    if (state.map?.button) {
      state.map.button.setAttribute("aria-pressed", "false");
      state.map.button.tabIndex = -1;
    }
    if (state.map?.section !== map.section) state.row = state.column = null;
    state.map = map;
    map.button.setAttribute("aria-pressed", "true");
    map.button.tabIndex = 0;
    one("#detail").hidden = false;
    one("#detail-title").textContent = `Layer ${map.layer}, head ${map.head}`;
    one("#detail-numbers").textContent = `${numbers(map)}, largest weight ${map.largest.toFixed(3)}`;
    one("#legend-end").textContent = { row: "largest of the row", own: `largest (here ${map.largest.toFixed(2)})`, one: "1" }[one("#scale").value];
    draw();
    tell();
  }

  const cut = (token) => (token.length > 14 ? `${token.slice(0, 13)}…` : token);

  function draw() {
    const map = state.map, { queries, keys } = map.section, canvas = one("#large"), context = canvas.getContext("2d");
    const style = getComputedStyle(document.body), ink = style.color, family = style.fontFamily;
    const measure = (size) => {
      context.font = `${size}px ${family}`;
      return [queries, keys].map((tokens) => Math.ceil(Math.max(...tokens.map((token) => context.measureText(cut(token)).width))) + 8);
    };
    const room = one("#stage").clientWidth || 480;
    let size = 13, [left, above] = measure(13);
    const cell = Math.max(7, Math.min(34, Math.floor((room - left - 2) / keys.length)));
    size = Math.max(7, Math.min(13, cell - 1));
    [left, above] = measure(size);
    const width = left + cell * keys.length + 2, height = above + cell * queries.length + 2, ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.setAttribute("aria-label", `Layer ${map.layer}, head ${map.head}: ${queries.length} rows that look, ${keys.length} columns looked at. Arrow keys move over the weights.`);
    context.scale(ratio, ratio);
    context.font = `${size}px ${family}`;
    context.textBaseline = "middle";
    map.weights.forEach((_, place) => {
      context.fillStyle = `rgb(${colour(share(map, place)).join(",")})`;
      context.fillRect(left + (place % keys.length) * cell, above + Math.floor(place / keys.length) * cell, cell - (cell > 10), cell - (cell > 10));
    });
    context.textAlign = "right";
    queries.forEach((token, row) => {
      context.fillStyle = ink;
      context.globalAlpha = state.row === null || state.row === row ? 1 : 0.55;
      context.fillText(cut(token), left - 5, above + (row + 0.5) * cell);
    });
    context.textAlign = "left";
    keys.forEach((token, column) => {
      context.save();
      context.globalAlpha = state.column === null || state.column === column ? 1 : 0.55;
      context.translate(left + (column + 0.5) * cell, above - 5);
      context.rotate(-Math.PI / 2);
      context.fillText(cut(token), 0, 0);
      context.restore();
    });
    context.globalAlpha = 1;
    if (state.row !== null) {
      context.lineWidth = 2;
      context.strokeStyle = style.getPropertyValue("--accent") || ink;
      context.strokeRect(left + state.column * cell - 0.5, above + state.row * cell - 0.5, cell, cell);
    }
    frame = { left, above, cell };
  }

  function bold(text) {
    const made = document.createElement("b");
    made.textContent = text;
    return made;
  }

  function tell() {
    const map = state.map, { queries, keys } = map.section, place = one("#value");
    if (state.row === null) {
      place.textContent = "Point at a weight, or move over the map with the arrow keys.";
      return;
    }
    const row = map.weights.subarray(state.row * keys.length, (state.row + 1) * keys.length);
    const strongest = [...row.keys()].sort((a, b) => row[b] - row[a] || a - b).slice(0, 3);
    place.replaceChildren(
      bold(queries[state.row]), ` (${state.row + 1}) looks at `, bold(keys[state.column]), ` (${state.column + 1}) with weight `, bold(row[state.column].toFixed(4)),
      document.createElement("br"), "Most at ", ...strongest.flatMap((column, rank) => [rank ? ", " : "", bold(keys[column]), ` ${row[column].toFixed(3)}`]),
    );
  }

  function point(event) {
    const box = one("#large").getBoundingClientRect(), { queries, keys } = state.map.section;
    const column = Math.floor((event.clientX - box.left - frame.left) / frame.cell), row = Math.floor((event.clientY - box.top - frame.above) / frame.cell);
    if (row < 0 || column < 0 || row >= queries.length || column >= keys.length) return;
    if (row === state.row && column === state.column) return;
    [state.row, state.column] = [row, column];
    draw();
    tell();
  }

  function step(event) {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    const { queries, keys } = state.map.section, within = (value, count) => Math.min(Math.max(value, 0), count - 1);
    const first = state.row === null;
    state.row = first ? 0 : within(state.row + by[0], queries.length);
    state.column = first ? 0 : within(state.column + by[1], keys.length);
    draw();
    tell();
  }

  // ---- the table --------------------------------------------------------------------------------------------------
  function sortable(table) {
    all("th", table).forEach((heading, column) => {
      one("button", heading).addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") !== "ascending";
        all("th", table).forEach((each) => each.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = one("tbody", table), value = (row) => Number(row.cells[column].textContent) || 0;
        body.append(...all("tr", body).sort((a, b) => (up ? value(a) - value(b) : value(b) - value(a))));
      });
    });
  }

  // ---- everything else --------------------------------------------------------------------------------------------
  function legend() {
    const canvas = one("#legend"), context = canvas.getContext("2d");
    for (let place = 0; place < canvas.width; place++) {
      context.fillStyle = `rgb(${colour(place / (canvas.width - 1)).join(",")})`;
      context.fillRect(place, 0, 1, canvas.height);
    }
  }

  function choose(number) {
    state.section = sections[number];
    all("[data-section]").forEach((each) => each.setAttribute("aria-pressed", String(Number(each.dataset.section) === number)));
    one("#title").textContent = state.section.title;
    const select = one("#layer"), chosen = select.value;
    select.replaceChildren(new Option("all", ""), ...state.section.layers.map((layer) => new Option(String(layer))));
    if (state.section.layers.includes(Number(chosen))) select.value = chosen;
    const near = state.section.maps.some((map) => map.mean_distance !== null);
    all("#order option").forEach((option) => { option.disabled = !near && option.value.startsWith("distance"); });
    if (one("#order").selectedOptions[0]?.disabled) one("#order").value = "layer";
    grid();
  }

  function recolour() {
    legend();
    all(".map").forEach((each) => paint(one("canvas", each), each.map));
    enlarge(state.map);
  }

  function theme() {
    const root = document.documentElement, next = { undefined: "dark", dark: "light", light: undefined }[root.dataset.theme];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    one("#theme-name").textContent = next ?? "automatic";
    recolour();
  }

  all("[data-section]").forEach((each) => each.addEventListener("click", () => choose(Number(each.dataset.section))));
  one("#order").addEventListener("change", grid);
  one("#layer").addEventListener("change", grid);
  one("#scale").addEventListener("change", recolour);
  one("#grid").addEventListener("keydown", move);
  one("#theme").addEventListener("click", theme);
  one("#large").addEventListener("pointermove", point);
  one("#large").addEventListener("pointerdown", point);
  one("#large").addEventListener("keydown", step);
  prefersDark.addEventListener("change", recolour);
  addEventListener("resize", () => state.map && draw());
  all("table").forEach(sortable);
  one("#controls").hidden = one("#hint").hidden = false;
  if (sections.some((section) => section.maps.length > 48)) one("#summary").open = false;
  legend();
  choose(0);
})();
