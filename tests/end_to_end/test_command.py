"""The installed command, as somebody with a CSV file uses it: from `init` to a checkpoint that loads without Finery."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from service.cli.__main__ import app
from tests.clean_process import run_script
from tests.end_to_end import forked

FINERY = Path(sys.executable).with_name("finery")
TOKEN = "hf_ThisIsASecretThatMustNeverBeSeen1234"
SMALL = [
    "model.architecture={preset: bert-tiny, hidden_size: 32, intermediate_size: 64}",
    "stages.verdict.arguments.num_train_epochs=2",
    "tokenizer.vocab_size=300",
    "seed=7",
]

pytestmark = pytest.mark.skipif(
    not FINERY.exists(), reason="finery is not installed beside this Python (pip install -e .)"
)


class Desk:
    """A user's folder, and the command in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder.parent / "home"
        self.printed: list[str] = []
        self.environment = os.environ | {
            "FINERY_HOME": str(self.home),
            "HF_TOKEN": TOKEN,
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.environment.pop("PYTHONPATH", None)

    def finery(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(FINERY), *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
        )
        self.printed += [done.stdout, done.stderr]
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A folder with a file of 160 reviews, half of them good."""
    folder = tmp_path_factory.mktemp("user") / "desk"
    folder.mkdir()
    draw = random.Random(1)
    lines = ["review,verdict"]
    for number in range(160):
        good = number % 2
        word = draw.choice(["great", "lovely", "fine"] if good else ["dull", "awful", "weak"])
        lines.append(
            f'"The {draw.choice(["plot", "acting", "music"])} was {word}, number {number}",{"good" if good else "bad"}'
        )
    (folder / "reviews.csv").write_text("\n".join(lines) + "\n")
    return Desk(folder)


@pytest.fixture(scope="module")
def recipe(desk: Desk) -> Path:
    """The recipe that `init` writes."""
    said = desk.finery("init", "reviews.csv").stdout
    assert "text    review" in said
    assert "label   verdict" in said
    return desk.folder / "recipe.yaml"


@pytest.fixture(scope="module")
def table(desk: Desk, recipe: Path) -> str:
    """What the first run prints at its end."""
    return desk.finery("run", "recipe.yaml", *SMALL).stdout


def test_help_names_every_verb(desk: Desk) -> None:
    said = desk.finery("--help").stdout
    for verb in ("init", "run", "resume", "validate", "plan", "schema", "doctor", "gc"):
        assert re.search(rf"^[│ ]*{verb} ", said, re.MULTILINE), verb
        assert f"finery {verb} " in CliRunner().invoke(app, [verb, "--help"], prog_name="finery").output


def test_what_init_writes_is_valid_and_never_overwritten(desk: Desk, recipe: Path) -> None:
    assert "recipe.yaml: fine (3 stages)" in desk.finery("validate", "recipe.yaml").stdout
    text = recipe.read_text()
    desk.finery("init", "reviews.csv", code=2)
    assert recipe.read_text() == text


def test_plan_tells_the_cost_and_leaves_nothing(desk: Desk, recipe: Path) -> None:
    plan = json.loads(desk.finery("plan", "recipe.yaml", "--json", *SMALL).stdout)
    assert [stage["id"] for stage in plan["stages"]] == ["verdict", "evaluate", "publish"]
    assert plan["stages"][0]["steps"] > 0
    assert "parameters" in desk.finery("plan", "recipe.yaml", *SMALL).stdout


def test_the_table_shows_the_scores_of_the_run(desk: Desk, table: str) -> None:
    scores = json.loads((desk.folder / "runs/reviews/stages/02-evaluate/metrics.json").read_text())["verdict"]
    lines = [line.strip() for line in table.splitlines()]
    heading = next(number for number, line in enumerate(lines) if line.startswith("verdict") and "accuracy" in line)
    assert "f1" in lines[heading]
    row = next(line for line in lines[heading + 1 :] if line.startswith("verdict"))  # the model of the stage 'verdict'
    assert f"{scores['accuracy']:.3f}" in row
    assert f"{scores['f1']:.3f}" in row
    assert "majority" in table
    assert ["Published", "registry/reviews"] in [line.split() for line in lines]
    assert "runs/reviews" in table


def test_the_lines_of_the_card_load_the_checkpoint_and_predict_as_measured(desk: Desk, table: str) -> None:
    card = (desk.folder / "registry/reviews/README.md").read_text()
    load, use = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[:2]
    assert "Your text." in use
    row = pq.read_table(desk.folder / "runs/reviews/stages/02-evaluate/predictions.parquet").to_pylist()[3]
    program = (
        "import sys\nfor name in ('pipelines', 'service'): sys.modules[name] = None\n"
        + load
        + use.replace('"Your text."', repr(row["text"]))
    )
    program += "print([round(each, 4) for each in logits[0].tolist()])\n"
    place = desk.folder / "elsewhere"
    place.mkdir()
    (place / "use.py").write_text(program)
    environment = {name: desk.environment[name] for name in ("PATH", "OMP_NUM_THREADS", "HF_HUB_OFFLINE")} | {
        "HF_HOME": str(place),
        "HOME": str(place),
    }
    code, said = run_script([str(place / "use.py")], str(desk.folder), environment)
    assert code == 0, said
    label, logits = said.splitlines()[-2:]
    assert label == ["bad", "good"][row["prediction"]]
    assert json.loads(logits) == pytest.approx(row["logits"], abs=2e-3)


@pytest.fixture(scope="module")
def stranger(desk: Desk, table: str) -> tuple[Path, dict[str, str]]:
    """A folder with nothing but the publication and its data, and the card's commands by their verb, DIR filled in."""
    place = desk.folder.parent / "stranger"
    published = shutil.copytree(desk.folder / "registry/reviews", place / "registry/reviews")
    (place / "given").mkdir()
    shutil.copy(desk.folder / "reviews.csv", place / "given")
    card = (published / "README.md").read_text()
    (block,) = re.findall(r"```shell\n(.*?)```", card, re.DOTALL)
    lines = [line.replace("DIR", "given") for line in block.strip().splitlines()]
    return place, {re.sub(r"finery (\w+).*", r"\1", line.partition("  #")[0]): line for line in lines}


def told_by(desk: Desk, place: Path, *commands: str) -> str:
    """What a shell in the stranger's folder prints."""
    path = f"{FINERY.parent}{os.pathsep}{os.environ['PATH']}"
    environment = desk.environment | {"PATH": path, "FINERY_HOME": str(place / "home")}
    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)], cwd=place, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_stranger_checks_the_publication_by_the_commands_of_the_card(
    desk: Desk, stranger: tuple[Path, dict[str, str]]
) -> None:
    place, commands = stranger
    assert list(commands)[1:3] == ["verify", "reproduce"]
    before = (place / "registry/reviews/publication.json").read_bytes()
    told_by(desk, place, *(line for verb, line in commands.items() if verb not in ("reproduce", "run")))
    assert (place / "registry/reviews/publication.json").read_bytes() == before


