"""Asking a language model zero- and few-shot questions, and the report: scores, intervals, spread over draws."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.architectures.registration import register
from pipelines.core.errors import DataError
from pipelines.core.interfaces import Context, Head, Rows, Task
from pipelines.core.recipe import START
from pipelines.core.registry import TASKS
from pipelines.core.scores import percent_metrics, score_names
from pipelines.evaluation.baselines import score_baselines
from pipelines.evaluation.few_shot import settings as few_shot
from pipelines.evaluation.few_shot.decoders import DecoderReader
from pipelines.evaluation.few_shot.encoder_decoders import EncoderDecoderReader
from pipelines.evaluation.few_shot.encoders import MaskReader
from pipelines.evaluation.few_shot.likelihood import Continuation, Encoded, LikelihoodReader
from pipelines.evaluation.few_shot.prompts import AMONG_KNOWN, PromptTemplate, form_of
from pipelines.evaluation.few_shot.questions import (
    CONTENT_FREE,
    AskedPrompt,
    Demonstrations,
    FewShotQuestion,
    FewShotQuestions,
    asked,
    counts,
    questions_of,
)
from pipelines.evaluation.few_shot.scores import (
    FewShotAnswers,
    RankedAnswers,
    WrittenAnswers,
    contextual,
    per_length,
    score_options,
    spread,
)
from pipelines.evaluation.few_shot.settings import FewShot
from pipelines.evaluation.few_shot.writing import settings_of, write
from pipelines.evaluation.report import Report, no_better_than_majority
from pipelines.metrics.base import counted_metric, signatures
from pipelines.metrics.squad import normalised
from pipelines.metrics.statistics import intervals
from pipelines.models.heads import family_of
from pipelines.models.remote_code import opening

if TYPE_CHECKING:
    from pipelines.evaluation.evaluate import Evaluate


READERS: dict[str, type[LikelihoodReader]] = {
    each.head.kind: each for each in (DecoderReader, EncoderDecoderReader, MaskReader)
}


def ask(stage: Evaluate, context: Context, report: Report) -> None:
    """Ask every benchmark with every number of examples, on every process; the main one keeps the answers."""
    reader = open_reader(stage, context)
    settings = stage.few_shot
    assert settings is not None
    for asked_task in few_shot.subjects(context.recipe, stage):
        task = asked_task.open_task()
        benchmark = FewShotBenchmark(
            stage, context, reader, asked_task.name, task, few_shot.prompt_of(stage, asked_task.name, task)
        )
        for name, count in settings.names(asked_task.name).items():
            started = time.monotonic()
            answers, details = benchmark.answers(name, count)
            if context.world.is_main:
                add(report, name, task, answers, details, benchmark.train_rows, started)


def open_reader(stage: Evaluate, context: Context) -> LikelihoodReader:
    """The model that is asked, as what it is asked through."""
    chosen = few_shot.model_of(context.recipe, stage) or START
    head = few_shot.head_of(context.recipe, chosen) or _head_of_checkpoint(context)
    model = context.open_model(head, stage_id=chosen, trained_head=True)
    tokenizer = context.open_tokenizer() if chosen == START else context.open_tokenizer(chosen)
    if head.kind == "causal_lm":
        return DecoderReader(model, tokenizer, stage.max_length, few_shot.reads_both_ways(context.recipe, chosen))
    return READERS[head.kind](model, tokenizer, stage.max_length)


def _head_of_checkpoint(context: Context) -> Head:
    from transformers import AutoConfig

    register()
    model = context.recipe.model
    config = AutoConfig.from_pretrained(model.checkpoint, **opening(str(model.checkpoint), model.revision, model))
    return few_shot.HEADS[family_of(config)]


@dataclass
class FewShotBenchmark:
    """One task, asked by one stage."""

    stage: Evaluate
    context: Context
    reader: LikelihoodReader
    name: str
    task: Any
    prompt: PromptTemplate

    @property
    def settings(self) -> FewShot:
        """The stage's `few_shot`."""
        assert self.stage.few_shot is not None
        return self.stage.few_shot

    @cached_property
    def train(self) -> FewShotQuestions | None:
        """The training rows as questions, those of the task whose model this one asks where it has none; None
        without any."""
        task = self.task
        if "train" not in task.splits or (task.trained_by is not None and not _readable(task)):
            if task.trained_by is None:
                return None
            task = TASKS.load(task.trained_by)
        return questions_of(task, self.prompt, "train")

    @property
    def train_rows(self) -> Rows | None:
        """The same as rows, for guessers."""
        return None if self.train is None else self.train.rows

    def answers(self, name: str, count: int) -> tuple[list[FewShotAnswers], dict[str, Any]]:
        """What is answered in each split with `count` examples, and what stands about it in details.json."""
        draws = self.settings.draws if count else 1
        writes = few_shot.writes(self.settings, self.task)
        answers: list[FewShotAnswers] = []
        room = {"examples_dropped": 0, "questions_with_fewer_examples": 0, "questions_cut": 0}
        for suffix, split in self.task.evaluation_splits.items():
            questions = questions_of(self.task, self.prompt, split, self.stage.max_eval_samples)
            if questions.rows.labels is None:
                raise DataError(
                    f"the labels of '{self.name}', split '{split}', are not public, so there is nothing to "
                    "score; leave it out of 'benchmarks'"
                )
            places = [self._drawn(questions, count, draw) for draw in range(draws)]
            prompts = [self._prompts(questions, each, writes) for each in places]
            for each in prompts:
                room = {key: value + room[key] for key, value in counts(each).items()}
            split_arguments = name, suffix, split, questions, prompts, self._rows_of(places)
            answers.append(self._written(*split_arguments) if writes else self._ranked(*split_arguments))
        settings = self.settings
        details = {
            "model": few_shot.model_of(self.context.recipe, self.stage),
            "few_shot": {
                "shots": count,
                "draws": draws,
                "seed": self._seed,
                "examples": settings.examples,
                "stratified": settings.stratified,
                "answer": "generation" if writes else "likelihood",
                **room,
                **self.reader.facts(),
            },
            "prompt": self.prompt.plain(),
            "first_prompt": "".join(prompts[0][0].text()) if not prompts[0][0].cut else None,
            "max_length": self.reader.limit,
        }
        if writes:
            generation = settings_of(self.stage.generation)
            details["generation"] = {"num_beams": generation.num_beams, "max_new_tokens": generation.max_new_tokens}
            details["signatures"] = signatures(self.task.metrics)
        return answers, details

    @property
    def _seed(self) -> int:
        return self.context.seed if self.settings.seed is None else int(self.settings.seed)

    @cached_property
    def _examples(self) -> Demonstrations:
        if self.train is None:
            raise DataError(f"'{self.name}' has no training rows to draw examples from; ask it with shots: [0]")
        settings = self.settings
        return Demonstrations(self.name, self.train, self._seed, settings.examples == "question", settings.stratified)

    def _drawn(self, questions: FewShotQuestions, count: int, draw: int) -> list[list[int]]:
        if not count:
            return [[] for _ in questions.each]
        return [
            self._examples.draw(count, draw, row, each)
            for row, each in zip(questions.rows.index, questions.each, strict=True)
        ]

    def _rows_of(self, places: Sequence[Sequence[Sequence[int]]]) -> list[list[list[int]]]:
        """The same as rows of the training file."""
        index = self.train.rows.index if self.train is not None else ()
        return [[[index[at] for at in each] for each in draw] for draw in places]

    def _prompts(self, questions: FewShotQuestions, places: Sequence[Sequence[int]], writes: bool) -> list[AskedPrompt]:
        shown = self.train.each if self.train is not None else ()
        new = settings_of(self.stage.generation).max_new_tokens if writes else None
        return [
            asked(self.reader, self.prompt, question, [shown[at] for at in each], new)
            for question, each in zip(questions.each, places, strict=True)
        ]

    def _running(self, split: str, count: str) -> dict[str, Any]:
        from pipelines.models.predict import device, progress_events

        return {
            "world": self.context.world,
            "gather": self.context.gather,
            "device": device(),
            "batch_size": self.stage.per_device_eval_batch_size,
            "progress": progress_events(self.context, f"{count} {split}"),
        }

    def _ranked(
        self,
        name: str,
        suffix: str,
        split: str,
        questions: FewShotQuestions,
        prompts: Sequence[Sequence[AskedPrompt]],
        rows: list[list[list[int]]],
    ) -> RankedAnswers:
        """The likelihood of every possible answer, all in one go."""
        settings, flat = self.settings, [each for draw in prompts for each in draw]
        empty = (
            [[each.question.without_content(words) for words in CONTENT_FREE] for each in flat]
            if "contextual" in settings.calibration
            else []
        )
        encoded: list[Encoded] = []
        for number, each in enumerate(flat):
            contents: list[FewShotQuestion | None] = [None, *(empty[number] if empty else [])]
            encoded += [self.reader.encode(one) for content in contents for one in each.continuations(content)]
            if "answer_context" in settings.calibration:
                encoded += [self._alone(option) for option in each.question.options]
        likelihoods = iter(self.reader.likelihoods(encoded, **self._running(split, name)))
        shape = (len(prompts), len(questions))
        kinds: dict[str, list[Any]] = {"nats": [], "tokens": [], "empty": [], "alone": []}
        for each in flat:
            own = [next(likelihoods) for _ in each.question.options]
            kinds["nats"].append([one.nats for one in own])
            kinds["tokens"].append([one.tokens for one in own])
            if empty:
                kinds["empty"].append([[next(likelihoods).nats for _ in each.question.options] for _ in CONTENT_FREE])
            if "answer_context" in settings.calibration:
                kinds["alone"].append([next(likelihoods).nats for _ in each.question.options])
        arrays = {
            kind: np.asarray(values_of_kind, dtype=np.float64)
            for kind, values_of_kind in kinds.items()
            if values_of_kind
        }
        lengths = {
            "characters": np.asarray(
                [[len(option) for option in each.question.options] for each in flat], dtype=np.float64
            ),
            "bytes": np.asarray(
                [[len(option.encode()) for option in each.question.options] for each in flat], dtype=np.float64
            ),
            "tokens": arrays["tokens"],
        }
        ways = {"acc": arrays["nats"]}
        names = dict(zip(settings.accuracies()[1:], (*settings.normalisation, *settings.calibration), strict=True))
        for accuracy, kind in names.items():
            if kind == "contextual":
                ways[accuracy] = contextual(arrays["nats"], arrays["empty"])
            elif kind == "answer_context":
                ways[accuracy] = arrays["nats"] - arrays["alone"]
            else:
                ways[accuracy] = per_length(arrays["nats"], lengths[kind])
        by_question = {key: each.reshape(*shape, -1).swapaxes(0, 1) for key, each in ways.items()}
        values = tuple(float(each) for each in questions.each[0].options) if form_of(self.task) == "numbers" else None
        return RankedAnswers(
            name, split, suffix, questions.rows, questions.each, rows, by_question["acc"], by_question, values
        )

    def _alone(self, option: str) -> Encoded:
        """An answer behind nothing but the words that announce answers."""
        return self.reader.encode(Continuation(self.prompt.answer_context + self.prompt.delimiter, option))

    def _written(
        self,
        name: str,
        suffix: str,
        split: str,
        questions: FewShotQuestions,
        prompts: Sequence[Sequence[AskedPrompt]],
        rows: list[list[list[int]]],
    ) -> WrittenAnswers:
        """The answers that are written, and what they are worth."""
        generation = settings_of(self.stage.generation)
        new = int(generation.max_new_tokens or 0)
        flat = [self.reader.context(each.text()[0]) for draw in prompts for each in draw]
        contexts = [ids[self.reader.excess(Encoded(ids, (0,) * new)) :] for ids in flat]
        continuations = write(self.reader, contexts, self.prompt.stop, generation, **self._running(split, name))
        texts = (
            np.asarray([text.strip() for text in continuations], dtype=object).reshape(len(prompts), len(questions)).T
        )
        answers = [str(each.answer) for each in questions.each]
        written = WrittenAnswers(name, split, suffix, questions.rows, questions.each, rows, texts, answers, {})
        if form_of(self.task) in AMONG_KNOWN:
            right = np.asarray(
                [
                    [normalised(text) == normalised(answer) for text in row]
                    for row, answer in zip(texts, answers, strict=True)
                ]
            )
            return replace(written, right=right)
        references, texts = self._comparable(questions, texts)
        counted = {
            metric: np.stack([counted_metric(metric).counts(list(draw), references) for draw in texts.T], axis=1)
            for metric in self.task.metrics
        }
        return replace(written, references=references, counted=counted)

    def _comparable(self, questions: FewShotQuestions, texts: Any) -> tuple[list[Any], Any]:
        """The right answers and the written ones in the form that the task's metrics compare."""
        references: list[Any] = list(questions.rows.labels or ())
        if form_of(self.task) == "answers":
            silence = normalised(self.prompt.no_answer)
            blank = np.vectorize(lambda text: "" if normalised(text) == silence else text, otypes=[object])
            return references, blank(texts) if self.task.version_2 else texts
        if form_of(self.task) == "dialogues":
            graded = np.asarray([self.task.graded(list(row)) for row in texts], dtype=object).reshape(texts.shape)
            return self.task.graded(references), graded
        return references, texts


