"""A run as one page to look at: `report.html` of its folder, self-contained, and the same in short as `README.md`.

Each benchmark has a section with its score beside the baselines and with what stands behind it: slices, calibration,
confusions, mistakes, overlap with training; for models that write, their completions; for reward models, how their
scores lie. Below stand what judges were asked, learning curves, and costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.core.files import JSONObject, write_text
from pipelines.core.pages import count, render, seconds, size
from pipelines.core.recipe import Recipe
from pipelines.core.results import BenchmarkScores
from pipelines.core.scores import is_percent, smaller_is_better
from pipelines.reports import plots
from pipelines.reports.profile_page import write_profile_page
from pipelines.reports.results import PPO_SIGNALS, Points, RunResults, StageReport, run_results, thinned

MISTAKES_SHOWN = 6
"""Mistakes on the page; all that are kept lie in `mistakes.jsonl`."""
LONGEST_MISTAKE = 1200
"""Letters of a mistake's text on the page."""
LONGEST_COMPLETION = 600
"""Letters of a completion, or of its prompt, on the page."""
CONSTANT_SIGNALS = ("kl_coef",)
"""Signals of PPO that are shown only when they change."""
SMOOTHED = 20
"""A signal with more iterations than this has the mean over a twentieth of them drawn through it."""
JUDGE_MEASURES = {
    "order_consistency": "same verdict in both orders",
    "position_bias": "what is shown first is taken",
    "length_bias": "the longer one wins",
    "self_consistency": "same verdict when asked again",
    "transitivity": "triples without a circle",
    "human_agreement": "agrees with held labels",
}
"""Parts of a feedback stage's `details.json` that are shares with an interval, and how they are called."""


def write_run_report(folder: Path, recipe: Recipe) -> None:
    """Write `report.html` and `README.md` of a run folder, and `profile.html` where it was profiled."""
    run = run_results(folder, recipe)
    write_text(folder / "report.html", page(run))
    write_text(folder / "README.md", readme(run))
    write_profile_page(folder, recipe)


def page(run: RunResults) -> str:
    """The page as HTML."""
    return render(
        __package__,
        "run.html.jinja",
        run=run,
        summary=summary(run),
        blocks=[_benchmark(each, run) for each in run.scores],
        curves=_curves(run.stages),
        judged=[_judge(each["stage"], each["page"], each["details"]) for each in run.judged],
        costs=[_cost(each) for each in run.stages],
        hardware=_hardware(run.manifest),
        versions=", ".join(f"{name} {version}" for name, version in (run.manifest.get("versions") or {}).items()),
    )


def summary(run: RunResults) -> str:
    """How far the run came, how long it took, and what it ran on."""
    manifest = run.manifest
    parts = [f"{len(run.stages)} stage{'s' if len(run.stages) != 1 else ''}"]
    if "wall_time" in manifest:
        parts.append(f"{seconds(float(manifest['wall_time']))} in all")
    if "energy_joules" in manifest:
        parts.append(f"{manifest['energy_joules'] / 3600:.3g} Wh")
    if "started" in manifest:
        parts.append(str(manifest["started"])[:16].replace("T", " ") + " UTC")
    return ", ".join(parts) + "." + (f" It did not finish: {run.failure}" if run.failure else "")


def _benchmark(scores: BenchmarkScores, run: RunResults) -> dict[str, Any]:
    """The section of one benchmark."""
    details, model = scores.details, scores.model
    twice = sum(each.benchmark == scores.benchmark for each in run.scores) > 1
    policy = details.get("policy") or {}
    return {
        "heading": f"{scores.benchmark} ({model}, {scores.stage})" if twice else scores.benchmark,
        "model": model,
        "examples": ", ".join(f"{number:,} of {split}" for split, number in (details.get("examples") or {}).items()),
        "sentence": sentence(scores),
        "plot": _rewards(scores, policy) if policy else _beside_baselines(scores),
        "table": _table(scores),
        "metrics": list(scores.metrics),
        "samples": [_completion(each) for each in policy.get("samples", [])],
        "against": policy.get("against"),
        "guessers": [name.replace("_", " ") for name in scores.baselines],
        "better": "Lower" if smaller_is_better(scores.main) else "Higher",
        "splits": [
            _split(scores, split, run.mistakes.get((scores.stage, scores.benchmark), [])) for split in _splits(details)
        ],
    }