def test_a_stranger_runs_its_recipe_by_the_words_of_the_card(desk: Desk, stranger: tuple[Path, dict[str, str]]) -> None:
    """In a forked process, which imports nothing anew: the long test behind this one takes the command as it stands."""
    place, commands = stranger
    shutil.copy(place / "registry/reviews/recipe.yaml", place / "given/reviews-again.yaml")  # as the card does
    program, *words = shlex.split(commands["run"], comments=True)
    assert program == "finery"
    said = place / "said.txt"
    home = {"FINERY_HOME": str(place / "home-forked")}
    to = [word.replace("registry/reviews-again", "registry/reviews-forked") for word in words]
    assert to != words
    assert forked.fork(forked.command_with_forked_proofs, to, str(place), str(said), home) == 0, said.read_text()
    assert (place / "registry/reviews-forked/publication.json").is_file()


@pytest.mark.long
def test_a_stranger_makes_it_again_by_the_commands_of_the_card(
    desk: Desk, stranger: tuple[Path, dict[str, str]]
) -> None:
    place, commands = stranger
    told_by(desk, place, *(line for verb, line in commands.items() if verb != "verify"))
    assert (place / "registry/reviews-again/publication.json").is_file()
    assert (place / "runs/reproduce-reviews/registry/reviews/publication.json").is_file()


