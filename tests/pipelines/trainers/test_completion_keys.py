from types import SimpleNamespace

from pipelines.tasks.training import KEYS, useless


def subject(kind, **keys):
    given = dict.fromkeys(KEYS) | keys
    return SimpleNamespace(**given, resolved=lambda name: SimpleNamespace(kind=kind))


def test_they_are_for_tasks_of_the_kind_causal():
    assert list(useless(subject("causal", packing=True), "x")) == []
    found = dict(useless(subject("seq2seq", packing=True, train_on="all"), "x"))
    assert set(found) == {("packing",), ("train_on",)}
    assert found[("packing",)] == "is for tasks of the kind causal, but this task's kind is seq2seq; leave it out"
