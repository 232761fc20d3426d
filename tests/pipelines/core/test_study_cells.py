import pytest

from pipelines.core.errors import RecipeError
from pipelines.core.load import load, load_study, loads, read, refuse_study
from pipelines.core.study_cells import expand, named, told

BASE = """\
name: s
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 4}}
  - {stage: supervised, id: mrpc, task: glue/mrpc, arguments: {num_train_epochs: 2}}
  - {stage: evaluate}
"""
METHODS = """\
matrix:
  start:
    pretrained: {}
    scratch: {stages.pretrain: null}
  method:
    full: {stages.mrpc.tuner: full, search: {stages.mrpc.arguments.learning_rate: [2e-5, 5e-5]}}
    lora: {stages.mrpc.tuner: {name: lora, r: 4}}
  stages.mrpc.seed: [1, 2, 3]
study:
  reference: full
  search:
    over: {stages.mrpc.arguments.learning_rate: [1e-4, 1e-3]}
    budget: {stages.mrpc.max_train_samples: 100}
"""


@pytest.fixture
def study(tmp_path):
    def written(text, *overrides):
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return load_study(path, overrides)

    return written


def said(study, text, *overrides):
    with pytest.raises(RecipeError) as caught:
        study(text, *overrides)
    return str(caught.value)


def test_every_cell_is_the_recipe_with_its_values(study):
    found = study(BASE + METHODS)
    assert [cell.folder for cell in found.cells] == [f"cells/{number:02d}" for number in range(1, 13)]
    assert dict(found.cells[-1].labels) == {"start": "scratch", "method": "lora", "seed": "3"}
    last = found.cells[-1].recipe
    assert last == loads("""\
name: s
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mrpc, task: glue/mrpc, tuner: {name: lora, r: 4}, seed: 3, arguments: {num_train_epochs: 2}}
  - {stage: evaluate}
""")
    assert [stage.id for stage in found.cells[0].recipe.stages] == ["pretrain", "mrpc", "evaluate"]


def test_the_final_recipe_has_the_values_that_were_found(study):
    found = study(BASE + METHODS)
    recipe = found.final(found.cells[0], {"stages.mrpc.arguments.learning_rate": 5e-5})
    assert recipe.stage("mrpc").arguments.given() == {"num_train_epochs": 2, "learning_rate": 5e-5}
    assert [stage.id for stage in recipe.stages] == ["pretrain", "mrpc", "evaluate"]


def test_a_trial_never_sees_the_reported_split(study):
    found = study(BASE + METHODS)
    assert [group.labels for group in found.groups] == [
        {"start": start, "method": method} for start in ("pretrained", "scratch") for method in ("full", "lora")
    ]
    for group in found.groups:
        for values in group.grid:
            trial = found.trial(group, values)
            assert "evaluate" not in [stage.stage for stage in trial.stages]
            target = trial.stages[-1]
            assert target.id == "mrpc"
            assert target.arguments.given() == {
                "num_train_epochs": 2,
                "learning_rate": next(iter(values.values())),
                "eval_strategy": "epoch",
            }
            assert target.max_train_samples == 100
            assert trial.seed_of(target) == 1


def test_each_method_has_its_own_grid_of_the_same_length(study):
    found = study(BASE + METHODS)
    assert [list(values.values()) for values in found.groups[0].grid] == [[2e-5], [5e-5]]
    assert [list(values.values()) for values in found.groups[1].grid] == [[1e-4], [1e-3]]


def test_a_wrong_value_of_the_matrix_is_a_mistake_at_its_line(study):
    text = said(
        study, BASE + METHODS.replace("r: 4", "r: 0").replace("stages.mrpc.tuner: full", "stages.mrpc.tuner: ful")
    )
    assert text.splitlines() == [
        f"{text.split(':')[0]}:12  matrix.method.full.stages.mrpc.tuner.name: unknown tuner 'ful'. Did you mean 'full'? Available: "
        + text.splitlines()[0].partition("Available: ")[2],
        f"{text.split(':')[0]}:13  matrix.method.lora.stages.mrpc.tuner.r: is 0, must be at least 1",
    ]


