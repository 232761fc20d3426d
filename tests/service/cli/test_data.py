import io

from rich.console import Console

from service.cli.__main__ import main
from service.cli.recipes import facts, show, text_of, title

TASK = {
    "id": "mine", "task": "alpaca", "kind": "causal", "format": "alpaca", "template": "simple", "learnt_share": 0.25, "examples": 1200,
    "lengths": {"least": 4.0, "quarter": 8.0, "median": 12.0, "three_quarters": 30.5, "most": 64.0},
    "rows": [{"pieces": [["User: hi\n", False], ["there\x1b[2J[SEP]", True]], "answer": None, "tokens": 9}],
    "warnings": ["Too long."], "notes": [],
}  # fmt: skip


def shown(data, **keywords):
    out = io.StringIO()
    show(data, Console(file=out, width=100, highlight=False, **keywords))
    return out.getvalue()


def test_what_is_learnt_stands_in_brackets_where_there_are_no_colours():
    out = shown({"tasks": [TASK]})
    assert "mine: alpaca (causal), 1,200 examples" in out
    assert "⟦there�[2J[SEP]⟧" in out  # nothing that data holds may steer the terminal
    assert "Learnt: ⟦between brackets⟧" in out
    assert "warning: Too long." in out


def test_what_is_learnt_is_green_on_a_terminal():
    out = shown({"tasks": [TASK]}, force_terminal=True, color_system="standard")
    assert "⟦" not in out
    assert "\x1b[1;32mthere" in out


def test_an_answer_that_is_no_text_stands_below():
    row = {"pieces": [["[CLS] a [SEP]", False]], "answer": "equivalent", "tokens": 3}
    out = shown({"tasks": [TASK | {"rows": [row], "warnings": []}]})
    assert "→ equivalent" in out
    assert "Learnt" not in out


def test_the_facts():
    assert facts(TASK) == [
        "format alpaca, chat template simple",
        "tokens: 4 to 64, half of them from 8 to 30, median 12",
        "25.0% of all tokens are learnt",
    ]
    equal = dict.fromkeys(TASK["lengths"], 12.0)
    assert facts({"lengths": equal}) == ["tokens: 12 each"]
    assert facts({"lengths": {}}) == []
    assert title(TASK | {"examples": 1}) == "mine: alpaca (causal), 1 example"
    assert str(text_of([("a", False), ("b", True)], coloured=False)) == "a⟦b⟧"


def test_a_wrong_recipe_is_refused_with_its_line_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(
        "name: x\nmodel: {architecture: {preset: gpt-tiny}}\nstages: [{stage: supervised, task: alpacca}]\n"
    )
    assert main(["data", "show", str(tmp_path / "r.yaml")]) == 2
    assert "r.yaml:3" in capsys.readouterr().err