def _readable(task: Any) -> bool:
    """Whether the training rows of a task can be found; another task's stand in where not."""
    try:
        task.places["train"].open("train")[0].load(task.places["train"].open("train")[1])
    except DataError:
        return False
    return True


def add(
    report: Report,
    name: str,
    task: Task,
    answers: Sequence[FewShotAnswers],
    details: Mapping[str, Any],
    train: Rows | None,
    started: float,
) -> None:
    """Keep the answers to every split of one benchmark, asked with one number of examples. `details` stands in
    details.json."""
    scores: dict[str, float] = {}
    ranges: dict[str, tuple[float, float]] = {}
    drawn: dict[str, dict[str, float]] = {}
    guesses: dict[str, dict[str, float]] = {}
    for each in answers:
        assert each.labels is not None  # refused before anything was asked
        score = each.score_of(task)
        scores |= _suffixed(score(each.answers, each.labels), each.suffix)
        ranges |= _suffixed(intervals(score, each.answers, each.labels, report.context.seed), each.suffix)
        if each.draws > 1:
            drawn |= _suffixed(spread(each.by_draw(task)), each.suffix)
        for guesser, reached in _baselines(task, each, train, report.baselines).items():
            guesses.setdefault(guesser, {}).update(_suffixed(reached, each.suffix))
    percent = (
        score_names(percent_metrics(task.metrics))
        if isinstance(answers[0], WrittenAnswers) and answers[0].right is None
        else ()
    )
    report.metrics[name] = scores
    report.predicted += answers
    report.details[name] = {
        **details,
        "examples": {each.split: len(each.rows) for each in answers},
        "splits": {each.suffix: each.split for each in answers},
        "precision": "no",
        "intervals": ranges,
        "baselines": guesses,
        **({"spread": drawn} if drawn else {}),
        **({"percent": percent} if percent else {}),
        "seconds": round(time.monotonic() - started, 3),
    }
    for warning in _warnings(name, answers, scores, ranges, guesses, details["few_shot"]):
        if warning is not None:
            report.context.events.emit("warning", message=warning)