def sentence(scores: BenchmarkScores) -> str:
    """Whether the model beats the strongest baseline, or the model beside it; empty without either."""
    strongest = scores.strongest_baseline()
    if strongest is None:
        return _wins(scores, scores.details.get("policy") or {})
    called, bar = strongest[0].replace("_", " "), strongest[1]
    figures = f"{scores.main} {scores.metrics[scores.main]:.3f} against {bar:.3f}"
    return {
        "behind": f"Not better than {called}: {figures}.",
        "within the interval": f"Ahead of {called}, but within the 95 % interval: {figures}.",
    }.get(scores.standing(bar), f"Better than {called}: {figures}.")


def _wins(scores: BenchmarkScores, policy: JSONObject) -> str:
    """How often the completions win against the other model's, and how far the model went from it."""
    if policy.get("against") is None or "win_rate" not in scores.metrics:
        return ""
    rate, interval = scores.metrics["win_rate"], scores.intervals.get("win_rate")
    text = f"Its completions score higher than those of '{policy['against']}' for {rate:.1%} of the prompts"
    text += ", ties counted half"
    if interval is not None:
        text += f" (95 %: {interval[0]:.1%} – {interval[1]:.1%})"
        text += ", which may be chance" if interval[0] <= 0.5 <= interval[1] else ""
    text += f"; rewards {scores.metrics['reward']:.4g} against {scores.metrics['reward_against']:.4g}"
    if "kl" in scores.metrics:
        text += f", at a KL divergence of {scores.metrics['kl']:.3g} nats a completion"
    return text + "."


def _beside_baselines(scores: BenchmarkScores) -> str:
    """The model's score with its interval beside the baselines."""
    low, high = scores.intervals.get(scores.main, (None, None))
    dots = [plots.Dot(scores.model, scores.metrics[scores.main], low, high, kind="model")]
    dots += [
        plots.Dot(name.replace("_", " "), baseline[scores.main])
        for name, baseline in scores.baselines.items()
        if scores.main in baseline
    ]
    dots.sort(key=lambda dot: dot.value, reverse=not smaller_is_better(scores.main))
    return plots.dot_plot(dots, scores.main)


def _rewards(scores: BenchmarkScores, policy: JSONObject) -> str:
    """The mean reward of both models, with intervals."""
    low, high = scores.intervals.get("reward", (None, None))
    dots = [plots.Dot(scores.model, scores.metrics["reward"], low, high, kind="model")]
    if "reward_against" in scores.metrics:
        low, high = scores.intervals.get("reward_against", (None, None))
        dots.append(plots.Dot(str(policy.get("against")), scores.metrics["reward_against"], low, high))
    return plots.dot_plot(sorted(dots, key=lambda dot: dot.value, reverse=True), "mean reward")


def _table(scores: BenchmarkScores) -> list[list[str]]:
    rows = []
    for metric, value in scores.metrics.items():
        shown = f"{value:.4g}" if abs(value) >= 10 else f"{value:.3f}"
        baselines = [f"{each[metric]:.3f}" if metric in each else "" for each in scores.baselines.values()]
        rows.append([metric, shown, _interval(scores, metric), *baselines])
    return rows


def _interval(scores: BenchmarkScores, metric: str) -> str:
    interval = scores.intervals.get(metric)
    return f"{interval[0]:.3f} – {interval[1]:.3f}" if interval else ""


def _completion(sample: JSONObject) -> dict[str, str]:
    """A completion, and the other model's where there is one."""
    return {
        "prompt": _cut(sample["prompt"], LONGEST_COMPLETION),
        "own": _cut(sample["completion"], LONGEST_COMPLETION),
        "score": f"{sample['score']:.4g}",
        "other": _cut(sample.get("against", ""), LONGEST_COMPLETION),
        "score_against": f"{sample['score_against']:.4g}" if "score_against" in sample else "",
        "index": str(sample["index"]),
    }


def _splits(details: JSONObject) -> Iterable[str]:
    parts = ("slices", "calibration", "classes", "mistakes", "overlap", "histogram")
    return dict.fromkeys(split for part in parts for split in details.get(part, {}))