def test_a_mistake_of_the_recipe_itself_is_told_once_at_its_own_line(study):
    text = said(study, BASE.replace("num_train_epochs", "num_train_epoch") + METHODS)
    assert len(text.splitlines()) == 1
    assert ":5  stages.mrpc.arguments.num_train_epoch: unknown key" in text


def test_a_mistake_of_a_search_value_is_told_at_its_line(study):
    text = said(study, BASE + METHODS.replace("[1e-4, 1e-3]", "[1e-4, fast]"))
    assert ':18  study.search.over.stages.mrpc.arguments.learning_rate: is "fast"' in text


UNFIT = (
    BASE
    + """\
matrix:
  stages.mrpc.max_length: [64, 100000]
"""
)


def test_a_cell_whose_parts_do_not_fit_is_refused_and_the_others_run(study):
    found = study(UNFIT)
    assert [bool(cell.refusal) for cell in found.cells] == [False, True]
    assert "max_position_embeddings 512" in found.refused[0].refusal
    assert found.refused[0].refusal.startswith("matrix.stages.mrpc.max_length[1]: ")


def test_a_study_without_a_cell_that_can_run_is_wrong(study):
    assert "max_position_embeddings 512" in said(study, UNFIT.replace("[64, 100000]", "[90000, 100000]"))


WAYS = """\
name: s
model: {architecture: {preset: bert-tiny}}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - {stage: multi_task, id: together, tasks: [{task: glue/rte}, {task: glue/mrpc}], arguments: {num_train_epochs: 1}}
  - {stage: supervised, id: tune, task: glue/rte, arguments: {num_train_epochs: 1}}
  - {stage: evaluate, benchmarks: [glue/rte]}
matrix:
  task:
    rte: {}
    mrpc: {stages.tune.task: glue/mrpc, stages.evaluate.benchmarks: [glue/mrpc]}
  way:
    alone: {stages.together: null}
    together: {stages.tune: null}
    together, then alone: {}
"""


def test_ways_to_train_are_a_key_beside_tasks(study):
    found = study(WAYS)
    assert [[stage.id for stage in cell.recipe.stages] for cell in found.cells] == [
        ["tune", "evaluate"],
        ["together", "evaluate"],
        ["together", "tune", "evaluate"],
    ] * 2
    assert not found.refused
    scored = [
        [(choice.model, choice.name) for choice in cell.recipe.stage("evaluate").choices(cell.recipe)[0]]
        for cell in found.cells
    ]
    assert scored == [
        [(model, f"glue/{task}")] for task in ("rte", "mrpc") for model in ("tune", f"together/{task}", "tune")
    ]


def test_an_override_holds_in_the_cells_that_keep_its_stage(study):
    found = study(WAYS, "stages.tune.arguments.num_train_epochs=5")
    assert [
        cell.recipe.stage("tune").arguments.num_train_epochs
        for cell in found.cells
        if "tune" in [each.id for each in cell.recipe.stages]
    ] == [5] * 4
    assert "never be used" in said(study, WAYS, "stages.tune.task=glue/cola")  # of mrpc it would not be


def test_an_override_holds_in_every_cell(study):
    found = study(BASE + METHODS, "stages.mrpc.arguments.num_train_epochs=1")
    assert {cell.recipe.stage("mrpc").arguments.num_train_epochs for cell in found.cells} == {1}


@pytest.mark.parametrize(
    "override", ["stages.mrpc.tuner.r=8", "stages.mrpc.seed=4", "stages.mrpc.arguments.learning_rate=1"]
)
def test_an_override_that_the_matrix_would_undo_is_refused(study, override):
    assert "would never be used" in said(study, BASE + METHODS, override)


