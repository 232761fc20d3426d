"""Feedback: a model's own completions, compared by a judge, become preferences.

Reinforcement learning from AI feedback: Bai et al. 2022, "Constitutional AI", section 4.1, arxiv.org/abs/2212.08073; Lee et al.
2023, "RLAIF vs. RLHF", section 2, arxiv.org/abs/2309.00267. The stage samples several completions of each prompt from the
model it reads, asks the judge about pairs of them, and leaves in its folder `preferences.jsonl` (read by
`datasets: [{from: ID}]`), `labelled.jsonl` (every completion with its score), `revisions.jsonl` where completions are revised,
`metrics.json` and `details.json` (how far the judge can be trusted), and `audit.html` with examples to look at. It trains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from pipelines.blocks import Found
from pipelines.data import chat_templates
from pipelines.data.preference_reference import PreferenceReference
from pipelines.data.prompts import Prompts
from pipelines.feedback.constitution import Constitution
from pipelines.feedback.critique import Revise
from pipelines.feedback.judge import JudgeField
from pipelines.feedback.pairing import Way
from pipelines.recipe import Recipe, Stage
from pipelines.registry import JUDGES, nearest

if TYPE_CHECKING:
    from pipelines.protocols import Context


def _revise(value: Any) -> Any:
    """`revise: true` is one round."""
    return {} if value is True else None if value is False else value


class Feedback(Stage):
    """Sample completions, have a judge compare them, and write the preferences down."""

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
    """`best_worst`: all are compared, and the best stands against the worst; `all`: every decided pair is kept; `random`: they are
    drawn into pairs, which costs the least."""
    by: Literal["comparisons", "ratings"] = "comparisons"
    """Whether the judge sees two completions at once, or rates each by itself."""
    min_margin: float = Field(0.0, ge=0, lt=1)
    """Leave out pairs where the judge is less sure than this: the difference of the two probabilities, 2P - 1."""
    constitution: Constitution | None = None
    """Principles, of which one is drawn for every comparison: a list, a YAML file, or `default`. Default: the judge's own question."""
    revise: Annotated[Revise | None, BeforeValidator(_revise, json_schema_input_type=Revise | bool)] = None
    """Have the judge's model critique and rewrite one completion of each prompt by the constitution: `revisions.jsonl`."""
    human: PreferenceReference | None = None
    """Preferences of people (or of another feedback stage, `{from: ID}`) that the judge is held against."""
    max_human_samples: int = Field(200, ge=1)
    """The first N of them."""
    repeats: int = Field(32, ge=0)
    """Comparisons that are asked a second time, to see whether the judge says the same: of judges with chance in them only."""
    batch_size: int = Field(64, ge=1)
    """Completions that are sampled at a time."""

    joins: ClassVar[bool] = False
    samples: ClassVar[bool] = True

    def check(self, recipe: Recipe, position: int) -> Iterable[Found]:
        for place, message in self.judge.check(recipe, self.id):
            yield ("judge", *place), message
        usable = () if self.constitution is None else self.constitution
        if self.by == "ratings" and self.pairs == "random":
            yield ("pairs",), "is random, which saves comparisons, but with by: ratings there are none; choose best_worst or all"
        if usable and self.revise is None and not self.judge.reads_principles:
            yield ("constitution",), f"is for judges that read principles, and '{self.judge.name}' does not; leave it out, or use local or endpoint"
        if usable and self.revise is None and self.by == "comparisons" and not any(each.comparison for each in usable):
            yield ("constitution",), "has no principle with a 'comparison', by which completions could be compared; give one"
        if usable and self.revise is None and self.by == "ratings":
            yield ("constitution",), "has principles to compare by, but with by: ratings nothing is compared; leave it out"
        if self.revise is not None:
            if not self.judge.writes:
                writers = ", ".join(name for name in JUDGES if JUDGES.load(name).writes)
                yield ("revise",), f"needs a judge that writes ({writers}), and '{self.judge.name}' does not"
            if not any(each.critique for each in usable):
                yield ("revise",), "needs a constitution that has principles with a 'critique' and a 'revision', such as constitution: default"
        if self.human is None and "max_human_samples" in self.model_fields_set:
            yield ("max_human_samples",), "counts the rows of 'human', and none is named; leave it out"
        if self.human is not None and self.human.source is not None:
            earlier = [stage.id for stage in recipe.stages[:position] if stage.stage == self.stage]
            if self.human.source not in earlier:
                known = f"Allowed: {', '.join(earlier)}" if earlier else "There is none before this one; name a 'path'"
                yield ("human", "from"), f"'{self.human.source}' is no earlier feedback stage.{nearest(self.human.source, earlier)} {known}"

    def reads(self, recipe: Recipe) -> tuple[str, ...]:
        """The policy, the models that the judge reads, and the stage whose preferences it is held against."""
        held = () if self.human is None or self.human.source is None else (self.human.source,)
        return tuple(dict.fromkeys((recipe.model_of(self), *self.judge.stages, *held)))

    def content(self, recipe: Recipe) -> dict[str, str]:
        hashes = {"prompts": self.prompts.content()} | {f"judge.{role}": value for role, value in self.judge.content().items()}
        if self.human is not None and (held := self.human.content()) is not None:
            hashes["human"] = held
        return hashes

    def special_tokens(self) -> tuple[str, ...]:
        return chat_templates.marks_of(self.prompts.chat_template)

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"judge": self.judge.identity()}

    def run(self, context: Context) -> None:
        from pipelines.feedback.collecting import Collecting

        Collecting(self, context).do()