def _split(scores: BenchmarkScores, split: str, mistakes: Iterable[JSONObject]) -> dict[str, Any]:
    """What stands behind the scores of one split."""
    details = scores.details
    classes = details.get("classes", {}).get(split)
    worst = [each for each in mistakes if each.get("split") == split]
    return {
        "name": split,
        "parts": _slices(scores, split),
        "calibration": _calibration(details.get("calibration", {}).get(split)),
        "classes": classes,
        "matrix": plots.confusion_matrix(classes["names"], classes["counts"]) if classes else "",
        "mistakes": [_mistake(each) for each in worst[:MISTAKES_SHOWN]],
        "kept": details.get("mistakes", {}).get(split),
        "more": max(0, len(worst) - MISTAKES_SHOWN),
        "overlap": _overlap(details.get("overlap", {}).get(split)),
        "scores": _reward_scores(details, split),
    }


def _slices(scores: BenchmarkScores, split: str) -> list[dict[str, str]]:
    """One plot for each way of slicing, with the whole as a dashed line."""
    slices = scores.details.get("slices", {}).get(split, [])
    suffix = next((suffix for suffix, name in scores.splits.items() if name == split), "")
    metric = scores.main.removesuffix(suffix) if suffix else scores.main
    whole = scores.metrics.get(f"{metric}{suffix}", scores.metrics[scores.main])
    drawn = []
    for by in dict.fromkeys(each["by"] for each in slices):
        mine = [each for each in slices if each["by"] == by and metric in each["scores"]]
        if len(mine) < 2:
            continue
        dots = [plots.Dot("all", whole, kind="reference")]
        for each in mine:
            low, high = each["intervals"].get(metric, (None, None))
            dots.append(plots.Dot(each["name"], each["scores"][metric], low, high, note=f"({each['examples']:,})"))
        drawn.append({"by": by, "plot": plots.dot_plot(dots, f"{metric} by {by}")})
    return drawn


def _calibration(calibration: JSONObject | None) -> dict[str, str] | None:
    if not calibration:
        return None
    gap = calibration["confidence"] - calibration["accuracy"]
    text = (
        f"Expected calibration error {calibration['ece']:.3f} ({len(calibration['bins'])} of 15 bins have decisions) "
        f"at temperature {calibration['temperature']:g}: on average the model says {calibration['confidence']:.1%} "
        f"and is right in {calibration['accuracy']:.1%}"
    )
    text += ", so it is too sure." if gap > 0.02 else ", so it is not sure enough." if gap < -0.02 else "."
    if scaled := calibration.get("scaled"):
        text += (
            f" With a temperature of {scaled['temperature']:.2f}, fitted on the other half of the examples each time, "
            f"the error is {scaled['ece']:.3f}."
        )
    return {
        "plot": plots.reliability(calibration["bins"], "how often the model is right, by how sure it is"),
        "told": text,
    }


def _mistake(mistake: JSONObject) -> dict[str, Any]:
    confidence, pair = mistake.get("confidence"), mistake.get("text_pair")
    return {
        "index": mistake["index"],
        "text": _cut(mistake["text"], LONGEST_MISTAKE),
        "pair": None if pair is None else _cut(pair, LONGEST_MISTAKE),
        "gold": _cut(str(mistake["gold"]), LONGEST_MISTAKE),
        "said": _cut(str(mistake["said"]), LONGEST_MISTAKE),
        "sure": "" if confidence is None else f", {confidence:.1%} sure",
    }


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + " …"


