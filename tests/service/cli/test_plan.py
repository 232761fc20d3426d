import json

from service.cli.__main__ import main


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


def test_a_bad_recipe_starts_no_child(recipe, pretend, capsys):
    pretend("Path('started').touch()")
    assert main(["plan", "recipe.yaml", "sed=1"]) == 2
    assert not (recipe.parent / "started").exists()


def test_a_child_that_fails_is_heard(recipe, pretend, capsys):
    pretend("print('finery: no plan', file=sys.stderr); sys.exit(1)")
    assert main(["plan", "recipe.yaml"]) == 1
    assert "no plan" in capsys.readouterr().err


def test_a_real_plan_counts_the_parameters_of_bert_tiny(recipe, capsys):
    assert main(["plan", "recipe.yaml", "tokenizer.train=wordpiece", "tokenizer.vocab_size=1000"]) == 0
    # 2 layers of 128: embeddings (1000 + 512 + 2) * 128 + 256, layers 2 * 198,272, pooler 16,512, head 2 * 128 + 2
    assert f"{1514 * 128 + 256 + 2 * 198_272 + 16_512 + 258:,}" in capsys.readouterr().out
