from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from pipelines.core.errors import DataError, ModelError
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.reward_inputs import (
    FILE,
    Frame,
    RewardCollator,
    RewardInputFormat,
    RewardSettings,
    encode_scored,
    settings_in,
)
from pipelines.tasks.preference.training import ScoredPairsCollator, encode_scored_pairs
from tests import tiny
from tests.pipelines.tasks.preference.test_pairs import ids, rows


def tokenizer(segments=False):
    found = copy.deepcopy(tiny.tokenizer())
    found.model_input_names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    return found


def test_a_decoder_reads_one_text_whose_end_is_told():
    reading = RewardInputFormat("text", 40)
    found = encode_scored(tokenizer(), reading.dialogues(["the cat"], [" runs"]), reading)
    assert found.input_ids == [[*ids("the cat"), *ids(" runs"), tiny.tokenizer().sep_token_id]]
    assert found.token_type_ids is None


def test_an_empty_answer_is_the_prompt_and_its_end():
    for reading in (RewardInputFormat("text", 40), RewardInputFormat("pair", 40)):
        found = encode_scored(tokenizer(), reading.dialogues(["the cat"], [""]), reading)
        assert found.input_ids[0][-1] == tiny.tokenizer().sep_token_id
        assert [token for token in found.input_ids[0] if token > 4] == ids("the cat")


def test_a_pair_is_what_the_tokenizer_makes_of_two_texts():
    reading = RewardInputFormat("pair", 40)
    for segments in (True, False):
        own = tokenizer(segments)
        found = encode_scored(own, reading.dialogues(["the cat", "a dog"], [" runs", " is good"]), reading)
        expected = own(["the cat", "a dog"], [" runs", " is good"], return_token_type_ids=segments)
        assert found.input_ids == expected["input_ids"]
        assert found.token_type_ids == (expected["token_type_ids"] if segments else None)


@pytest.mark.parametrize("reads", ["text", "pair"])
def test_a_prompt_loses_its_beginning_and_an_answer_its_end(reads):
    reading = RewardInputFormat(reads, 12, 4)
    words = " ".join(tiny.WORDS)
    found = encode_scored(tokenizer(), reading.dialogues([words, "the"], [f" {words}", " cat"]), reading)
    told = [token for token in found.input_ids[0] if token > 4]
    assert len(found.input_ids[0]) == 12
    assert told == ids(words)[-4:] + ids(words)[: len(told) - 4]
    assert found.truncated == 1


def test_what_was_trained_with_a_template_is_scored_with_it():
    own = tokenizer()
    own.chat_template = TEMPLATES["simple"]
    reading = RewardInputFormat("text", 40, templated=True)
    found = encode_scored(own, reading.dialogues(["the cat"], ["runs"]), reading)
    rendered = own.apply_chat_template(
        [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "runs"}], tokenize=False
    )
    assert found.input_ids[0] == own(rendered, add_special_tokens=False)["input_ids"]


def test_the_frame_of_a_tokenizer_that_hides_it_is_refused():
    class Hiding:
        model_input_names = ("input_ids",)

        def __call__(self, one, other=None, **keywords):
            return {"input_ids": [[1], [2]] if other is None else [3, 4]}

    with pytest.raises(ModelError, match="in a way that cannot be cut to length"):
        Frame.of(Hiding())


def test_texts_are_put_together_with_their_segments():
    reading = RewardInputFormat("pair", 40)
    own = tokenizer(segments=True)
    found = encode_scored(own, reading.dialogues(["the cat", "a"], [" runs", " is good and fine"]), reading)
    batch = RewardCollator.of(own)([found[0], found[1]])
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids"}
    assert batch["attention_mask"].sum(dim=1).tolist() == found.lengths.tolist()
    assert batch["input_ids"][0, int(found.lengths[0]) :].eq(own.pad_token_id).all()


def test_what_stands_beside_a_reward_model_is_read_again(tmp_path):
    assert settings_in(tmp_path) is None
    settings = RewardSettings(RewardInputFormat("text", 96, 32, True), 1.5, 0.25)
    settings.write(tmp_path, {"train": {"pairs": 3}})
    assert settings_in(tmp_path) == settings
    assert json.loads((tmp_path / FILE).read_text())["train"] == {"pairs": 3}
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(ModelError, match=r"is not what a reward stage writes"):
        settings_in(tmp_path)


def test_both_sides_of_pairs_in_one_batch():
    own = tokenizer()
    pairs = encode_scored_pairs(
        own,
        rows(("the cat", " runs", " sleeps on it"), ("a dog", " is good", " is bad"), margins=[1.0, 2.0]),
        RewardInputFormat("pair", 40),
    )
    batch = ScoredPairsCollator(RewardCollator.of(own))([pairs[0], pairs[1]])
    assert next(iter(batch)) == "labels"  # the Trainer counts the examples of a batch by its first entry
    assert batch["labels"].tolist() == [0, 0]
    assert batch["margin"].tolist() == [1.0, 2.0]
    for row, (side, at) in enumerate((side, at) for side in (pairs.chosen, pairs.rejected) for at in range(2)):
        assert batch["input_ids"][row, : int(side.lengths[at])].tolist() == side.input_ids[at]
    assert pairs.lengths.tolist() == [
        max(len(one), len(other)) for one, other in zip(pairs.chosen.input_ids, pairs.rejected.input_ids, strict=True)
    ]
    assert (
        "margin"
        not in encode_scored_pairs(
            own, rows(("the cat", " runs", " is"), margins=[1.0]), RewardInputFormat("pair", 40), with_margins=False
        )[0]
    )


def test_probabilities_go_with_their_pairs_where_they_are_asked_for():
    sure = replace(rows(("the cat", " runs", " sleeps"), ("a dog", " is", " was")), probabilities=[0.9, 0.6])
    own, reading = tokenizer(), RewardInputFormat("text", 40)
    pairs = encode_scored_pairs(own, sure, reading, with_probabilities=True).select([1, 0])
    batch = ScoredPairsCollator(RewardCollator.of(own))([pairs[0], pairs[1]])
    assert batch["probability"].tolist() == pytest.approx([0.6, 0.9])
    assert "probability" not in encode_scored_pairs(own, sure, reading)[0]


def test_pairs_that_are_the_same_within_the_limit_teach_nothing_but_are_scored_as_ties():
    same = rows(("the cat", " is good and fine", " is good and dull"), ("a dog", " runs", " sleeps"))
    reading = RewardInputFormat("text", 5)
    pairs = encode_scored_pairs(tokenizer(), same, reading)
    assert (pairs.index, pairs.left_out, pairs.truncated) == ([11], (10,), 1)
    assert len(encode_scored_pairs(tokenizer(), same, reading, keep_all=True)) == 2
    with pytest.raises(DataError, match="their answers do not differ; raise max_length"):
        encode_scored_pairs(tokenizer(), rows(("the cat", " is good and fine", " is good and dull")), reading)
    assert pairs.select([0])[0]["index"] == 11
