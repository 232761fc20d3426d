"""The keys of an evaluate stage about a model that writes, and what is wrong with them.

`{stage: evaluate, prompts: {path: …}, reward: {from: reward}, against: sft}` samples one completion of each prompt
from the model and from that of `against`, and scores both by the reward: `policy_completions` does the work. Imports
without numpy: checks of recipes need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from pipelines.core.config import Block, ConfigIssue
from pipelines.core.recipe import START, Recipe, RewardField, Stage
from pipelines.core.registry import TASK_KINDS, nearest
from pipelines.core.reward_field import reward_content, reward_mistakes, reward_reads
from pipelines.data.prompts import Prompts
from pipelines.models.heads import writing_kinds
from pipelines.tasks.evaluation import BenchmarkChoice

if TYPE_CHECKING:
    from pipelines.evaluation.evaluate import Evaluate

NAME = "policy"
"""The key in `metrics.json`."""
ALONE = ("reward", "length", "distinct_2", "ended")
"""What is measured of the model by itself; the first is the one to compare by."""
BESIDE = (
    "reward",
    "reward_against",
    "win_rate",
    "kl",
    "kl_k3",
    "length",
    "length_against",
    "distinct_2",
    "distinct_2_against",
    "ended",
    "ended_against",
)
"""What is measured with `against`."""
OF_A_POLICY = ("reward", "against", "response_length", "temperature")
OTHERS = (
    "benchmarks",
    "datasets",
    "stride",
    "baselines",
    "slices",
    "generation",
    "spans",
    "chat_template",
    "few_shot",
    "max_length",
    "max_eval_samples",
    "max_predict_samples",
    "mixed_precision",
)
"""Keys of other questions."""


class PolicyKeys(Block):
    """The keys of an evaluate stage that are about a model's own completions."""

    prompts: Prompts | None = None
    """Has the model go on from prompts, for `reward` to score: `{path: reviews.jsonl, text: text, max_length:
    16}`. See docs/how-to/rewards.md."""
    reward: RewardField = Field(None, validate_default=False)
    """What the completions are worth: `{from: STAGE}`, `{checkpoint: …}`, or `{name: keyword, words: [good]}`."""
    against: str | None = None
    """Id of an earlier stage, or `model`: its completions of the same prompts are scored too, for a win rate and
    the KL divergence."""
    response_length: int = Field(64, ge=1, le=131072)
    """Tokens of a completion at most."""
    temperature: float = Field(1.0, ge=0)
    """What logits are divided by before a token is drawn; 0 takes the likeliest token, and no KL divergence is
    measured."""

    of_a_policy: ClassVar[tuple[str, ...]] = OF_A_POLICY


def model_of(recipe: Recipe, stage: Stage) -> str:
    """Id of the stage whose model writes: `from`, else the nearest before that leaves a model which writes, else
    `model`."""
    if stage.source is not None:
        return stage.source
    earlier = recipe.stages[: recipe.stages.index(stage)]
    return next((each.id for each in reversed(earlier) if writes(recipe, each.id) is None), START)


def writes(recipe: Recipe, model: str) -> str | None:
    """Why the model of a stage, or the recipe's own, writes no texts, as a sentence without its subject; None if
    it may."""
    if model == START:
        if recipe.model.architecture is None:
            return None if writing_kinds(recipe.model) else "does not write texts token by token"
        return "is built from scratch and has learnt nothing yet"
    stage: Any = recipe.stage(model)
    if not stage.trains:
        return f"is a '{stage.stage}' stage, which trains no model"
    if stage.scores:
        return f"is a '{stage.stage}' stage, whose model scores texts and writes none"
    objective = getattr(stage, "objective", None)
    if stage.stage == "pretrain" and objective is not None and objective.head.kind not in ("causal_lm", "seq2seq_lm"):
        return f"was pretrained with {objective.name}, after which a model writes no texts"
    subject: Any = stage.subjects().get(model)
    if stage.stage in ("supervised", "multi_task") and subject is not None:
        kind = BenchmarkChoice(model, subject.task, model, model, subject).kind
        if not TASK_KINDS.load(kind).writes():
            return f"learnt a task of the kind {kind}, whose answers are no texts"
    return None


def mistakes(stage: Evaluate, recipe: Recipe) -> Iterator[ConfigIssue]:
    """What is wrong with asking, places relative to the stage."""
    if stage.prompts is None:
        yield (
            ("prompts",),
            f"is missing: '{_given(stage)[0]}' is about the completions of prompts; name them: prompts: {{path: …}}",
        )
        return
    for key in OTHERS:
        if key in stage.model_fields_set:
            yield (key,), "is not for the completions of prompts; leave it out, or use another evaluate stage"
    if stage.reward is None:
        yield (
            ("reward",),
            "is missing: say what a completion is worth, such as reward: {from: STAGE} or reward: {name: "
            "keyword, words: […]}",
        )
    else:
        yield from reward_mistakes(stage.reward, recipe, stage)
    model = model_of(recipe, stage)
    before = [each.id for each in recipe.stages[: recipe.stages.index(stage)]]
    exists = model == START or model.partition("/")[0] in before  # `recipe` reports ids that do not
    if exists and (why := writes(recipe, model)) is not None:
        yield ("from",), f"'{model}' {why}; name a stage that leaves a model which does"
    if stage.against is not None:
        yield from _unfit_against(stage, recipe, model, before)


def _unfit_against(stage: Evaluate, recipe: Recipe, model: str, before: list[str]) -> Iterator[ConfigIssue]:
    assert stage.against is not None
    models = [START, *(each for each in before if writes(recipe, each) is None)]
    if stage.against == model:
        yield ("against",), f"is '{model}', the very model that is evaluated; name the one it was made from"
    elif stage.against != START and stage.against.partition("/")[0] not in before:
        yield (
            ("against",),
            f"'{stage.against}' is no earlier stage.{nearest(stage.against, models)} Allowed: {', '.join(models)}",
        )
    elif (why := writes(recipe, stage.against)) is not None:
        yield (
            ("against",),
            f"'{stage.against}' {why}. Allowed: "
            f"{', '.join(each for each in models if each not in (model, stage.against))}",
        )


def asked(stage: Evaluate) -> bool:
    """Whether the stage is about completions."""
    return stage.prompts is not None or bool(_given(stage))


def _given(stage: Evaluate) -> list[str]:
    return [key for key in OF_A_POLICY if key in stage.model_fields_set]


def reads(stage: Evaluate, recipe: Recipe) -> tuple[str, ...]:
    """The stages whose models write, then those that the reward reads."""
    against = [] if stage.against is None else [stage.against]
    return tuple(dict.fromkeys([model_of(recipe, stage), *against, *reward_reads(stage.reward)]))


def content(stage: Evaluate) -> dict[str, str]:
    """Hashes of the prompts and of what the reward reads."""
    assert stage.prompts is not None
    return {"prompts": stage.prompts.content(), **reward_content(stage.reward)}


def names(stage: Evaluate) -> tuple[str, ...]:
    """What is measured, in the order of `metrics.json`."""
    metrics = ALONE if stage.against is None else BESIDE
    return tuple(name for name in metrics if stage.temperature > 0 or not name.startswith("kl"))
