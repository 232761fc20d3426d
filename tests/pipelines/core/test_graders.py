"""What each grader makes of an answer, what it asks of models, and what is no grader."""

import pytest

from pipelines.core.config import ConfigIssues
from pipelines.core.graders import GraderAnswer, Usage, grading, label_in, number_in, read_grader, sample_of

CHECK = {
    "type": "string_check", "name": "right", "input": "{{ sample.output_text }}", "reference": "{{item.answer}}",
    "operation": "eq",
}  # fmt: skip
NEAR = {
    "type": "text_similarity", "name": "near", "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
    "evaluation_metric": "rouge_l",
}  # fmt: skip
SCORE = {
    "type": "score_model", "name": "judge", "model": "J", "range": [0, 10],
    "input": [
        {"role": "developer", "content": "You judge."},
        {"role": "user", "content": [{"type": "input_text", "text": "Rate: {{sample.output_text}}"}]},
    ],
}  # fmt: skip
LABEL = {
    "type": "label_model", "name": "tone", "model": "J", "labels": ["kind", "rude"], "passing_labels": ["kind"],
    "input": [{"role": "user", "content": "{{sample.output_text}}"}],
}  # fmt: skip


def grade(grader, text, item=None, answers=()):
    """(the grade, what was asked)."""
    steps, asked, given = grading(read_grader(grader), item or {}, sample_of(text)), [], iter(answers)
    try:
        asked.append(next(steps))
        while True:
            asked.append(steps.send(next(given)))
    except StopIteration as end:
        return end.value, asked


@pytest.mark.parametrize(
    ("operation", "text", "score"),
    [
        ("eq", " Blue\n", 1),
        ("eq", "blue", 0),
        ("ne", "blue", 1),
        ("like", "It is Blue.", 1),
        ("like", "it is blue.", 0),
        ("ilike", "it is BLUE.", 1),
    ],
)
def test_texts_are_compared_with_a_field_of_the_row(operation, text, score):
    assert grade(CHECK | {"operation": operation}, text, {"answer": "Blue"})[0].score == score


def test_an_answer_in_json_is_read_by_its_paths_and_one_that_is_none_is_a_fault():
    check = CHECK | {"input": "{{sample.output_json.steps[0]}}"}
    assert grade(check, '{"steps": ["x"]}', {"answer": "x"})[0].score == 1
    broken = grade(check, "no json", {"answer": "x"})[0]
    assert (broken.score, list(broken.faults)) == (0, ["sample_parse_error"])
    lacking = grade(CHECK, "x", {"question": "?"})[0]
    assert lacking.faults == {"invalid_variable_error": "there is no item.answer"}


def test_a_judges_number_is_held_within_its_range_and_the_question_says_what_is_wanted():
    made, (question,) = grade(SCORE, "yes <|im_end|>", answers=[GraderAnswer(text="I say 7/10", prompt_tokens=9)])
    assert (made.score, made.usage) == (7, {"J": Usage(1, 9, 0)})
    assert question.messages[0] == {"role": "system", "content": "You judge."}
    assert question.messages[1]["content"].startswith("Rate: yes < |im_end|>\n\nAnswer with one number from 0 to 10")
    assert (question.temperature, question.max_tokens) == (0, 64)
    assert grade(SCORE, "yes", answers=[GraderAnswer(text="99")])[0].score == 10
    mute = grade(SCORE | {"range": [2, 5]}, "yes", answers=[GraderAnswer(text="very good")])[0]
    assert (mute.score, list(mute.faults)) == (2, ["model_grader_parse_error"])
    gone = grade(SCORE, "yes", answers=[GraderAnswer(failure="it is gone")])[0]
    assert gone.faults == {"model_grader_server_error": "it is gone"}


def test_a_label_passes_where_it_is_among_those_that_pass():
    assert [grade(LABEL, "x", answers=[GraderAnswer(text=said)])[0].score for said in ("Kind.", "rude", "kind or rude")] == [
        1, 0, 0,
    ]  # fmt: skip


