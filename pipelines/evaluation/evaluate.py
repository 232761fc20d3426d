"""Evaluate: score the trained models on their benchmarks, with intervals, beside guessers without a network.

Leaves `metrics.json` (`{"glue/mrpc": {"accuracy": …, "f1": …}}`), `details.json` (which model, how many examples,
intervals, baselines, and what it takes to compute the same again) and `predictions.parquet` in the stage's folder. A benchmark whose labels are not public, such as
`glue/ax`, gets predictions only: it stands in `details.json`, not in `metrics.json`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from pipelines.blocks import Found, Mistakes
from pipelines.evaluation.choice import Choice, choose
from pipelines.recipe import Recipe, Stage
from pipelines.registry import BASELINES, METRICS

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.protocols import Context, Task


def _baseline(name: str) -> str:
    if name not in BASELINES:
        raise Mistakes([((), BASELINES.unknown(name))])
    return name


class Evaluate(Stage):
    """Score trained models on benchmarks: metrics, intervals, predictions, and guessers to compare them with."""

    stage: Literal["evaluate"] = "evaluate"
    benchmarks: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of tasks (`glue/mrpc`) or ids of earlier supervised stages. Default: every task that was trained before."""
    baselines: tuple[Annotated[str, AfterValidator(_baseline), WithJsonSchema({"enum": list(BASELINES)})], ...] = ()
    """Guessers to hold the scores against, fitted on the task's training rows: `majority`, `naive_bayes`."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Score the first N rows of each evaluation split only."""
    per_device_eval_batch_size: int = Field(32, ge=1)
    """Texts a batch on each device."""
    max_length: int | None = Field(None, ge=4)
    """Tokens a text, longer ones are cut. Default: the length the model was fine-tuned with, else 128."""

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        _, found = choose(recipe, self, self.benchmarks)
        again = [at for at, name in enumerate(self.baselines) if name in self.baselines[:at]]
        return [*found, *((("baselines", at), f"'{self.baselines[at]}' is named twice") for at in again)]

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The stages whose models are scored, then those that describe an inline task."""
        choices, _ = choose(recipe, self, self.benchmarks)
        owners = [choice.owner.id for choice in choices if choice.owner is not None]
        return tuple(dict.fromkeys([choice.model for choice in choices] + owners))

    def content(self, recipe: Recipe) -> dict[str, str]:
        """Hashes of every evaluation split that is scored, and of the training rows that baselines are fitted on."""
        choices, _ = choose(recipe, self, self.benchmarks)
        hashes: dict[str, str] = {}
        for choice in choices:
            task = choice.open_task()
            splits = {*task.evaluation_splits.values(), *(["train"] if self.baselines else [])}
            hashes |= {f"{choice.name}:{split}": value for split, value in task.content().items() if split in splits}
        return hashes

    def modules(self) -> set[str]:
        return {METRICS.module(name) for name in METRICS} | {BASELINES.module(name) for name in self.baselines}

    def run(self, context: Context) -> None:
        from pipelines.evaluation.report import Report

        choices, _ = choose(context.recipe, self, self.benchmarks)
        report = Report(context, self.baselines)
        for choice in choices:
            started = time.monotonic()
            task = choice.open_task()
            answers = self._ask(choice, task, context)
            if context.world.is_main:
                report.add(choice, task, answers, started)
        if context.world.is_main:
            report.write()
        context.barrier()

    def _ask(self, choice: Choice, task: Task, context: Context) -> Answers:
        """What the chosen model says about each evaluation split."""
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.labels import columns
        from pipelines.evaluation.predict import device, predict, usable_length
        from pipelines.evaluation.predictions import Predicted
        from pipelines.evaluation.progress import progress_events

        model = context.open_model(task.head, stage_id=choice.model, trained_head=True)
        order = columns(task.head.labels, model.config, choice.name, choice.model)
        tokenizer = context.open_tokenizer()
        length = usable_length(model, tokenizer, self.max_length or choice.trained_length(context.recipe))
        predicted = []
        for suffix, split in task.evaluation_splits.items():
            rows = task.rows(split, self.max_eval_samples)
            logits = predict(
                model,
                tokenizer,
                rows,
                length,
                world=context.world,
                gather=context.gather,
                device=device(),
                batch_size=self.per_device_eval_batch_size,
                progress=progress_events(context, f"{choice.name} {split}"),
            )
            predicted.append(Predicted(choice.name, split, suffix, rows, logits if order is None else logits[:, order]))
        return Answers(predicted, length, order)
