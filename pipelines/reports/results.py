"""What the pages and tables of runs show: scores with their predictions, and a run with its curves, costs and warnings.

The files of a run's folder are read by `core.results`. Here its scores get what needs numpy: predictions that can be
scored again on resampled examples, so that two models can be compared on the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipelines.core.events import read_events
from pipelines.core.files import JSONObject, lines_of, read_json, write_json
from pipelines.core.recipe import Recipe
from pipelines.core.results import (
    EVALUATIONS,
    BenchmarkScores,
    is_number,
    numbers,
    published_at,
    read_scores,
    scores_in,
    stage_folders,
    training_costs,
)
from pipelines.evaluation.outcomes import BASELINES, OUTCOMES, Outcomes, outcomes_of, read_outcomes
from pipelines.evaluation.resampling import Floats, Rescored
from pipelines.tasks.evaluation import BenchmarkChoice

Points = list[tuple[float, float]]
Event = JSONObject

MOST_POINTS = 300
"""Of a learning curve."""
CURVES = "curves.json"
"""What a stage that trained keeps of its curves, in its folder."""
PPO_SIGNALS: Mapping[str, tuple[str, ...]] = {
    "reward of a completion": ("reward",),
    "KL to the reference, nats a completion": ("kl",),
    "weight of the KL (kl_coef)": ("kl_coef",),
    "entropy, nats a token": ("entropy",),
    "share of tokens held back by clipping": ("clip_fraction", "value_clip_fraction"),
    "value loss": ("value_loss",),
    "variance of the returns that the values explain": ("explained_variance",),
    "tokens of a completion": ("response_length",),
    "share of completions": ("ended", "distinct"),
}
"""The metrics of a ppo stage that its page shows, by the label of their plot."""


@dataclass
class Result(BenchmarkScores):
    """What one model scored on one benchmark, with its predictions and the costs of its training."""

    costs: dict[str, float] = field(default_factory=dict)
    """Of the stage that trained the model, with `saved_bytes`: the weights that it left on the disk."""
    examples: int = 0
    choice: BenchmarkChoice | None = None
    published: Outcomes | None = None
    """What a publication says of each example, or a baseline's file; of a run it is read from the predictions."""

    @cached_property
    def _outcomes(self) -> Outcomes | None:
        return self.published or outcomes_of(self, self.choice)

    def same_examples(self, other: Result) -> bool:
        """Whether both were scored on the same examples."""
        mine, theirs = self._outcomes, other._outcomes
        return mine is not None and theirs is not None and bool(mine.identity) and mine.identity == theirs.identity

    def of_baseline(self, name: str) -> Result | None:
        """What a baseline reached beside it; None where its answers were not kept. Raises DataError."""
        path = None if self.folder is None else self.folder / BASELINES / f"{name}.parquet"
        if path is None or name not in self.baselines or not path.is_file():
            return None
        kept = next((each for each in read_outcomes(path) if each.benchmark == self.benchmark), None)
        if kept is None:
            return None
        return replace(self, model=name, metrics=self.baselines[name], intervals={}, costs={}, published=kept)

    @cached_property
    def parts(self) -> dict[str, Rescored]:
        """By suffix: the split's predictions, ready to be scored again. Only of splits where that gives the same
        scores."""
        return {} if self._outcomes is None else self._outcomes.parts

    @cached_property
    def draws(self) -> dict[str, Floats]:
        """By metric: the score on resampled examples (resamples,). Empty where predictions cannot be scored again."""
        return {} if self._outcomes is None else self._outcomes.draws


def results_of(folder: Path, recipe: Recipe) -> list[Result]:
    """Everything that the evaluate stages of a finished run measured, in their order."""
    folders = stage_folders(folder, [stage.id for stage in recipe.stages])
    results: list[Result] = []
    for stage in recipe.stages:
        if stage.stage not in EVALUATIONS:
            continue
        choices = {choice.name: choice for choice in stage.choices(recipe)[0]}
        for scores in read_scores(folders[stage.id], stage.id):
            if (defined := scores.defined()) is None:
                continue
            result = Result(**vars(defined), costs=_costs(folders, scores.model), choice=choices.get(scores.benchmark))
            result.examples = sum((scores.details.get("examples") or {}).values())
            results.append(result)
    return results