def _suffixed(values: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    return {f"{name}{suffix}": value for name, value in values.items()}


def _baselines(
    task: Task, answers: FewShotAnswers, train: Rows | None, named: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Chance, and what guessers that are fitted on the training rows reach; nothing where answers are texts."""
    if isinstance(answers, WrittenAnswers) or (isinstance(answers, RankedAnswers) and answers.values is not None):
        return {}
    assert isinstance(answers, RankedAnswers)
    chance = float(np.mean([1 / len(each.options) for each in answers.questions]))
    scores = {"chance": dict.fromkeys(answers.ways, chance)}
    classes = len(task.head.labels)
    if train is None or not classes:
        return scores
    score = score_options(["acc"], task.metrics, classes)
    names = dict.fromkeys(("majority", *named))
    guessed = score_baselines(
        names, lambda logits, labels: score(logits[:, None, None], labels), classes, train, {"": answers.rows}
    )
    return scores | guessed.scores


def _warnings(
    name: str,
    answers: Sequence[FewShotAnswers],
    scores: Mapping[str, float],
    ranges: Mapping[str, tuple[float, float]],
    guesses: Mapping[str, Mapping[str, float]],
    counts_of_prompts: Mapping[str, Any],
) -> list[str | None]:
    sentences: list[str | None] = []
    for each in answers:
        if isinstance(each, RankedAnswers) and each.values is None and each.constant():
            word = each.questions[0].options[int(each.nats[0, 0].argmax())]
            sentences.append(
                f"{name}: the likeliest answer is the same for every question of '{each.split}' (the first "
                f"time: {word!r})"
            )
    if "majority" in guesses:
        sentences.append(no_better_than_majority(name, scores, ranges, guesses["majority"]))
    elif "chance" in guesses:
        sentences.append(no_better_than_majority(name, scores, ranges, guesses["chance"], guess="choosing by chance"))
    if counts_of_prompts["questions_cut"]:
        sentences.append(
            f"{name}: {counts_of_prompts['questions_cut']} questions are longer than the model reads and lost their "
            "beginning; their scores say little"
        )
    if counts_of_prompts["examples_dropped"]:
        sentences.append(
            f"{name}: {counts_of_prompts['questions_with_fewer_examples']} questions found no room for all their "
            f"examples: {counts_of_prompts['examples_dropped']} examples were left out"
        )
    return sentences
