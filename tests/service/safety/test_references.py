"""References are found where they may stand, and nowhere else."""

from service.safety.references import key_of, references, replaced
from tests.words import words_of


def test_a_reference_is_found_in_a_stage_a_list_and_a_matrix():
    data = {
        "model": {"checkpoint": "job:first"},
        "stages": (
            {"task": {"train": "file:file-1", "label": "file:file-2"}},
            {"datasets": ({"path": "file:file-3"},)},
        ),
        "matrix": {
            "model.checkpoint": ("model:a", "model:b"),
            "method": {"x": {"stages.s.task.validation": "file:file-4"}},
        },
    }
    assert [str(each) for each in references(data)] == words_of(
        "job:first file:file-1 file:file-3 model:a model:b file:file-4"
    )


def test_a_label_that_looks_like_a_reference_is_the_users_own_word():
    assert references({"stages": ({"task": {"label": "file:abc"}},)}) == []


def test_a_file_is_no_checkpoint_and_a_model_no_file():
    assert references({"model": {"checkpoint": "file:abc"}, "stages": ({"path": "model:abc"},)}) == []


def test_the_key_of_an_entry_of_a_matrix_is_the_end_of_its_path():
    assert key_of(("matrix", "stages.mrpc.task.train", 0)) == "train"
    assert key_of(("stages", 0, "datasets", 1, "path")) == "path"
    assert key_of(()) == ""


def test_replacing_leaves_the_rest_as_it_was():
    data = {"a": (1, {"b": "x"}), "c": "x"}
    assert replaced(data, {("a", 1, "b"): "y"}) == {"a": (1, {"b": "y"}), "c": "x"}
    assert data == {"a": (1, {"b": "x"}), "c": "x"}
