"""A policy's completions: settings, scores, and the comparison with another model."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import RecipeError
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.evaluation import policy
from pipelines.evaluation.policy_completions import distinct, kl_estimates, means, paired_intervals, wins
from pipelines.models.sampling import complete
from pipelines.rewards.rules import keyword_share
from pipelines.runs import fingerprints
from tests import tiny
from tests.covering import examples

ASKED = "prompts: {path: rows.jsonl, text: text, max_length: 5}, reward: {name: keyword, words: [good, film]}, response_length: 6"
STAGES = """\
  - {stage: pretrain, id: first, objective: causal_lm, datasets: [{path: rows.jsonl}]}
  - {stage: pretrain, id: second, objective: causal_lm, datasets: [{path: rows.jsonl}]}
  - {stage: supervised, id: classes, task: glue/rte}
"""


def recipe(folder: Path, stage: str, stages: str = STAGES, model: str = "architecture: {preset: gpt-tiny}") -> Any:
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in tiny.TEXTS[:9]))
    return loads(
        f"name: t\nmodel: {{{model}}}\ntokenizer: {{train: wordpiece}}\nstages:\n{stages}  - {{stage: evaluate, {stage}}}\n",
        folder=folder,
    )


def test_the_model_is_the_nearest_that_writes(tmp_path: Path) -> None:
    made = recipe(tmp_path, f"{ASKED}, against: first")
    stage = made.stage("evaluate")
    assert policy.model_of(made, stage) == "second"
    assert stage.reads(made) == ("second", "first")
    assert set(stage.content(made)) == {"prompts"}
    code = fingerprints.used_by(fingerprints.modules_of(stage) | stage.modules(made))
    assert {"pipelines.models.sampling", "pipelines.models.log_probabilities"} <= set(code)
    assert stage.policy_scores(made) == {"policy": list(policy.BESIDE)}
    assert recipe(tmp_path, f"{ASKED}, from: first").stage("evaluate").policy_scores(made) == {
        "policy": list(policy.ALONE)
    }
    assert (
        "kl"
        not in recipe(tmp_path, f"{ASKED}, against: first, temperature: 0")
        .stage("evaluate")
        .policy_scores(made)["policy"]
    )
    own = recipe(tmp_path, ASKED, stages="", model="checkpoint: a/b")
    assert policy.model_of(own, own.stage("evaluate")) == "model"


def test_a_reward_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": " b", "rejected": " c"}')
    stages = STAGES + "  - {stage: reward, id: scores, from: second, task: {kind: preference, train: pairs.jsonl}}\n"
    made = recipe(
        tmp_path, f"{ASKED.replace('{name: keyword, words: [good, film]}', '{from: scores}')}, against: first", stages
    )
    stage = made.stage("evaluate")
    assert stage.reads(made) == (
        "second",
        "first",
        "scores",
    )  # not the reward model itself, though it is the nearest that trains


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("reward: {name: length}", "stages.evaluate.prompts: is missing: 'reward' is about the completions of prompts"),
        ("prompts: {path: rows.jsonl}", "stages.evaluate.reward: is missing: say what a completion is worth"),
        (
            f"{ASKED}, against: frist",
            "'frist' is no earlier stage. Did you mean 'first'? Allowed: model, first, second",
        ),
        (f"{ASKED}, against: second", "is 'second', the very model that is evaluated"),
        (f"{ASKED}, against: model", "'model' is built from scratch and has learnt nothing yet. Allowed: first"),
        (
            f"{ASKED}, against: classes",
            "'classes' learnt a task of the kind classification, whose answers are no texts",
        ),
        (f"{ASKED}, from: classes", "stages.evaluate.from: 'classes' learnt a task of the kind classification"),
        (f"{ASKED}, benchmarks: [glue/rte]", "stages.evaluate.benchmarks: is not for the completions of prompts"),
        (
            f"{ASKED}, max_eval_samples: 3, baselines: [majority]",
            "stages.evaluate.baselines: is not for the completions of prompts",
        ),
        (f"{ASKED}, temperature: -1", "must be at least 0"),
        ("prompts: {path: rows.jsonl, txt: a}, reward: length", "unknown key 'txt'. Did you mean 'text'?"),
    ],
)
def test_what_is_wrong_is_said_in_the_recipe(tmp_path: Path, stage: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        recipe(tmp_path, stage)
    assert message in str(error.value)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {
        family: {
            name: tiny.build("finery", Head(kind), seed, family=family, initializer_range=0.3).eval()
            for seed, name in enumerate(("first", "second"))
        }
        for family, kind in (("decoder", "causal_lm"), ("encoder-decoder", "seq2seq_lm"))
    }


def asked(
    made: Any, context: Callable[..., Any], models: dict[str, Any]
) -> tuple[Any, dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    opened: list[Any] = []

    def open_model(head: Any, stage_id: str, trained_head: bool = False) -> Any:
        opened.append((head, stage_id, trained_head))
        return models[stage_id]

    given = context(
        made,
        "evaluate",
        models,
        open_model=open_model,
        open_tokenizer=lambda stage_id=None: copy.deepcopy(tiny.tokenizer()),
    )
    made.stage("evaluate").run(given)
    metrics, details = (
        json.loads((given.folder / f"{name}.json").read_text())["policy"] for name in ("metrics", "details")
    )
    return opened, metrics, details, pq.read_table(given.folder / "predictions.parquet").to_pylist()


def whole_likelihood(model: Any, prompt: list[int], completion: list[int], start: int | None) -> float:
    """log p of a completion, one token at a time."""
    total = 0.0
    with torch.no_grad():
        for at, token in enumerate(completion):
            if start is None:
                logits = model(torch.tensor([[*prompt, *completion[:at]]])).logits[0, -1]
            else:
                logits = model(
                    input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[start, *completion[:at]]])
                ).logits[0, -1]
            total += float(torch.log_softmax(logits.double(), -1)[token])
    return total


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_what_is_measured_is_what_the_completions_say(
    tmp_path: Path, context: Callable[..., Any], models: dict[str, Any], family: str
) -> None:
    made = recipe(tmp_path, f"{ASKED}, against: first, per_device_eval_batch_size: 4")
    own = models[family]
    opened, metrics, details, rows = asked(made, context, own)
    assert opened == [(None, "second", True), (None, "first", True)]
    assert list(metrics) == list(policy.BESIDE)
    assert [row["index"] for row in rows] == list(range(9))
    words = frozenset({"good", "film"})
    assert [row["reward"] for row in rows] == [keyword_share(row["hypothesis"], words) for row in rows]
    assert metrics["reward"] == pytest.approx(np.mean([row["reward"] for row in rows]))
    assert metrics["reward_against"] == pytest.approx(
        np.mean([keyword_share(row["hypothesis_against"], words) for row in rows])
    )
    assert metrics["win_rate"] == pytest.approx(
        np.mean([(r["reward"] > r["reward_against"]) + 0.5 * (r["reward"] == r["reward_against"]) for r in rows])
    )
    assert metrics["distinct_2"] == pytest.approx(distinct([row["hypothesis"] for row in rows]))
    prompts = made.stage("evaluate").prompts.read(tiny.tokenizer(), family != "decoder")
    written = {
        name: complete(own[name], tiny.tokenizer(), prompts.ids, seed=42, max_new_tokens=6, batch_size=3)
        for name in own
    }
    assert [row["hypothesis"] for row in rows] == written[
        "second"
    ].texts  # the same chances for both models, whatever the batches
    assert [row["hypothesis_against"] for row in rows] == written["first"].texts
    start = None if family == "decoder" else own["first"].config.decoder_start_token_id
    likely = {
        name: [
            whole_likelihood(own[name], ids, written["second"].tokens(at), start) for at, ids in enumerate(prompts.ids)
        ]
        for name in own
    }
    assert [row["kl"] for row in rows] == pytest.approx(
        np.subtract(likely["second"], likely["first"]).tolist(), abs=1e-4
    )
    assert metrics["kl"] == pytest.approx(np.mean([row["kl"] for row in rows]))
    assert metrics["length"] == pytest.approx(float(written["second"].lengths.float().mean()))
    assert metrics["ended"] == pytest.approx(float(written["second"].ended.float().mean()))
    low, high = details["intervals"]["kl"]
    assert low <= metrics["kl"] <= high
    assert details["model"] == "second"
    assert details["policy"]["against"] == "first"
    assert {"prompt", "completion", "score", "against", "score_against", "index"} == set(
        details["policy"]["samples"][0]
    )


def test_a_model_by_itself(tmp_path: Path, context: Callable[..., Any], models: dict[str, Any]) -> None:
    _, metrics, details, rows = asked(recipe(tmp_path, f"{ASKED}, from: second"), context, models["decoder"])
    assert list(metrics) == list(policy.ALONE)
    assert "hypothesis_against" not in rows[0]
    assert details["policy"]["against"] is None


def test_the_likeliest_tokens_have_no_divergence(
    tmp_path: Path, context: Callable[..., Any], models: dict[str, Any]
) -> None:
    _, metrics, _, rows = asked(
        recipe(tmp_path, f"{ASKED}, against: first, temperature: 0"), context, models["decoder"]
    )
    assert not {"kl", "kl_k3"} & set(metrics)
    assert "kl" not in rows[0]


def test_one_text_behind_every_prompt_is_told(
    tmp_path: Path, context: Callable[..., Any], models: dict[str, Any]
) -> None:
    stuck = copy.deepcopy(models["decoder"]["second"])
    with torch.no_grad():
        for weights in stuck.parameters():
            weights.zero_()
    asked(recipe(tmp_path, f"{ASKED}, from: second, temperature: 0"), context, {"second": stuck})
    assert "writes one text whatever it reads" in (tmp_path / "events.jsonl").read_text()


NATS = st.lists(st.floats(-20, 0), min_size=1, max_size=12)


def test_wins_by_hand() -> None:
    assert wins(np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0])).tolist() == [1.0, 0.5, 0.0]


@settings(deadline=None)
@given(st.lists(st.tuples(NATS, st.randoms()), min_size=1, max_size=5))
def test_divergences_against_loops(drawn: list[tuple[list[float], object]]) -> None:
    own = [np.array(each) for each, _ in drawn]
    other = [np.array([random.uniform(-20, 0) for _ in each]) for each, random in drawn]  # type: ignore[attr-defined]
    k1, k3 = kl_estimates(own, other)
    for at, (one, two) in enumerate(zip(own, other, strict=True)):
        assert k1[at] == pytest.approx(sum(float(p) - float(q) for p, q in zip(one, two, strict=True)), abs=1e-9)
        assert k3[at] == pytest.approx(
            sum(math.exp(q - p) - 1 - (q - p) for p, q in zip(one, two, strict=True)), rel=1e-9, abs=1e-9
        )
        assert k3[at] >= 0


def test_both_estimates_come_to_the_divergence_itself() -> None:
    """Two distributions over three tokens, written down: the mean over many samples of the first is sum p log(p / q) a token."""
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
    exact = 4 * float((p * np.log(p / q)).sum())
    drawn = np.random.default_rng(0).choice(3, p=p, size=(20_000, 4))
    k1, k3 = kl_estimates(list(np.log(p)[drawn]), list(np.log(q)[drawn]))
    assert k1.mean() == pytest.approx(exact, rel=0.02)
    assert k3.mean() == pytest.approx(exact, rel=0.02)
    assert k3.std() < k1.std()


def test_distinct_runs_by_hand() -> None:
    assert distinct(["a b a b", "A b"]) == 2 / 4  # a b, b a, a b; a b
    assert distinct(["a b c d"]) == 1.0
    assert distinct(["a", ""]) == 0.0
    assert distinct(["a a b"], size=1) == 2 / 3


@examples(8, 20)
@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=30))
def test_intervals_hold_their_means_and_are_paired(rows: list[tuple[float, float]]) -> None:
    own, other = (np.array(column) for column in zip(*rows, strict=True))
    columns = {"reward": own, "reward_against": other, "win_rate": wins(own, other)}
    found, averages = paired_intervals(columns, seed=3), means(columns)
    assert found == paired_intervals(columns, seed=3)
    assert 0 <= found["win_rate"][0] <= found["win_rate"][1] <= 1
    assert set(found) == set(averages)
    alike = paired_intervals({"one": own, "two": own + 1}, seed=3)  # the same prompts are drawn for both columns
    assert np.subtract(alike["two"], alike["one"]) == pytest.approx([1.0, 1.0])
