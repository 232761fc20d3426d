from pathlib import Path

import pytest

from pipelines.core.load import load
from service.cli.columns import choose, read
from service.cli.init import draft, run_name


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
    assert pretrain.arguments["max_steps"] == 200


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
    "label", ["label", "target", "model", "publish", "evaluate", "pretrain", "y", "!?", "Ünïcode", "x" * 70]
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
    ],
)
def test_the_run_is_named_after_the_file(tmp_path, file, given, name):
    assert run_name(tmp_path / file, given) == name


def test_an_accent_does_not_cost_the_id_its_letter(tmp_path):
    _, recipe = recipe_for(tmp_path, rows=60, words=5, label="Étiquette #1")
    assert recipe.stages[0].id == "Etiquette-1"
