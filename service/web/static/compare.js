// The curves of several jobs in one chart for each stage, one metric at a time; a job keeps its colour.
(() => {
  const place = document.getElementById("compared");
  if (!place) return;
  const choice = document.getElementById("curve");
  let jobs = [];
  let drawn = [];

  function show() {
    drawn.forEach((chart) => chart.remove());
    drawn = [];
    place.replaceChildren();
    const stages = new Map();
    jobs.forEach((job, at) => job.stages.forEach(({ stage, curves }) => {
      const points = curves[choice.value];
      if (!points) return;
      if (!stages.has(stage)) stages.set(stage, []);
      stages.get(stage).push({ label: job.name, points, series: at, dash: Math.floor(at / 4) });
    }));
    for (const [stage, curves] of stages) drawn.push(new finery.Chart(place, `${stage}: ${choice.value.replaceAll("_", " ")}`, curves));
  }

  fetch(place.dataset.curves).then((answer) => answer.json()).then((body) => {
    jobs = body.jobs;
    const metrics = new Map();
    for (const job of jobs) for (const { curves } of job.stages) for (const name of Object.keys(curves)) metrics.set(name, (metrics.get(name) || 0) + 1);
    if (!metrics.size) { place.querySelector(".placeholder").textContent = "None of these jobs has a curve yet."; return; }
    for (const name of metrics.keys()) choice.append(new Option(name.replaceAll("_", " "), name, name === "loss", name === "loss"));
    document.getElementById("choose-curve").hidden = false;
    choice.addEventListener("change", show);
    show();
  }).catch(() => { place.querySelector(".placeholder").textContent = "The curves could not be loaded; load the page again."; });
})();
