from types import SimpleNamespace

from pipelines.core.registry import TASK_KINDS
from pipelines.tasks.subject import Subject, owners_of_keys, unused_keys


def subject(kind, as_text=False, **keys):
    given = dict.fromkeys(owners_of_keys()) | keys
    return SimpleNamespace(
        **given,
        resolved=lambda name: SimpleNamespace(kind=kind),
        learnt_as=lambda: TASK_KINDS.load("seq2seq" if as_text else kind),
    )


def test_they_are_for_tasks_of_the_kind_causal():
    assert list(unused_keys(subject("causal", packing=True), "x")) == []
    found = dict(unused_keys(subject("seq2seq", packing=True, train_on="all"), "x"))
    assert set(found) == {("packing",), ("train_on",)}
    assert found[("packing",)] == "is for tasks of the kind causal, but this task's kind is seq2seq; leave it out"


def test_answers_that_are_written_have_the_keys_of_texts_whatever_the_kind():
    assert list(unused_keys(subject("classification", as_text=True, max_target_length=8), "x")) == []
    assert [place for place, _ in unused_keys(subject("classification", max_target_length=8), "x")] == [
        ("max_target_length",)
    ]


def test_the_keys_of_kinds_are_keys_of_a_stage():
    owners = owners_of_keys()
    assert owners.keys() <= Subject.model_fields.keys()
    assert owners["packing"] == ["causal"]  # rows of instruction_pairs are learnt as another kind
