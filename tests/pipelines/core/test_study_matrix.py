import pytest
from pydantic import ValidationError

from pipelines.core.config import ConfigIssues, flatten
from pipelines.core.study_matrix import axes_of, combinations, labels_of, within
from pipelines.core.study_options import Search, StudyOptions, unfit_options


def mistakes(matrix):
    with pytest.raises(ConfigIssues) as caught:
        axes_of(matrix)
    return dict(caught.value.found)


def test_cells_are_the_product_and_the_last_key_changes_fastest():
    axes = axes_of({"stages.mrpc.tuner": ("full", {"name": "lora", "r": 8}), "stages.mrpc.seed": (1, 2, 3)})
    labels = [tuple(entry.label for entry in cell) for cell in combinations(axes)]
    assert labels == [("full", "1"), ("full", "2"), ("full", "3"), ("lora", "1"), ("lora", "2"), ("lora", "3")]
    assert [axis.name for axis in axes] == ["tuner", "seed"]
    assert [axis.repeats for axis in axes] == [False, True]


def test_a_named_entry_sets_several_paths_together():
    [axis] = axes_of({"method": {"slow": {"stages.a.tuner": "full", "stages.a.max_length": 64}, "fast": {}}})
    assert [(entry.label, dict(entry.values)) for entry in axis.entries] == [
        ("slow", {"stages.a.tuner": "full", "stages.a.max_length": 64}),
        ("fast", {}),
    ]
    assert axis.entry("slow").place_of("stages.a.tuner") == ("matrix", "method", "slow", "stages.a.tuner")


def test_a_stage_may_be_left_out_that_another_key_sets_something_in():
    task = {"rte": {"stages.tune.task": "glue/rte"}, "mrpc": {"stages.tune.task": "glue/mrpc"}}
    way = {"alone": {"stages.together": None}, "together": {"stages.tune": None}}
    assert len(axes_of({"task": task, "way": way})) == len(axes_of({"way": way, "task": task})) == 2
    found = mistakes({"task": task, "way": {"other": {"stages.tune": {"stage": "supervised"}}}})
    assert "set by 'task' too" in found["way", "other", "stages.tune"]  # set anew is not left out
    found = mistakes({"task": task, "way": {"other": {"stages.tune.task": None}}})
    assert "set by 'task' too" in found["way", "other", "stages.tune.task"]  # a key is no stage
    assert mistakes({"task": way, "way": way})  # the same stage twice


def test_a_list_under_a_word_names_its_entries_by_their_values():
    [axis] = axes_of({"method": ({"stages.a.tuner": "full"}, {"stages.a.tuner": {"name": "lora"}})})
    assert [entry.label for entry in axis.entries] == ["full", "lora"]


def test_labels_are_as_short_as_keeps_them_apart():
    assert labels_of([{"name": "full"}, {"name": "lora", "r": 8}]) == ["full", "lora"]
    assert labels_of([{"name": "lora", "r": 8}, {"name": "lora", "r": 16}]) == ["lora r=8", "lora r=16"]
    assert labels_of(["/models/a", None, True, 1e-4, ["x", "y"]]) == ["a", "none", "true", "0.0001", "x+y"]
    assert labels_of(["/one/a", "/two/a"]) == ["a #1", "a #2"]


def test_paths_with_one_ending_keep_what_tells_them_apart():
    axes = axes_of({"stages.mrpc.seed": (1,), "stages.rte.seed": (1,), "stages.rte.tuner": ("full",)})
    assert [axis.name for axis in axes] == ["mrpc.seed", "rte.seed", "tuner"]


@pytest.mark.parametrize(
    ("matrix", "place", "said"),
    [
        ({}, (), "is empty"),
        ({"stages.a.seed": 3}, ("stages.a.seed",), "must be a list"),
        ({"stages.a.seed": ()}, ("stages.a.seed",), "must be a list"),
        ({"stages.a.seed": (1, 2, 1)}, ("stages.a.seed", 2), "stands here twice"),
        ({"tuner": (1, 2)}, ("tuner", 0), "must be a mapping from override paths"),
        ({"tuner": 3}, ("tuner",), "must be a mapping from names"),
        ({"name": ("a", "b")}, ("name",), "the same for every cell"),
        ({"stage.a.seed": (1,)}, ("stage.a.seed",), "Did you mean 'stages'?"),
        ({"method": {"a": {"stags.x": 1}}}, ("method", "a", "stags.x"), "is no override path"),
        ({"method": {"a": {"search": 3}}}, ("method", "a", "search"), "must be a mapping from override paths"),
        ({"method": {"a": {"stages": {"x": 1}}}}, ("method", "a", "stages"), "stages.ID.key"),
        ({"stages.a.seed": tuple(range(60)), "stages.b.seed": tuple(range(60))}, (), "3,600 cells"),
    ],
)
def test_each_mistake_names_its_place(matrix, place, said):
    found = mistakes(matrix)
    assert said in found[place]


