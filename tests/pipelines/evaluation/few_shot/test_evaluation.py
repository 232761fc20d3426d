import copy
import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.core.events import read_events
from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.evaluation.few_shot.evaluation import READERS
from pipelines.evaluation.few_shot.likelihood import Continuation
from tests import tiny

RECIPE = """
name: t
model: {{architecture: {{preset: {preset}}}}}
stages:
  - {{stage: pretrain, objective: {objective}, datasets: [{{path: texts.txt}}]}}
  - {{stage: supervised, id: films, from: pretrain, task: {{kind: classification, columns: [text], label: label, train: train.csv, validation: dev.csv}}}}
  - {{stage: supervised, id: asked, from: pretrain, task: {{kind: qa, question: question, context: context, answers: answers, train: qa.jsonl, validation: qa.jsonl}}}}
  - {{stage: supervised, id: chosen, from: pretrain, task: {{kind: multiple_choice, context: text, question: question, options: options, answer: answer, train: mc.jsonl, validation: mc.jsonl}}}}
  - {{stage: supervised, id: rated, from: pretrain, task: {{kind: regression, columns: [text], label: stars, train: stars.csv, validation: stars.csv}}}}
  - {{stage: evaluate, from: pretrain, benchmarks: [{benchmarks}], {words}}}
"""
PROMPT = '{text: "{text} it was", answers: [bad, very good]}'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(tiny.TEXTS))
    for name, rows in (("train", tiny.TEXTS[:12]), ("dev", tiny.TEXTS[12:27])):
        (tmp_path / f"{name}.csv").write_text(
            "\n".join(["text,label", *(f"{text},{'yes' if at % 3 else 'no'}" for at, text in enumerate(rows))]) + "\n"
        )
    (tmp_path / "stars.csv").write_text(
        "\n".join(["text,stars", *(f"{text},{at % 5 + 0.2}" for at, text in enumerate(tiny.TEXTS[:12]))]) + "\n"
    )
    lines = [
        {"question": f"what {at}", "context": "the cat sleeps", "answers": {"text": ["cat"], "answer_start": [4]}}
        for at in range(4)
    ]
    (tmp_path / "qa.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    lines = [
        {"text": text, "question": "it was _", "options": ["good", "bad", "not dull"], "answer": "ABC"[at % 3]}
        for at, text in enumerate(tiny.TEXTS[:9])
    ]
    (tmp_path / "mc.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return tmp_path


FAMILIES = {
    "decoder": ("gpt-tiny", "causal_lm", "causal_lm"),
    "encoder": ("bert-tiny", "masked_lm", "masked_lm"),
    "encoder-decoder": ("t5-tiny", "span_corruption", "seq2seq_lm"),
}


@pytest.fixture
def run(folder, context, monkeypatch):
    """`run(words, benchmarks, family)`: (metrics, details, rows of predictions, warnings, the reader) of an evaluate stage."""

    def ask(words, benchmarks="films", family="decoder"):
        preset, objective, head = FAMILIES[family]
        recipe = loads(
            RECIPE.format(preset=preset, objective=objective, benchmarks=benchmarks, words=words), folder=folder
        )
        model = tiny.build("finery", Head(head), family=family, max_position_embeddings=96).eval()
        tiny.disturb(model)
        tokenizer = copy.deepcopy(tiny.tokenizer())
        given = context(recipe, "evaluate", {"pretrain": model}, open_tokenizer=lambda *_: tokenizer)
        recipe.stage("evaluate").run(given)
        metrics, details = (json.loads((given.folder / f"{name}.json").read_text()) for name in ("metrics", "details"))
        warnings = [event["message"] for event in read_events(given.events.path) if event["event"] == "warning"]
        return (
            metrics,
            details,
            pq.read_table(given.folder / "predictions.parquet").to_pylist(),
            warnings,
            READERS[head](model, tokenizer),
        )

    return ask


@pytest.mark.parametrize("shots", [pytest.param(0, marks=pytest.mark.long), 2])
def test_the_harness_gives_the_same_likelihoods_and_scores_on_the_same_prompts(run, folder, shots):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    from pipelines.evaluation.few_shot.harness import FineryLM

    metrics, _, rows, _, reader = run(f"few_shot: {{shots: [{shots}], seed: 3, prompts: {{films: {PROMPT}}}}}")
    lines = (folder / "train.csv").read_text().splitlines()[1:]
    train = [line.rsplit(",", 1) for line in lines]
    words = {"no": "bad", "yes": "very good"}
    asked = []
    for row in rows:
        shown = "".join(f"{train[at][0]} it was {words[train[at][1]]}\n\n" for at in row["examples"])
        asked.append({"asked": f"{shown}{row['text']} it was", "label": row["label"]})
    (folder / "asked.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    (folder / "own.yaml").write_text(
        f"task: own\ndataset_path: json\ndataset_kwargs: {{data_files: {{validation: {folder}/asked.jsonl}}}}\noutput_type: multiple_choice\n"
        'validation_split: validation\ndoc_to_text: "{{asked}}"\ndoc_to_choice: ["bad", "very good"]\ndoc_to_target: label\n'
        "metric_list: [{metric: acc}, {metric: acc_norm}]\n"
    )
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=FineryLM(reader), tasks=["own"], task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    theirs = [[nats for nats, _ in sample["filtered_resps"]] for sample in found["samples"]["own"]]
    assert len(rows) == 15
    assert np.array([row["log_likelihoods"] for row in rows]) == pytest.approx(np.array(theirs), abs=1e-4)
    ours = metrics[f"films/{shots}-shot"]
    assert ours["acc"] == found["results"]["own"]["acc,none"]
    assert ours["acc_norm"] == found["results"]["own"]["acc_norm,none"]
    assert all(len(row["examples"]) == shots for row in rows)


def test_calibrated_scores_are_those_of_the_formulas(run):
    words = f"few_shot: {{shots: [0], calibration: [contextual, answer_context], normalisation: [bytes, tokens], prompts: {{films: {PROMPT}}}}}"
    metrics, details, rows, _, reader = run(words)

    def nats(context):
        encoded = [reader.encode(Continuation(context, f" {answer}")) for answer in ("bad", "very good")]
        return np.array([each.nats for each in reader.likelihoods(encoded)])

    labels = np.array([row["label"] for row in rows])
    own = np.array([nats(f"{row['text']} it was") for row in rows])
    empty = np.array([nats(f"{words} it was") for words in ("N/A", "", "[MASK]")])
    chances = np.exp(empty) / np.exp(empty).sum(1, keepdims=True)
    expected = {
        "acc": own,
        "acc_bytes": own / [3, 9],
        "acc_tokens": own / [1, 2],
        "acc_contextual": np.exp(own) / chances.mean(0),
        "acc_answer_context": own - nats("Answer:"),
    }
    # contextual calibration weighs probabilities over the answers, whose sum is the same for all answers of a question
    for name, weighed in expected.items():
        assert metrics["films/0-shot"][name] == pytest.approx((weighed.argmax(1) == labels).mean()), name
    assert list(metrics["films/0-shot"]) == [*expected, "f1"]
    assert details["films/0-shot"]["baselines"]["chance"]["acc"] == 0.5
    assert details["films/0-shot"]["baselines"]["majority"]["acc"] == pytest.approx(10 / 15)
    low, high = details["films/0-shot"]["intervals"]["acc_contextual"]
    assert low <= metrics["films/0-shot"]["acc_contextual"] <= high


def test_scores_are_means_over_the_draws_and_their_spread_is_told(run):
    metrics, details, rows, _, _ = run(f"few_shot: {{shots: [1], draws: 4, prompts: {{films: {PROMPT}}}}}")
    by_draw = [[row for row in rows if row["draw"] == draw] for draw in range(4)]
    scores = [np.mean([row["prediction"] == row["label"] for row in draw]) for draw in by_draw]
    assert metrics["films/1-shot"]["acc"] == pytest.approx(np.mean(scores))
    told = details["films/1-shot"]["spread"]["acc"]
    assert told == pytest.approx({"sd": np.std(scores, ddof=1), "min": min(scores), "max": max(scores)})
    assert len({str([row["examples"] for row in draw]) for draw in by_draw}) == 4
    assert details["films/1-shot"]["few_shot"]["draws"] == 4


def test_examples_that_find_no_room_are_counted_and_cut_questions_are_told(run):
    _, details, _, warnings, _ = run(f"max_length: 16, few_shot: {{shots: [3], prompts: {{films: {PROMPT}}}}}")
    told = details["films/3-shot"]["few_shot"]
    assert told["examples_dropped"] > 0
    assert told["questions_with_fewer_examples"] > 0
    assert any("found no room for all their examples" in each for each in warnings)
    _, details, _, warnings, _ = run(f"max_length: 5, few_shot: {{shots: [0], prompts: {{films: {PROMPT}}}}}")
    tokens = [len(text.split()) + 2 + 2 - 1 for text in tiny.TEXTS[12:27]]
    assert details["films/0-shot"]["few_shot"]["questions_cut"] == sum(each > 5 for each in tokens)
    assert any("lost their beginning" in each for each in warnings)


@pytest.mark.parametrize("family", ["encoder", pytest.param("encoder-decoder", marks=pytest.mark.long)])
def test_other_families_answer_too(run, family):
    metrics, details, rows, _, reader = run(f"few_shot: {{shots: [0, 1], prompts: {{films: {PROMPT}}}}}", family=family)
    assert list(metrics) == ["films/0-shot", "films/1-shot"]
    first = rows[0]
    encoded = [reader.encode(Continuation(f"{first['text']} it was", f" {answer}")) for answer in ("bad", "very good")]
    assert first["log_likelihoods"] == pytest.approx([each.nats for each in reader.likelihoods(encoded)], rel=1e-4)
    assert details["films/0-shot"]["model"] == "pretrain"


def test_options_of_each_question_are_weighed(run):
    metrics, details, rows, _, reader = run("few_shot: {shots: [0, 1]}", "chosen")
    assert rows[0]["options"] == ["good", "bad", "not dull"]
    context = f"text: {tiny.TEXTS[0]}\nquestion: it was _\nanswer:"
    encoded = [reader.encode(Continuation(context, f" {option}")) for option in rows[0]["options"]]
    assert rows[0]["log_likelihoods"] == pytest.approx([each.nats for each in reader.likelihoods(encoded)], rel=1e-4)
    assert details["chosen/0-shot"]["baselines"] == {
        "chance": {"acc": pytest.approx(1 / 3), "acc_norm": pytest.approx(1 / 3)}
    }
    assert set(metrics["chosen/1-shot"]) == {"acc", "acc_norm"}


def test_written_answers_are_scored_as_the_task_scores_them(run):
    metrics, details, rows, _, _ = run("few_shot: {shots: [1]}, generation: {max_new_tokens: 5}", "asked")
    from pipelines.metrics.squad import Squad

    assert metrics["asked/1-shot"] == Squad().compute([row["hypothesis"] for row in rows], [["cat"]] * 4)
    assert details["asked/1-shot"]["generation"] == {"num_beams": 1, "max_new_tokens": 5}
    assert details["asked/1-shot"]["percent"] == ["exact_match", "f1"]
    assert rows[0]["reference"] == "cat"
    metrics, _, rows, _, _ = run(f"few_shot: {{shots: [0], answer: generation, prompts: {{films: {PROMPT}}}}}")
    assert metrics == {"films/0-shot": {"acc": np.mean([row["hypothesis"] == row["reference"] for row in rows])}}


def test_numbers_are_expected_values_over_the_answers(run):
    metrics, _, rows, _, _ = run(
        'few_shot: {shots: [0], prompts: {rated: {text: "{text} it was", answers: ["0", "2.", "-4."]}}}', "rated"
    )
    from scipy.stats import pearsonr

    for row in rows:
        chances = np.exp(row["log_likelihoods"])
        assert row["prediction"] == pytest.approx(chances @ [0, 2, -4] / chances.sum())
    told = pearsonr([row["prediction"] for row in rows], [row["label"] for row in rows])[0]
    assert math.isclose(metrics["rated/0-shot"]["pearson"], told, rel_tol=1e-6)