@pytest.mark.long
def test_the_same_command_again_reuses_everything(desk: Desk, table: str) -> None:
    answer = json.loads(desk.finery("run", "recipe.yaml", *SMALL, "--json").stdout)
    assert answer["exit_code"] == 0
    events = [json.loads(line) for line in (desk.folder / "runs/reviews/events.jsonl").read_text().splitlines()]
    done = [event["reused"] for event in events if event["event"] == "stage_finished"]
    assert done == [False] * 4 + [True] * 4


def test_gc_frees_prepared_data_at_most_while_the_run_is_there(desk: Desk, table: str) -> None:
    before = sorted(desk.home.glob("stages/*"))
    told = json.loads(desk.finery("gc", "--dry-run", "--json").stdout)
    assert told["kept"] == 4
    assert not [folder for folder in told["folders"] if "/stages/" in folder]
    assert sorted(desk.home.glob("stages/*")) == before
    desk.finery("gc")
    assert {path.name for path in desk.home.glob("stages/*") if path.is_dir()} == {
        path.name for path in before if path.is_dir()
    }


def test_gc_frees_the_stages_of_a_run_that_is_gone(desk: Desk, table: str) -> None:
    (desk.folder / "runs" / "reviews").rename(desk.folder / "moved")
    try:
        told = json.loads(desk.finery("gc", "--dry-run", "--json").stdout)
        assert len([folder for folder in told["folders"] if "/stages/" in folder]) == 4
        assert told["bytes"] > 10_000
    finally:
        (desk.folder / "moved").rename(desk.folder / "runs" / "reviews")


def test_doctor_finds_everything_that_is_needed(desk: Desk) -> None:
    answer = json.loads(desk.finery("doctor", "--json").stdout)
    assert answer["healthy"] is True
    assert any(finding["what"] == "HF_TOKEN" and finding["found"] == "set" for finding in answer["findings"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fly"], "No such command 'fly'"),
        (["run"], "RECIPE"),
        (["run", "recipe.yaml", "stages.verdict.tuner=lorra"], "lora"),
        (["resume", "runs"], "run folder"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                (["run", "nosuch.yaml"], "nosuch.yaml"),
                (["run", "reviews.csv"], "reviews.csv"),
                (["run", "recipe.yaml", "nonsense"], "nonsense"),
                (["validate", "nosuch.yaml"], "nosuch.yaml"),
                (["resume", "runs/none"], "run folder"),
                (["init", "nosuch.csv", "-o", "other.yaml"], "nosuch.csv"),
                (["gc", "--older-than", "-1"], "older-than"),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_exits_2_and_says_why(desk: Desk, recipe: Path, words: list[str], expected: str) -> None:
    (desk.folder / "runs").mkdir(exist_ok=True)
    before = sorted(path.name for path in (desk.folder / "runs").iterdir())
    done = desk.finery(*words, code=2)
    assert expected in done.stderr
    assert sorted(path.name for path in (desk.folder / "runs").iterdir()) == before


@pytest.mark.long
def test_a_failing_run_exits_1_and_says_how_to_go_on(desk: Desk, recipe: Path) -> None:
    done = desk.finery(
        "run", "recipe.yaml", *SMALL, "name=broken", "stages.verdict.task.columns=[stars]", "--json", code=1
    )
    answer = json.loads(done.stdout)
    assert answer["error"]["stage"] == "verdict"
    assert answer["error"]["reason"] == "data_error"
    assert "stars" in answer["error"]["message"]
    assert "review" in answer["error"]["message"]


def test_the_token_is_seen_nowhere(desk: Desk, table: str) -> None:
    assert not [text for text in desk.printed if TOKEN in text]
    written = [path for root in (desk.folder, desk.home) for path in root.rglob("*") if path.is_file()]
    assert len(written) > 40
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
