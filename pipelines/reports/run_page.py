"""A run as one page to look at: `report.html` of its folder, and the same in short as `README.md`.

A run as one page to look at: `report.html` of its folder, self-contained, and the same in short as `README.md`.

What the report of a run says of a model's own completions: whether they win, at what distance, and some of them side
by side.

What a run's report shows of its feedback stages: how far the judge can be trusted, and the way to the examples.

What a run's page says about a reward model: how its scores lie, and what it gains over guessers by length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.files import write_text
from pipelines.core.recipe import Recipe
from pipelines.core.scores import OF_A_HUNDRED, score_names, smaller_is_better
from pipelines.reports import plots, run_plots
from pipelines.reports.results import RunResults, Scored, Stage, run_results
from pipelines.studies.readme import count, seconds, size

if TYPE_CHECKING:
    from pipelines.reports.results import Scored


SHOWN = 6
"""Mistakes on the page; all that are kept lie in `mistakes.jsonl`."""
LONGEST = 1200
"""Letters of a mistake's text on the page."""


def write_run_report(folder: Path, recipe: Recipe) -> None:
    """Write `report.html` and `README.md` of a run folder."""
    found = run_results(folder, recipe)
    write_text(folder / "report.html", page(found))
    write_text(folder / "README.md", readme(found))


def page(found: RunResults) -> str:
    """The page as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pipelines"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("run_report.html.jinja").render(
        run=found,
        summary=summary(found),
        blocks=[_block(each, found.scores) for each in found.scores],
        curves=_curves(found.stages),
        judged=blocks(found.judged),
        costs=[_cost(each) for each in found.stages],
        hardware=_hardware(found.manifest),
        versions=", ".join(f"{name} {version}" for name, version in (found.manifest.get("versions") or {}).items()),
    )


def summary(found: RunResults) -> str:
    """How far the run came, how long it took, and what it ran on."""
    manifest = found.manifest
    told = [f"{len(found.stages)} stage{'s' if len(found.stages) != 1 else ''}"]
    told += [f"{seconds(float(manifest['wall_time']))} in all"] if "wall_time" in manifest else []
    told += [f"{manifest['energy_joules'] / 3600:.3g} Wh"] if "energy_joules" in manifest else []
    told += [str(manifest["started"])[:16].replace("T", " ") + " UTC"] if "started" in manifest else []
    return ", ".join(told) + "." + (f" It did not finish: {found.failure}" if found.failure else "")


def _block(scored: Scored, every: Sequence[Scored]) -> dict[str, Any]:
    """One benchmark: its plot, its table, and what stands behind it."""
    about = scored.about
    model = str(about.get("model", scored.stage))
    twice = sum(each.benchmark == scored.benchmark for each in every) > 1
    examples = ", ".join(f"{number:,} of {split}" for split, number in (about.get("examples") or {}).items())
    return {
        "heading": f"{scored.benchmark} ({model}, {scored.stage})" if twice else scored.benchmark,
        "model": model,
        "examples": examples,
        "sentence": scored.sentence() or sentence(scored),
        "plot": _plot(scored, model),
        "table": _table(scored, model),
        "metrics": list(scored.metrics),
        "samples": samples(scored),
        "against": (of(scored) or {}).get("against"),
        "guessers": [name.replace("_", " ") for name in scored.baselines],
        "better": "Lower" if smaller_is_better(scored.main) else "Higher",
        "splits": [_split(scored, split) for split in _splits(scored)],
    }


def _plot(scored: Scored, model: str) -> str:
    """The model's score with its interval beside the guessers."""
    if of(scored) is not None:
        return plot(scored, model)
    low, high = scored.intervals.get(scored.main, (None, None))
    dots = [plots.Dot(model, scored.metrics[scored.main], low, high, kind="model")]
    dots += [
        plots.Dot(name.replace("_", " "), float(values[scored.main]))
        for name, values in scored.baselines.items()
        if isinstance(values.get(scored.main), int | float)
    ]
    dots.sort(key=lambda dot: dot.value, reverse=not smaller_is_better(scored.main))
    return plots.dot_plot(dots, scored.main)


def _table(scored: Scored, model: str) -> list[list[str]]:
    rows = []
    for metric, value in scored.metrics.items():
        around = scored.intervals.get(metric)
        guesses = [values.get(metric) for values in scored.baselines.values()]
        told = [
            metric,
            f"{value:.4g}" if abs(value) >= 10 else f"{value:.3f}",
            f"{around[0]:.3f} – {around[1]:.3f}" if around else "",
        ]
        rows.append([*told, *("" if guess is None else f"{guess:.3f}" for guess in guesses)])
    return rows


