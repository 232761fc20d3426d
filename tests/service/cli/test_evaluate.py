"""What `finery evaluate`, `score` and `harness` show, and what they refuse themselves."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pipelines.core.errors import CommandError
from service.cli.__main__ import main
from service.cli.evaluate import EvaluateOptions, evaluate, names_of, separated, show, show_harness_scores
from tests.words import words_of


def test_names_may_be_repeated_or_separated_by_commas():
    assert separated(["glue/mrpc, squad", "race/middle,"]) == ["glue/mrpc", "squad", "race/middle"]
    assert separated(None) == []


def test_scores_files_and_what_is_missing_are_shown(capsys):
    text = io.StringIO()
    data = {
        "metrics": {"glue/rte": {"accuracy": 0.5}, "glue/mrpc": {"accuracy": 0.7, "f1": 0.8}},
        "details": {
            "glue/rte": {"model": "mine", "intervals": {"accuracy": [0.4, 0.6]}},
            "glue": {"missing": ["glue/cola"]},
        },
        "warnings": ["look at this"],
        "files": ["out/metrics.json"],
        "submission": {
            "file": "s.zip",
            "files": ["RTE.tsv"],
            "missing": ["CoLA.tsv (no model was trained on glue/cola)"],
        },
    }
    show(data, Console(file=text, width=120))
    said = text.getvalue()
    for words in (
        "glue/rte",
        "0.400 – 0.600",
        "mine",
        "0.800",
        "The GLUE score needs nine tasks; not scored: glue/cola.",
        "out/metrics.json",
        "1 of 11 files",
        "left out    CoLA.tsv",
    ):
        assert words in said
    assert "look at this" in capsys.readouterr().err


def test_partial_needs_a_submission():
    with pytest.raises(CommandError, match="--partial is about a submission"):
        evaluate(EvaluateOptions(["m"], [], None, None, True, {}), False)


def test_score_prints_json_only(tmp_path, capfd):
    (tmp_path / "p.json").write_text('{"a": "A", "z": "B"}')
    (tmp_path / "r.jsonl").write_text('{"example_id": "a", "answer": "A"}\n')
    arguments = ["score", "race", "--predictions", str(tmp_path / "p.json"), "--references", str(tmp_path / "r.jsonl")]
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "has 1 ids that" in err
    (tmp_path / "p.json").write_text('{"a": "A"}')
    assert main(arguments) == 0
    assert json.loads(capfd.readouterr().out) == {"accuracy": 1.0, "total": 1}
    assert (
        main([*arguments[:2], "--predictions", str(Path("gone")), "--references", str(tmp_path / "r.jsonl"), "--json"])
        == 2
    )
    assert json.loads(capfd.readouterr().out)["status"] == "refused"


ECHO = "print(json.dumps({'tasks': {}, 'cut': 0, 'asked': json.loads(TARGET)}))"
TOLD = {
    "model": "m", "family": "decoder", "reads": 48, "cut": 2,
    "tasks": {
        "own": {"scores": {"acc": {"value": 0.25, "stderr": 0.125}, "acc_norm": {"value": 0.5, "stderr": None}}, "num_fewshot": 2, "questions": 1234, "version": 1},
    },
}  # fmt: skip


def test_every_score_has_a_row_with_its_error():
    out = io.StringIO()
    show_harness_scores(TOLD, Console(file=out, width=100, highlight=False))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["own", "2", "1,234", "acc", "0.2500", "0.1250"] in rows
    assert ["acc_norm", "0.5000"] in rows
    assert "2 requests are longer than the 48 tokens" in out.getvalue()


def test_every_option_reaches_the_child(recipe, pretend, capsys):
    pretend(ECHO)
    words = [
        "--tasks",
        "a, b",
        *words_of("--num-fewshot 3 --limit 9 --include-path mine --batch-size 4 --seed 7"),
    ]
    assert main(["harness", "m", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["asked"] == {
        "model": "m",
        "tasks": ["a", "b"],
        "num_fewshot": 3,
        "limit": 9,
        "include_path": "mine",
        "batch_size": 4,
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--tasks", " ,"], "names no task"), ([], "--tasks"), (["--tasks", "a", "--limit", "0"], "limit")],
)
def test_what_asks_nothing_is_refused_at_once(recipe, pretend, capsys, words, expected):
    pretend("Path('started').touch()")
    assert main(["harness", "m", *words]) == 2
    assert expected in capsys.readouterr().err
    assert not (recipe.parent / "started").exists()


def test_tasks_are_told_apart_by_commas():
    assert names_of("a,b , c,") == ("a", "b", "c")
