// Follows the stream of an open page: rows of the list of jobs, or the parts, curves and log of one job.
(() => {
  const MOST_LETTERS = 400000;
  let source = null;

  function parts(fresh) {
    for (const [name, html] of Object.entries(fresh)) {
      const place = document.getElementById(name);
      if (!place) continue;
      const before = place.querySelector("[data-state]")?.dataset.state;
      if (place.tagName === "TR") row(place, html);
      else finery.fill(place, html);
      const after = place.querySelector("[data-state]")?.dataset.state;
      if (before && after && before !== after && (name === "part-head" || place.tagName === "TR")) {
        const title = place.querySelector("h1, .name a")?.textContent || "";
        finery.say(`${title} is ${after}`);
      }
    }
    finery.times();
  }

  function row(place, html) {
    const fresh = document.createElement("template");
    fresh.innerHTML = `<table><tbody><tr>${html}</tr></tbody></table>`;
    const cells = [...fresh.content.querySelectorAll("tr > td")];
    cells.forEach((cell, at) => {
      const old = place.cells[at];
      if (!old || cell.hasAttribute("data-keep") || old.contains(document.activeElement)) return;
      if (old.innerHTML !== cell.innerHTML) old.replaceWith(cell);
    });
  }

  function log(message) {
    const place = document.getElementById("log");
    const follow = document.getElementById("follow").checked;
    const text = message.replace ? message.text : place.textContent + message.text;
    if (text === place.textContent) return;
    place.textContent = text.length > MOST_LETTERS ? text.slice(text.indexOf("\n", text.length - MOST_LETTERS) + 1) : text;
    if (follow) place.scrollTop = place.scrollHeight;
  }

  function news({ count, more }) {
    const place = document.getElementById("news");
    place.firstElementChild.textContent = `Show ${count}${more ? " and more" : ""} new job${count === 1 ? "" : "s"}`;
    place.hidden = false;
    finery.say(`${count} new jobs`);
  }

  function follow() {
    const place = document.querySelector("[data-stream]");
    source?.close();
    source = null;
    if (!place) return;
    source = new EventSource(place.dataset.stream);
    const on = (name, act) => source.addEventListener(name, (event) => act(JSON.parse(event.data)));
    on("parts", parts);
    on("news", news);
    on("curves", (data) => finery.charts?.all(data.stages));
    on("points", (data) => finery.charts?.add(data));
    on("log", log);
    on("signed-out", () => { source.close(); location.reload(); });
    on("over", () => { source.close(); document.getElementById("log").dataset.empty = "Nothing was printed."; });
  }

  const box = document.querySelector(".follow");
  if (box) {
    box.hidden = false;
    const place = document.getElementById("log");
    place.scrollTop = place.scrollHeight;
    place.addEventListener("scroll", () => {
      box.firstElementChild.checked = place.scrollTop + place.clientHeight >= place.scrollHeight - 30;
    });
    box.firstElementChild.addEventListener("change", (event) => { if (event.target.checked) place.scrollTop = place.scrollHeight; });
  }
  follow();
  document.addEventListener("htmx:afterSettle", (event) => { if (event.detail.target.id === "list" || event.detail.elt.id === "list") follow(); });
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
})();
