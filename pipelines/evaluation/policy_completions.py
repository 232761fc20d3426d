"""Completions of a policy and of another model, sampled alike, scored by a reward, and compared.

One model lies in memory at a time. A completion depends on the model, its prompt and the stage's seed alone: row 17
draws the same chances under both models, so that what differs between them is the models.

Estimates of the KL divergence come from samples of the first model, with d = log p - log q of what was sampled: k1 = d
has no bias, k3 = exp(-d) - 1 + d has none either, is never below zero and varies less (Schulman 2020, "Approximating
KL Divergence", joschu.net/blog/kl-approx.html). Both are summed over the tokens of a completion, by the chain rule:
nats a completion.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipelines.core.interfaces import Context, Rows, World
from pipelines.core.recipe import START
from pipelines.data.ragged import SHARED
from pipelines.evaluation import policy
from pipelines.metrics.statistics import intervals
from pipelines.models.log_probabilities import completion_log_probabilities
from pipelines.models.predict import answers, device, progress_events
from pipelines.models.sampling import complete
from pipelines.tasks.predictions import TextPredictions

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from transformers import PreTrainedTokenizerBase

    from pipelines.data.prompts import PromptRows
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.evaluation.report import Report


Floats = NDArray[np.float64]
T = TypeVar("T")


def wins(own: Floats, other: Floats) -> Floats:
    """1 where `own` is the better score, 0 where `other` is, a half for ties (prompts,)."""
    return np.where(own == other, 0.5, (own > other).astype(np.float64))


def kl_estimates(own: Sequence[Floats], other: Sequence[Floats]) -> tuple[Floats, Floats]:
    """(k1, k3) of each completion (prompts,) in nats. `own` and `other` are the log-probabilities of its tokens
    under both models."""
    differences = [
        np.asarray(one, dtype=np.float64) - np.asarray(two, dtype=np.float64)
        for one, two in zip(own, other, strict=True)
    ]
    k1 = np.array([each.sum() for each in differences])
    with np.errstate(over="ignore"):  # of models that lie too far apart it is infinite
        k3 = np.array([(np.expm1(-each) + each).sum() for each in differences])
    return k1, k3


def distinct(texts: Sequence[str], size: int = 2) -> float:
    """The share of runs of `size` words that are different ones, over all texts together: near 0 where they repeat
    each other.

    Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models", section 5.2,
    arxiv.org/abs/1510.03055, with the number of runs in place of the number of words below the line.
    """
    runs = [
        tuple(words[at : at + size])
        for words in (text.casefold().split() for text in texts)
        for at in range(len(words) - size + 1)
    ]
    return len(set(runs)) / len(runs) if runs else 0.0


def means(columns: dict[str, Floats]) -> dict[str, float]:
    """The mean of each column (prompts,)."""
    return {name: float(values.mean()) for name, values in columns.items()}


def paired_intervals(columns: dict[str, Floats], seed: int) -> dict[str, tuple[float, float]]:
    """95 % bootstrap intervals of the means: every resample takes the same prompts in every column, so that wins
    stay wins."""
    names = list(columns)
    table = np.stack([columns[name] for name in names], axis=1)  # (prompts, columns)
    return intervals(lambda rows, _: dict(zip(names, rows.mean(axis=0).tolist(), strict=True)), table, table, seed)


@dataclass(frozen=True)
class Sampled:
    """One completion of each prompt by one model."""

    tokens: list[list[int]]
    """Of each completion, the one that ends it included."""
    texts: list[str]
    ended: NDArray[np.bool_]
    """Which came to their end (prompts,)."""
    scores: Floats
    """What the reward gives (prompts,)."""

    def measured(self) -> dict[str, Floats]:
        """What is known of each completion (prompts,), by the name of its mean."""
        lengths = np.array([len(each) for each in self.tokens], dtype=np.float64)
        return {"reward": self.scores, "length": lengths, "ended": self.ended.astype(np.float64)}


def measured(own: Sampled, other: Sampled | None, kl: tuple[Floats, Floats] | None) -> dict[str, Floats]:
    """The same of both models' completions, with who wins and the estimates k1 and k3 of the divergence in nats."""
    columns = own.measured()
    if other is not None:
        columns |= {f"{name}_against": column for name, column in other.measured().items()}
        columns["win_rate"] = wins(own.scores, other.scores)
    return columns if kl is None else columns | {"kl": kl[0], "kl_k3": kl[1]}