def test_the_matrix_itself_can_be_overridden(study):
    assert (
        len(study(BASE + METHODS, "matrix.stages.mrpc.seed=[7]", "matrix.method.lora.stages.mrpc.tuner.r=16").cells)
        == 4
    )
    assert (
        study(BASE + METHODS, "matrix.method.lora.stages.mrpc.tuner.r=16").cells[3].recipe.stage("mrpc").tuner.r == 16
    )
    assert study(BASE + METHODS, "study.search=null", "matrix.method.full={stages.mrpc.tuner: full}").groups == ()


def test_a_new_key_that_is_an_override_path_stays_whole(study):
    matrix = study(BASE + METHODS, "matrix.stages.mrpc.max_length=[32, 64]").recipe.matrix
    assert matrix["stages.mrpc.max_length"] == (32, 64)
    of_entry = study(BASE + METHODS, "matrix.method.lora.search.stages.mrpc.arguments.learning_rate=[1e-3, 1e-2]")
    assert of_entry.recipe.matrix["method"]["lora"]["search"] == {"stages.mrpc.arguments.learning_rate": (1e-3, 1e-2)}
    trials = study(BASE + METHODS, "study.search.budget.stages.mrpc.arguments.num_train_epochs=1").options.search
    assert trials.budget == {"stages.mrpc.max_train_samples": 100, "stages.mrpc.arguments.num_train_epochs": 1}
    both = study(
        BASE + METHODS,
        "study.search.over.stages.mrpc.arguments.weight_decay=[0, 0.1]",
        "matrix.method.full.search=null",
    )
    assert sorted(both.options.search.over) == [
        "stages.mrpc.arguments.learning_rate",
        "stages.mrpc.arguments.weight_decay",
    ]


THREE = (
    BASE
    + """\
matrix:
  method: {full: {stages.mrpc.tuner: full}, lora: {}, bitfit: {stages.mrpc.tuner: bitfit}}
  stages.mrpc.seed: [1, 2]
study:
  margin: 0.01
  hypotheses:
    - {better: full, than: bitfit}
    - {equal: [lora, full]}
"""
)


@pytest.mark.parametrize(
    ("overrides", "cells", "hypotheses"),
    [
        (["matrix.method.bitfit=null"], ["full 1", "full 2", "lora 1", "lora 2"], [("lora", "full")]),
        (["matrix.method.full=null", "matrix.method.lora=null"], ["bitfit 1", "bitfit 2"], []),
        (["matrix.method=null"], ["1", "2"], []),
        (["matrix.stages.mrpc.seed=null", "matrix.method.lora=null"], ["full", "bitfit"], [("full", "bitfit")]),
        (["matrix.method.full.stages.mrpc.max_length=null", "matrix.method=null"], ["1", "2"], []),
        (
            ["matrix.method.full.stages.mrpc.max_train_samples=null", "matrix.method.bitfit=null"],
            ["full 1", "full 2", "lora 1", "lora 2"],
            [("lora", "full")],
        ),
    ],
)
def test_a_key_of_the_matrix_or_an_entry_may_be_left_out(study, overrides, cells, hypotheses):
    found = study(THREE, *overrides)
    assert [" ".join(cell.labels.values()) for cell in found.cells] == cells
    assert [each.names for each in found.options.hypotheses] == hypotheses


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["matrix.metod=null"], "is not there to be left out. Did you mean 'method'? Known: method, stages.mrpc.seed"),
        (["matrix.method.lara=null"], "is not there to be left out. Did you mean 'lora'? Known: full, lora, bitfit"),
        (
            ["matrix.method.full=null", "matrix.method.lora=null", "matrix.method.bitfit=null"],
            "bitfit: is the only entry of 'method', which would have none; leave the key out: matrix.method=null",
        ),
        (["matrix.method=null", "matrix.stages.mrpc.seed=null"], "matrix: is empty, must have at least one key"),
        (["matrix.method.lora=null", "study.reference=lora"], "'lora' is no entry of the matrix"),
    ],
)
def test_what_cannot_be_left_out_of_a_matrix_is_said(study, overrides, sentence):
    assert sentence in said(study, THREE, *overrides)


