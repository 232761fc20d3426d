"""Types as short words."""

import pytest

from pipelines.core.config import as_kind, fits, json_type, misfit

VALUES = {"int": 3, "float": 0.5, "str": "x", "bool": True, "null": None, "list": (1, 2), "dict": {"a": 1}}


@pytest.mark.parametrize("word", sorted(VALUES))
def test_a_value_has_its_own_type_and_no_other_but_whole_numbers_are_numbers(word):
    fitting = {other for other, value in VALUES.items() if fits(value, word)}
    assert fitting == ({"int", "float"} if word == "float" else {word})
    assert all(fits(value, "any") for value in VALUES.values())


def test_true_is_no_number():
    assert not fits(True, "int|float")


def test_a_whole_number_beyond_all_floats_is_no_number():
    assert not fits(10**400, "float|null")
    assert fits(10**400, "int")
    assert misfit(-(10**400), "float").endswith("must be a number")


def test_a_sentence_says_what_was_given_and_what_is_allowed():
    assert misfit("wide", "int|float|null") == 'is "wide", must be a number or null'
    assert misfit(2.5, "int") == "is 2.5, must be a whole number"
    assert misfit("learnt", "=learned|=sinusoidal") == (
        "is \"learnt\", must be one of learned, sinusoidal. Did you mean 'learned'?"
    )
    assert misfit(3, "=all|=no|bool") == "is 3, must be one of all, no, true or false"
    assert misfit("no", "=all|=no|bool") is None


def test_whole_numbers_become_floats_only_where_nothing_else_is_allowed():
    assert as_kind(1, "float|null") == 1.0
    assert isinstance(as_kind(1, "float|null"), float)
    assert isinstance(as_kind(1, "int|float"), int)
    assert as_kind(True, "float") is True
    assert as_kind((1, 2), "list") == [1, 2]


def test_kinds_as_json_schema():
    assert json_type("int") == {"type": "integer"}
    assert json_type("int|null") == {"type": ["integer", "null"]}
    assert json_type("=a|=b") == {"enum": ["a", "b"]}
    assert json_type("=a|bool") == {"anyOf": [{"enum": ["a"]}, {"type": "boolean"}]}
    assert json_type("any") == {}
