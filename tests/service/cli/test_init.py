import json
from pathlib import Path

import pytest

from pipelines.core.load import load
from service.cli.__main__ import main
from service.cli.columns import choose, read
from service.cli.recipe_draft import draft, run_name

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


@pytest.mark.parametrize("name", ["2024.csv", "1e3.csv", "null.csv"])
def test_a_file_whose_name_is_no_text_in_yaml_becomes_a_recipe_too(data, capsys, name):
    (data / "train.csv").rename(data / name)
    assert main(["init", name, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["label"], told["rows"]) == (name.removesuffix(".csv"), "verdict", 300)
    assert load(data / told["recipe"]).name == told["name"]


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


def recipe_for(
    folder, rows, words, label="mood", names=("text",), output="recipe.yaml", validation=None, texts=(), kind=None
):
    """The draft for a file of so many rows with so many words in each text column, loaded."""
    file = folder / "reviews.csv"
    header = ",".join(f'"{name}"' for name in (*names, label))
    body = "\n".join(
        ",".join(["word " * words] * len(names) + [f"c{n % 2}" if kind is None else str(n / 8)]) for n in range(rows)
    )
    file.write_text(f"{header}\n{body}\n")
    table = read(file)
    written = draft(table, choose(table, texts, label), validation, folder / output, "reviews")
    (folder / output).parent.mkdir(exist_ok=True)
    (folder / output).write_text(written.text)
    return written, load(folder / output)


def test_a_file_with_little_text_goes_straight_to_the_task(tmp_path):
    written, recipe = recipe_for(tmp_path, rows=100, words=20)
    assert (written.pretrains, written.words) == (False, 2000)
    assert [stage.stage for stage in recipe.stages] == ["supervised", "evaluate", "publish"]
    assert [stage.id for stage in recipe.stages] == ["mood", "evaluate", "publish"]
    assert recipe.stages[2].to == "registry/reviews"


def test_a_file_with_enough_text_is_pretrained_on(tmp_path):
    written, recipe = recipe_for(tmp_path, rows=1000, words=50)
    assert (written.pretrains, written.words) == (True, 50_000)
    pretrain = recipe.stages[0]
    assert (pretrain.stage, pretrain.objective.name) == ("pretrain", "masked_lm")
    assert [(Path(each.path).name, each.text) for each in pretrain.datasets] == [("reviews.csv", "text")]
    # 10 passes over 50,000 words of 1.4 tokens, in updates of 32 blocks of 128: 171, rounded up to 200
    assert pretrain.arguments.max_steps == 200


def test_both_texts_of_a_pair_are_pretrained_on(tmp_path):
    _, recipe = recipe_for(tmp_path, rows=1000, words=30, names=("question1", "question2"))
    assert [each.text for each in recipe.stages[0].datasets] == ["question1", "question2"]
    assert recipe.stages[1].task.columns == ("question1", "question2")


def test_numbers_are_a_regression_without_baselines_that_guess_classes(tmp_path):
    _, recipe = recipe_for(tmp_path, rows=100, words=5, kind="regression")
    assert recipe.stages[0].task.kind == "regression"
    assert recipe.stages[1].baselines == ()


@pytest.mark.parametrize(("words", "length"), [(3, 32), (20, 32), (21, 64), (60, 128), (400, 512), (2000, 512)])
def test_texts_are_cut_where_nearly_all_of_them_end(tmp_path, words, length):
    # 1.4 tokens a word and three special ones: 20 words are 31 tokens, 21 are 33
    assert recipe_for(tmp_path, rows=60, words=words)[1].stages[-3].max_length == length


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "two words",
        "with: colon",
        "#hash",
        "no",
        "null",
        "123abc",
        "quote\\'s",
        "é",
        "{brace}",
        "- dash",
        "a, b",
    ],
)
def test_any_column_name_survives_the_way_through_yaml(tmp_path, name):
    _, recipe = recipe_for(tmp_path, rows=30, words=5, names=(name,), label=f"{name} label", texts=[name])
    assert recipe.stages[0].task.columns == (name,)
    assert recipe.stages[0].task.label == f"{name} label"


@pytest.mark.parametrize(
    "label",
    [
        "label",
        "target",
        "model",
        "tokenizer",
        "1e3",
        "null",
        "publish",
        "evaluate",
        "pretrain",
        "y",
        "!?",
        "Ünïcode",
        "x" * 70,
    ],
)
def test_the_stage_has_an_id_of_its_own_whatever_the_label_is_called(tmp_path, label):
    _, recipe = recipe_for(tmp_path, rows=1000, words=50, label=label)
    assert len({stage.id for stage in recipe.stages}) == 4


def test_paths_are_relative_to_the_recipe(tmp_path):
    written, recipe = recipe_for(tmp_path, rows=30, words=5, output="recipes/mine.yaml")
    assert "train: ../reviews.csv" in written.text
    assert Path(recipe.stages[0].task.train) == tmp_path / "reviews.csv"


def test_a_validation_file_is_used(tmp_path):
    (tmp_path / "dev.csv").write_text("text,mood\na,c1\n")
    _, recipe = recipe_for(tmp_path, rows=30, words=5, validation=tmp_path / "dev.csv")
    assert Path(recipe.stages[0].task.validation).name == "dev.csv"


@pytest.mark.parametrize(
    ("file", "given", "name"),
    [
        ("x/reviews.csv", None, "reviews"),
        ("toxic/train.csv", None, "toxic"),
        ("x/my reviews (2).csv", None, "my-reviews-2"),
        ("x/---.csv", None, "my-model"),
        ("x/reviews.csv", "other", "other"),
        ("x/2024.csv", None, "2024"),
    ],
)
def test_the_run_is_named_after_the_file(tmp_path, file, given, name):
    assert run_name(tmp_path / file, given) == name


def test_an_accent_does_not_cost_the_id_its_letter(tmp_path):
    _, recipe = recipe_for(tmp_path, rows=60, words=5, label="Étiquette #1")
    assert recipe.stages[0].id == "Etiquette-1"
