import pytest

from pipelines.core.load import load
from service.cli.__main__ import main

ROWS = "".join(f'"the film number {n} was long, really",{"good" if n % 2 else "bad"},{n}\n' for n in range(300))
HEADER = "review,verdict,id\n"


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text(HEADER + ROWS)
    return tmp_path


def test_a_newcomers_file_becomes_a_recipe_that_is_fine(data, capsys):
    assert main(["init", "train.csv"]) == 0
    out = capsys.readouterr().out
    assert "train.csv: 300 rows" in out
    assert "text    review   7 words on average" in out
    assert "label   verdict  2 classes: bad (150), good (150)" in out
    assert "unused  id" in out
    assert out.rstrip().endswith("Next:  finery run recipe.yaml")
    assert main(["validate", "recipe.yaml"]) == 0
    assert load(data / "recipe.yaml").stages[0].task.columns == ("review",)


def test_an_existing_recipe_is_not_overwritten_unless_forced(data, capsys):
    (data / "recipe.yaml").write_text("mine")
    assert main(["init", "train.csv"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (data / "recipe.yaml").read_text() == "mine"
    assert main(["init", "train.csv", "--force"]) == 0
    assert main(["init", "train.csv", "-o", "other.yaml"]) == 0
    assert (data / "recipe.yaml").read_text() == (data / "other.yaml").read_text().replace("other.yaml", "recipe.yaml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.csv"], "there is no such file"),
        (["trian.csv"], "Did you mean 'train.csv'?"),
        (["train.csv", "--label", "verdcit"], "Did you mean 'verdict'?"),
        (["train.csv", "--name", "a/b"], "name: is"),
        (["train.csv", "-o", "no/such/folder.yaml"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(data, capsys, arguments, said):
    assert main(["init", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [each.name for each in data.iterdir()] == ["train.csv"]


@pytest.mark.parametrize("name", ["dev.csv", "validation.csv", "test.csv"])
def test_a_sibling_file_is_what_scores_are_measured_on(data, capsys, name):
    (data / name).write_text(HEADER + ROWS[:200].rpartition("\n")[0] + "\n")
    assert main(["init", "train.csv"]) == 0
    assert f"scored on {name}" in capsys.readouterr().out
    assert load(data / "recipe.yaml").stages[0].task.validation == str(data / name)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("review,id\nx,1\n", "has no column 'verdict'"),
        ("review,verdict\nx,ugly\n", "its class 'ugly' does not occur"),
        ("review,verdict\nx,good\ny,\n", "row 2 has no 'verdict'"),
        ("", "is empty"),
    ],
)
def test_a_sibling_that_does_not_fit_is_left_out_and_said_so(data, capsys, content, said):
    (data / "test.csv").write_text(content)
    assert main(["init", "train.csv"]) == 0
    out = capsys.readouterr().out
    assert "test.csv is not used for validation" in out
    assert said in out
    assert load(data / "recipe.yaml").stages[0].task.validation is None


def test_rows_that_the_run_will_refuse_are_named_now(data, capsys):
    (data / "gaps.csv").write_text(HEADER + ROWS + ',good,301\n"text",,302\n')
    assert main(["init", "gaps.csv"]) == 0
    out = capsys.readouterr().out
    assert "1 row has nothing in 'review' (the first: row 301)" in out
    assert "1 row has nothing in 'verdict' (the first: row 302)" in out


def test_few_rows_and_rare_classes_are_warned_about(data, capsys):
    (data / "few.csv").write_text("text,label\n" + "".join(f"text {n},{'a' if n else 'b'}\n" for n in range(20)))
    assert main(["init", "few.csv"]) == 0
    out = capsys.readouterr().out
    assert "20 rows are very few" in out
    assert "the class 'b' has only 1 row;" in out


@pytest.mark.long
def test_the_written_recipe_runs_as_it_is(data, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["init", "train.csv"]) == 0
    capsys.readouterr()
    assert main(["run", "recipe.yaml"]) == 0
    out = capsys.readouterr().out
    assert "naive Bayes" in out
    assert "accuracy" in out
