from __future__ import annotations

from pipelines.evaluation.baselines import longer, shorter
from tests.pipelines.tasks.preference.test_pairs import rows


def test_lengths_are_counted_in_letters_and_the_two_guessers_are_opposites():
    pairs = rows(("the cat", " runs", " sleeps on it"), ("a dog", " is", " is bad"))
    assert longer(None, pairs, 1).tolist() == [[5.0, 13.0], [3.0, 7.0]]
    assert (shorter(None, pairs, 1) == -longer(None, pairs, 1)).all()
