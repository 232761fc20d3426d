"""Evaluate: score the trained models on their benchmarks, with intervals, beside guessers without a network.

With `datasets`, what a model was pretrained to do is measured on held-out text: see `language_modeling`. With
`prompts`, its own completions are: see `policy`.

Leaves `metrics.json` (`{"glue/mrpc": {"accuracy": …, "f1": …}}`), `details.json` (which model, how many examples,
intervals, baselines, what it takes to compute the same again, and what stands behind the scores), `mistakes.jsonl`
and `predictions.parquet` in the stage's folder. A benchmark whose labels are not public, such as `glue/ax`, gets
predictions only: it stands in `details.json`, not in `metrics.json`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.config import ConfigIssue, Named, Pick
from pipelines.core.decoding import Generation, SpanSettings
from pipelines.core.recipe import START, Recipe, Stage
from pipelines.core.registry import BASELINES, TASK_KINDS, nearest
from pipelines.data.chat_templates import TemplateName, content_of, marks_of
from pipelines.data.prompts import Prompts
from pipelines.data.references import DatasetReference, short_names
from pipelines.evaluation import held_out, policy
from pipelines.evaluation.benchmark_selection import choose
from pipelines.evaluation.cost import evaluation_cost
from pipelines.evaluation.few_shot import settings
from pipelines.evaluation.few_shot.settings import FewShot
from pipelines.evaluation.policy import PolicyKeys
from pipelines.tasks import evaluation
from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationRequest, Predictions, evaluation_of
from pipelines.tasks.extractive_qa.task import Retrieval

if TYPE_CHECKING:
    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Task
    from pipelines.evaluation.report import Report
    from pipelines.tasks.evaluation import Predictions


class Evaluate(PolicyKeys, Stage):
    """Score trained models on benchmarks: metrics, intervals, predictions, and guessers to compare them with."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: evaluate}",
        "{stage: evaluate, id: score, benchmarks: [glue/mrpc], max_eval_samples: 10}",
        "{stage: evaluate, from: text, datasets: [{path: builtin/python-docs, split: validation}], "
        "stride: 8, max_eval_samples: 10}",
        "{stage: evaluate, benchmarks: [squad], retrieval: {name: bm25, k: 3}}",
        "{stage: evaluate, from: pairs, benchmarks: [multi30k/en-de], baselines: [copy_source], "
        "generation: {num_beams: 4, length_penalty: 0.6}}",
        "{stage: evaluate, from: text, prompts: {path: builtin/python-docs, max_length: 8}, "
        "reward: {name: keyword, words: [list]}, against: model, response_length: 12, temperature: 0.7}",
    )
    stage: Literal["evaluate"] = "evaluate"
    benchmarks: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of tasks (`glue/mrpc`) or ids of earlier supervised stages. Default: every task that was trained before, or
    none where `datasets` are named."""
    tasks: Mapping[str, Annotated[Any, Pick(TASK_KINDS, "kind")]] = Field(default_factory=dict)
    """Tasks of your own that `benchmarks` names, each described as a task in place. A file in `benchmarks`, such as
    `./my-task.yaml`, becomes one: `my-task`."""
    datasets: tuple[DatasetReference, ...] | None = Field(None, min_length=1)
    """Held-out text to measure the pretraining objective on, beside a unigram and a bigram model: bits per byte
    and more."""
    stride: int | None = Field(None, ge=1)
    """Tokens that the windows of a causal model move on over held-out text. Default: its block_size, so that none
    overlap."""
    baselines: tuple[Annotated[str, Named(BASELINES)], ...] = ()
    """Guessers to hold the scores against, fitted on the task's training rows: `majority`, `naive_bayes`."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Score the first N rows of each evaluation split only."""
    max_predict_samples: int | None = Field(None, ge=1)
    """Predict the first N rows only of a split whose labels are not public, such as that of `glue/ax`. Default: what
    the stage that trained says, else `max_eval_samples`."""
    per_device_eval_batch_size: int = Field(32, ge=1)
    """Texts a batch on each device."""
    max_length: int | None = Field(None, ge=4)
    """Tokens a text, longer ones are cut. Default: the length the model was fine-tuned with, else 128."""
    mixed_precision: Literal["no", "bf16"] = "no"
    """Of the matrix products while benchmarks are predicted. `bf16` is faster where the hardware has it; scores
    move in the third digit."""
    generation: Generation = Generation()
    """How texts are written, for benchmarks whose answers are texts: `{num_beams: 4, length_penalty: 1.0}`."""
    spans: SpanSettings = SpanSettings()
    """How answers are found in texts, for benchmarks of the kind `qa`: `{n_best_size: 20, max_answer_length: 30}`."""
    retrieval: Retrieval | None = None
    """For benchmarks of the kind `qa`: search for passages instead of reading the given ones: `{name: bm25, k: 5}`.
    Scores are of answers from what was found, beside `recall@k` and the scores with the given passages."""
    chat_template: TemplateName | None = None
    """For benchmarks of the kind `causal`: what joins their messages. Default: what the model was trained with,
    else `simple`."""
    slices: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Columns of the evaluated rows, such as `domain`: each of their values is scored by itself, beside lengths
    and classes."""
    few_shot: FewShot | None = None
    """Asks a language model about the benchmarks in words, without training it on them: `{shots: [0, 1, 8]}`. See
    docs/how-to/few-shot.md."""

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        unnamed = [name for name in self.tasks if name not in (self.benchmarks or ())]
        return [
            *((("tasks", name), f"is not scored; add '{name}' to 'benchmarks'") for name in unnamed),
            *self._unfit(recipe, position),
        ]

    def _unfit(self, recipe: Recipe, position: int) -> list[ConfigIssue]:
        """Mistakes in what is measured, of which one is about the whole and comes alone."""
        if self.retrieval is not None and (policy.asked(self) or self.few_shot is not None):
            sentence = (
                "is for benchmarks of the kind qa that a model was trained on, and none is scored here; leave it out"
            )
            return [(("retrieval",), sentence)]
        if policy.asked(self):
            return list(policy.mistakes(self, recipe))
        only_text = bool(self.datasets) and self.benchmarks is None
        if self.slices and (self.few_shot is not None or only_text):
            sentence = "are parts of benchmarks that a model was trained on, and none is scored here; leave it out"
            return [(("slices",), sentence)]
        if self.few_shot is not None:
            return list(settings.mistakes(self, recipe))
        choices, issues = self.choices(recipe)
        issues = [*issues, *([] if issues else self._without_use(choices)), *evaluation.issues(self, choices, recipe)]
        embedding = self.retrieval.source if self.retrieval is not None else None
        able = [START, *(each.id for each in recipe.stages[:position] if each.trains)]
        if embedding is not None and embedding not in able:
            sentence = (
                f"'{embedding}' is no model of this recipe before this stage.{nearest(embedding, able)} "
                f"Known: {', '.join(able)}"
            )
            issues.append((("retrieval", "from"), sentence))
        read = [TASK_KINDS.load(choice.kind).evaluation_keys for choice in choices]
        if self.chat_template is not None and choices and not any("chat_template" in each for each in read):
            sentence = "is for benchmarks of the kind causal, and none that is scored is one; leave it out"
            issues.append((("chat_template",), sentence))
        for key, names in (("baselines", self.baselines), ("slices", self.slices)):
            again = [at for at, name in enumerate(names) if name in names[:at]]
            issues += [((key, at), f"'{names[at]}' is named twice") for at in again]
        if self.baselines and only_text:
            sentence = "are guessers for benchmarks, and only text is measured, beside a unigram and a bigram model"
            issues.append((("baselines",), f"{sentence}; leave it out"))
        if self.datasets:
            issues += held_out.pretrained(recipe, self)[1]
        elif self.stride is not None:
            issues.append((("stride",), "moves windows over held-out text, but no 'datasets' are named; leave it out"))
        return issues

    def _without_use(self, choices: Sequence[BenchmarkChoice]) -> list[ConfigIssue]:
        """The first block of settings that no benchmark reads."""
        kinds = [TASK_KINDS.load(kind) for kind in {choice.kind for choice in choices}]
        if "generation" in self.model_fields_set and not any(kind.writes() for kind in kinds):
            what = "answers are texts"
            return [
                (("generation",), f"is for benchmarks whose {what}, and none that is scored has such; leave it out")
            ]
        if "spans" in self.model_fields_set and not any("spans" in kind.evaluation_keys for kind in kinds):
            what = "answers are spans of a text"
            return [(("spans",), f"is for benchmarks whose {what}, and none that is scored has such; leave it out")]
        if self.retrieval is not None and self.retrieval.source is not None and self.retrieval.name != "embeddings":
            sentence = f"is for retrieval.name: embeddings, and it is {self.retrieval.name}; leave it out"
            return [(("retrieval", "from"), sentence)]
        if self.retrieval is not None and {"retrieval" in kind.evaluation_keys for kind in kinds} != {True}:
            what = "answers are spans of a text"
            return [
                (("retrieval",), f"is for benchmarks whose {what}, and not all that are scored have such; leave it out")
            ]
        return []

    def choices(self, recipe: Recipe) -> tuple[list[BenchmarkChoice], list[ConfigIssue]]:
        """Which model scores which benchmark, and what is wrong with asking for it. None where only text is
        measured."""
        if self.prompts is not None or self.few_shot is not None or (self.datasets and self.benchmarks is None):
            return [], []
        return choose(recipe, self, self.benchmarks)

    def text_model(self, recipe: Recipe) -> Any:
        """The pretrain stage whose model is measured on `datasets`, or None."""
        return held_out.pretrained(recipe, self)[0] if self.datasets else None

    def text_names(self, recipe: Recipe) -> list[str]:
        """The keys of `datasets` in `metrics.json`."""
        return short_names(self.datasets or (), [choice.name for choice in self.choices(recipe)[0]])

    def scored_on(self, recipe: Recipe) -> frozenset[str]:
        data: list[DatasetReference | Prompts] = [*(self.datasets or ())]
        data += [] if self.prompts is None else [self.prompts]
        parts = [f"split '{each.split}' of {each.path}{f' ({each.name})' if each.name else ''}" for each in data]
        names = {*(self.benchmarks or ()), *(choice.name for choice in self.choices(recipe)[0])}
        return frozenset([*parts, *(f"the benchmark '{name}'" for name in names)])

    def score_names(self) -> tuple[str, ...] | None:
        return None if self.prompts is None else policy.names(self)

    def policy_scores(self, recipe: Recipe) -> dict[str, list[str]]:
        """The key of what is measured of a model's own completions in `metrics.json`, with the names of its scores."""
        return {} if self.prompts is None else {policy.NAME: list(policy.names(self))}

    def policy_model(self, recipe: Recipe) -> str:
        """The id of the model whose completions are scored."""
        return policy.model_of(recipe, self)

    def few_shot_scores(self, recipe: Recipe) -> dict[str, list[str]]:
        """The keys of zero- and few-shot questions in `metrics.json`, with the names of their scores."""
        return settings.scores(recipe, self)

    def few_shot_model(self, recipe: Recipe) -> str | None:
        """The id of the model that is asked them."""
        return settings.model_of(recipe, self)

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The stages whose models are scored, then those that describe an inline task, or that a reward reads."""
        if self.prompts is not None:
            return policy.reads(self, recipe)
        if self.few_shot is not None:
            return settings.reads(recipe, self)
        choices, _ = self.choices(recipe)
        owners = [choice.owner for choice in choices if choice.owner is not None]
        measured = [chosen.id] if (chosen := self.text_model(recipe)) is not None else []
        embedding = [] if self.retrieval is None or self.retrieval.source is None else [self.retrieval.source]
        return tuple(dict.fromkeys([choice.model for choice in choices] + measured + owners + embedding))

    def content(self, recipe: Recipe) -> dict[str, str]:
        """Hashes of everything that is scored, and of the training rows that guessers are fitted on."""
        if self.prompts is not None:
            return policy.content(self)
        if self.few_shot is not None:
            return settings.content(recipe, self)
        choices, _ = self.choices(recipe)
        hashes: dict[str, str] = {}
        for choice in choices:
            task = choice.open_task()
            splits = {*task.evaluation_splits.values(), *(["train"] if self.baselines else [])}
            hashes |= {f"{choice.name}:{split}": value for split, value in task.content().items() if split in splits}
        for position, reference in enumerate(self.datasets or ()):
            hashes[f"datasets[{position}].{reference.text}"] = reference.content()
        if self.retrieval is not None and self.retrieval.passages is not None:
            hashes["retrieval.passages"] = self.retrieval.passages.content()
        if self.chat_template is not None:
            hashes["chat_template"] = content_of(self.chat_template)
        if (chosen := self.text_model(recipe)) is not None:
            hashes |= {f"{chosen.id}.{role}": value for role, value in chosen.content(recipe).items()}
        return hashes

    def modules(self, recipe: Recipe) -> set[str]:
        kinds = {choice.kind for choice in self.choices(recipe)[0]} | settings.kinds(recipe, self)
        return {TASK_KINDS.module(kind) for kind in kinds}

    def special_tokens(self) -> tuple[str, ...]:
        return marks_of(self.chat_template if self.prompts is None else self.prompts.chat_template)

    def cost(self, planning: Planning) -> StagePlan:
        return evaluation_cost(self, planning)

    def run(self, context: Context) -> None:
        from pipelines.evaluation.report import Report

        choices, _ = self.choices(context.recipe)
        report = Report(context, self.baselines, self.slices)
        if self.slices:
            from pipelines.evaluation.analysis import check_named

            check_named([choice.open_task() for choice in choices], self.slices)
        if self.prompts is not None:
            from pipelines.evaluation import policy_completions

            policy_completions.ask(self, context, report)
        if self.few_shot is not None:
            from pipelines.evaluation.few_shot import evaluation

            evaluation.ask(self, context, report)
        for choice in choices:
            started = time.monotonic()
            task = choice.open_task()
            answers = self._ask(choice, task, context)
            if context.world.is_main:
                report.add(choice, task, answers, started)
        self._measure(report, context)
        if context.world.is_main:
            report.write()
        context.barrier()

    def _measure(self, report: Report, context: Context) -> None:
        """What the pretrained model makes of each held-out text."""
        from pipelines.models.predict import progress_events

        chosen = self.text_model(context.recipe)
        if chosen is None:
            return
        reader = held_out.read_by(context, self, chosen)
        ngrams = (
            None if "replaced" in chosen.objective.label_names else held_out.peers(context, chosen, reader.tokenizer)
        )
        for name, reference in zip(self.text_names(context.recipe), self.datasets or (), strict=True):
            started = time.monotonic()
            reader = replace(reader, progress=progress_events(context, name))
            scores = held_out.measured(context, self, reader, reference, ngrams)
            if context.world.is_main:
                report.add_text(name, reference, chosen, scores, self.stride, started)

    def _ask(self, choice: BenchmarkChoice, task: Task, context: Context) -> Predictions:
        """What the chosen model says about each evaluation split."""
        model = context.open_model(task.head, stage_id=choice.model, trained_head=True)
        request = EvaluationRequest(self, choice, task, context, model, context.open_tokenizer(choice.model))
        answers = evaluation_of(task.kind).ask(request)
        return (
            answers
            if self.mixed_precision == "no"
            else replace(answers, details={**answers.details, "precision": self.mixed_precision})
        )
