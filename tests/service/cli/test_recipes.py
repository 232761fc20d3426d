import io
import json

from rich.console import Console

from service.cli.__main__ import main
from service.cli.recipes import facts, show, text_of, title


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


def test_what_is_allowed_and_doubtful_is_a_warning(recipe, capsys):
    override = "model.architecture.position=sinusoidal"
    assert main(["validate", "recipe.yaml", override]) == 0
    out, err = capsys.readouterr()
    assert out == "recipe.yaml: fine (3 stages)\n"
    assert "warning: model.architecture: position sinusoidal adds waves of 0.71" in err
    assert main(["validate", "recipe.yaml", override, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["recipes"][0]["warnings"]) == 1


def test_a_profile_whose_package_is_missing_here_is_a_warning(recipe, capsys, monkeypatch):
    monkeypatch.setattr("pipelines.core.launch.find_spec", lambda name: None)
    assert main(["validate", "recipe.yaml", "launch.profile=zero3", "launch.num_processes=2"]) == 0
    out, err = capsys.readouterr()
    assert out == "recipe.yaml: fine (3 stages)\n"
    assert "warning: this machine cannot run it: the profile zero3 needs the package deepspeed" in err


def test_a_tracker_whose_package_is_missing_here_is_a_warning(recipe, capsys, monkeypatch):
    monkeypatch.setattr("pipelines.core.training_arguments.find_spec", lambda name: None)
    assert main(["validate", "recipe.yaml", "stages.mrpc.arguments.report_to=wandb"]) == 0
    assert (
        "this machine cannot run it: the stage mrpc reports to wandb, and the package wandb" in capsys.readouterr().err
    )


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


def test_what_the_child_says_is_passed_on(recipe, pretend, capsys):
    pretend("print(json.dumps(sys.argv[1:])); print('noise', file=sys.stderr)")
    assert main(["plan", "recipe.yaml", "seed=1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == ["plan", "recipe.yaml", "seed=1", "--json"]
    assert err == ""


def test_the_rate_is_passed_on(recipe, pretend, capsys):
    pretend("print(json.dumps(sys.argv[1:]))")
    assert main(["plan", "recipe.yaml", "--flops-per-second", "1e12"]) == 0
    assert json.loads(capsys.readouterr().out) == ["plan", "recipe.yaml", "--flops-per-second", "1000000000000.0"]


def test_what_is_wrong_with_a_recipe_is_told_as_validate_tells_it(recipe, capsys):
    assert main(["validate", "recipe.yaml", "sed=1"]) == 2
    validated = capsys.readouterr().err
    assert main(["plan", "recipe.yaml", "sed=1", "--json"]) == 2
    out, err = capsys.readouterr()
    assert (err, json.loads(out)["mistakes"][0]["key"]) == (validated, "sed")


def test_a_child_that_fails_is_heard(recipe, pretend, capsys):
    pretend("print('finery: no plan', file=sys.stderr); sys.exit(1)")
    assert main(["plan", "recipe.yaml"]) == 1
    assert "no plan" in capsys.readouterr().err


def test_a_real_plan_counts_the_parameters_of_bert_tiny(recipe, capsys):
    assert main(["plan", "recipe.yaml", "tokenizer.train=wordpiece", "tokenizer.vocab_size=1000"]) == 0
    # 2 layers of 128: embeddings (1000 + 512 + 2) * 128 + 256, layers 2 * 198,272, pooler 16,512, head 2 * 128 + 2
    assert f"{1514 * 128 + 256 + 2 * 198_272 + 16_512 + 258:,}" in capsys.readouterr().out


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


def test_a_package_that_is_missing_here_is_a_warning(recipe, capsys, monkeypatch):
    from pipelines.evaluation.features import word2vec

    more = (
        "  - {stage: features, task: glue/mrpc, features: {name: word2vec, datasets: [{path: builtin/python-docs}]}}\n"
    )
    (recipe.parent / "words.yaml").write_text(recipe.read_text().rstrip("\n") + "\n" + more)
    assert main(["validate", "words.yaml"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(word2vec, "find_spec", lambda name: None)
    assert main(["validate", "words.yaml"]) == 0
    assert capsys.readouterr().err == (
        "  warning: this machine cannot run it: the stage features reads the features word2vec, which need the package "
        "gensim to be trained; install it: pip install 'finery[features]'\n"
    )