def published_results(folder: Path) -> list[Result]:
    """The same of a publication, from what it carries. Raises DataError where what it carries cannot be read."""
    manifest = read_json(folder / "manifest.json")
    model = str((manifest.get("model") or {}).get("stage") or folder.name)
    stated = {each.get("benchmark"): each for each in manifest.get("scores") or []}
    results = []
    for outcomes in read_outcomes(folder / OUTCOMES):
        about = stated.get(outcomes.benchmark) or {}
        scores = scores_in({outcomes.benchmark: outcomes.metrics}, {outcomes.benchmark: about}, str(about.get("stage")))
        results += [
            Result(
                **vars(replace(each, model=model)),
                published=outcomes,
                examples=int(sum(numbers(about.get("examples")).values())),
            )
            for each in scores
        ]
    return results


def _costs(folders: Mapping[str, Path], model: str) -> dict[str, float]:
    """What it cost to train a model: of one task of several, what all of them cost."""
    stage, _, task = model.partition("/")
    if stage not in folders:
        return {}
    folder = folders[stage]
    weights = (folder / "tasks" / task if task else folder) / "model"
    sizes = [path.stat().st_size for path in weights.glob("*.safetensors")]
    return training_costs(folder) | ({"saved_bytes": float(sum(sizes))} if sizes else {})


