import io
import json

import pytest
from rich.console import Console

from service.cli.__main__ import main
from service.cli.generate import line_of, numbers, printable, show
from tests import writers

ECHO = "print(json.dumps({'method': 'fill_mask', 'prompts': [], 'asked': json.loads(TARGET)}))"
GREEDY = {
    "method": "greedy",
    "text": "sat down",
    "tokens": 3,
    "ended": True,
    "log_probability_per_token": -2.314,
    "distinct_2": 0.8333,
    "tokens_per_second": 1234.5,
}


def shown(data, width=120):
    out = io.StringIO()
    show(data, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def continued(*methods, **changed):
    found = [GREEDY | {"method": method} | changed for method in methods]
    return {"method": "autoregressive", "notes": ["Cut."], "prompts": [{"prompt": "The cat", "continuations": found}]}


def test_every_continuation_has_its_text_and_its_numbers():
    out = shown(continued("greedy"))
    assert out.splitlines()[:2] == ["Cut.", "The cat"]
    assert "sat down" in out
    assert "log p -2.31 per token · distinct-2 0.83 · 3 tokens, ended · 1,234 tokens/s" in out


def test_they_stand_side_by_side_where_there_is_room_and_below_each_other_where_not():
    wide, narrow = (shown(continued("greedy", "beam 4", "sample 1"), width).splitlines() for width in (120, 60))
    assert any(all(name in line for name in ("greedy", "beam 4", "sample 1")) for line in wide)
    assert not any("greedy" in line and "beam 4" in line for line in narrow)
    assert sum("sat down" in line for line in narrow) == 3
    assert all(len(line) <= 60 for line in narrow)


def test_nothing_written_is_said():
    out = shown(continued("greedy", text="", tokens=0, log_probability_per_token=None, distinct_2=None))
    assert "(nothing)" in out
    assert "no token · distinct-2 – · 0 tokens" in out
    assert numbers(GREEDY | {"tokens": 1, "ended": False}).split(" · ")[2] == "1 token"


def test_fill_ins_are_a_table_with_the_likeliest_on_top():
    masks = [
        {
            "mask": number,
            "position": number,
            "candidates": [{"token": token, "probability": chance} for token, chance in (("cat", 0.5), ("dog", 0.125))],
        }
        for number in (1, 2)
    ]
    out = shown(
        {"method": "fill_mask", "prompts": [{"prompt": "the [MASK] [MASK]", "masks": masks, "text": "the cat cat"}]}
    )
    assert "the [MASK] [MASK]" in out
    rows = [line for line in out.splitlines() if "50.0%" in line or "12.5%" in line]
    assert [row.count("cat") for row in rows] == [2, 0]
    assert [row.count("dog") for row in rows] == [0, 2]
    assert "Likeliest: the cat cat" in out


def test_many_masks_fit_a_narrow_terminal():
    mask = {"position": 1, "candidates": [{"token": "cat", "probability": 0.5}]}
    out = shown(
        {
            "method": "fill_mask",
            "prompts": [{"prompt": "p", "masks": [mask | {"mask": n} for n in range(1, 8)], "text": "t"}],
        },
        60,
    )
    assert all(f"mask {number}" in out for number in range(1, 8))
    assert all(len(line) <= 60 for line in out.splitlines())


@pytest.mark.parametrize("text", ["\x1b[31mred", "\x07", "a\rb", "\u202eabc", "\x9b2J"])
def test_a_model_cannot_steer_the_terminal(text):
    out = shown({"method": "autoregressive", "prompts": [{"prompt": text, "continuations": [GREEDY | {"text": text}]}]})
    assert not set(out) & set("\x1b\x07\r\u202e\x9b")
    assert printable("a\tb\nc é 日") == "a b\nc é 日"


def test_markup_in_a_text_stays_text():
    assert "[bold]x[/bold] [/]" in shown(continued("greedy", text="[bold]x[/bold] [/]"))


def test_every_option_reaches_the_child(recipe, pretend, capsys):
    pretend(ECHO)
    given = {"max_new_tokens": 5, "num_beams": 2, "temperature": 0.7, "top_k": 9}
    given |= {"top_p": 0.8, "samples": 1, "seed": 7}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["generate", "m", "The cat", *words, "--plain", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["asked"] == {"model": "m", "prompt": "The cat", "prompts": None, "plain": True, **given}
    assert main(["generate", "m", "x", "--json"]) == 0
    usual = json.loads(capsys.readouterr().out)["asked"]
    assert [
        usual[name] for name in ("max_new_tokens", "num_beams", "temperature", "top_k", "top_p", "samples", "seed")
    ] == [64, 4, 1.0, 50, 0.95, 3, 42]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give one prompt, or a file of them"),
        (["x", "--prompts", "f"], "not both"),
        (["x", "--penalty-alpha", "0.6"], "contrastive search"),
        (["x", "--temperature", "0"], "must be a number above 0; the limit 0 is greedy"),
        (["x", "--temperature", "-1"], "must be a number above 0"),
        (["x", "--temperature", "nan"], "must be a number above 0"),
        (["x", "--temperature", "inf"], "must be a number above 0"),
        (["x", "--top-p", "0"], "--top-p is 0"),
        (["x", "--top-p", "1.5"], "at most 1"),
        (["x", "--samples", "-1"], "samples"),
        (["x", "--num-beams", "0"], "num-beams"),
        (["x", "--max-new-tokens", "0"], "max-new-tokens"),
    ],
)
def test_what_no_model_could_do_is_refused_at_once(recipe, pretend, capsys, words, expected):
    pretend("Path('started').touch()")
    assert main(["generate", "m", *words]) == 2
    assert expected in capsys.readouterr().err
    assert not (recipe.parent / "started").exists()


