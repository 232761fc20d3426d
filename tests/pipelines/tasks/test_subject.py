from types import SimpleNamespace

from pipelines.tasks.subject import KEYS_OF_KINDS, unused_keys


def subject(kind, **keys):
    given = dict.fromkeys(KEYS_OF_KINDS) | keys
    return SimpleNamespace(**given, as_text=False, resolved=lambda name: SimpleNamespace(kind=kind))


def test_they_are_for_tasks_of_the_kind_causal():
    assert list(unused_keys(subject("causal", packing=True), "x")) == []
    found = dict(unused_keys(subject("seq2seq", packing=True, train_on="all"), "x"))
    assert set(found) == {("packing",), ("train_on",)}
    assert found[("packing",)] == "is for tasks of the kind causal, but this task's kind is seq2seq; leave it out"