def test_cells_may_not_publish_to_one_place(study):
    text = BASE + "  - {stage: publish, to: registry/x}\n" + METHODS
    assert "each would replace the last one's checkpoint" in said(study, text)


def test_a_study_is_loaded_as_a_recipe_too_and_reads_back_equal(tmp_path):
    (tmp_path / "base").mkdir()
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: s\nmodel: {checkpoint: x/y}\nstages: [{stage: supervised, task: glue/mrpc}]\nmatrix: {model: [{checkpoint: base}, {checkpoint: a/b}]}\n"
    )
    recipe = load(path)
    assert recipe.matrix == {"model": ({"checkpoint": str(tmp_path / "base")}, {"checkpoint": "a/b"})}
    assert loads(recipe.to_yaml()) == recipe  # from any folder


def test_a_recipe_that_only_its_cells_complete_is_a_study(study):
    found = study(
        "name: s\nstages: [{stage: supervised, task: glue/mrpc}]\nmatrix: {model: [{checkpoint: a/a}, {checkpoint: b/b}]}\n"
    )
    assert [cell.recipe.model.checkpoint for cell in found.cells] == ["a/a", "b/b"]


def test_without_a_matrix_there_is_no_study(study):
    assert "this is no study but a single run" in said(study, BASE)
    assert "study: compares the cells of a matrix" in said_by_load(BASE + "study: {reference: full}\n")


def said_by_load(text):
    with pytest.raises(RecipeError) as caught:
        loads(text)
    return str(caught.value)