@dataclass(frozen=True)
class PolicyPredictions(TextPredictions):
    """Completions of one set of prompts. Beside the columns of written answers stand `hypothesis_against` and what
    is measured of each."""

    against: list[str] | None = None
    """The other model's completions."""
    of_each: dict[str, Floats] = field(default_factory=dict)
    """What is measured of each prompt (prompts,), by the name of its mean in `metrics.json`."""

    def table(self) -> pa.Table:
        import pyarrow as pa

        table = super().table()
        if self.against is not None:
            table = table.append_column("hypothesis_against", pa.array(self.against, pa.string()))
        for name, column in self.of_each.items():
            table = table.append_column(name, pa.array(column))
        return table


def of_each_prompt(path: Path, names: Sequence[str]) -> dict[str, Floats]:
    """What `predictions.parquet` says of each prompt (prompts,), by the name of its mean: those of `names` that
    are there."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return {name: table[name].to_numpy().astype(np.float64) for name in names if name in table.column_names}


SHOWN = 8
"""Completions that stand in `details.json`, spread evenly over the prompts."""


def ask(stage: Evaluate, context: Context, report: Report) -> None:
    """Sample on every process; the main one scores and keeps what was found."""
    started = time.monotonic()
    assert stage.prompts is not None
    chosen = policy.model_of(context.recipe, stage)
    tokenizer = context.open_tokenizer(None if chosen == START else chosen)
    writer = PolicyModel(stage, context, chosen, tokenizer)
    prompts = stage.prompts.read_once(context, tokenizer, writer.encoder_decoder)
    if prompts.left_out and context.world.is_main:
        context.events.emit(
            "warning",
            message=f"{len(prompts.left_out)} of {len(prompts) + len(prompts.left_out)} prompts are too long and left "
            "out; prompts.max_length sets the limit",
        )
    written = writer.sample(prompts)
    compared = stage.against is not None and stage.temperature > 0
    own_likely = writer.likelihoods(prompts, written) if compared else []
    del writer  # its memory is the other's
    beside = None
    other_likely: list[Any] = []
    if stage.against is not None:
        rival = PolicyModel(stage, context, stage.against, tokenizer)
        beside = rival.sample(prompts)
        other_likely = rival.likelihoods(prompts, written) if compared else []
        del rival
    if not context.world.is_main:
        return
    scorer = stage.reward.open(replace(context, world=World()))  # the main process scores
    own, other = _scored(scorer, prompts, written), None if beside is None else _scored(scorer, prompts, beside)
    _keep(
        report,
        stage,
        context,
        prompts,
        own,
        other,
        kl_estimates(own_likely, other_likely) if compared else None,
        started,
    )
    shutil.rmtree(context.folder / SHARED, ignore_errors=True)


class PolicyModel:
    """A model that goes on from prompts, shared between the processes of the stage."""

    def __init__(self, stage: Evaluate, context: Context, model_id: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self.stage, self.context, self.model_id, self.tokenizer = stage, context, model_id, tokenizer
        self.model = context.open_model(None, stage_id=model_id, trained_head=True)

    @property
    def encoder_decoder(self) -> bool:
        """Whether it reads a prompt apart from what it writes."""
        return bool(self.model.config.is_encoder_decoder)

    def sample(self, prompts: PromptRows) -> list[tuple[list[int], bool, str]]:
        """(tokens, whether it came to its end, text) of one completion of each prompt, on every process."""

        def answer(places: list[int], _: torch.device) -> list[tuple[list[int], bool, str]]:
            rows = complete(
                self.model,
                self.tokenizer,
                [prompts.ids[place] for place in places],
                seed=self.context.seed,
                max_new_tokens=self.stage.response_length,
                temperature=self.stage.temperature,
                batch_size=len(places),
                draws=places,
            )
            return [(rows.tokens(row), bool(rows.ended[row]), rows.texts[row]) for row in range(len(rows))]

        return self._shared([len(ids) for ids in prompts.ids], answer, f"completions by {self.model_id}")

    def likelihoods(self, prompts: PromptRows, written: list[tuple[list[int], bool, str]]) -> list[Floats]:
        """log p of each token of completions that may be another model's, on every process; an array (tokens,) each."""

        def answer(places: list[int], _: torch.device) -> list[Floats]:
            ids, completions = [prompts.ids[place] for place in places], [written[place][0] for place in places]
            return [
                np.asarray(each)
                for each in completion_log_probabilities(
                    self.model, self.tokenizer, ids, completions, self.stage.temperature
                )
            ]

        lengths = [len(ids) + len(tokens) for ids, (tokens, _, _) in zip(prompts.ids, written, strict=True)]
        return self._shared(lengths, answer, f"likelihoods by {self.model_id}")

    def _shared(self, lengths: list[int], answer: Callable[[list[int], torch.device], list[T]], what: str) -> list[T]:
        return answers(
            self.model,
            lengths,
            answer,
            world=self.context.world,
            gather=self.context.gather,
            device=device(),
            batch_size=self.stage.per_device_eval_batch_size,
            progress=progress_events(self.context, what),
        )