def test_what_a_model_really_wrote_reaches_the_terminal(recipe, pretend, monkeypatch, capsys):
    """By the verb itself, called here: an interpreter of its own imports torch for five seconds."""
    from pipelines.commands.generate import answer

    monkeypatch.setenv("COLUMNS", "100")
    asked = {"model": str(writers.folder("gpt2")), "prompt": writers.TEXT, "max_new_tokens": 4, "samples": 1}
    pretend(f"print({json.dumps(answer(asked))!r})")
    assert main(["generate", asked["model"], writers.TEXT, "--max-new-tokens", "4", "--samples", "1"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (writers.TEXT, "greedy", "beam 4", "sample 1", "tokens/s"))


@pytest.mark.long  # an interpreter more; above stand its two halves
def test_the_whole_way_from_the_command_to_the_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["generate", str(writers.folder("gpt2")), writers.TEXT, "--max-new-tokens", "4", "--samples", "1"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (writers.TEXT, "greedy", "beam 4", "sample 1", "tokens/s"))


ANSWER = """
asked = json.loads(TARGET)
maps = [{"layer": layer, "head": head, "entropy": 10 * layer + head + 0.5, "mean_distance": 1.0} for layer in (1, 2) for head in (1, 2, 3)]
section = {"name": "encoder", "title": "Encoder", "queries": ["a", "b"], "keys": ["a", "b"], "maps": maps}
print(json.dumps({"model": asked["model"], "family": "encoder", "html": asked["out"] + "/attention.html", "png": "p.png",
                  "notes": ["The text was cut."], "sections": [section], "asked": asked}))
"""


def test_the_page_the_picture_and_the_notes_are_named(recipe, pretend, capsys):
    pretend(ANSWER)
    assert main(["attention", "m", "a b", "--out", "some place"]) == 0
    out = capsys.readouterr().out
    assert (
        "encoder  2 layers x 3 heads, 2 x 2 tokens; most focused: layer 1 head 1 (11.50 bits), layer 1 head 2 (12.50 bits)"
        in out
    )
    assert "The text was cut." in out
    assert "Page     some place/attention.html" in out
    assert "xdg-open 'some place/attention.html'" in out


def test_every_option_of_attention_reaches_the_child(recipe, pretend, capsys):
    pretend(ANSWER)
    words = "attention m --json --pair p --target -t --layer 2 --head 3 --limit 9 -- -text"
    assert main(words.split()) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "done"
    named = {"model": "m", "text": "-text", "pair": "p", "target": "-t", "out": "."}
    assert answer["asked"] == {**named, "layer": 2, "head": 3, "limit": 9}


@pytest.mark.parametrize(
    "words",
    [
        ["m"],
        ["m", "x", "--layer", "0"],
        ["m", "x", "--limit", "1"],
        ["m", "x", "--limit", "9999"],
        ["m", "x", "--laye", "1"],
    ],
)
def test_wrong_usage_exits_2_and_starts_no_child(recipe, pretend, words):
    pretend("Path('started').touch()")
    assert main(["attention", *words]) == 2
    assert not (recipe.parent / "started").exists()


def test_one_map_is_spoken_of_in_the_singular():
    section = {
        "name": "cross",
        "queries": ["a"],
        "keys": ["a", "b"],
        "maps": [{"layer": 4, "head": 2, "entropy": 0.25, "mean_distance": None}],
    }
    assert line_of(section) == "cross    1 layer x 1 head, 1 x 2 tokens; most focused: layer 4 head 2 (0.25 bits)"


@pytest.mark.long  # two interpreters; the next rooms hold the verb and the command apart
def test_the_whole_way_from_the_command_to_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["attention", str(writers.folder("bert")), writers.TEXT, "--out", "seen", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["family"] == "encoder"
    assert (tmp_path / "seen" / "attention.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "seen" / "attention.png").read_bytes().startswith(b"\x89PNG")