def _overlap(overlap: JSONObject | None) -> dict[str, Any] | None:
    """What the check for overlap with training found, in words."""
    if not overlap:
        return None
    if "unchecked" in overlap:
        return {"told": f"Not checked: {overlap['unchecked']}", "found": [], "warn": True}
    stages = ", ".join(f"{each['stage']} ({each['words']:,} words)" for each in overlap["sources"])
    text = f"Compared with everything that was trained on in this run: {stages}. "
    run = f"a run of {overlap['run']} words"
    if not overlap["seen"]:
        text += f"No example stands there, and none shares {run} with it."
    else:
        text += f"{overlap['seen']:,} of {overlap['examples']:,} examples ({overlap['share']:.1%}) overlap: "
        text += f"{overlap['exact']:,} as a whole, {overlap['partly']:,} in {run}."
    clean = ", ".join(f"{name} {value:.3f}" for name, value in overlap["clean"]["scores"].items())
    text += f" The {overlap['clean']['examples']:,} others score {clean}." if clean else ""
    if overlap["short"]:
        text += f" {overlap['short']:,} are shorter than such a run and were compared as wholes only."
    if overlap.get("unknown"):
        text += f" What {overlap['unknown']} was trained on before is not known here."
    return {"told": text, "found": overlap["found"][:5], "warn": overlap["share"] > 0.05}


def _reward_scores(details: JSONObject, split: str) -> dict[str, str] | None:
    """How the scores of a reward model lie, and what it gains over baselines by length; None for other models."""
    histogram = details.get("histogram", {}).get(split)
    if not histogram:
        return None
    gains = "; ".join(
        f"{each['difference']:+.3f} over {name.replace('_', ' ')} "
        f"(95 % {each['interval'][0]:+.3f} to {each['interval'][1]:+.3f})"
        for name, each in details.get("paired", {}).get(split, {}).items()
    )
    return {
        "plot": plots.histograms(histogram, "scores of chosen and of rejected answers"),
        "told": "Blue: chosen answers; orange: rejected ones."
        + (f" Accuracy, pair by pair: {gains}." if gains else ""),
    }


def _judge(stage: str, page: str, details: JSONObject) -> dict[str, str]:
    """How far the judge of a feedback stage can be trusted, and where examples lie."""
    dots = [
        plots.Dot(called, share["value"], share["low"], share["high"], kind="model", note=f"({share['count']:,})")
        for measure, called in JUDGE_MEASURES.items()
        if (share := details.get(measure) or {}).get("value") is not None
    ]
    return {
        "stage": stage,
        "page": page,
        "told": _judged(details),
        "plot": plots.dot_plot(dots, "share") if dots else "",
    }


def _judged(details: JSONObject) -> str:
    """What the judge was asked and what came of it, in words."""
    spent = details.get("spent") or {}
    text = (
        f"{details['comparisons']:,} pairs of {details['completions']:,} completions of {details['prompts']:,} prompts "
        f"were compared; {details['preferences']:,} became preferences, {details['abstentions']:,} were abstentions, "
        f"{details['ties']:,} ties."
    )
    tokens = spent.get("prompt_tokens", 0) + spent.get("completion_tokens", 0)
    text += f" The judge answered {spent['questions']:,} questions" if spent.get("questions") else ""
    text += f" with {tokens:,} tokens" if tokens else ""
    text += f" for {spent['cost']:.4g}" if spent.get("cost") else ""
    return text + "." if spent.get("questions") else text


def _curves(stages: Iterable[StageReport]) -> list[dict[str, str]]:
    """Of each stage the training loss or the signals of PPO, and the scores on rows set aside where there are some."""
    drawn = []
    for stage in stages:
        if stage.signals:
            drawn += ppo_plots(stage.id, stage.signals)
        elif len(stage.curve) > 1:
            plot = plots.lines([plots.Curve("loss", stage.curve)], "step", "training loss")
            drawn.append({"title": stage.id, "plot": plot})
        losses = {name: points for name, points in stage.held_out.items() if name.endswith("loss")}
        others = {name: points for name, points in stage.held_out.items() if name not in losses}
        for curves, label in ((losses, "loss on rows set aside"), (others, "scores on rows set aside")):
            if curves:
                plot = plots.lines([plots.Curve(name, points) for name, points in curves.items()], "step", label)
                drawn.append({"title": f"{stage.id}, set aside", "plot": plot})
    return drawn


def ppo_plots(title: str, signals: Mapping[str, Points]) -> list[dict[str, str]]:
    """How a stage of PPO went, a plot for each group of signals: `{title, plot}`."""
    drawn = []
    for label, names in PPO_SIGNALS.items():
        lines = [line for name in names if _changes(name, signals) for line in _smoothed(name, signals[name])]
        if lines:
            drawn.append({"title": title, "plot": plots.lines(lines, "iteration", label)})
    return drawn


