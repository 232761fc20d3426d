"""Asking for a score of each of two answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.evaluation.asking import Asked, Examiner
from pipelines.fields.directions import looks_back_only
from pipelines.recipe import START
from pipelines.registry import BASELINES

if TYPE_CHECKING:
    from pipelines.data.scored_texts import Reading
    from pipelines.evaluation.answers import Answers
    from pipelines.evaluation.choice import Choice
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.protocols import Score, Task
    from pipelines.recipe import Recipe


class Scores(Examiner):
    """One number an answer, by which the better of two is told."""

    def mistakes(self, stage: Evaluate, choice: Choice, recipe: Recipe) -> Iterable[Found]:
        if choice.model != START and not recipe.stage(choice.model).scores:
            kind = recipe.stage(choice.model).stage
            yield (), f"cannot score '{choice.name}' with the model of '{choice.model}': a '{kind}' stage trains no reward model"

    def ask(self, asked: Asked) -> Answers:
        from pipelines.data import pair_scores
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.compared import Compared
        from pipelines.evaluation.predict import answers

        name, tokenizer = asked.choice.name, asked.tokenizer
        reading = reading_of(asked)
        task: Any = asked.task
        if getattr(asked.choice.subject, "skip_bad_rows", False):
            task = replace(task, skip_bad_rows=True)
        said, histograms, paired, skipped = [], {}, {}, {}
        for suffix, split in task.evaluation_splits.items():
            rows = task.rows(split, asked.stage.max_eval_samples)
            rows = rows.in_turns() if reading.templated else rows
            examples, answer = prepared(asked.model, tokenizer, rows, reading)
            scores = _stacked(answers(asked.model, examples.lengths.tolist(), answer, **asked.running(split)))
            each = Compared(name, split, suffix, rows, scores)
            said.append(each)
            histograms[split] = pair_scores.histogram(scores)
            paired[split] = _against(asked, rows, scores)
            if rows.skipped:
                skipped[split] = {number + 1: why for number, why in rows.skipped.items()}
        details = {"reads": reading.reads, "histogram": histograms, **({"paired": paired} if any(paired.values()) else {}), **({"skipped_rows": skipped} if skipped else {})}
        return Answers(said, reading.max_length, details=details)

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.compared import score_pairs

        return score_pairs(task)


def reading_of(asked: Asked) -> Reading:
    """How the model reads a prompt and an answer: as it was trained, else as its family does."""
    from pipelines.data.scored_texts import Reading, settings_in

    folders = asked.context.stage_folders
    checkpoint = asked.context.recipe.model.checkpoint
    folder = folders[asked.choice.model] / "model" if asked.choice.model in folders else Path(checkpoint or "")
    settings = settings_in(folder)
    if settings is not None:
        return settings.reading if asked.stage.max_length is None else replace(settings.reading, max_length=asked.length())
    return Reading("text" if looks_back_only(asked.model.config.to_dict()) else "pair", asked.length())


def prepared(model: Any, tokenizer: Any, rows: Any, reading: Reading) -> tuple[Any, Any]:
    """(the pairs, what `answers` asks of them: both scores of each)."""
    from pipelines.data.scored_pairs import ScoredTogether, encode_scored_pairs
    from pipelines.data.scored_texts import Together

    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = Together.of(tokenizer).pad_id
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    stops = () if own is None else tuple(own) if isinstance(own, list | tuple) else (int(own),)
    examples = encode_scored_pairs(tokenizer, rows, reading, stops, with_margins=False, keep_all=True)
    return examples, partial(_scores, model, examples, ScoredTogether(Together.of(tokenizer)))


def _scores(model: Any, examples: Any, together: Any, places: list[int], device: Any) -> Any:
    """(pairs, 2): the chosen answers' scores first. Raises ModelError for a model that gives no single number."""
    from pipelines.errors import ModelError

    batch = together([examples[at] for at in places])
    logits = model(**{name: value.to(device) for name, value in batch.items() if name not in ("labels", "margin")}).logits
    if tuple(logits.shape) != (2 * len(places), 1):
        raise ModelError(
            f"the model gives outputs of shape {tuple(logits.shape)} for {2 * len(places)} answers, where a reward model gives one number "
            "each; evaluate one that a reward stage has trained"
        )
    return logits.float().reshape(2, -1).T.cpu().numpy()


def _stacked(scores: list[Any]) -> Any:
    import numpy as np

    return np.stack(scores)


def _against(asked: Asked, rows: Any, scores: Any) -> dict[str, Any]:
    """What the model gains over each guesser that is asked for, with an interval of the difference."""
    from pipelines.evaluation.baselines import NotDefined
    from pipelines.evaluation.compared import difference

    found = {}
    for name in asked.stage.baselines:
        try:
            guess = BASELINES.load(name)(None, rows, 1)
        except NotDefined:
            continue
        found[name] = difference(scores, guess, asked.context.seed)
    return found
