"""Each option is read beside what all options share."""

from __future__ import annotations

from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.tasks.multiple_choice.task import ChoiceRows, MultipleChoice
from pipelines.tasks.multiple_choice.training import collate_choices, encode_choices
from tests import tiny

ROWS = ChoiceRows(
    ["the cat", "a very dull book"], None, [1, 0], [4, 7], [["runs", "it was read"], ["and", "or the film"]]
)


def test_the_sequences_of_a_question_are_its_pairs():
    examples = encode_choices(tiny.tokenizer(), ROWS, 32)
    for question, text, options in zip(examples.input_ids, ROWS.texts, ROWS.options, strict=True):
        assert [ids.tolist() for ids in question] == [tiny.tokenizer()(text, option)["input_ids"] for option in options]
    assert examples.index == [4, 7]
    assert examples.truncated == 0


def test_a_batch_has_an_axis_of_options():
    examples = encode_choices(tiny.tokenizer(), ROWS, 32)
    batch = collate_choices(tiny.tokenizer(), [examples[0], examples[1]])
    longest = int(examples.lengths.max())
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (2, 2, longest),
        "token_type_ids": (2, 2, longest),
        "attention_mask": (2, 2, longest),
        "labels": (2,),
    }
    assert batch["input_ids"][0, 1][batch["attention_mask"][0, 1] == 1].tolist() == examples.input_ids[0][1].tolist()
    assert batch["labels"].tolist() == [1, 0]


def test_the_context_is_cut_and_not_the_option():
    long = ChoiceRows([" ".join(tiny.WORDS)], None, None, [0], [["it was read", "runs"]])
    examples = encode_choices(tiny.tokenizer(), long, 12)
    option = tiny.tokenizer()("it was read", add_special_tokens=False)["input_ids"]
    assert examples.truncated == 2
    assert examples.input_ids[0][0].tolist()[-len(option) - 1 : -1] == option
    assert examples.labels is None


def test_chosen_questions_keep_their_options():
    examples = encode_choices(tiny.tokenizer(), ROWS, 32).select([1])
    assert (len(examples), examples.labels, examples.index) == (1, [0], [7])


def test_the_head_reads_what_the_stage_says():
    recipe = """\
name: choice
model: {architecture: {preset: bert-tiny}}
stages: [{stage: supervised, task: race/middle, pooling: mean}]
"""
    stage = loads(recipe).stages[0]
    assert MultipleChoice.training_head(stage, stage.resolved(stage.id)) == Head("multiple_choice", pooling="mean")
