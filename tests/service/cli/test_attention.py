import json
import subprocess
import sys

import pytest

from service.cli.__main__ import main
from service.cli.generate import line_of
from tests import writers

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


def test_every_option_reaches_the_child(recipe, pretend, capsys):
    pretend(ANSWER)
    assert (
        main(
            [
                "attention",
                "m",
                "--json",
                "--pair",
                "p",
                "--target",
                "-t",
                "--layer",
                "2",
                "--head",
                "3",
                "--limit",
                "9",
                "--",
                "-text",
            ]
        )
        == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "done"
    assert answer["asked"] == {
        "model": "m",
        "text": "-text",
        "pair": "p",
        "target": "-t",
        "out": ".",
        "layer": 2,
        "head": 3,
        "limit": 9,
    }


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


def test_the_whole_way_from_the_command_to_the_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["attention", str(writers.folder("bert")), writers.TEXT, "--out", "seen", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["family"] == "encoder"
    assert (tmp_path / "seen" / "attention.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "seen" / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert main(["attention", "runs/none", writers.TEXT]) == 2
    assert "there is no folder 'runs/none'" in capsys.readouterr().err


def test_the_command_itself_never_loads_torch(recipe, pretend):
    script = pretend(ANSWER)
    code = (
        "import sys\nfrom service.cli import child\nfrom service.cli.__main__ import main\n"
        f"child.PIPELINES = (sys.executable, {str(script)!r})\n"
        "assert main(['attention', 'm', 'x']) == 0\nassert main(['attention', '--help']) == 0\n"
        "print('LOADED', [each for each in ('torch', 'transformers', 'numpy', 'matplotlib') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("LOADED []\n")
