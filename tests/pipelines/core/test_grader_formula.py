"""Formulas say what the same arithmetic says, and nothing but arithmetic."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.grader_formula import read_formula

SCORES = {"a": 0.25, "b": 2.0, "c_1": -1.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 0.25),
        ("0.5 * a + b / 4 - -1", 0.125 + 0.5 + 1),
        ("a - b - c_1", 0.25 - 2 + 1.5),
        ("b / 4 / 2", 0.25),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2 ^ 2", -4.0),
        ("2 ^ -1", 0.5),
        ("(a + b) * c_1", -3.375),
        ("max(a, b, 3) + min(a, b)", 3.25),
        ("abs(c_1) + floor(1.9) + ceil(1.1)", 1.5 + 1 + 2),
        ("exp(0) + sqrt(4) + log(1)", 3.0),
        ("1e-3 * 2.5E2 + .5", 0.75),
        ("+".join("a" * 500), 125.0),
    ],
)
def test_a_formula_is_its_arithmetic(text, value):
    assert read_formula(text).value(SCORES) == pytest.approx(value)


@given(st.recursive(
    st.sampled_from(["a", "b", "3", "0.5"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
    max_leaves=12,
))  # fmt: skip
def test_any_formula_of_four_operations_is_what_python_makes_of_it(text):
    try:
        expected = eval(text, {}, SCORES)
    except ZeroDivisionError:
        with pytest.raises(ArithmeticError):
            read_formula(text).value(SCORES)
    else:
        assert read_formula(text).value(SCORES) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is empty"),
        ("a +", "a value is missing"),
        ("(a", "not closed"),
        ("a b", "should end"),
        ("a ** 2", "'*' stands where"),
        ("a.b", "has no meaning"),
        ("a[0]", "has no meaning"),
        ("a; b", "has no meaning"),
        ("__import__('os')", "has no meaning"),
        ("open(a)", "no function 'open'"),
        ("min(a)", "two values or more"),
        ("abs(a, b)", "takes one value"),
        ("-" * 60 + "a", "nested more than 50"),
        ("(" * 60 + "a" + ")" * 60, "nested more than 50"),
        ("a" * 1001, "at most 1000"),
    ],
)
def test_what_is_no_formula_is_one_sentence(text, sentence):
    with pytest.raises(ValueError) as refused:
        read_formula(text)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["a / 0", "exp(1000)", "(-8) ^ 0.5", "log(0)", "9" * 400, "floor(1e308 * 10)"])
def test_what_comes_to_no_finite_number_is_an_arithmetic_error(text):
    with pytest.raises(ArithmeticError, match="calculate_output"):
        read_formula(text).value(SCORES)


@given(st.text(max_size=60))
def test_no_text_ends_otherwise_than_with_a_number_or_a_sentence(text):
    try:
        formula = read_formula(text)
        assert math.isfinite(formula.value(dict.fromkeys(formula.names, 1.0)))
    except (ValueError, ArithmeticError):
        pass
