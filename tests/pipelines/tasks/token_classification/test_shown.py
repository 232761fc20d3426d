"""Tags as people see them: the words of an entity as one mark, with the least sure of its words."""

import numpy as np

from pipelines.core.presentation import Marked, Sentence
from pipelines.tasks.token_classification.evaluation import TagPredictions
from pipelines.tasks.token_classification.task import WordRows

NAMES = ("O", "B-PER", "I-PER", "B-LOC")


def predicted(words, tags, sure=3.0):
    logits = np.full((len(words), len(NAMES)), np.nan, dtype=np.float32)
    for place, tag in enumerate(tags):
        if tag is not None:
            logits[place] = 0.0
            logits[place, NAMES.index(tag)] = sure + place
    rows = WordRows([" ".join(words)], None, None, [0], [words])
    return TagPredictions("x", "test", "", rows, [logits], NAMES)


def shown(words, tags):
    return predicted(words, tags).shown(None)


def test_an_entity_is_one_mark_with_its_least_probability():
    words = ["Ada", "Lovelace", "met", "Bob", "in", "the", "Alps"]
    (marked,) = shown(words, ["B-PER", "I-PER", "O", "B-PER", "O", "O", "B-LOC"])
    assert isinstance(marked, Marked)
    assert "".join(piece.text for piece in marked.pieces) == " ".join(words)
    marks = [(piece.text, piece.mark) for piece in marked.pieces if piece.mark]
    assert marks == [("Ada Lovelace", "PER"), ("Bob", "PER"), ("Alps", "LOC")]
    powers = np.exp([3.0, 0, 0, 0])  # of Ada, who is less sure than Lovelace with 4
    np.testing.assert_allclose(marked.pieces[0].share, powers[0] / powers.sum(), rtol=1e-6)


def test_two_entities_side_by_side_stay_two():
    (marked,) = shown(["Ada", "Bob"], ["B-PER", "B-PER"])
    assert [(piece.text, piece.mark) for piece in marked.pieces] == [("Ada", "PER"), (" ", ""), ("Bob", "PER")]


def test_words_without_a_token_are_counted_and_have_neither_tag_nor_probability():
    marked, sentence = shown(["in", "Alps", "\u200b", ""], ["O", "B-LOC", None, None])
    assert isinstance(sentence, Sentence)
    assert sentence.text == "2 of 4 words have no tag: the tokenizer makes no token of them."
    assert marked.pieces[-1].text == "\u200b "
    columns = predicted(["in", ""], ["O", None]).columns(None)
    assert columns["prediction"] == [["O", None]]
    assert [each is None for each in columns["probabilities"][0]] == [False, True]
    assert predicted(["in", ""], ["O", None]).answers[0].tolist() == [0, 0]  # what is scored: outside of entities
