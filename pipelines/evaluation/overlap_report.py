"""What the overlap check says about a benchmark: everything that led to the model is looked through, and kept by content.

The training rows of every stage before, pretraining text included, are compared with the rows that are scored. What a
checkpoint learnt before this recipe is not known here, and said so. What was found is kept in `FINERY_HOME/data` under a name
made from the content of both sides, so that the cells of a study look once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.data.as_text import AsText
from pipelines.errors import DataError
from pipelines.evaluation.atomic import write_json
from pipelines.evaluation.overlap import Examined, answers_of, fields_of
from pipelines.protocols import Context, Score
from pipelines.recipe import START

VERSION = 1
"""Of the check: changing it makes kept answers unknown."""
SHOWN = 10
"""Examples of overlap that are kept with their texts."""
WARN = 0.05
"""Share of the examples from which on a warning is given."""
FEWEST = 10
"""Clean examples that are needed for a score of their own."""


@dataclass(frozen=True)
class Overlap:
    """What was found about the rows of one split."""

    run: int
    sources: list[dict[str, Any]]
    """Of each stage that was looked through: `stage`, `texts`, `words`."""
    exact: NDArray[np.int64]
    """Positions of the examples that stand in the training text as a whole."""
    partly: NDArray[np.int64]
    """Positions of those that share a run of words with it."""
    short: int
    """Examples shorter than a run."""
    share: float
    """Of all runs."""
    found: list[dict[str, Any]]
    """Some of them: `position`, `stage`, `exact`, `words`."""

    @property
    def seen(self) -> NDArray[np.int64]:
        """Positions of all that overlap."""
        return np.union1d(self.exact, self.partly)


def overlap_of(context: Context, model: str, rows: Any) -> Overlap | None:
    """The overlap of `rows` with what the model of that id was trained on; None where this recipe trained nothing."""
    stages = _trained(context.recipe, model)
    if not stages or not len(rows):
        return None
    examined = Examined(fields_of(rows), answers_of(rows))
    key = _key(context, stages, examined)
    place = context.cache / f"overlap-{key}.json"
    kept = _read(place)
    if kept is None:
        kept = _look(context, stages, examined)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_json(place, kept)
    return Overlap(
        kept["run"], kept["sources"], np.array(kept["exact"], dtype=np.int64), np.array(kept["partly"], dtype=np.int64),
        kept["short"], kept["share"], kept["found"],
    )  # fmt: skip


def checked(context: Context, model: str, rows: Any, score: Score | None = None, said: Any = None, labels: Any = None) -> dict[str, Any] | None:
    """The check as it stands in `details.json`; None where this recipe trained nothing that could overlap.

    Training data that is no longer where it was is no reason to have no score: it is said that nothing was checked.
    """
    try:
        overlap = overlap_of(context, model, rows)
    except DataError as error:
        return {"unchecked": str(error)}
    return None if overlap is None else told(overlap, rows, score, said, labels, unknown_of(context))


def told(overlap: Overlap, rows: Any, score: Score | None, said: Any, labels: Any, unknown: str | None) -> dict[str, Any]:
    """As it stands in `details.json`, with the scores of the examples that do not overlap."""
    fields = fields_of(rows)
    seen = overlap.seen
    clean = np.setdiff1d(np.arange(len(rows)), seen)
    scores: dict[str, float] = {}
    if score is not None and said is not None and labels is not None and len(seen) and len(clean) >= FEWEST:
        try:
            scores = score(said[clean], labels[clean])
        except (DataError, ValueError):  # a score that these examples do not define
            scores = {}
    return {
        "run": overlap.run, "examples": len(rows), "exact": len(overlap.exact), "partly": len(overlap.partly), "seen": len(seen),
        "share": len(seen) / len(rows), "run_share": overlap.share, "short": overlap.short, "sources": overlap.sources,
        **({"unknown": unknown} if unknown else {}),
        "clean": {"examples": len(clean), "scores": scores},
        "found": [
            {"index": int(rows.index[each["position"]]), "text": " | ".join(fields[each["position"]])[:400]} | {name: each[name] for name in ("stage", "exact", "words")}
            for each in overlap.found
        ],
    }  # fmt: skip


def doubt(name: str, split: str, overlap: Mapping[str, Any]) -> str | None:
    """A sentence where more than a twentieth of the examples were seen in training."""
    if "unchecked" in overlap:
        return f"{name}: whether '{split}' overlaps with the training data could not be checked: {overlap['unchecked']}"
    if overlap["share"] <= WARN:
        return None
    stages = ", ".join(dict.fromkeys(each["stage"] for each in overlap["found"]))
    clean = ", ".join(f"{metric} {value:.3f}" for metric, value in overlap["clean"]["scores"].items())
    without = f"; without them: {clean}" if clean else ""
    return (
        f"{name}: {overlap['seen']:,} of {overlap['examples']:,} examples of '{split}' overlap with what was trained on ({stages}): "
        f"{overlap['exact']:,} as a whole, {overlap['partly']:,} in a run of {overlap['run']} words{without}"
    )


def unknown_of(context: Context) -> str | None:
    """The checkpoint whose own training text is not known, if the recipe starts from one."""
    checkpoint = context.recipe.model.checkpoint
    return None if checkpoint is None else Path(checkpoint).name if Path(checkpoint).is_absolute() else checkpoint


def _trained(recipe: Any, model: str) -> list[Any]:
    """The stages that led to the model, its own last."""
    if model == START or not any(stage.id == model.partition("/")[0] for stage in recipe.stages):
        return []
    stage = recipe.stage(model)
    return [each for each in (*reversed([*recipe.lineage(stage)]), stage) if each.trains]


def _texts(stage: Any) -> Iterator[str]:
    """Every training text of a stage: each row of a task as one, each document of a pretraining."""
    subjects: Mapping[str, Any] = stage.subjects()
    if not subjects:
        yield from stage.texts() or ()
    for model, subject in subjects.items():
        task = subject.resolved(model.rpartition("/")[2])
        task = AsText(task) if getattr(subject, "as_text", False) else task
        rows = task.rows("train", getattr(subject, "max_train_samples", None))
        yield from chain((" ".join(fields) for fields in fields_of(rows)), answers_of(rows) or ())


def _look(context: Context, stages: list[Any], examined: Examined) -> dict[str, Any]:
    sources = []
    for number, stage in enumerate(stages):
        context.events.emit("progress", what=f"comparing with the training text of '{stage.id}'")
        texts, words = examined.look(_texts(stage), number)
        sources.append({"stage": stage.id, "texts": texts, "words": words})
    exact, partly = examined.exact, examined.partly
    whole, part = np.flatnonzero(exact >= 0), np.flatnonzero(partly >= 0)
    first = [*whole.tolist(), *(at for at in part.tolist() if exact[at] < 0)][:SHOWN]
    found = [
        {
            "position": at, "stage": stages[int(exact[at] if exact[at] >= 0 else partly[at])].id, "exact": bool(exact[at] >= 0),
            "words": "" if exact[at] >= 0 else examined.run_of(at),
        }
        for at in first
    ]  # fmt: skip
    return {
        "run": examined.run, "sources": sources, "exact": whole.tolist(), "partly": part.tolist(), "short": int(examined.short.sum()),
        "share": examined.share(), "found": found,
    }  # fmt: skip


def _key(context: Context, stages: list[Any], examined: Examined) -> str:
    """Of the content of both sides."""
    trained = []
    for stage in stages:
        subjects = [getattr(each, "max_train_samples", None) for each in stage.subjects().values()]
        trained.append([stage.id, stage.content(context.recipe), getattr(stage, "max_train_samples", None), subjects])
    text = json.dumps([VERSION, trained], sort_keys=True)
    digest = hashlib.sha256(text.encode())
    digest.update(examined.whole.tobytes() + examined.hashes.tobytes())
    return digest.hexdigest()[:32]


def _read(place: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(place.read_text())
    except (OSError, ValueError):
        return None
    return found