def _splits(scored: Scored) -> list[str]:
    return list(
        dict.fromkeys(
            split
            for key in ("slices", "calibration", "classes", "mistakes", "overlap", "histogram")
            for split in scored.about.get(key, {})
        )
    )


def _split(scored: Scored, split: str) -> dict[str, Any]:
    """What stands behind the scores of one split."""
    about = scored.about
    calibration = about.get("calibration", {}).get(split)
    classes = about.get("classes", {}).get(split)
    worst = [each for each in scored.mistakes if each.get("split") == split]
    kept = about.get("mistakes", {}).get(split)
    return {
        "name": split,
        "parts": _parts(scored, split),
        "calibration": _calibration(calibration),
        "classes": classes,
        "matrix": run_plots.matrix(classes["names"], classes["counts"]) if classes else "",
        "mistakes": [_mistake(each) for each in worst[:SHOWN]],
        "kept": kept,
        "more": max(0, len(worst) - SHOWN),
        "overlap": _overlap(about.get("overlap", {}).get(split)),
        "scores": of_report_scores(about, split),
    }


def _parts(scored: Scored, split: str) -> list[dict[str, Any]]:
    """One plot for each way of slicing, with the whole as a dashed line."""
    found: list[dict[str, Any]] = []
    slices = scored.about.get("slices", {}).get(split, [])
    suffix = next((suffix for suffix, name in (scored.about.get("splits") or {}).items() if name == split), "")
    metric = scored.main.removesuffix(suffix) if suffix else scored.main
    whole = scored.metrics.get(f"{metric}{suffix}", scored.metrics[scored.main])
    for by in dict.fromkeys(each["by"] for each in slices):
        mine = [each for each in slices if each["by"] == by and metric in each["scores"]]
        if len(mine) < 2:
            continue
        dots = [plots.Dot("all", whole, kind="reference")]
        for each in mine:
            low, high = each["intervals"].get(metric, (None, None))
            dots.append(plots.Dot(each["name"], each["scores"][metric], low, high, note=f"({each['examples']:,})"))
        found.append({"by": by, "plot": plots.dot_plot(dots, f"{metric} by {by}")})
    return found


