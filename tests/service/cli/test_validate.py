import json

from service.cli.__main__ import main


def test_a_fine_recipe_says_so(recipe, capsys):
    assert main(["validate", "recipe.yaml"]) == 0
    assert capsys.readouterr().out == "recipe.yaml: fine (3 stages)\n"


def test_every_recipe_is_checked_and_one_mistake_makes_exit_2(recipe, capsys):
    (recipe.parent / "bad.yaml").write_text(recipe.read_text().replace("name:", "nmae:"))
    assert main(["validate", "bad.yaml", "recipe.yaml", "missing.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == "recipe.yaml: fine (3 stages)\n"
    assert "bad.yaml:1  nmae: unknown key 'nmae'. Did you mean 'name'?" in err
    assert "missing.yaml  there is no such file" in err


def test_overrides_are_applied_before_the_check(recipe, capsys):
    assert main(["validate", "recipe.yaml", "stages.mrpc.tuner=lora", "stages.mrpc.tuner.r=4"]) == 0
    assert main(["validate", "recipe.yaml", "stages.mrpc.tuner=lora", "stages.mrpc.tuner.r=0"]) == 2
    assert "stages.mrpc.tuner.r" in capsys.readouterr().err


def test_a_file_whose_name_has_an_equals_sign_is_a_recipe(recipe, capsys):
    (recipe.parent / "a=b.yaml").write_text(recipe.read_text())
    assert main(["validate", "a=b.yaml"]) == 0
    assert "a=b.yaml: fine" in capsys.readouterr().out


def test_overrides_without_a_recipe_are_a_usage_error(recipe, capsys):
    assert main(["validate", "seed=1"]) == 2
    assert "name at least one recipe" in capsys.readouterr().err


def test_json_carries_line_key_and_message(recipe, capsys):
    (recipe.parent / "bad.yaml").write_text(recipe.read_text().replace("preset: bert-tiny", "preset: bert-tinny"))
    assert main(["validate", "recipe.yaml", "bad.yaml", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert [(each["recipe"], each["fine"]) for each in answer["recipes"]] == [
        ("recipe.yaml", True),
        ("bad.yaml", False),
    ]
    assert answer["recipes"][0]["stages"] == ["mrpc", "evaluate", "publish"]
    (mistake,) = answer["recipes"][1]["mistakes"]
    assert (mistake["line"], mistake["key"]) == (2, "model.architecture.preset")
