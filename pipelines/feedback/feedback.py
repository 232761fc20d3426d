"""Feedback: a model's own completions, compared by a judge, become preferences.

Reinforcement learning from AI feedback: Bai et al. 2022, "Constitutional AI", section 4.1, arxiv.org/abs/2212.08073;
Lee et al. 2023, "RLAIF vs. RLHF", section 2, arxiv.org/abs/2309.00267. The stage samples several completions of each
prompt from the model it reads, asks the judge about pairs of them, and leaves in its folder `preferences.jsonl` (read
by `datasets: [{from: ID}]`), `labelled.jsonl` (every completion with its score), `revisions.jsonl` where completions
are revised, `metrics.json` and `details.json` (how far the judge can be trusted), and `audit.html` with examples to
look at. It trains nothing.

Each step goes through the prompts in parts that are kept when they are done, and every draw is a function of the seed
and of the prompt's number, so that a run that is killed and resumed writes the same files.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.core.config import ConfigIssue
from pipelines.core.costs import PROMPT_LENGTH, StagePlan
from pipelines.core.errors import DataError, Stopped
from pipelines.core.files import write_json, write_text
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.registry import JUDGES, nearest
from pipelines.data import chat_templates
from pipelines.data.prompts import Prompts
from pipelines.data.row_counts import prompt_rows
from pipelines.feedback import pairs as pairing
from pipelines.feedback.constitution import Constitution, Revise, drawn, revise, row_of
from pipelines.feedback.judges.judge import Judge, JudgeField, Spent
from pipelines.feedback.pairs import JudgedPrompt, Way, column_of, judged_of, verdict_of
from pipelines.feedback.progress import FeedbackProgress, Row, write_lines
from pipelines.tasks.preference.rows import PreferenceRows
from pipelines.tasks.preference.task import PreferenceReference

if TYPE_CHECKING:
    from pipelines.core.costs import Planning
    from pipelines.core.interfaces import Context
    from pipelines.data.prompts import PromptRows
    from pipelines.models.generate import LanguageModel


def _revise(value: Any) -> Any:
    """`revise: true` is one round."""
    return {} if value is True else None if value is False else value


class Feedback(Stage):
    """Sample completions, have a judge compare them, and write the preferences down."""

    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: rule, prefer: {name: keyword, "
        "words: [good]}}}",
        "{stage: feedback, id: labels, from: text, prompts: {path: builtin/python-docs, max_length: 16, "
        "max_samples: 9}, completions: 3, pairs: all, judge: {name: endpoint, "
        "base_url: 'https://api.example.com/v1', model: m, api_key_env: KEY, prices: {prompt: 0.1}}, "
        "top_p: 0.9, constitution: [{id: kind, comparison: Which is kinder?, critique: What is unkind?, "
        "revision: Say it kindly.}], revise: {rounds: 2}, human: {path: builtin/python-docs, "
        "name: preferences}, max_human_samples: 5}",
        "{stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: local, from: text, "
        "thought: true}, constitution: default, revise: true}",
        "{stage: feedback, prompts: {path: builtin/python-docs}, judge: {name: reward, "
        "reward: {name: length}}, by: ratings, min_margin: 0.5}",
    )
    stage: Literal["feedback"] = "feedback"
    prompts: Prompts
    """What is gone on from: `{path: reviews.jsonl, text: text, max_length: 16, max_samples: 500}`."""
    judge: JudgeField
    """Who compares: `local`, `endpoint`, `reward` or `rule`, with its settings."""
    completions: int = Field(4, ge=2, le=64)
    """Completions that are sampled of each prompt."""
    response_length: int = Field(64, ge=1, le=8192)
    """Tokens that a completion may have."""
    temperature: float = Field(1.0, gt=0, le=10)
    """Of the sampling."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the likeliest tokens that together have this probability."""
    top_k: int = Field(0, ge=0)
    """Sample from the k likeliest tokens; 0: from all."""
    pairs: Way = "best_worst"
    """`best_worst`: all are compared, and the best stands against the worst; `all`: every decided pair is kept;
    `random`: they are drawn into pairs, which costs the least."""
    by: Literal["comparisons", "ratings"] = "comparisons"
    """Whether the judge sees two completions at once, or rates each by itself."""
    min_margin: float = Field(0.0, ge=0, lt=1)
    """Leave out pairs where the judge is less sure than this: the difference of the two probabilities, 2P - 1."""
    constitution: Constitution | None = None
    """Principles, of which one is drawn for every comparison: a list, a YAML file, or `default`. Default: the
    judge's own question."""
    revise: Annotated[Revise | None, BeforeValidator(_revise, json_schema_input_type=Revise | bool)] = None
    """Have the judge's model critique and rewrite one completion of each prompt by the constitution:
    `revisions.jsonl`."""
    human: PreferenceReference | None = None
    """Preferences of people (or of another feedback stage, `{from: ID}`) that the judge is held against."""
    max_human_samples: int = Field(200, ge=1)
    """The first N of them."""
    repeats: int = Field(32, ge=0)
    """Comparisons that are asked a second time, to see whether the judge says the same: of judges with chance in
    them only."""
    batch_size: int = Field(64, ge=1)
    """Completions that are sampled at a time."""

    joins: ClassVar[bool] = False
    samples: ClassVar[bool] = True
    writes_preferences: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[ConfigIssue]:
        for place, message in self.judge.check(recipe, self.id):
            yield ("judge", *place), message
        usable = () if self.constitution is None else self.constitution
        if self.by == "ratings" and self.pairs == "random":
            yield (
                ("pairs",),
                "is random, which saves comparisons, but with by: ratings there are none; choose best_worst or all",
            )
        if usable and self.revise is None and not self.judge.reads_principles:
            yield (
                ("constitution",),
                f"is for judges that read principles, and '{self.judge.name}' does not; leave it out, or use "
                "local or endpoint",
            )
        if usable and self.revise is None and self.by == "comparisons" and not any(each.comparison for each in usable):
            yield (
                ("constitution",),
                "has no principle with a 'comparison', by which completions could be compared; give one",
            )
        if usable and self.revise is None and self.by == "ratings":
            yield (
                ("constitution",),
                "has principles to compare by, but with by: ratings nothing is compared; leave it out",
            )
        if self.revise is not None:
            if not self.judge.writes:
                writers = ", ".join(name for name in JUDGES if JUDGES.load(name).writes)
                yield ("revise",), f"needs a judge that writes ({writers}), and '{self.judge.name}' does not"
            if not any(each.critique for each in usable):
                yield (
                    ("revise",),
                    "needs a constitution that has principles with a 'critique' and a 'revision', such as "
                    "constitution: default",
                )
        if self.human is None and "max_human_samples" in self.model_fields_set:
            yield ("max_human_samples",), "counts the rows of 'human', and none is named; leave it out"
        if self.human is not None and self.human.source is not None:
            earlier = [stage.id for stage in recipe.stages[:position] if stage.stage == self.stage]
            if self.human.source not in earlier:
                hint = f"Allowed: {', '.join(earlier)}" if earlier else "There is none before this one; name a 'path'"
                yield (
                    ("human", "from"),
                    f"'{self.human.source}' is no earlier feedback stage.{nearest(self.human.source, earlier)} {hint}",
                )

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The policy, the models that the judge reads, and the stage whose preferences it is held against."""
        held = () if self.human is None or self.human.source is None else (self.human.source,)
        return tuple(dict.fromkeys((recipe.model_of(self), *self.judge.stages, *held)))

    def content(self, recipe: Recipe) -> dict[str, str]:
        hashes = {"prompts": self.prompts.content()} | {
            f"judge.{role}": value for role, value in self.judge.content().items()
        }
        if self.human is not None and (held := self.human.content()) is not None:
            hashes["human"] = held
        return hashes

    def special_tokens(self) -> tuple[str, ...]:
        return chat_templates.marks_of(self.prompts.chat_template)

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"judge": self.judge.identity()}

    def cost(self, planning: Planning) -> StagePlan:
        """The sampling; of the judging only how many questions there are, for another model answers them.

        With keys and values kept, a completion costs about one forward pass over its prompt and itself.
        """
        notes, rows, count = [*planning.notes], prompt_rows(self.prompts), self.completions
        if rows is None:
            notes.append("how many prompts there are will be known when the run starts, or set prompts.max_samples")
            return StagePlan(self.id, self.stage, notes=tuple(notes))
        pairs = count // 2 if self.pairs == "random" else count * (count - 1) // 2
        compared = f"{rows * pairs:,} pairs are compared"
        questions = f"{rows * count:,} completions are rated" if self.by == "ratings" else compared
        notes += [
            f"at most: every completion is counted with response_length {self.response_length}",
            f"what the judge '{self.judge.name}' costs is not counted: at most {questions}",
        ]
        model = planning.model
        if model is None or model.family == "encoder":
            return StagePlan(self.id, self.stage, notes=tuple(notes))
        length, response = self.prompts.max_length or PROMPT_LENGTH, self.response_length
        read = length if model.family == "encoder-decoder" else length + response
        try:
            flops = rows * count * model.forward(model.plain_head, read, response, response)
        except Exception as error:
            return planning.not_built(self, notes, error)
        return StagePlan(
            self.id,
            self.stage,
            sequence_length=length + response,
            tokens=rows * count * (length + response),
            flops=flops,
            seconds=flops / planning.flops_per_second,
            notes=tuple(notes),
        )

    def run(self, context: Context) -> None:

        FeedbackRun(self, context).do()


PART = 32
"""Prompts of a part: what a kill can cost at most."""
SHOWN = 3
"""Pairs that the events show."""


class FeedbackRun:
    """One feedback stage at work."""

    def __init__(self, stage: Feedback, context: Context) -> None:
        self.stage, self.context = stage, context
        self.progress = FeedbackProgress(context.folder, self._kept)
        self.spent = Spent()
        self.steps = 0
        self._policy: LanguageModel | None = None
        self._judge: Judge | None = None

    def do(self) -> None:
        """All of it."""
        rows = self._prompts()
        parts = [range(start, min(start + PART, len(rows))) for start in range(0, len(rows), PART)]
        self.steps = len(parts) * (3 if self.stage.revise is not None else 2)
        sampled = self._in_parts(parts, 0, "sampling", lambda part: self._sample(rows, part))
        self._let_go()
        verdicts = self._in_parts(parts, 1, "judging", lambda part: self._ask(rows, part, [sampled[at] for at in part]))
        judged = [judged_of(rows, at, sampled[at], verdicts[at]) for at in range(len(rows))]
        revised = []
        if self.stage.revise is not None:
            revised = self._in_parts(parts, 2, "revising", lambda part: self._revise(judged, part))
        last = len(parts) * 3
        again = self._once(last + 1, lambda: self._repeat(judged))
        human = self._once(last + 2, self._hold)
        self._write(judged, revised, again, human)
        self.progress.clear()

    # -- the steps

    @property
    def policy(self) -> LanguageModel:
        """The model that is sampled from, opened when it is first needed."""
        if self._policy is None:
            from pipelines.models.generate import open_writer

            self._policy = open_writer(self.context)
        return self._policy

    @property
    def judge(self) -> Judge:
        """The judge, opened when it is first asked."""
        if self._judge is None:
            self._judge = self.stage.judge.open(self.context)
        return self._judge

    def _prompts(self) -> PromptRows:
        rows = self.stage.prompts.read(self.policy.tokenizer, self.policy.encoder_decoder)
        if rows.left_out:
            self.context.events.emit(
                "warning",
                message=f"{len(rows.left_out)} prompts are longer than prompts.max_length and are left out (rows "
                f"{_rows(rows.left_out)})",
            )
        return rows

    def _sample(self, rows: PromptRows, part: range) -> list[Row]:
        from pipelines.models.sampling import complete

        stage, count = self.stage, self.stage.completions
        done = complete(
            self.policy.model,
            self.policy.tokenizer,
            [rows.ids[at] for at in part for _ in range(count)],
            seed=self.context.seed,
            max_new_tokens=stage.response_length,
            temperature=stage.temperature,
            top_p=stage.top_p,
            top_k=stage.top_k,
            batch_size=stage.batch_size,
            draws=[at * count + number for at in part for number in range(count)],
        )
        texts, ended = list(done.texts), done.ended.tolist()
        return [
            {"texts": texts[at : at + count], "ended": ended[at : at + count]} for at in range(0, len(texts), count)
        ]

    def _ask(self, rows: PromptRows, part: range, sampled: Sequence[Row]) -> list[Row]:
        """What the judge says of the completions of each prompt of a part."""
        if self.stage.by == "ratings":
            return self._rate(rows, part, sampled)
        pairs = [
            (at, pair)
            for at, own in zip(part, sampled, strict=True)
            for pair in pairing.compared(own["texts"], self.stage.pairs, self.context.seed, at)
        ]
        ids, questions = self._principles([(at, *pair) for at, pair in pairs])
        texts = dict(zip(part, (own["texts"] for own in sampled), strict=True))
        verdicts = self.judge.compare(
            [rows.texts[at] for at, _ in pairs],
            [texts[at][one] for at, (one, _) in pairs],
            [texts[at][two] for at, (_, two) in pairs],
            questions,
        )
        verdicts_of: dict[int, list[Row]] = {at: [] for at in part}
        for (at, pair), verdict, principle in zip(pairs, verdicts, ids, strict=True):
            verdicts_of[at].append({"pair": list(pair), "verdict": vars(verdict), "principle": principle})
        return self._with_costs([{"verdicts": verdicts_of[at]} for at in part])

    def _rate(self, rows: PromptRows, part: range, sampled: Sequence[Row]) -> list[Row]:
        flat = [
            (at, place, text)
            for at, own in zip(part, sampled, strict=True)
            for place, text in enumerate(own["texts"])
            if text.strip()
        ]
        ratings = self.judge.rate([rows.texts[at] for at, _, _ in flat], [text for _, _, text in flat])
        scores_of: dict[int, list[float | None]] = {
            at: [None] * len(own["texts"]) for at, own in zip(part, sampled, strict=True)
        }
        for (at, place, _), rating in zip(flat, ratings, strict=True):
            scores_of[at][place] = rating.score
        return self._with_costs([{"scores": scores_of[at]} for at in part])

    def _principles(self, numbers: Sequence[tuple[int, ...]]) -> tuple[list[str | None], list[str | None]]:
        """(the ids of the principles that comparisons are made by, their questions), drawn by the comparisons'
        numbers."""
        chosen = [drawn(self.stage.constitution or (), "comparison", self.context.seed, *number) for number in numbers]
        return [None if each is None else each.id for each in chosen], [
            None if each is None else each.comparison for each in chosen
        ]

    def _revise(self, judged: Sequence[JudgedPrompt], part: range) -> list[Row]:
        """The first completion of each prompt that says something, revised."""
        settings, rules = self.stage.revise, self.stage.constitution
        assert settings is not None
        own = [
            (at, text)
            for at in part
            if (text := next((each for each in judged[at].texts if each.strip()), None)) is not None
        ]
        done = revise(
            self.judge,
            [judged[at].prompt for at, _ in own],
            [text for _, text in own],
            rules or (),
            settings,
            self.context.seed,
            [at for at, _ in own],
        )
        revision_of: dict[int, Any] = {at: {"row": None} for at in part}
        for (at, text), rounds in zip(own, done, strict=True):
            revision_of[at] = {"row": row_of(column_of(judged[at].prompt), text, rounds)}
        return self._with_costs([revision_of[at] for at in part])

    def _repeat(self, judged: Sequence[JudgedPrompt]) -> list[Row]:
        """The first comparisons asked anew, for a judge with chance in it."""
        if self.stage.by == "ratings" or not self.stage.judge.chance or not self.stage.repeats:
            return []
        self._emit_progress(self.steps, "asking again")
        repeated = [(at, pair) for at, each in enumerate(judged) for pair in each.verdicts][: self.stage.repeats]
        _, questions = self._principles([(at, *pair) for at, pair in repeated])
        verdicts = self.judge.compare(
            [judged[at].prompt for at, _ in repeated],
            [judged[at].texts[one] for at, (one, _) in repeated],
            [judged[at].texts[two] for at, (_, two) in repeated],
            questions,
            draw=1,
        )
        return self._with_costs(
            [
                {"at": at, "pair": list(pair), "verdict": vars(verdict)}
                for (at, pair), verdict in zip(repeated, verdicts, strict=True)
            ]
        )

    def _hold(self) -> list[Row]:
        """The judge's verdicts on the preferences it is held against: each pair stands in an order drawn by its
        number."""
        if self.stage.human is None:
            return []
        self._emit_progress(self.steps, "comparing with people")
        rows = self.stage.human.rows(self.context.stage_folders, skip_bad_rows=True, limit=self.stage.max_human_samples)
        if not isinstance(rows, PreferenceRows):
            raise DataError(
                "'human' has single answers (prompt, completion, label), and pairs are needed (prompt, "
                "chosen, rejected)"
            )
        chosen, rejected = [each.completion for each in rows.chosen], [each.completion for each in rows.rejected]
        turned = [Random(f"human\x1f{self.context.seed}\x1f{at}").random() < 0.5 for at in range(len(rows))]
        first = [two if turn else one for one, two, turn in zip(chosen, rejected, turned, strict=True)]
        second = [one if turn else two for one, two, turn in zip(chosen, rejected, turned, strict=True)]
        if self.stage.by == "ratings":
            ratings = self.judge.rate([*rows.texts, *rows.texts], [*first, *second])
            half = len(first)
            verdicts = [verdict_of(ratings[at].score, ratings[at + half].score) for at in range(half)]
        else:
            _, questions = self._principles([(-1, at) for at in range(len(rows))])
            verdicts = self.judge.compare(rows.texts, first, second, questions)
        return self._with_costs(
            [
                {"verdict": vars(verdict), "first_is_better": not turn}
                for verdict, turn in zip(verdicts, turned, strict=True)
            ]
        )

    # -- parts

    def _in_parts(self, parts: Sequence[range], step: int, what: str, make: Callable[[range], list[Row]]) -> list[Row]:
        """The rows of all parts of a step, in order; `make` is called for those that are not there yet."""
        rows: list[Row] = []
        for number, part in enumerate(parts):
            self._look_for_stop()
            place = step * len(parts) + number + 1
            rows += self._counted(self.progress.done(place, partial(make, part)))
            self._emit_progress(place, what)
        return rows

    def _emit_progress(self, step: int, what: str) -> None:
        self.context.events.emit("progress", step=step, total=self.steps, what=what)

    def _once(self, number: int, make: Callable[[], list[Row]]) -> list[Row]:
        self._look_for_stop()
        return self._counted(self.progress.done(number, make))

    def _with_costs(self, rows: list[Row]) -> list[Row]:
        """The rows of a part, the first with what the judge took for all of them."""
        if rows:
            rows[0]["spent"] = self.judge.spent.taken()
        return rows

    def _counted(self, rows: list[Row]) -> list[Row]:
        for row in rows:
            if "spent" in row:
                self.spent.add(row["spent"])
        return rows

    def _look_for_stop(self) -> None:
        if self.context.stop.requested:
            raise Stopped("stopped between two parts of the work; what was done is kept")

    def _kept(self, number: int, place: Path) -> None:
        self.context.events.emit("checkpoint", step=number, path=str(place))

    def _let_go(self) -> None:
        """Free the memory of the policy before a judge is opened."""
        self._policy = None
        gc.collect()

    # -- what is left

    def _write(
        self, judged: Sequence[JudgedPrompt], revised: Sequence[Row], again: Sequence[Row], human: Sequence[Row]
    ) -> None:
        from pipelines.feedback.audit import audit_page
        from pipelines.feedback.results import (
            details_of,
            labelled_rows,
            metrics_of,
            preference_rows,
            summary_of,
            warnings_of,
        )

        folder, stage = self.context.folder, self.stage
        policy = self.context.recipe.model_of(self.context.recipe.stage(self.context.stage_id))
        preferences = preference_rows(judged, stage, policy)
        details = details_of(judged, preferences, again, human, self.spent)
        if not preferences:
            raise DataError(
                f"the judge left no preference to learn from: {summary_of(details)}; give it more to choose from, "
                "lower min_margin, or choose another judge"
            )
        for message in warnings_of(details):
            self.context.events.emit("warning", message=message)
        for row in preferences[:SHOWN]:
            self.context.events.emit(
                "sample",
                prompt=row["prompt"],
                chosen=row["chosen"],
                rejected=row["rejected"],
                probability=row["probability"],
            )
        write_lines(folder / "preferences.jsonl", preferences)
        write_lines(folder / "labelled.jsonl", labelled_rows(judged, policy))
        if stage.revise is not None:
            rows = [each["row"] for each in revised if each["row"] is not None]
            details["revisions"] = len(rows)
            write_lines(folder / "revisions.jsonl", rows)
        write_json(folder / "details.json", details)
        write_text(
            folder / "audit.html",
            audit_page(self.context.recipe.name, self.context.stage_id, stage, judged, preferences, revised, details),
            errors="replace",  # half a surrogate pair has no UTF-8
        )
        write_json(folder / "metrics.json", metrics_of(details))


def _rows(numbers: Sequence[int]) -> str:
    first = ", ".join(str(number + 1) for number in numbers[:5])
    return first + (", …" if len(numbers) > 5 else "")
