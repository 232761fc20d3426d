import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from pipelines.metrics.accuracy import compute

pairs = st.integers(2, 6).flatmap(
    lambda classes: st.lists(
        st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=60
    )
)


def test_three_of_four_are_right():
    assert compute([0, 1, 2, 2], [0, 1, 2, 1]) == {"accuracy": 0.75}


@given(pairs)
def test_equals_scikit_learn(pairs):
    predictions, references = np.array(pairs).T
    assert compute(predictions, references)["accuracy"] == pytest.approx(
        accuracy_score(references, predictions), abs=1e-15
    )


def test_the_result_is_a_plain_float():
    assert type(compute([1], [1])["accuracy"]) is float
