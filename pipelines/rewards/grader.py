"""A grader in OpenAI's words as the reward: what it reads of the row, of the answer, and what it asks of models.

The graders, their templates and their formula stand in `core.graders`. Here their questions are collected over all
completions of a step and put to models that are opened beside the policy: a model is asked once for all rows, whatever
the number of graders that ask it. A model may be a stage's or a checkpoint; nothing is asked over the network.

A row that lacks what a grader reads is a mistake of the data and ends the stage. An answer that cannot be graded (no
JSON where JSON is read, a judge without a number, a formula that divides by zero) gets the lowest score of its grader,
and the first one of each kind is told in a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from pydantic import Field, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues
from pipelines.core.errors import DataError
from pipelines.core.graders import (
    AnyGrader,
    Grade,
    Grader,
    GraderAnswer,
    GraderQuestion,
    Multi,
    Steps,
    TextSimilarity,
    grading,
    sample_of,
)
from pipelines.core.model_types import positions_for_text
from pipelines.core.recipe import START, FolderOrName
from pipelines.core.registry import nearest
from pipelines.rewards.reward import RewardBlock, Scorer, one_place

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.models.generate import LanguageModel

BATCH = 16
"""Questions at a time."""


class GraderModel(Block):
    """A model that graders ask, by the name that they call it by."""

    name: str = Field(min_length=1, max_length=250)
    """As it stands at `model` in a grader."""
    source: str | None = Field(None, alias="from")
    """Id of an earlier stage that trained it, or `model` for the recipe's own."""
    checkpoint: FolderOrName | None = None
    """A folder or a Hub name."""

    @model_validator(mode="after")
    def _one_place(self) -> GraderModel:
        one_place(self.source, self.checkpoint)
        return self


class GraderReward(RewardBlock):
    """What a grader gives: `{name: grader, grader: {type: string_check, input: '{{sample.output_text}}', reference:
    '{{item.answer}}', operation: eq}}`."""

    name: Literal["grader"] = "grader"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: grader, grader: {type: string_check, input: '{{sample.output_text}}', reference: good, "
        "operation: like}}",
        "{name: grader, grader: {type: multi, name: both, graders: {near: {type: text_similarity, name: near, "
        "input: '{{sample.output_text}}', reference: the film is good, evaluation_metric: fuzzy_match}, exact: "
        "{type: string_check, input: '{{sample.output_text}}', reference: good, operation: ne}}, "
        "calculate_output: '0.9 * near + 0.1 * min(exact, 0.5)'}}",
    )
    grader: AnyGrader
    """The grader: `string_check`, `text_similarity`, `score_model`, `label_model`, or a `multi` of them."""
    models: tuple[GraderModel, ...] = ()
    """The models that it asks."""

    @model_validator(mode="after")
    def _models(self) -> GraderReward:
        names = [each.name for each in self.models]
        if len(names) != len(set(names)):
            raise ConfigIssues([(("models",), "names a model twice")])
        for model, _ in self.grader.models():
            if model is None:
                raise ConfigIssues(
                    [(("grader",), "takes the cosine of vectors and does not say whose; name one of 'models' at model")]
                )
            if model not in names:
                sentence = f"asks the model '{model}', which 'models' does not hold.{nearest(model, names)}"
                raise ConfigIssues([(("grader",), f"{sentence} Add it: models: [{{name: {model}, checkpoint: …}}]")])
        return self

    @property
    def stages(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.source for each in self.models if each.source is not None))

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        ids = [stage.id for stage in recipe.stages]
        before = recipe.stages[: ids.index(stage_id)] if stage_id in ids else recipe.stages
        fit = [START, *(stage.id for stage in before if stage.trains)]
        for at, each in enumerate(self.models):
            if each.source is not None and each.source not in fit:
                sentence = f"'{each.source}' is no earlier stage that trains a model.{nearest(each.source, fit)}"
                yield ("models", at, "from"), f"{sentence} Allowed: {', '.join(fit)}"
        if any(each == "meteor" for each in _metrics(self.grader)) and find_spec("nltk") is None:
            yield ("grader",), "uses meteor, which needs the package nltk; install finery[graders], or take another"

    def content(self) -> dict[str, str]:
        from pipelines.models.checkpoint_content import checkpoint_content

        return {
            f"models.{each.name}": checkpoint_content(each.checkpoint)
            for each in self.models
            if each.checkpoint is not None
        }

    def open(self, context: Context) -> Scorer:
        wanted = dict(self.grader.models())
        opened = {each.name: _opened(each, wanted[each.name], context) for each in self.models if each.name in wanted}
        warned: set[str] = set()

        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            rows = [getattr(prompt, "row", {}) for prompt in prompts]
            grades = graded(self.grader, rows, completions, opened)
            for prompt, grade in zip(prompts, grades, strict=True):
                if (lacking := grade.faults.get("invalid_variable_error")) is not None:
                    number = getattr(prompt, "number", None)
                    where = "the row of a prompt" if number is None else f"row {number + 1} of the prompts"
                    raise DataError(f"the reward's grader '{self.grader.name}' cannot read {where}: {lacking}")
                for fault, sentence in grade.faults.items():
                    if fault not in warned and context.world.is_main:
                        warned.add(fault)
                        context.events.emit("warning", message=f"an answer cannot be graded: {sentence}")
            return [grade.score for grade in grades]

        return scores


def _metrics(grader: Grader) -> Iterable[str]:
    if isinstance(grader, Multi):
        for each in grader.graders.values():
            yield from _metrics(each)
    elif isinstance(grader, TextSimilarity):
        yield grader.evaluation_metric


# ---- asking ----------------------------------------------------------------------------------------------------------