def test_a_study_cannot_be_run_as_a_recipe(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(UNFIT)
    with pytest.raises(RecipeError, match="run it with: finery study FILE"):
        refuse_study(load(path), "FILE")


def test_a_search_over_a_stage_that_is_not_there_is_a_mistake(study):
    assert "'nli' is no stage of every cell" in said(
        study, BASE + METHODS.replace("learning_rate", "x").replace("stages.mrpc.arguments.x", "stages.nli.seed")
    )


def test_a_hypothesis_about_a_baseline_that_nothing_measures_is_a_mistake(study):
    expected = METHODS + "  hypotheses: [{better: full, than: naive_bayes}]\n"
    assert "'naive_bayes' is a baseline that no stage measures" in said(study, BASE + expected)


def test_values_and_labels_as_text():
    assert told({"stages.a.arguments.learning_rate": 1e-3}) == "learning_rate 0.001"
    assert named({"method": "lora", "seed": "2"}) == "method lora, seed 2"


def test_expanding_does_not_change_the_source(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(BASE + METHODS)
    source = read(path)
    before = repr(source.data)
    expand(source)
    assert repr(source.data) == before


@pytest.mark.parametrize("metric", ["loss", "f1", "accuracy"])
def test_a_search_chooses_by_any_score_of_the_task(study, metric):
    assert study(BASE + METHODS, f"study.search.metric={metric}").options.search.metric == metric


def test_a_score_that_the_searched_stage_does_not_measure_is_a_mistake_before_any_trial(study):
    told = said(study, BASE + METHODS, "study.search.metric=acuracy")
    assert (
        "study.search.metric: 'acuracy' is not measured on the rows that 'mrpc' sets aside. Did you mean 'accuracy'? Known: accuracy, f1, loss"
        in told
    )
    translating = (
        BASE.replace("task: glue/mrpc", "task: multi30k/en-de").replace("bert-tiny", "transformer-tiny") + METHODS
    )
    assert "Known: loss" in said(
        study,
        translating.replace("{stage: pretrain, objective: masked_lm,", "{stage: pretrain, objective: span_corruption,"),
        "study.search.metric=bleu",
    )


ALIGNED = """\
name: s
model: {architecture: {preset: gpt-tiny}}
stages:
  - {stage: pretrain, objective: causal_lm, datasets: [{path: builtin/python-docs}]}
  - {stage: ppo, id: align, reward: {name: keyword, words: [list]}, prompts: {path: builtin/python-docs}}
  - {stage: evaluate, prompts: {path: builtin/python-docs, split: test}, reward: {name: keyword, words: [list]}}
matrix: {seed: [1, 2]}
study:
  search:
    over: {stages.align.arguments.learning_rate: [1e-5, 1e-4]}
    metric: win_rate
    evaluate: {prompts: {path: builtin/python-docs, split: validation}, reward: {name: keyword, words: [list]}, against: pretrain}
"""


def test_an_evaluation_of_the_search_scores_what_its_trials_trained_and_no_cell(study):
    found = study(ALIGNED)
    [group] = found.groups
    trial = found.trial(group, group.grid[1])
    assert [stage.id for stage in trial.stages] == ["pretrain", "align", "trial-scores"]
    assert trial.stage("align").arguments.learning_rate == 1e-4
    assert "eval_strategy" not in trial.stage("align").arguments.model_fields_set
    assert (trial.stages[-1].source, trial.stages[-1].prompts.split) == ("align", "validation")
    assert all([stage.id for stage in cell.recipe.stages] == ["pretrain", "align", "evaluate"] for cell in found.cells)


@pytest.mark.parametrize(
    ("was", "now", "sentence"),
    [
        ("win_rate", "win_rat", "'win_rat' is not measured by study.search.evaluate. Did you mean 'win_rate'?"),
        ("split: validation", "split: test", "reads split 'test' of builtin/python-docs, which the cells report on"),
        ("evaluate: {prompts", "evaluate: {from: align, prompts", "study.search.evaluate.from: is said by the search"),
        ("split: validation", "spilt: validation", "study.search.evaluate.prompts.spilt: unknown key"),
        ("against: pretrain}", "against: pretain}", "study.search.evaluate.against: 'pretain'"),
    ],
)
def test_an_evaluation_of_the_search_that_cannot_decide_is_a_mistake_at_its_line(study, was, now, sentence):
    assert ALIGNED.count(was) == 1
    assert sentence in said(study, ALIGNED.replace(was, now))


@pytest.mark.parametrize(
    ("evaluation", "sentence"),
    [
        ("[1]", "study.search.evaluate: is [1], must be a mapping with the keys of an evaluate stage"),
        (
            "{datasets: [{path: a, split: x}, {path: builtin/python-docs, split: validation}]}",
            "scores trials on split 'validation' of builtin/python-docs, split 'x' of a, and a search is decided by one",
        ),
    ],
)
def test_an_evaluation_of_the_search_is_a_mapping_and_scores_one_thing(study, evaluation, sentence):
    text = ALIGNED[: ALIGNED.index("    metric:")].replace("stages.align", "stages.pretrain")
    assert sentence in said(study, f"{text}    evaluate: {evaluation}\n")


def test_cells_that_leave_out_the_searched_stage_have_nothing_to_search(study):
    found = study(
        BASE
        + """\
  - {stage: features, id: frozen, task: glue/mrpc, from: model}
matrix:
  method:
    frozen: {stages.pretrain: null, stages.mrpc: null, stages.evaluate: null}
    tuned: {stages.frozen: null}
study: {search: {over: {stages.mrpc.arguments.learning_rate: [1e-4, 1e-3]}}}
"""
    )
    (group,) = found.groups
    assert dict(group.labels) == {"method": "tuned"}
    frozen, tuned = found.cells
    assert found.group_of(frozen) is None
    assert found.group_of(tuned) is group
    assert [stage.id for stage in found.trial(group, group.grid[0]).stages] == ["pretrain", "mrpc"]


def test_more_seeds_for_a_search_than_there_are_is_a_doubt(study):
    asked = "study.search.seeds=5"
    assert study(BASE + METHODS, asked).doubts() == [
        "study.search.seeds: is 5, but the matrix has 3: so many are tried"
    ]
    assert study(BASE + METHODS, "study.search.seeds=3").doubts() == []
    assert study(BASE + METHODS).doubts() == []