def _scored(
    scorer: Callable[[Sequence[str], Sequence[str]], Sequence[float]],
    prompts: PromptRows,
    written: list[tuple[list[int], bool, str]],
) -> Sampled:
    tokens, ended, texts = (list(column) for column in zip(*written, strict=True))
    return Sampled(
        tokens, texts, np.asarray(ended, dtype=np.bool_), np.asarray(scorer(prompts.texts, texts), dtype=np.float64)
    )


def _keep(
    report: Report,
    stage: Evaluate,
    context: Context,
    prompts: PromptRows,
    own: Sampled,
    other: Sampled | None,
    kl: tuple[Floats, Floats] | None,
    started: float,
) -> None:
    """Put the scores, what stands behind them and the completions into the report."""
    assert stage.prompts is not None
    columns = measured(own, other, kl)
    scores = (
        means(columns)
        | {"distinct_2": distinct(own.texts)}
        | ({} if other is None else {"distinct_2_against": distinct(other.texts)})
    )
    report.metrics[policy.NAME] = {name: scores[name] for name in policy.names(stage)}
    rows = Rows(prompts.texts, None, None, prompts.index)
    split = stage.prompts.split
    predicted = PolicyPredictions(
        policy.NAME,
        split,
        "",
        rows,
        np.asarray(own.texts, dtype=object),
        None if other is None else other.texts,
        columns,
    )
    report.predicted.append(predicted)
    report.details[policy.NAME] = {
        "model": policy.model_of(context.recipe, stage),
        "examples": {split: len(prompts)},
        "splits": {"": split},
        "precision": "no",
        "intervals": paired_intervals(columns, context.seed),
        "baselines": {},
        "policy": {
            "against": stage.against,
            "reward": {"name": stage.reward.name, **stage.reward.plain()},
            "seed": context.seed,
            "response_length": stage.response_length,
            "temperature": stage.temperature,
            "prompts_cut": prompts.truncated,
            "prompts_left_out": len(prompts.left_out),
            "samples": _samples(prompts, own, other),
        },
        "seconds": round(time.monotonic() - started, 3),
    }
    if len(own.texts) > 1 and len(set(own.texts)) == 1:
        context.events.emit(
            "warning",
            message=f"policy: '{own.texts[0][:60]}' stands behind every one of the {len(prompts)} prompts: the model "
            "writes one text whatever it reads",
        )


def _samples(prompts: PromptRows, own: Sampled, other: Sampled | None) -> list[dict[str, Any]]:
    """Some completions side by side."""
    count = min(SHOWN, len(prompts))
    samples = []
    for place in (at * len(prompts) // count for at in range(count)):
        sample = {
            "index": prompts.index[place],
            "prompt": str(prompts.texts[place]),
            "completion": own.texts[place],
            "score": float(own.scores[place]),
        }
        samples.append(
            sample
            if other is None
            else sample | {"against": other.texts[place], "score_against": float(other.scores[place])}
        )
    return samples
