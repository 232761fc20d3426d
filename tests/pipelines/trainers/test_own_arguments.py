from __future__ import annotations

import pytest

from pipelines.core.config import ConfigIssues
from pipelines.core.training_arguments import Argument
from pipelines.trainers.arguments import Setting, checked_with, split

TABLE = {
    "beta": Setting(Argument("float", above=0), 0.1),
    "loss_type": Setting(Argument("=sigmoid|=hinge"), "sigmoid", listed=True),
}
validate = checked_with(TABLE)


def refused(arguments):
    with pytest.raises(ConfigIssues) as caught:
        validate(arguments)
    return dict(caught.value.found)


def test_own_settings_stand_among_the_arguments_and_are_taken_out_again():
    arguments = validate({"beta": 0.5, "loss_type": ["sigmoid", "hinge"], "max_steps": 3})
    assert split(arguments, TABLE) == ({"beta": 0.5, "loss_type": ["sigmoid", "hinge"]}, {"max_steps": 3})


def test_what_is_not_said_has_its_default():
    assert split({"max_steps": 3}, TABLE)[0] == {"beta": 0.1, "loss_type": "sigmoid"}


def test_every_mistake_is_told_at_once_in_the_words_of_the_other_arguments():
    found = refused({"beta": 0, "loss_type": "sigmod", "max_steps": 0, "output_dir": "x"})
    assert found[("beta",)] == "is 0, must be greater than 0"
    assert "Did you mean 'sigmoid'?" in found[("loss_type",)]
    assert {("max_steps",), ("output_dir",)} < set(found)


def test_a_name_that_is_nearly_right_is_found_among_the_own_settings():
    assert "Did you mean 'beta'?" in refused({"betta": 1})[("betta",)]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [([], "at least one entry"), (["sigmoid", "x"], 'has an entry that is "x"'), (3, "must be one of")],
)
def test_lists_are_checked_entry_by_entry(value, sentence):
    assert sentence in refused({"loss_type": value})[("loss_type",)]


def test_a_list_stands_only_where_one_is_allowed():
    assert "must be a number" in refused({"beta": [0.1]})[("beta",)]
