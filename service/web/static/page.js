// Every page: relative times that stay right, the theme without a reload, focus that survives an exchange of HTML.
(() => {
  const units = [["d", 86400], ["h", 3600], ["min", 60]];

  function ago(seconds) {
    const size = Math.abs(seconds);
    if (size > 30 * 86400) return null;
    if (size < 2) return "now";
    const [unit, step] = units.find(([, step]) => size >= step) || ["s", 1];
    const words = `${Math.floor(size / step)} ${unit}`;
    return seconds > 0 ? `${words} ago` : `in ${words}`;
  }

  function times() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const words = ago((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (words && time.textContent !== words) time.textContent = words;
    }
  }
  setInterval(times, 10000);

  const next = { auto: "light", light: "dark", dark: "auto" };
  const signs = { auto: "◐", light: "○", dark: "●" };
  document.getElementById("theme").addEventListener("submit", (event) => {
    event.preventDefault();
    const button = event.target.querySelector("button");
    const chosen = button.value;
    document.documentElement.dataset.theme = chosen;
    document.cookie = `finery_theme=${chosen}; path=/; max-age=31536000; samesite=lax`;
    button.value = next[chosen];
    button.setAttribute("aria-label", `Colours: ${chosen}. Change`);
    button.firstElementChild.textContent = signs[chosen];
    document.dispatchEvent(new CustomEvent("finery:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("finery:theme")));

  const current = document.querySelector(".top nav [aria-current]");
  if (current) current.closest("nav").scrollLeft = current.offsetLeft - 40;

  // Put new HTML into a place without taking the keyboard from whoever uses something in it.
  function fill(place, html) {
    const active = document.activeElement;
    const inside = active && active !== place && place.contains(active);
    if (inside && /^(INPUT|SELECT|TEXTAREA)$/.test(active.tagName) && active.type !== "checkbox") return false;
    const open = [...place.querySelectorAll("details")].map((each) => each.open);
    const scrolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const id = inside ? active.id : "";
    place.innerHTML = html;
    place.querySelectorAll("details").forEach((each, at) => { if (at < open.length) each.open = open[at]; });
    place.querySelectorAll(".scroll").forEach((each, at) => { if (scrolled[at]) each.scrollLeft = scrolled[at]; });
    if (id) (document.getElementById(id) || document.getElementById("main")).focus();
    if (window.htmx) htmx.process(place);
    return true;
  }

  function say(words) {
    document.getElementById("said").textContent = words;
  }

  document.addEventListener("htmx:sendError", () => {
    document.getElementById("notice").innerHTML = '<p class="notice bad">The server does not answer. Try again in a moment.</p>';
  });
  document.addEventListener("htmx:beforeRequest", () => document.getElementById("notice").replaceChildren());
  window.finery = { fill, say, times };
})();
