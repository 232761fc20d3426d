"""Requirements on the command line are a key and a comparison; `finery gc` says what it frees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.core.errors import CommandError
from service.cli.__main__ import main
from service.cli.publish import render, requirements, size


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("glue/mrpc.f1=>= 0.8", ">= 0.8"),  # what a shell makes of glue/mrpc.f1=">= 0.8"
        ('glue/mrpc.f1=">= 0.8"', ">= 0.8"),
        ("glue/mrpc.f1>=0.8", ">=0.8"),
        ("glue/mrpc.f1 < 0.8", "< 0.8"),
        ("glue/mrpc.f1==1", "==1"),
        ("glue/mrpc.f1=== 1", "== 1"),
        ("glue/mrpc.f1=<= 1", "<= 1"),
        ("glue/mrpc.f1=0.8", "0.8"),  # refused later, with an example
    ],
)
def test_each_form_is_read(given, expected):
    assert requirements([given]) == {"glue/mrpc.f1": expected}


@pytest.mark.parametrize("given", ["glue/mrpc.f1", ">= 0.8", "", "glue/mrpc.f1="])
def test_what_is_no_requirement_is_one_sentence(given):
    with pytest.raises(CommandError, match="is no requirement"):
        requirements([given])


HOME = "/home/me/.cache/finery"


def test_what_was_freed_is_counted_by_kind():
    freed = {
        "folders": [f"{HOME}/stages/aa", f"{HOME}/stages/bb", f"{HOME}/stages/cc.partial", f"{HOME}/data/x"],
        "bytes": 3_200_000,
        "kept": 1,
    }
    assert render(freed, dry_run=False) == [
        "Freed 3.2 MB: 2 complete stages, 1 unfinished stage, 1 piece of prepared data; 1 stage in use stays."
    ]


def test_a_dry_run_lists_the_folders():
    assert render({"folders": [f"{HOME}/stages/aa"], "bytes": 10, "kept": 2}, dry_run=True) == [
        f"  {HOME}/stages/aa",
        "Would free 10 bytes: 1 complete stage; 2 stages in use stay.",
    ]


def test_nothing_to_free():
    assert render({"folders": [], "bytes": 0, "kept": 0}, dry_run=False) == ["Nothing to free; 0 stages in use stay."]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (18e9, "18.0 GB"), (5e15, "5000.0 TB")],
)
def test_sizes(count, text):
    assert size(count) == text


def test_a_stage_that_no_run_uses_is_freed_and_one_in_use_is_not(recipe, home: Path, capsys):
    for name in ("aa", "bb"):
        (home / "stages" / name).mkdir(parents=True)
        (home / "stages" / name / "stage.json").write_text('{"inputs": []}')
    links = recipe.parent / "runs/x/stages"
    links.mkdir(parents=True)
    (links / "01-pretrain").symlink_to(home / "stages/aa")
    (home / "runs.jsonl").write_text(json.dumps({"run": str(links.parent)}) + "\n")
    assert main(["gc", "--dry-run"]) == 0
    assert "Would free" in capsys.readouterr().out
    assert (home / "stages/bb").exists()
    assert main(["gc", "--older-than", "1"]) == 0
    assert "Nothing to free; 2 stages" in capsys.readouterr().out
    assert main(["gc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folders"] == [str(home / "stages/bb")]
    assert [each.name for each in (home / "stages").iterdir() if each.is_dir()] == ["aa"]


def test_a_child_that_fails_is_heard(recipe, pretend, capsys):
    pretend("print('finery: not yours', file=sys.stderr); sys.exit(1)")
    assert main(["gc", "--json"]) == 1
    told = capsys.readouterr()
    assert "not yours" in told.err
    assert json.loads(told.out)["error"] == {"message": "not yours", "reason": "internal", "stage": None}
