"""The stage from end to end on a tiny decoder: what it leaves, what it says of its judge, and that a stop changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import DataError, RecipeError, Stopped
from pipelines.core.events import read_events
from pipelines.core.load import loads
from pipelines.feedback import feedback
from pipelines.feedback.judges.judge import Verdict
from pipelines.feedback.progress import FeedbackProgress
from pipelines.runs import run as running
from pipelines.runs.workspace import StageStore

RECIPE = """\
name: {name}
model:
  architecture: {{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {{train: byte_bpe, vocab_size: 400}}
stages:
  - stage: pretrain
    objective: causal_lm
    datasets: [{{path: builtin/python-docs}}]
    block_size: 16
    max_train_samples: 30
    arguments: {{max_steps: 1, global_batch_size: 4, learning_rate: 1e-3}}
  - stage: feedback
    prompts: {{path: builtin/python-docs, max_length: 6, max_samples: 20}}
    judge: {judge}
    completions: 3
    response_length: 6
    {more}
"""
RULE = "{name: rule, prefer: {name: length, unit: characters}, noise: 0.2, position_bias: 0.2}"
FILES = ("preferences.jsonl", "labelled.jsonl", "metrics.json", "details.json", "audit.html")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StageStore:
    """One home for the file: the model is trained once."""
    return StageStore(tmp_path_factory.mktemp("home"))


def recipe(name: str, judge: str = RULE, more: str = "") -> Any:
    return loads(RECIPE.format(name=name, judge=judge, more=more))


def done(folder: Path, store: StageStore, name: str, judge: str = RULE, more: str = "") -> Path:
    running.run(recipe(name, judge, more), folder / name, store)
    return folder / name / "stages" / "02-feedback"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "PART", 6)


def test_it_leaves_preferences_scores_measures_and_a_page(tmp_path: Path, store: StageStore) -> None:
    place = done(tmp_path, store, "whole", more="pairs: all")
    preferences, labelled, metrics = (
        lines(place / "preferences.jsonl"),
        lines(place / "labelled.jsonl"),
        json.loads((place / "metrics.json").read_text()),
    )
    assert len(labelled) == 60
    assert metrics["prompts"] == 20
    assert metrics["preferences"] == len(preferences) > 20
    assert metrics["comparisons"] >= len(preferences)
    assert metrics["questions"] == metrics["comparisons"]
    texts = {(row["prompt"], row["completion"]) for row in labelled}
    for row in preferences:
        assert {(row["prompt"], row["chosen"]), (row["prompt"], row["rejected"])} <= texts
        assert row["chosen"] != row["rejected"]
        assert 0 < row["margin"] <= 1
        assert row["margin"] == pytest.approx(2 * row["probability"] - 1)
        assert (row["judge"], row["source"], row["principle"]) == ("rule", "pretrain", None)
    assert {"order_consistency", "position_bias", "longer_wins", "length_correlation", "transitivity"} <= metrics.keys()
    assert "self_consistency" not in metrics  # it says the same whenever it is asked
    assert metrics["position_bias"] > 0.5
    assert not (place / "checkpoints").exists()
    page = (place / "audit.html").read_text()
    assert "Can it be trusted?" in page
    assert "<script" not in page
    events = list(read_events(tmp_path / "whole" / "events.jsonl"))
    assert [event["what"] for event in events if event["event"] == "progress" and event["stage"] == "feedback"] == [
        "sampling",
        "judging",
    ]
    assert "audit.html" in (tmp_path / "whole" / "report.html").read_text()


def test_best_against_worst_is_one_pair_a_prompt(tmp_path: Path, store: StageStore) -> None:
    rows = lines(done(tmp_path, store, "best", RULE.replace("0.2", "0.0")) / "preferences.jsonl")
    assert len({row["row"] for row in rows}) == len(rows)
    assert all(len(row["chosen"].strip()) > len(row["rejected"].strip()) for row in rows)
    assert all(row["score_chosen"] > row["score_rejected"] for row in rows)


def test_ratings_compare_nothing(tmp_path: Path, store: StageStore) -> None:
    place = done(
        tmp_path,
        store,
        "rated",
        "{name: reward, reward: {name: length, unit: characters}}",
        "by: ratings\n    min_margin: 0.9",
    )
    rows = lines(place / "preferences.jsonl")
    assert all(row["score_chosen"] - row["score_rejected"] >= 2 for row in rows)
    assert all(row["score_chosen"] == len(row["chosen"].strip()) for row in rows)
    assert "order_consistency" not in json.loads((place / "metrics.json").read_text())
    assert {row["number"] for row in lines(place / "labelled.jsonl")} == {0, 1, 2}


def test_a_judge_is_held_against_people(tmp_path: Path, store: StageStore) -> None:
    people = tmp_path / "people.jsonl"
    people.write_text(
        "".join(
            json.dumps({"prompt": "p", "chosen": "x" * (9 if number % 4 else 2), "rejected": "x" * 5}) + "\n"
            for number in range(40)
        )
    )
    place = done(
        tmp_path,
        store,
        "held",
        "{name: rule, prefer: {name: length, unit: characters}}",
        f"human: {{path: {people}}}\n    max_human_samples: 20",
    )
    metrics = json.loads((place / "metrics.json").read_text())
    assert metrics["human_agreement"] == 0.75
    told = [event for event in read_events(place.parents[1] / "events.jsonl") if event["event"] == "progress"]
    assert told[-1]["what"] == "comparing with people"
    assert metrics["human_agreement_low"] < 0.75 < metrics["human_agreement_high"]


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.long), 5])
def test_a_stop_in_the_middle_changes_nothing(
    at: int, tmp_path: Path, store: StageStore, parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = done(tmp_path, store, "whole")
    expected = {name: (whole / name).read_text() for name in FILES}
    other = StageStore(tmp_path / "home")
    other.stages.mkdir(parents=True)
    for path in store.stages.iterdir():  # the model is there, this stage is not
        if path.is_dir() and not (path / "preferences.jsonl").exists():
            (other.stages / path.name).symlink_to(path)
    save = FeedbackProgress.save

    def stops(self: FeedbackProgress, number: int, rows: Any) -> None:
        if number == at:
            raise Stopped("stopped by a test")
        save(self, number, rows)

    monkeypatch.setattr(FeedbackProgress, "save", stops)
    with pytest.raises(Stopped):
        running.run(recipe("whole"), tmp_path / "again", other)
    made: list[int] = []

    def counts(self: FeedbackProgress, number: int, rows: Any) -> None:
        made.append(number)
        save(self, number, rows)

    monkeypatch.setattr(FeedbackProgress, "save", counts)
    running.run(recipe("whole"), tmp_path / "again", other)
    assert made[0] == at
    assert {name: (tmp_path / "again" / "stages" / "02-feedback" / name).read_text() for name in FILES} == expected


def test_a_judge_that_never_decides_is_an_error(tmp_path: Path, store: StageStore) -> None:
    with pytest.raises(DataError, match="no preference to learn from"):
        done(tmp_path, store, "silent", "{name: rule, prefer: {name: keyword, words: [unheardof]}}")


def test_what_models_write_is_escaped_on_the_page(
    tmp_path: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = '</p><script>alert("x")</script>{{ 7 * 7 }}'

    def says(self: Any, prompts: Any, first: Any, second: Any, principles: Any = None, draw: int = 0) -> list[Verdict]:
        return [Verdict(0.8, 0.8, 0.8, attack) for _ in prompts]

    monkeypatch.setattr("pipelines.feedback.judges.rule.RuleJudge.compare", says)
    page = (done(tmp_path, store, "attack", RULE.replace("0.2", "0.3")) / "audit.html").read_text()
    assert "&lt;script&gt;" in page
    assert not re.search(r"<script|</p><script|>49<", page)
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


@pytest.mark.parametrize(
    ("judge", "more", "said"),
    [
        (RULE, "completions: 1", "at least 2"),
        (RULE, "constitution: default", "does not; leave it out"),
        (RULE, "revise: true", "needs a judge that writes"),
        ("{name: local, from: pretrain}", "revise: true", "needs a constitution"),
        (RULE, "by: ratings\n    pairs: random", "there are none"),
        (RULE, "max_human_samples: 3", "none is named"),
        (RULE, "human: {from: pretrain}", "no earlier feedback stage"),
        ("{name: rul, prefer: {name: keyword, words: [a]}}", "", "Did you mean 'rule'"),
        (RULE, "temperature: 0.0", "greater than 0"),
    ],
)
def test_mistakes(judge: str, more: str, said: str) -> None:
    text = RECIPE.format(name="x", judge=judge, more=more)
    with pytest.raises(RecipeError, match=said):
        loads(text.replace("    completions: 3\n", "") if "completions" in more else text)


def test_what_it_reads_and_what_it_leaves_open() -> None:
    own = recipe("x", "{name: local, from: pretrain}")
    stage = own.stages[1]
    assert stage.reads(own) == ("pretrain",)
    assert (stage.trains, stage.joins, stage.samples) == (False, False, True)
    assert set(stage.content(own)) == {"prompts", "judge.templates"}
    assert stage.identity()["judge"] == {"name": "local", "from": "pretrain"}
