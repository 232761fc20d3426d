import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from pipelines.core.results import BenchmarkScores
from service.cli.progress import number
from service.cli.summary import RunSummary, collect, compare, lines, show

BASELINES = {"majority": {"accuracy": 0.684, "f1": 0.812}, "naive_bayes": {"accuracy": 0.7, "f1": 0.8}}


def score(accuracy, low=None, model="mrpc", benchmark="glue/mrpc", stage="evaluate"):
    intervals = {} if low is None else {"accuracy": (low, round(2 * accuracy - low, 6))}
    return BenchmarkScores(benchmark, stage, model, {"accuracy": accuracy, "f1": 0.5}, intervals)


def outcome_with(baselines, *scores):
    return RunSummary(tuple(replace(each, baselines=baselines) for each in scores))


def write(folder, **files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def printed(outcome, folder, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(outcome, folder, "finery run recipe.yaml", console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("reached", "low", "said"),
    [
        (0.80, 0.76, "'mrpc' beats naive Bayes: accuracy 0.800 against 0.700"),
        (0.72, 0.68, "is ahead of naive Bayes, but within its 95 % interval"),
        (0.72, 0.70, "is ahead of naive Bayes, but within its 95 % interval"),
        (0.70, 0.65, "does not beat naive Bayes: accuracy 0.700 against 0.700"),
        (0.60, 0.55, "does not beat naive Bayes: accuracy 0.600 against 0.700"),
        (0.80, None, "is ahead of naive Bayes: accuracy 0.800 against 0.700, without an interval"),
        (math.nan, None, ""),
    ],
)
def test_the_sentence_is_honest(reached, low, said):
    sentence = compare(outcome_with(BASELINES, score(reached, low)), "glue/mrpc")
    assert said in sentence
    assert bool(said) == bool(sentence)


def test_the_best_model_is_compared_by_the_first_metric():
    outcome = outcome_with(
        BASELINES, score(0.6, 0.5, "scratch"), score(0.8, 0.75, "pretrained"), score(math.nan, None, "broken")
    )
    assert "'pretrained' beats" in compare(outcome, "glue/mrpc")


def test_without_naive_bayes_the_majority_class_is_the_rival():
    outcome = outcome_with({"majority": {"accuracy": 0.684}}, score(0.8, 0.75))
    assert "beats the majority class" in compare(outcome, "glue/mrpc")


def test_without_baselines_nothing_is_claimed():
    assert compare(RunSummary((score(0.8, 0.75),)), "glue/mrpc") == ""
    assert compare(outcome_with({"naive_bayes": {"pearson": 0.1}}, score(0.8, 0.75)), "glue/mrpc") == ""


def test_everything_is_read_from_the_run_folder(tmp_path):
    stages = [("pretrain", "pretrain"), ("mrpc", "supervised"), ("evaluate", "evaluate"), ("publish", "publish")]
    (tmp_path / "stages/01-pretrain/model").mkdir(parents=True)
    (tmp_path / "stages/02-mrpc/model").mkdir(parents=True)
    write(
        tmp_path / "stages/03-evaluate",
        metrics={"glue/mrpc": {"accuracy": 0.8, "f1": 0.5}},
        details={"glue/mrpc": {"model": "mrpc", "intervals": {"accuracy": [0.76, 0.84]}, "baselines": BASELINES}},
    )
    write(tmp_path / "stages/04-publish", publication={"location": "/models/x"})
    write(tmp_path / "stages/03-old", metrics={"glue/rte": {"accuracy": 1.0}})  # of an earlier recipe: not ours to tell
    outcome = collect(tmp_path, stages)
    [only] = outcome.scores
    assert (only.model, only.metrics, only.intervals) == (
        "mrpc",
        {"accuracy": 0.8, "f1": 0.5},
        {"accuracy": (0.76, 0.84)},
    )
    assert outcome.baselines == {"glue/mrpc": BASELINES}
    assert outcome.published == ("/models/x",)
    assert [model.parent.name for model in outcome.models] == ["01-pretrain", "02-mrpc"]


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"glue/mrpc": 3}', '{"glue/mrpc": {"accuracy": "high"}}'])
def test_files_that_cannot_be_read_give_no_scores_and_no_error(tmp_path, broken):
    folder = tmp_path / "stages/01-evaluate"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(broken)
    (folder / "details.json").write_text(broken)
    assert collect(tmp_path, [("evaluate", "evaluate")]).scores == ()


def test_one_row_a_model_then_the_baselines():
    outcome = outcome_with(BASELINES, score(0.6, 0.5, "scratch"), score(0.8, 0.75, "pretrained"))
    rows = [line.split() for line in printed(outcome, "runs/x").splitlines() if line.strip()]
    assert rows[0] == ["glue/mrpc", "accuracy", "95", "%", "interval", "f1"]
    assert rows[2] == ["scratch", "0.600", "0.500", "–", "0.700", "0.500"]
    assert rows[3] == ["pretrained", "0.800", "0.750", "–", "0.850", "0.500"]
    assert rows[4] == ["majority", "class", "0.684", "0.812"]
    assert rows[5] == ["naive", "Bayes", "(words)", "0.700", "0.800"]


def test_a_narrow_terminal_cuts_no_number(tmp_path):
    text = printed(outcome_with(BASELINES, score(0.8125, 0.7625)), tmp_path, width=30)
    assert "…" not in text
    assert any("mrpc" in line and "0.812" in line and "0.762 – 0.863" in line for line in text.splitlines()), text
    assert not any(line != line.rstrip() and not line.strip() for line in text.splitlines())


def test_one_model_measured_twice_is_told_apart_by_the_stage():
    text = printed(RunSummary((score(0.6, stage="before"), score(0.8, stage="after"))), "runs/x")
    assert "mrpc (before)" in text
    assert "mrpc (after)" in text


def test_paths_and_commands_are_not_broken_into_lines(tmp_path):
    long = f"/models/{'long-' * 30}name"
    assert any(long in line for line in printed(RunSummary(published=(long,)), tmp_path, width=60).splitlines())


def test_what_to_type_next_names_the_model_card_only_where_there_is_one(tmp_path):
    without = lines(RunSummary(published=("s3://bucket/x",)), tmp_path, "finery run r.yaml")
    assert not any("less" in text for _, text, _ in without)
    (tmp_path / "README.md").touch()
    there = lines(RunSummary(published=(str(tmp_path),)), tmp_path, "finery run r.yaml")
    assert ("Next", f"less {tmp_path}/README.md") in [(label, text) for label, text, _ in there]


def test_what_lies_in_the_working_folder_is_named_from_there(tmp_path, monkeypatch):
    (tmp_path / "registry/demo").mkdir(parents=True)
    (tmp_path / "registry/demo/README.md").touch()
    monkeypatch.chdir(tmp_path)
    found = lines(RunSummary(published=(str(tmp_path / "registry/demo"),)), tmp_path, "finery run r.yaml")
    assert ("Published", "registry/demo") in [(label, text) for label, text, _ in found]
    assert ("Next", "less registry/demo/README.md") in [(label, text) for label, text, _ in found]


def test_a_score_that_is_no_number_is_null_in_json():
    data = RunSummary((score(math.nan),)).as_data()
    assert json.loads(json.dumps(data, allow_nan=False))["scores"][0]["metrics"]["accuracy"] is None


def test_fewer_bits_are_better_and_counts_are_no_scores(tmp_path):

    def reached(bits):
        folder = tmp_path / f"{bits}" / "stages" / "01-evaluate"
        folder.mkdir(parents=True)
        figures = {"bits_per_byte": bits, "perplexity": 9.0, "tokens": 10, "bytes": 30, "bigram_bits_per_byte": 2.5}
        (folder / "metrics.json").write_text(json.dumps({"novels": figures}))
        about = {
            "model": "words",
            "intervals": {"bits_per_byte": [bits - 0.1, bits + 0.1]},
            "baselines": {"unigram": {"bits_per_byte": 3.2}, "bigram": {"bits_per_byte": 2.5}},
        }
        (folder / "details.json").write_text(json.dumps({"novels": about}))
        outcome = collect(tmp_path / f"{bits}", [("evaluate", "evaluate")])
        assert set(outcome.scores[0].metrics) == {"bits_per_byte", "perplexity"}
        return compare(outcome, "novels")

    assert reached(2.0) == "On novels, 'words' beats a bigram model: bits_per_byte 2.00 against 2.50."
    assert reached(2.45).startswith("On novels, 'words' is ahead of a bigram model, but within its 95 % interval")
    assert reached(2.6).startswith("On novels, 'words' does not beat a bigram model")


def test_many_metrics_stand_below_each_other_where_they_do_not_fit_beside(tmp_path):
    metrics = {f"metric_{n}": n / 16 for n in range(9)}
    intervals = {name: (value - 0.0625, value + 0.0625) for name, value in metrics.items()}
    many = BenchmarkScores("policy", "ppo", "ppo", metrics, intervals)
    lines = printed(RunSummary((many,)), tmp_path, width=80).splitlines()
    assert [line.split()[:2] for line in lines if "metric_" in line] == [
        [name, number(value)] for name, value in metrics.items()
    ]
    assert any("0.438 – 0.562" in line for line in lines if "metric_8" in line)
    wide = printed(RunSummary((many,)), tmp_path, width=400).splitlines()
    assert sum("metric_" in line for line in wide) == 1
