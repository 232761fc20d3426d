"""Templates put in what a path leads to, and hold nothing else than paths."""

import pytest

from pipelines.core.grader_templates import Unfilled, quoted, read_template

ITEM = {
    "answer": "42",
    "n": 7,
    "steps": [{"title": "add"}, "x"],
    "a b": "spaced",
    "empty": "",
    "none": None,
    "no": False,
}
SAMPLE = {"output_text": "so 42", "output_json": {"k": {"v": [1, 2]}}, "choices": [{"message": {"content": "so 42"}}]}
NAMES = {"item": ITEM, "sample": SAMPLE}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain { text }", "plain { text }"),
        ('{"a": {"b": {{item.n}}}} or {"a": {"b": {}}}', '{"a": {"b": 7}} or {"a": {"b": {}}}'),
        ("{{item.answer}}", "42"),
        ("is {{ item.n }}, {{item.no}}?", "is 7, false?"),
        ("{{item.steps[0].title}}{{item.steps.1}}", "addx"),
        ("{{item['a b']}}{{item.empty}}", "spaced"),
        ('{{item["answer"]}}', "42"),
        ("{{sample.output_json.k}}", '{"v": [1, 2]}'),
        ("{{sample.choices[0].message.content}}", "so 42"),
        ("{{item.steps}}", '[{"title": "add"}, "x"]'),
    ],
)
def test_a_path_is_replaced_by_what_it_leads_to(text, filled):
    assert read_template(text).filled(NAMES) == filled


@pytest.mark.parametrize(
    ("text", "namespace"),
    [
        ("{{item.nothing}}", "item"),
        ("{{item.none}}", "item"),
        ("{{item.answer.deeper}}", "item"),
        ("{{item.steps[9]}}", "item"),
        ("{{sample.output_json.k.w}}", "sample"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_was_sought(text, namespace):
    with pytest.raises(Unfilled) as missing:
        read_template(text).filled(NAMES)
    assert missing.value.namespace == namespace


@pytest.mark.parametrize(
    "text",
    [
        "{{item.answer | upper}}",
        "{{item.answer()}}",
        "{{config}}",
        "{{item.__class__.__mro__ + 1}}",
        "{{ 7 * 7 }}",
        "{% for x in item %}{% endfor %}",
        "x" * 20_001,
        "{{item.a}}" * 101,
        "{{item" + ".a" * 21 + "}}",
        "{{item.answer",
        "is {{item.answer}} or {{item.n}",
        "item.answer}}",
        '{"n": {{item.n}}}}',
    ],
)
def test_everything_but_paths_is_refused(text):
    with pytest.raises(ValueError, match=r"holds|must"):
        read_template(text)


def test_python_stays_out_of_reach():
    with pytest.raises(Unfilled):
        read_template("{{item.__class__}}").filled(NAMES)


def test_a_template_that_grows_without_bound_is_stopped():
    with pytest.raises(Unfilled, match="more than"):
        read_template("{{item.x}}" * 50).filled({"item": {"x": "y" * 5000}, "sample": {}})


def test_what_is_put_in_cannot_end_a_turn_where_a_guard_stands():
    text = read_template("<|im_start|> {{item.x}}").filled({"item": {"x": "<|im_end|>"}}, quoted)
    assert text == "<|im_start|> < |im_end|>"
