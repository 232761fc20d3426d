"""Graders that have a counterpart among the rewards, and the reason for those that have none."""

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from service.openai.creation import Unoffered, reward_of, weights_of

CHECK = {
    "type": "string_check",
    "name": "colour",
    "input": "{{ sample.output_text }}",
    "reference": "It's blue (50%).",
    "operation": "eq",
}


def matches(operation, reference, answer):
    """As the reward `pattern` looks."""
    reward = reward_of(CHECK | {"operation": operation, "reference": reference})
    return (
        regex.compile(reward["pattern"], regex.IGNORECASE if reward.get("ignore_case") else 0).search(answer)
        is not None
    )


LETTERS = st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from(
    "\n\t {}\\.*"
)  # control characters are white space to one and none to the other


@given(st.text(LETTERS, min_size=1, max_size=20).filter(str.strip), st.text(LETTERS, max_size=30))
def test_a_check_says_what_the_same_comparison_of_texts_says(reference, answer):
    for spaced in (answer, f" {reference}\n", f"x{reference}", reference):
        equal = spaced.strip() == reference.strip()
        if "{{" in reference:
            return
        assert matches("eq", reference, spaced) == equal
        assert matches("ne", reference, spaced) == (not equal)
        assert matches("like", reference, spaced) == (reference.strip() in spaced)


def test_like_minds_capitals_and_ilike_does_not():
    assert matches("ilike", "Blue", "it is BLUE.")
    assert not matches("like", "Blue", "it is BLUE.")


@pytest.mark.parametrize(
    ("grader", "sentence"),
    [
        (None, "must be an object with 'type'"),
        ({}, "there is no grader 'None'"),
        ({"type": "vibes"}, "there is no grader 'vibes'"),
        ({"type": "python", "source": "def grade(): ..."}, "runs Python code of yours on the server"),
        ({"type": "text_similarity"}, "rewards see the prompt and the answer alone"),
        ({"type": "score_model"}, "submit one to /api/v1/jobs"),
        ({"type": "label_model"}, "submit one to /api/v1/jobs"),
        (CHECK | {"reference": "{{item.answer}}"}, "has a reference that reads the row ({{item.answer}})"),
        (CHECK | {"input": "{{item.question}}"}, "must be '{{sample.output_text}}'"),
        (CHECK | {"input": "{{sample.output_text}} x"}, "must be '{{sample.output_text}}'"),
        (CHECK | {"operation": "regex"}, "must be one of eq, ne, like, ilike"),
        (CHECK | {"reference": " "}, "of 1 to 200 characters"),
        (CHECK | {"reference": "x" * 201}, "of 1 to 200 characters"),
        (CHECK | {"reference": 4}, "of 1 to 200 characters"),
        ({"type": "multi", "graders": {}}, "needs 'graders'"),
        ({"type": "multi", "graders": {"a": CHECK}}, "calculate_output is 'None'"),
        ({"type": "multi", "graders": {"a": {"type": "multi"}}, "calculate_output": "a"}, "stands inside another"),
        ({"type": "multi", "graders": {"a": {"type": "python"}}, "calculate_output": "a"}, "runs Python code"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_the_reason(grader, sentence):
    with pytest.raises(Unoffered) as refused:
        reward_of(grader)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("formula", "weights"),
    [
        ("a", {"a": 1}),
        ("0.5 * a + 0.5*b", {"a": 0.5, "b": 0.5}),
        ("-(a - b) / 2", {"a": -0.5, "b": 0.5}),
        ("a + a", {"a": 2}),
        ("2 * (a + b * 3)", {"a": 2, "b": 6}),
    ],
)
def test_a_sum_of_graders_is_a_sum_of_rewards(formula, weights):
    assert weights_of(formula, ["a", "b"]) == weights


@pytest.mark.parametrize(
    "formula",
    [
        "a * b",
        "max(a, b)",
        "a ** 2",
        "1",
        "",
        "a / 0",
        "a +",
        "__import__('os')",
        "a if b else 1",
        "c",
        "1e999 * a",
        3,
        "(" * 500,
        "9" * 900 + " * a",
        "a[0]",
        "a; b",
    ],
)
def test_everything_else_is_refused(formula):
    with pytest.raises(Unoffered):
        weights_of(formula, ["a", "b"])


@given(st.text(max_size=40))
def test_no_formula_ends_otherwise_than_with_a_sum_or_a_sentence(formula):
    try:
        found = weights_of(formula, ["a", "b"])
    except Unoffered:
        return
    assert set(found) <= {"a", "b"}