def _calibration(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not found:
        return None
    sure = found["confidence"] - found["accuracy"]
    told = f"Expected calibration error {found['ece']:.3f} ({len(found['bins'])} of 15 bins have decisions) at temperature {found['temperature']:g}: on average the model says {found['confidence']:.1%} and is right in {found['accuracy']:.1%}"
    told += ", so it is too sure." if sure > 0.02 else ", so it is not sure enough." if sure < -0.02 else "."
    if scaled := found.get("scaled"):
        told += f" With a temperature of {scaled['temperature']:.2f}, fitted on the other half of the examples each time, the error is {scaled['ece']:.3f}."
    return {
        "plot": run_plots.reliability(found["bins"], "how often the model is right, by how sure it is"),
        "told": told,
    }


def _mistake(each: Mapping[str, Any]) -> dict[str, Any]:
    sure = each.get("confidence")
    pair = each.get("text_pair")
    return {
        "index": each["index"],
        "text": _cut(each["text"]),
        "pair": None if pair is None else _cut(pair),
        "gold": _cut(str(each["gold"])),
        "said": _cut(str(each["said"])),
        "sure": "" if sure is None else f", {sure:.1%} sure",
    }


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def _overlap(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the check found, in words."""
    if not found:
        return None
    if "unchecked" in found:
        return {"told": f"Not checked: {found['unchecked']}", "found": [], "warn": True}
    stages = ", ".join(f"{each['stage']} ({each['words']:,} words)" for each in found["sources"])
    told = f"Compared with everything that was trained on in this run: {stages}. "
    if not found["seen"]:
        told += f"No example stands there, and none shares a run of {found['run']} words with it."
    else:
        told += f"{found['seen']:,} of {found['examples']:,} examples ({found['share']:.1%}) overlap: {found['exact']:,} as a whole, {found['partly']:,} in a run of {found['run']} words."
    clean = ", ".join(f"{name} {value:.3f}" for name, value in found["clean"]["scores"].items())
    told += f" The {found['clean']['examples']:,} others score {clean}." if clean else ""
    told += (
        f" {found['short']:,} are shorter than such a run and were compared as wholes only." if found["short"] else ""
    )
    told += f" What {found['unknown']} was trained on before is not known here." if found.get("unknown") else ""
    return {"told": told, "found": found["found"][:5], "warn": found["share"] > 0.05}


def _curves(stages: Sequence[Stage]) -> list[dict[str, str]]:
    """Of each stage the training loss, and the scores on rows set aside where there are some."""
    found = []
    for stage in stages:
        if stage.signals:
            found += run_plots.figures(stage.id, stage.signals)
        elif len(stage.curve) > 1:
            found.append(
                {"title": stage.id, "plot": plots.lines([plots.Line("loss", stage.curve)], "step", "training loss")}
            )
        losses = {name: points for name, points in stage.held_out.items() if name.endswith("loss")}
        others = {name: points for name, points in stage.held_out.items() if name not in losses}
        for series, label in ((losses, "loss on rows set aside"), (others, "scores on rows set aside")):
            if series:
                found.append(
                    {
                        "title": f"{stage.id}, set aside",
                        "plot": plots.lines(
                            [plots.Line(name, points) for name, points in series.items()], "step", label
                        ),
                    }
                )
    return found


def _cost(stage: Stage) -> list[str]:
    costs = stage.costs
    whole, learnt = costs.get("all_parameters"), costs.get("trainable_parameters")
    share = f" of {count(whole)} ({learnt / whole:.1%})" if whole and learnt is not None else ""
    rate = costs.get("train_samples_per_second")
    took = ("reused" if stage.reused else seconds(stage.seconds)) if stage.seconds is not None else ""
    return [
        stage.id,
        stage.kind,
        took,
        f"{costs['train_steps']:,.0f}" if "train_steps" in costs else "",
        f"{rate:,.0f}" if rate else "",
        "" if learnt is None else count(learnt) + share,
        size(costs.get("peak_memory_bytes")),
    ]


def _hardware(manifest: Mapping[str, Any]) -> str:
    hardware = manifest.get("hardware") or {}
    gpus = [str(each.get("name")) for each in hardware.get("gpus") or []]
    told = [*gpus, f"{hardware['processor']}, {hardware.get('cores', '?')} cores" if hardware.get("processor") else ""]
    launch = manifest.get("launch") or {}
    told += (
        [
            f"{launch['num_processes']} process{'es' if launch['num_processes'] != 1 else ''}, precision {launch.get('mixed_precision')}"
        ]
        if launch
        else []
    )
    return "; ".join(each for each in told if each)


def readme(found: RunResults) -> str:
    """The scores and where things lie, as Markdown."""
    text = [f"# {found.name}", "", summary(found), ""]
    if found.scores:
        guessers = list(dict.fromkeys(name for each in found.scores for name in each.baselines))
        text += [
            "| benchmark | model | metric | score | 95 % |"
            + "".join(f" {name.replace('_', ' ')} |" for name in guessers)
        ]
        text += ["|---|---|---|---:|---:|" + "---:|" * len(guessers)]
        for each in found.scores:
            for metric, value in each.metrics.items():
                around = each.intervals.get(metric)
                guesses = "".join(
                    f" {values[metric]:.3f} |" if metric in (values := each.baselines.get(name, {})) else " |"
                    for name in guessers
                )
                text.append(
                    f"| {each.benchmark} | {each.about.get('model', '')} | {metric} | {value:.3f} | {f'{around[0]:.3f} – {around[1]:.3f}' if around else ''} |{guesses}"
                )
        text += [
            "",
            *(f"- {each.benchmark}: {told}" for each in found.scores if (told := each.sentence() or sentence(each))),
            "",
        ]
    text += (
        ["Scores of SQuAD, BLEU, chrF, ROUGE and exact match are 0 – 100, all others fractions.", ""]
        if _hundreds(found)
        else []
    )
    text += [f"Published: {location}" for location in found.published]
    text += [*(f"- warning: {each}" for each in found.warnings[:20]), ""]
    return "\n".join(
        [
            *text,
            "`report.html` shows all of this, `recipe.yaml` makes it again, `manifest.json` holds versions and costs.",
            "",
        ]
    )


def _hundreds(found: RunResults) -> bool:
    large = set(score_names(OF_A_HUNDRED)) - {"f1"}
    return any(name in large for each in found.scores for name in each.metrics)


LONGEST_REPORT_POLICY = 600
"""Letters of a text on the page."""


def of(scored: Scored) -> Mapping[str, Any] | None:
    """What `details.json` says of the completions; None where something else was scored."""
    found: Mapping[str, Any] | None = scored.about.get("policy")
    return found


def sentence(scored: Scored) -> str:
    """How often the model wins against the other, and how far it went from it; empty where there is no other."""
    about = of(scored)
    if about is None or about.get("against") is None or "win_rate" not in scored.metrics:
        return ""
    won, around = scored.metrics["win_rate"], scored.intervals.get("win_rate")
    told = f"Its completions score higher than those of '{about['against']}' for {won:.1%} of the prompts, ties counted half"
    if around is not None:
        told += f" (95 %: {around[0]:.1%} – {around[1]:.1%})"
        told += ", which may be chance" if around[0] <= 0.5 <= around[1] else ""
    told += f"; rewards {scored.metrics['reward']:.4g} against {scored.metrics['reward_against']:.4g}"
    if "kl" in scored.metrics:
        told += f", at a KL divergence of {scored.metrics['kl']:.3g} nats a completion"
    return told + "."


def plot(scored: Scored, model: str) -> str:
    """The mean reward of both models, with intervals."""
    about = of(scored) or {}
    low, high = scored.intervals.get("reward", (None, None))
    dots = [plots.Dot(model, scored.metrics["reward"], low, high, kind="model")]
    if "reward_against" in scored.metrics:
        low, high = scored.intervals.get("reward_against", (None, None))
        dots.append(plots.Dot(str(about.get("against")), scored.metrics["reward_against"], low, high))
    return plots.dot_plot(sorted(dots, key=lambda dot: dot.value, reverse=True), "mean reward")


def samples(scored: Scored) -> list[dict[str, str]]:
    """Completions as the page shows them: `prompt`, `own`, `score`, and `other`, `score_against` or empty texts."""
    return [
        {
            "prompt": _cut_report_policy(each["prompt"]),
            "own": _cut_report_policy(each["completion"]),
            "score": f"{each['score']:.4g}",
            "other": _cut_report_policy(each.get("against", "")),
            "score_against": f"{each['score_against']:.4g}" if "score_against" in each else "",
            "index": str(each["index"]),
        }
        for each in (of(scored) or {}).get("samples", [])
    ]


def _cut_report_policy(text: str) -> str:
    return text if len(text) <= LONGEST_REPORT_POLICY else text[:LONGEST_REPORT_POLICY] + " …"


MEASURES = {
    "order_consistency": "same verdict in both orders",
    "position_bias": "what is shown first is taken",
    "length_bias": "the longer one wins",
    "self_consistency": "same verdict when asked again",
    "transitivity": "triples without a circle",
    "human_agreement": "agrees with held labels",
}
"""Parts of `details.json` that are shares with an interval, and how they are called."""


def blocks(judged: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A block for each feedback stage: `judged` are the entries of `RunResults.judged`."""
    return [_block_report_feedback(each["stage"], each["page"], each["details"]) for each in judged]


def _block_report_feedback(stage: str, page: str, details: Mapping[str, Any]) -> dict[str, Any]:
    dots = []
    for key, called in MEASURES.items():
        share = details.get(key) or {}
        if share.get("value") is not None:
            dots.append(
                plots.Dot(
                    called, share["value"], share["low"], share["high"], kind="model", note=f"({share['count']:,})"
                )
            )
    return {"stage": stage, "page": page, "told": _told(details), "plot": plots.dot_plot(dots, "share") if dots else ""}


def _told(details: Mapping[str, Any]) -> str:
    """What the judge was asked and what came of it, in words."""
    spent = details.get("spent") or {}
    told = (
        f"{details['comparisons']:,} pairs of {details['completions']:,} completions of {details['prompts']:,} prompts were compared; "
        f"{details['preferences']:,} became preferences, {details['abstentions']:,} were abstentions, {details['ties']:,} ties."
    )
    tokens = spent.get("prompt_tokens", 0) + spent.get("completion_tokens", 0)
    told += f" The judge answered {spent['questions']:,} questions" if spent.get("questions") else ""
    told += f" with {tokens:,} tokens" if tokens else ""
    told += f" for {spent['cost']:.4g}" if spent.get("cost") else ""
    return told + "." if spent.get("questions") else told


def of_report_scores(about: Mapping[str, Any], split: str) -> dict[str, str] | None:
    """The picture of one split and the sentence below it; None where no answers were scored."""
    histogram = about.get("histogram", {}).get(split)
    if not histogram:
        return None
    gains = [
        f"{each['difference']:+.3f} over {name.replace('_', ' ')} (95 % {each['interval'][0]:+.3f} to {each['interval'][1]:+.3f})"
        for name, each in about.get("paired", {}).get(split, {}).items()
    ]
    told = f" Accuracy, pair by pair: {'; '.join(gains)}." if gains else ""
    return {
        "plot": run_plots.scores(histogram, "scores of chosen and of rejected answers"),
        "told": f"Blue: chosen answers; orange: rejected ones.{told}",
    }
