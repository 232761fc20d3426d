import io
import json

import pytest
from rich.console import Console

from service.cli.__main__ import main
from service.cli.evaluate import names_of, show_harness_scores

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
        "--num-fewshot",
        "3",
        "--limit",
        "9",
        "--include-path",
        "mine",
        "--batch-size",
        "4",
        "--seed",
        "7",
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