def _changes(name: str, signals: Mapping[str, Points]) -> bool:
    points = signals.get(name, [])
    return len(points) > 1 and not (name in CONSTANT_SIGNALS and len({value for _, value in points}) == 1)


def _smoothed(name: str, points: Points) -> list[plots.Curve]:
    """The signal, and its running mean where there are many iterations."""
    window = len(points) // SMOOTHED
    if window < 2:
        return [plots.Curve(name, points)]
    mean = thinned(running_mean(points, window))
    return [plots.Curve(name, thinned(points)), plots.Curve(f"{name}, mean of {window}", mean)]


def running_mean(points: Sequence[tuple[float, float]], window: int) -> Points:
    """The mean of the latest `window` values at each point, of fewer at the beginning."""
    means: Points = []
    total = 0.0
    for place, (step, value) in enumerate(points):
        total += value - (points[place - window][1] if place >= window else 0.0)
        means.append((step, total / min(place + 1, window)))
    return means


def _cost(stage: StageReport) -> list[str]:
    costs = stage.costs
    whole, trained = costs.get("all_parameters"), costs.get("trainable_parameters")
    share = f" of {count(whole)} ({trained / whole:.1%})" if whole and trained is not None else ""
    rate, tokens, used = (
        costs.get(f"train_{key}") for key in ("samples_per_second", "tokens_per_second", "utilisation")
    )
    return [
        stage.id,
        stage.kind,
        "" if stage.seconds is None else "reused" if stage.reused else seconds(stage.seconds),
        f"{costs['train_steps']:,.0f}" if "train_steps" in costs else "",
        f"{rate:,.0f}" if rate else "",
        f"{tokens:,.0f}" if tokens else "",
        f"{used:.0%}" if used else "",
        "" if trained is None else count(trained) + share,
        size(costs.get("peak_memory_bytes")),
    ]


def _hardware(manifest: JSONObject) -> str:
    hardware, launch = manifest.get("hardware") or {}, manifest.get("launch") or {}
    parts = [str(each.get("name")) for each in hardware.get("gpus") or []]
    if hardware.get("processor"):
        parts.append(f"{hardware['processor']}, {hardware.get('cores', '?')} cores")
    if launch:
        processes = f"{launch['num_processes']} process{'es' if launch['num_processes'] != 1 else ''}"
        parts.append(f"{processes}, precision {launch.get('mixed_precision')}")
    return "; ".join(parts)


def readme(run: RunResults) -> str:
    """The scores and where things lie, as Markdown."""
    text = [f"# {run.name}", "", summary(run), ""]
    if run.scores:
        baselines = list(dict.fromkeys(name for each in run.scores for name in each.baselines))
        heads = ["benchmark", "model", "metric", "score", "95 %", *(name.replace("_", " ") for name in baselines)]
        text += [f"| {' | '.join(heads)} |", "|---|---|---|---:|---:|" + "---:|" * len(baselines)]
        text += [line for each in run.scores for line in _markdown_rows(each, baselines)]
        text += ["", *(f"- {each.benchmark}: {verdict}" for each in run.scores if (verdict := sentence(each))), ""]
    percent = {each.benchmark: [name for name in each.metrics if is_percent(name, each.metrics)] for each in run.scores}
    if listed := ", ".join(f"{benchmark} ({', '.join(names)})" for benchmark, names in percent.items() if names):
        text += [f"Scores of {listed} are 0 – 100, all others fractions.", ""]
    text += [f"Published: {location}" for location in run.published]
    text += [*(f"- warning: {each}" for each in run.warnings[:20]), ""]
    last = "`report.html` shows all of this, `recipe.yaml` makes it again, `manifest.json` holds versions and costs."
    return "\n".join([*text, last, ""])


def _markdown_rows(scores: BenchmarkScores, baselines: Iterable[str]) -> Iterable[str]:
    for metric, value in scores.metrics.items():
        beside = [scores.baselines.get(name, {}) for name in baselines]
        cells = [f" {each[metric]:.3f} |" if metric in each else " |" for each in beside]
        line = f"| {scores.benchmark} | {scores.model} | {metric} | {value:.3f} | {_interval(scores, metric)} |"
        yield line + "".join(cells)