def test_graders_are_joined_by_their_formula_and_keep_their_parts():
    inner = {"type": "multi", "name": "in", "graders": {"j": SCORE}, "calculate_output": "j / 10"}
    both = {
        "type": "multi", "name": "all", "graders": {"exact": CHECK, "near": NEAR, "judged": inner},
        "calculate_output": "max(exact, near) + judged ^ 2",
    }  # fmt: skip
    made, asked = grade(both, "a red cat", {"answer": "a cat"}, [GraderAnswer(text="5", completion_tokens=4)])
    assert made.score == pytest.approx(0.8 + 0.25)
    assert {name: part.score for name, part in made.parts.items()} == pytest.approx(
        {"exact": 0, "near": 0.8, "judged": 0.5}
    )
    assert (len(asked), made.usage) == (1, {"J": Usage(1, 0, 4)})
    zero = grade(both | {"calculate_output": "near / exact"}, "x", {"answer": "y"}, [GraderAnswer(text="5")])[0]
    assert (zero.score, list(zero.faults)) == (0, ["formula_parse_error"])


def test_vectors_are_asked_for_where_texts_are_compared_by_their_cosine():
    made, (question,) = grade(
        NEAR | {"evaluation_metric": "cosine", "model": "E"}, "a", {"answer": "b"}, [GraderAnswer(cosine=0.9)]
    )
    assert (made.score, question.texts, question.model) == (0.9, ("a", "b"), "E")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7), ("-0.5", -0.5), ("7 out of 10", 7), ("First 3 reasons.\nSo: 8/10", 8), ('{"steps": [1], "result": 4}', 4),
        ('{"x": 1}', None), ("none", None), ("", None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_the_number_of_an_answer(text, number):
    assert number_in(text) == number


def test_a_label_inside_another_word_is_none():
    assert label_in("it is not unkindly", ["kind", "rude"]) is None
    assert label_in('"Rude"', ["kind", "rude"]) == "rude"


@pytest.mark.parametrize(
    ("grader", "place", "sentence"),
    [
        (None, (), "must be an object with 'type'"),
        ({"type": "vibes"}, ("type",), "must be one of string_check"),
        ({"type": "python", "source": "def grade(): ..."}, ("type",), "runs code of its author's on the server"),
        (CHECK | {"operation": "regex"}, ("operation",), "must be one of eq, ne, like, ilike"),
        (CHECK | {"reference": "{{item.x|upper}}"}, ("reference",), "a path alone"),
        (CHECK | {"extra": 1}, ("extra",), "unknown key 'extra'"),
        (CHECK | {"reference": 4}, ("reference",), "must be a text"),
        (NEAR | {"evaluation_metric": "rouge_9"}, ("evaluation_metric",), "rouge_5"),
        (SCORE | {"range": [1, 0]}, ("range",), "to a larger one"),
        (SCORE | {"input": [{"role": "user", "content": {"type": "input_image", "image_url": "x"}}]},
         ("input", 0, "content"), "must be text"),
        (LABEL | {"passing_labels": ["kin"]}, ("passing_labels",), "Did you mean 'kind'?"),
        ({"type": "multi", "graders": {}, "calculate_output": "a"}, ("graders",), "at least 1"),
        ({"type": "multi", "graders": {"a": CHECK}, "calculate_output": "a * b"}, ("calculate_output",), "reads 'b'"),
        ({"type": "multi", "graders": {"a": CHECK}, "calculate_output": "1"}, ("calculate_output",), "reads none"),
        ({"type": "multi", "graders": {"a b": CHECK}, "calculate_output": "1"}, ("graders", "a b"), "no name"),
        ({"type": "multi", "graders": {"a": {"type": "python"}}, "calculate_output": "a"}, ("graders", "a", "type"),
         "runs code"),
    ],
)  # fmt: skip
def test_what_is_no_grader_is_told_with_its_place(grader, place, sentence):
    with pytest.raises(ConfigIssues) as refused:
        read_grader(grader)
    assert place in dict(refused.value.found)
    assert sentence in dict(refused.value.found)[place]


def test_graders_do_not_nest_without_end():
    grader = CHECK
    for _ in range(3):
        grader = {"type": "multi", "graders": {"a": grader}, "calculate_output": "a"}
    with pytest.raises(ConfigIssues, match="more than 3 deep"):
        read_grader(grader)