@dataclass(frozen=True)
class StageReport:
    """What a run's page shows of one stage."""

    id: str
    kind: str
    seconds: float | None
    reused: bool
    costs: Mapping[str, float]
    curve: Points
    """(step, training loss)."""
    held_out: Mapping[str, Points]
    """Scores on the rows set aside while training, by name."""
    signals: Mapping[str, Points] = field(default_factory=dict)
    """Of a ppo stage its reward, KL and other signals by iteration."""
    datasets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of a pretrain stage with weights or streams, what was drawn from each data set: `tokens`, `share`, `epochs`."""
    samples: Sequence[JSONObject] = ()
    """Of a ppo stage what the policy wrote at first and at last."""


@dataclass(frozen=True)
class RunResults:
    """Everything that the page of a run shows."""

    name: str
    scores: list[BenchmarkScores]
    mistakes: Mapping[tuple[str, str], list[dict[str, Any]]]
    """By evaluate stage and benchmark: the examples that the model gets wrong."""
    stages: list[StageReport]
    warnings: list[str]
    manifest: JSONObject
    recipe: str
    """As YAML."""
    published: list[str]
    failure: str = ""
    judged: list[dict[str, Any]] = field(default_factory=list)
    """Of each feedback stage its id, the `page` with examples, and its `details.json`."""


def run_results(folder: Path, recipe: Recipe) -> RunResults:
    """Read a run folder, complete or not."""
    manifest = read_json(folder / "manifest.json")
    events = list(read_events(folder / "events.jsonl"))
    records = {each["id"]: each for each in manifest.get("stages", [])}
    scores: list[BenchmarkScores] = []
    mistakes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    stages: list[StageReport] = []
    published: list[str] = []
    judged: list[dict[str, Any]] = []
    for stage, place in zip(
        recipe.stages, stage_folders(folder, [each.id for each in recipe.stages]).values(), strict=True
    ):
        if stage.stage in EVALUATIONS:
            scores += [defined for each in read_scores(place, stage.id) if (defined := each.defined()) is not None]
            for line in _lines(place / "mistakes.jsonl"):
                mistakes.setdefault((stage.id, str(line.get("benchmark"))), []).append(line)
        if stage.stage == "feedback" and (details := read_json(place / "details.json")):
            judged.append({"stage": stage.id, "page": f"stages/{place.name}/audit.html", "details": details})
        if (location := published_at(place)) is not None:
            published.append(location)
        record = records.get(stage.id, {})
        ppo = stage.stage == "ppo"
        stages.append(
            StageReport(
                stage.id,
                stage.stage,
                record.get("seconds"),
                bool(record.get("reused")),
                training_costs(place) if stage.trains else {},
                *(curves_of(events, stage.id, place) if stage.trains else ([], {})),
                ppo_signals(events, stage.id) if ppo else {},
                read_json(place / "metrics.json").get("datasets") or {} if stage.stage == "pretrain" else {},
                ppo_samples(events, stage.id) if ppo else [],
            )
        )
    warnings, failure = _warnings_and_failure(events, str(manifest.get("started") or ""))
    return RunResults(
        recipe.name, scores, mistakes, stages, warnings, manifest, recipe.to_yaml(), published, failure, judged
    )


def metrics_of(events: Iterable[Event], stage: str) -> Iterable[tuple[int, str, float]]:
    """(step, name, value) of every metric that a stage reported."""
    for event in events:
        if event.get("stage") == stage and event["event"] == "metric" and isinstance(event.get("step"), int):
            for name, value in (event.get("metrics") or {}).items():
                if is_number(value):
                    yield event["step"], name, float(value)


def learning_curve(events: Iterable[Event], stage: str) -> Points:
    """(step, training loss); of a stage that was done twice, the last time."""
    points = {float(step): value for step, name, value in metrics_of(events, stage) if name == "loss"}
    return sorted(points.items())


def curves_of(events: Iterable[Event], stage: str, folder: Path) -> tuple[Points, dict[str, Points]]:
    """(training loss, scores on the rows set aside by name) of a stage: what this run saw, else what the stage kept."""
    seen = thinned(learning_curve(events, stage)), _held_out(events, stage)
    return seen if seen[0] or seen[1] else read_curves(folder)


def write_curves(folder: Path, events: Iterable[Event], stage: str) -> None:
    """Keep the curves of a stage in its folder; of a stage that reported none, nothing."""
    events = list(events)
    loss, held_out = thinned(learning_curve(events, stage)), _held_out(events, stage)
    if loss or held_out:
        write_json(folder / CURVES, {"loss": loss, "held_out": held_out})


def read_curves(folder: Path) -> tuple[Points, dict[str, Points]]:
    """(training loss, scores on the rows set aside by name) that a stage kept."""
    kept = read_json(folder / CURVES)
    points = {name: [(float(x), float(y)) for x, y in each] for name, each in (kept.get("held_out") or {}).items()}
    return [(float(x), float(y)) for x, y in kept.get("loss") or ()], points


def _held_out(events: Iterable[Event], stage: str) -> dict[str, Points]:
    """By name: the scores on the rows set aside, those that were measured more than once."""
    curves: dict[str, dict[float, float]] = {}
    for step, name, value in metrics_of(events, stage):
        if name.startswith("eval_") and not name.endswith(("_runtime", "_per_second")):
            curves.setdefault(name.removeprefix("eval_"), {})[step] = value
    return {name: sorted(points.items()) for name, points in curves.items() if len(points) > 1}


def ppo_signals(events: Iterable[Event], stage: str) -> dict[str, Points]:
    """Each signal of a ppo stage by iteration; of a stage that was done twice, the last time."""
    shown = {name for names in PPO_SIGNALS.values() for name in names}
    curves: dict[str, dict[float, float]] = {}
    for step, name, value in metrics_of(events, stage):
        if name in shown:
            curves.setdefault(name, {})[float(step)] = value
    return {name: sorted(points.items()) for name, points in curves.items()}


def ppo_samples(events: Iterable[Event], stage: str) -> list[dict[str, Any]]:
    """The first and the last `sample` event of a ppo stage: `{step, completions}`."""
    samples = [
        {"step": event.get("step"), "completions": event["completions"]}
        for event in events
        if event.get("stage") == stage and event["event"] == "sample" and event.get("completions")
    ]
    return samples if len(samples) < 2 else [samples[0], samples[-1]]


def thinned(points: Points) -> Points:
    """At most about MOST_POINTS of a curve, its last one among them."""
    every = max(1, -(-len(points) // MOST_POINTS))
    return points[::every] if len(points) % every == 1 or every == 1 else [*points[::every], points[-1]]


def _warnings_and_failure(events: Iterable[Event], started: str) -> tuple[list[str], str]:
    """Every warning once, and why the newest attempt failed; a reused stage's warnings are those of its first
    attempt."""
    warnings: dict[str, None] = {}
    failure = ""
    for event in events:
        if event["event"] == "warning" and event.get("message"):
            warnings[str(event["message"])] = None
        if event["event"] in ("failed", "stopped") and str(event.get("time", "")) >= started:
            failure = str(event.get("message", ""))
        if event["event"] == "finished":
            failure = ""
    return list(warnings), failure


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in lines_of(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []
