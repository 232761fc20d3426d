// The page on which a model is tried: texts as they are written, seconds while one waits, copying, reading a map.
(() => {
  const headers = () => JSON.parse(document.body.getAttribute("hx-headers") || "{}");
  const place = (form) => document.getElementById(form.id.replace("form-", "answer-"));

  // Seconds while a form waits for its answer.
  const clocks = new WeakMap();
  function wait(form) {
    stopWaiting(form);
    const words = form.querySelector(".working");
    const begun = Date.now();
    const show = () => { words.textContent = `working, ${Math.round((Date.now() - begun) / 1000)} s`; };
    show();
    clocks.set(form, setInterval(show, 1000));
  }
  function stopWaiting(form) {
    clearInterval(clocks.get(form));
    const words = form.querySelector(".working");
    if (words) words.textContent = "";
  }
  document.addEventListener("htmx:beforeRequest", (event) => {
    const form = event.detail.elt.closest?.(".asking form");
    if (form) wait(form);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    const form = event.detail.elt.closest?.(".asking form");
    if (form) stopWaiting(form);
  });

  // htmx sends the buttons within a form; those of an answer stand outside of it.
  document.addEventListener("htmx:configRequest", (event) => {
    const button = event.detail.triggeringEvent?.submitter;
    if (button?.name && button.closest(".answer")) event.detail.formData.set(button.name, button.value);
  });

  // Several texts side by side, while they are written.
  const running = new WeakMap();
  function columns(answer, titles) {
    const grid = document.createElement("div");
    grid.className = "writings";
    const texts = titles.map((title) => {
      const article = document.createElement("article");
      const heading = document.createElement("h3");
      const text = document.createElement("p");
      article.className = "open";
      heading.textContent = title;
      text.className = "written";
      article.append(heading, text);
      grid.append(article);
      return text;
    });
    answer.setAttribute("aria-live", "off");
    answer.replaceChildren(grid);
    return texts;
  }
  async function stream(form) {
    running.get(form)?.abort();
    const control = new AbortController();
    running.set(form, control);
    const answer = place(form);
    const stop = form.querySelector(".stop");
    let texts = [];
    const on = {
      texts: (titles) => { texts = columns(answer, titles); },
      piece: ({ index, text }) => { if (texts[index]) texts[index].textContent += text; },
      replace: ({ index, text }) => { if (texts[index]) texts[index].textContent = text; },
      finished: ({ index }) => texts[index]?.parentElement.classList.remove("open"),
      answer: (html) => { show(answer, html); finery.say("The answer is complete"); },
      problem: (html) => show(answer, html),
    };
    stop.hidden = false;
    wait(form);
    try {
      const reply = await fetch(form.dataset.stream, { method: "POST", body: new URLSearchParams(new FormData(form)), headers: headers(), signal: control.signal });
      if (!(reply.headers.get("content-type") || "").startsWith("text/event-stream")) {
        if (reply.redirected) return location.reload();
        const page = new DOMParser().parseFromString(await reply.text(), "text/html");
        const words = page.querySelector("main p")?.textContent || "The server does not answer. Try again in a moment.";
        answer.replaceChildren(Object.assign(document.createElement("p"), { className: "notice bad", textContent: words }));
        return;
      }
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let held = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        held = (held + value).replaceAll("\r\n", "\n");
        const messages = held.split("\n\n");
        held = messages.pop();
        for (const each of messages) {
          const name = /^event: ?(.*)$/m.exec(each)?.[1];
          const data = /^data: ?(.*)$/m.exec(each)?.[1];
          if (name && data) on[name]?.(JSON.parse(data));
        }
      }
    } catch (error) {
      const words = error.name === "AbortError" ? "Stopped." : "The connection broke off. Ask again.";
      if (running.get(form) === control) answer.append(Object.assign(document.createElement("p"), { className: error.name === "AbortError" ? "hint" : "notice bad", textContent: words }));
    } finally {
      if (running.get(form) === control) {
        stop.hidden = true;
        stopWaiting(form);
        for (const each of answer.querySelectorAll(".open")) each.classList.remove("open");
      }
    }
  }
  function show(answer, html) {
    answer.setAttribute("aria-live", "polite");
    answer.innerHTML = html;
    if (window.htmx) htmx.process(answer);
    copyable(answer);
  }
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset?.stream || event.submitter?.name === "chosen") return;
    event.preventDefault();
    stream(form);
  });
  document.addEventListener("click", (event) => {
    const stop = event.target.closest(".stop");
    if (stop) running.get(stop.form)?.abort();
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const code = copy.parentElement.querySelector("pre");
      const said = (words) => { copy.textContent = words; finery.say(words); setTimeout(() => { copy.textContent = "Copy"; }, 2000); };
      if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => said("Copied"));
      else { getSelection().selectAllChildren(code); said("Selected"); }
    }
  });
  document.addEventListener("keydown", (event) => {
    const form = event.target.form;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && form?.closest(".asking")) form.requestSubmit();
  });

  // The weight under the pointer, in words.
  document.addEventListener("pointerover", (event) => {
    const cell = event.target.closest?.(".heat td[data-w]");
    if (!cell) return;
    const table = cell.closest("table");
    const column = table.tHead.rows[0].cells[cell.cellIndex];
    const words = `${cell.parentElement.cells[0].textContent} → ${column.textContent}: ${cell.textContent}`;
    const line = table.closest("figure").querySelector(".reads");
    if (line) line.textContent = words;
  });

  function copyable(within) {
    for (const each of within.querySelectorAll("[data-copy]")) each.hidden = false;
  }
  document.addEventListener("htmx:afterSettle", (event) => {
    copyable(document);
    const opened = event.detail.target;
    if (opened?.id === "try" && opened.querySelector(".asking")) finery.say("The model is open");
  });
  copyable(document);
})();