class OpenedGraderModel(Protocol):
    """A model that is open."""

    def answers(self, questions: Sequence[GraderQuestion]) -> list[GraderAnswer]:
        """What it says to each."""


@dataclass
class _Progress:
    """One answer on its way through the graders."""

    steps: Steps
    question: GraderQuestion | None = None
    grade: Grade | None = None

    def go_on(self, answer: GraderAnswer | None) -> None:
        """To the next question, or to the grade."""
        try:
            self.question = next(self.steps) if answer is None else self.steps.send(answer)
        except StopIteration as end:
            self.question, self.grade = None, end.value


def graded(
    grader: Grader,
    rows: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    models: Mapping[str, OpenedGraderModel],
) -> list[Grade]:
    """The grade of each completion of its row. Each round puts all open questions to one model after the other."""
    every = [_Progress(grading(grader, row, sample_of(text))) for row, text in zip(rows, completions, strict=True)]
    for each in every:
        each.go_on(None)
    while waiting := [each for each in every if each.question is not None]:
        for name in dict.fromkeys(each.question.model for each in waiting if each.question is not None):
            mine = [each for each in waiting if each.question is not None and each.question.model == name]
            answers = models[str(name)].answers([each.question for each in mine if each.question is not None])
            for each, answer in zip(mine, answers, strict=True):
                each.go_on(answer)
    return [each.grade for each in every if each.grade is not None]


def _opened(model: GraderModel, kind: str, context: Context) -> OpenedGraderModel:
    from pipelines.rewards.reward import ready

    if kind == "chat":
        from pipelines.models.generate import open_writer

        writer = open_writer(context, model.source, model.checkpoint)
        writer.model.eval().requires_grad_(False)  # no dropout: the same answer gets the same grade
        return Chatting(writer, context.seed)
    from pipelines.models.heads import FAMILY_HEADS

    encoder = context.open_model(FAMILY_HEADS["encoder"], stage_id=model.source, checkpoint=model.checkpoint)
    source = None if model.source == START else model.source
    return Embedding(ready(encoder), context.open_tokenizer(source, checkpoint=model.checkpoint))


@dataclass
class Chatting:
    """A language model that answers messages."""

    writer: LanguageModel
    seed: int

    def answers(self, questions: Sequence[GraderQuestion]) -> list[GraderAnswer]:
        """What it writes; no answer where a question is longer than it can read."""
        from pipelines.data.chat_formats import Dialogue
        from pipelines.models.generate import prompt_ids
        from pipelines.models.sampling import complete

        model, tokenizer = self.writer.model, self.writer.tokenizer
        ids = []
        for question in questions:
            messages = (*question.messages, {"role": "assistant", "content": ""})
            templated = bool(tokenizer.chat_template)
            ids.append(prompt_ids(tokenizer, Dialogue(messages, (False,) * len(messages), templated)))
        positions = positions_for_text(model)
        room = [
            question.max_tokens
            if positions is None
            else min(question.max_tokens, positions - (0 if self.writer.encoder_decoder else len(each)))
            for question, each in zip(questions, ids, strict=True)
        ]
        answers = [GraderAnswer(failure="a question is longer than the model that grades can read")] * len(questions)
        ways = {
            (each.temperature, each.top_p, each.seed, limit)
            for each, limit in zip(questions, room, strict=True)
            if limit > 0
        }
        for temperature, top_p, seed, limit in sorted(ways, key=str):
            places = [
                at
                for at, (each, own) in enumerate(zip(questions, room, strict=True))
                if (each.temperature, each.top_p, each.seed, own) == (temperature, top_p, seed, limit)
                and (positions is None or len(ids[at]) <= positions)
            ]
            done = complete(
                model,
                tokenizer,
                [ids[at] for at in places],
                seed=self.seed if seed is None else seed,
                max_new_tokens=limit,
                temperature=temperature,
                top_p=top_p,
                batch_size=BATCH,
                draws=[0] * len(places),
            )
            for at, text, length in zip(places, done.texts, done.lengths.tolist(), strict=True):
                answers[at] = GraderAnswer(text=text, prompt_tokens=len(ids[at]), completion_tokens=int(length))
        return answers


@dataclass
class Embedding:
    """An encoder that gives vectors."""

    model: Any
    tokenizer: Any
    vectors: dict[str, Any] = field(default_factory=dict)
    """Of texts that were asked for; references come again and again."""

    def answers(self, questions: Sequence[GraderQuestion]) -> list[GraderAnswer]:
        """The cosine of the two texts of each; no answer where one is longer than the model can read."""
        from pipelines.core.errors import CommandError
        from pipelines.models.embeddings import embed

        texts = dict.fromkeys(text for each in questions for text in each.texts or () if text not in self.vectors)
        if len(self.vectors) + len(texts) > 50_000:
            self.vectors.clear()
            texts = dict.fromkeys(text for each in questions for text in each.texts or ())
        failures: dict[str, str] = {}
        try:
            found = embed(self.model, self.tokenizer, list(texts))[0] if texts else ()
            self.vectors.update(zip(texts, found, strict=True))
        except CommandError:  # one of them is too long, or has no token: which?
            for text in texts:
                try:
                    self.vectors[text] = embed(self.model, self.tokenizer, [text])[0][0]
                except CommandError as error:
                    failures[text] = str(error)
        answers = []
        for each in questions:
            one, other = each.texts or ("", "")
            failure = failures.get(one) or failures.get(other) or ""
            cosine = 0.0 if failure else float(self.vectors[one] @ self.vectors[other])
            answers.append(GraderAnswer(cosine=cosine, failure=failure))
        return answers
