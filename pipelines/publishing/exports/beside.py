"""Exports that a publish stage writes: `export: [onnx, int8]` puts each form into a folder of the publication.

The model in the folder was proven before; each form is held against it, and scored once more by the evaluate stages of
the recipe. They come before the checksums are made, so that the publication holds all of them or is none.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import FineryError, ModelError, PublishError
from pipelines.core.events import EventLog
from pipelines.core.files import JSONObject
from pipelines.core.registry import EXPORTS
from pipelines.core.results import BenchmarkScores, read_scores
from pipelines.publishing.exports.export import ExportedModel, Original, compare, finish, weights_of
from pipelines.publishing.requirements import only_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pipelines.core.interfaces import Context, Head


def export_beside(
    context: Context,
    head: Head,
    source: str,
    folder: Path,
    forms: Sequence[str],
    scores: Mapping[str, BenchmarkScores],
) -> list[JSONObject]:
    """Write each form of the model of stage `source` into `folder/<form>`; returns what is said of each, for the card.

    `scores` are the published ones, which name the stages that measured them. Raises PublishError where a form cannot
    hold the model, or answers otherwise than the form may.
    """
    if not forms:
        return []
    model = context.open_model(head, stage_id=source, merge=True, trained_head=True).eval()
    original = Original(folder, head, model, context.open_tokenizer(source))
    before = sum(path.stat().st_size for path in weights_of(folder))
    records: list[JSONObject] = []
    for name in forms:
        context.events.emit("progress", what=f"writing the export {name}")
        form: Any = EXPORTS.load(name)
        out = folder / name
        out.mkdir()
        try:
            exported: ExportedModel = form.write(original, out)
            agreement = exported.agreement or compare(original, exported, form.name, form.tolerance)
        except ModelError as error:
            raise PublishError(f"nothing was published, because its export {name} failed: {error}") from error
        measured: list[JSONObject] = []
        notes: list[str] = []
        if exported.model is None or exported.unscored:
            notes = [f"its scores were not measured: {exported.unscored}"]
        else:
            context.events.emit("progress", what=f"scoring the export {name}")
            measured, notes = _scored(context, source, exported.model, scores)
        made = finish(out, context.recipe.name, context.fingerprint, name, before, exported, agreement, measured, notes)
        records.append({"folder": name, **made})
    return records


def _scored(
    context: Context, source: str, model: PreTrainedModel, scores: Mapping[str, BenchmarkScores]
) -> tuple[list[JSONObject], list[str]]:
    """(each published score beside the export's, why some have none)."""
    if not scores:
        return [], ["the recipe measures nothing, so nothing was measured"]
    measured: list[JSONObject] = []
    notes: list[str] = []
    for stage_id in dict.fromkeys(each.stage for each in scores.values()):
        mine = {name: each for name, each in scores.items() if each.stage == stage_id}
        try:
            again = _measured(context, stage_id, source, model, [*mine])
        except FineryError as error:
            notes.append(f"what '{stage_id}' measured was not measured again: {str(error).splitlines()[0]}")
            continue
        measured += [
            {
                "benchmark": name,
                "metric": metric,
                "published": value,
                "exported": again[name].metrics.get(metric) if name in again else None,
            }
            for name, each in mine.items()
            for metric, value in each.metrics.items()
            if math.isfinite(value)
        ]
    return measured, notes


def _measured(
    context: Context, stage_id: str, source: str, model: PreTrainedModel, benchmarks: list[str]
) -> dict[str, BenchmarkScores]:
    """The scores of one evaluate stage, by benchmark, with the export in place of the model of `source`."""
    recipe = context.recipe
    evaluate: Any = recipe.stage(stage_id)
    stage = only_of(evaluate, recipe, source, benchmarks)
    at = [each.id for each in recipe.stages].index(stage_id)
    shortened = recipe.model_copy(update={"stages": (*recipe.stages[:at], stage)})

    def open_model(
        head: Head | None,
        stage_id: str | None = None,
        merge: bool = True,
        trained_head: bool = False,
        keep_base: Path | None = None,
        checkpoint: str | None = None,
    ) -> PreTrainedModel:
        if checkpoint is None and stage_id in (None, source):
            return model
        return context.open_model(head, stage_id, merge, trained_head, keep_base, checkpoint)

    with tempfile.TemporaryDirectory(prefix="export-") as place:
        out = Path(place)
        stage.run(
            replace(
                context,
                stage_id=stage_id,
                folder=out,
                seed=recipe.seed_of(recipe.stage(stage_id)),
                recipe=shortened,
                events=EventLog(out / "events.jsonl", stage_id),
                open_model=open_model,
            )
        )
        return {each.benchmark: each for each in read_scores(out, stage_id)}