def test_two_keys_may_not_set_one_path_nor_a_path_and_one_below_it():
    found = mistakes({"stages.a.tuner": ("full",), "method": {"x": {"stages.a.tuner.r": 4}}})
    assert "set by 'stages.a.tuner' too" in found["method", "x", "stages.a.tuner.r"]
    assert within("stages.a", "stages.a.seed")
    assert not within("stages.a", "stages.ab")


AXES = {
    "method": {
        "full": {"stages.a.tuner": "full"},
        "lora": {"stages.a.tuner": "lora", "search": {"stages.a.arguments.lr": (1, 2)}},
    },
    "stages.a.seed": (1, 2),
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reference": "ful"}, "Did you mean 'full'?"),
        ({"reference": "1"}, "is no entry"),
        ({"search": {"over": {"stages.a.arguments.lr": (1, 2, 3)}}}, "has 2 values, but study.search.over has 3"),
        ({"search": {"over": {"stages.a.arguments.wd": (1, 2)}}}, "is not searched over"),
        ({"search": {"over": {"stages.a.arguments.lr": (1, 2)}, "per": ("seeed",)}}, "Did you mean 'seed'?"),
        ({"search": {"over": {"stages.a.arguments.lr": (1, 2)}, "per": ("seed",)}}, "must stand in study.search.per"),
        ({"search": {"over": {"stages.a.seed": (1, 2), "stages.a.arguments.lr": (1, 2)}}}, "is set by the matrix too"),
        ({"search": {"over": {"stages.a.arguments.lr": (1, 2), "stages.b.x": (1,)}}}, "is of another stage"),
        ({}, "needs study.search.over"),
        ({"hypotheses": ({"better": "full", "than": "lorra"},)}, "Did you mean 'lora'?"),
        ({"hypotheses": ({"better": "full", "than": "1"},)}, "'1' is no entry of one key"),
        ({"hypotheses": ({"equal": ("full", "lora")},)}, "needs study.margin"),
        ({"hypotheses": ({"better": "full", "than": "naive_bayse"},)}, "Did you mean 'naive_bayes'?"),
        ({"hypotheses": ({"better": "majority", "than": "naive_bayes"},)}, "majority and naive_bayes are baselines"),
    ],
)
def test_options_that_do_not_fit_the_matrix_are_named(options, said):
    found = unfit_options(StudyOptions.model_validate(options), axes_of(AXES))
    assert any(said in message for _, message in found), found


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"over": {"model.checkpoint": ("a",)}}, "a path into a stage"),
        ({"over": {"stages.a.x": (1, 1)}}, "stands there twice"),
        ({"over": {"stages.a.x": (1, 2)}, "budget": {"stages.a.x": 3}}, "is searched over"),
        ({"over": {"stages.a.x": (1, 2)}, "halving": {"stages.a.y": (4, 2)}}, "each larger than the one before"),
        ({"over": {"stages.a.x": (1, 2)}, "halving": {"stages.a.y": (1, 2), "stages.a.z": (1, 2)}}, "must name one"),
        (
            {"over": {"stages.a.x": (1, 2)}, "halving": {"stages.a.y": (1, 2)}, "budget": {"stages.a.y": 1}},
            "stands in 'budget' too",
        ),
    ],
)
def test_a_search_that_cannot_be_is_refused(search, said):
    with pytest.raises(ValueError, match=said):
        Search.model_validate(search)


@pytest.mark.parametrize(
    ("hypothesis", "said"),
    [
        ({"better": "full"}, "needs either 'better' and 'than', or 'equal"),
        ({"better": "full", "than": "lora", "equal": ("full", "lora")}, "needs either"),
        ({"claim": "so"}, "needs either"),
        ({"better": "full", "than": "full"}, "names 'full' twice"),
    ],
)
def test_a_hypothesis_is_an_order_or_an_equality(hypothesis, said):
    with pytest.raises(ValidationError) as caught:
        StudyOptions.model_validate({"hypotheses": (hypothesis,)})
    assert any(said in message for _, message in flatten(caught.value))
