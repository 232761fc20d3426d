// Checks a recipe while it is filled in: mistakes at their fields or lines, the YAML beside the form, line numbers in the editor.
(() => {
  let timer = null, running = null;
  const form = () => document.getElementById("recipe-form");

  async function check() {
    const place = form();
    if (!place) return;
    running?.abort();
    running = new AbortController();
    const data = new URLSearchParams(new FormData(place));
    data.delete("do");
    try {
      const answer = await fetch("/submit/check", { method: "POST", body: data, signal: running.signal });
      if (!answer.ok) throw new Error(answer.status);
      const result = await answer.json();
      if (form() === place) show(result);
    } catch (error) {
      if (error.name !== "AbortError") verdict("The check is not answered; it is done again when you submit.", "");
    }
  }

  function verdict(words, good) {
    const place = document.getElementById("verdict");
    if (place.textContent !== words) place.textContent = words;
    place.dataset.good = good;
  }

  function show({ mistakes, text }) {
    const place = form();
    const fields = new Map([...place.querySelectorAll("[data-mistake]")].map((each) => [each.dataset.mistake, each]));
    const messages = new Map();
    for (const each of mistakes) messages.set(each.field, [...(messages.get(each.field) || []), each.message]);
    for (const [name, slot] of fields) {
      const words = (messages.get(name) || []).join(" ");
      if (slot.textContent.trim() !== words) slot.textContent = words;
      const input = place.querySelector(`[data-field="${CSS.escape(name)}"]`);
      if (input) { if (words) input.setAttribute("aria-invalid", "true"); else input.removeAttribute("aria-invalid"); }
      if (words) for (let up = slot.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    }
    const count = mistakes.length;
    verdict(count ? `${count} mistake${count > 1 ? "s" : ""}` : "The recipe can be submitted.", count ? "no" : "yes");
    const preview = document.getElementById("preview");
    if (preview && preview.textContent !== text) preview.textContent = text;
    list(mistakes, place.dataset.mode === "yaml" ? mistakes : mistakes.filter((each) => !fields.has(each.field)));
    lines(new Set(mistakes.map((each) => each.line)));
  }

  function list(all, shown) {
    const place = document.getElementById("wrong");
    place.replaceChildren();
    if (!shown.length) return;
    const rows = document.createElement("ul");
    rows.className = "mistakes";
    rows.setAttribute("aria-label", "Mistakes");
    for (const each of shown) {
      const row = document.createElement("li");
      if (each.line) {
        const where = document.createElement("a");
        where.className = "where";
        where.href = "#text";
        where.dataset.line = each.line;
        where.textContent = `line ${each.line}`;
        row.append(where, " ");
      }
      if (each.key) { const key = document.createElement("code"); key.textContent = each.key; row.append(key, ": "); }
      row.append(each.message);
      rows.append(row);
    }
    place.append(rows);
  }

  function lines(wrong) {
    const text = document.getElementById("text");
    if (!text) return;
    const gutter = text.parentElement.querySelector(".gutter");
    const count = text.value.split("\n").length;
    while (gutter.childElementCount > count) gutter.lastElementChild.remove();
    while (gutter.childElementCount < count) {
      const number = document.createElement("span");
      number.textContent = gutter.childElementCount + 1;
      gutter.append(number);
    }
    if (wrong) [...gutter.children].forEach((each, at) => each.classList.toggle("wrong", wrong.has(at + 1)));
    gutter.scrollTop = text.scrollTop;
  }

  document.addEventListener("input", (event) => {
    if (!form()?.contains(event.target)) return;
    if (event.target.id === "text") lines();
    clearTimeout(timer);
    timer = setTimeout(check, 400);
  });
  document.addEventListener("scroll", (event) => { if (event.target.id === "text") event.target.parentElement.querySelector(".gutter").scrollTop = event.target.scrollTop; }, true);
  document.addEventListener("click", (event) => {
    const where = event.target.closest?.("a[data-line]");
    const text = document.getElementById("text");
    if (!where || !text) return;
    event.preventDefault();
    const rows = text.value.split("\n");
    const at = Math.min(Number(where.dataset.line), rows.length) - 1;
    const start = rows.slice(0, at).reduce((sum, row) => sum + row.length + 1, 0);
    text.focus();
    text.setSelectionRange(start, start + rows[at].length);
    text.scrollTop = (at - 6) * parseFloat(getComputedStyle(text).lineHeight);
  });
  document.addEventListener("htmx:afterSettle", () => { if (form() && !form().dataset.checked) { form().dataset.checked = "yes"; lines(); check(); } });
  if (form()) { form().dataset.checked = "yes"; lines(); check(); }
})();
