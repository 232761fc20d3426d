import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.config import ConfigIssues
from pipelines.evaluation.few_shot.prompts import PromptTemplate, columns_of, fill, lettered, placeholders, unfit
from pipelines.tasks.benchmarks import MIDDLE, SQUAD, SST2, STSB


def test_the_answer_follows_the_text_or_stands_at_its_mark():
    assert PromptTemplate(text="{sentence}\nAnswer:").asked({"sentence": "so dull"}) == ("so dull\nAnswer: ", "")
    prompt = PromptTemplate(text="It was {answer}. {sentence}")
    assert prompt.asked({"sentence": "so dull"}) == ("It was ", ". so dull")
    assert prompt.answered({"sentence": "so dull"}, "bad") == "It was bad. so dull"


@given(st.text(), st.text())
def test_what_stands_in_a_row_is_never_read_as_a_template(one, two):
    row = {"one": f"{{two}}{one}{{0.__class__}}", "two": two}
    assert fill("{one}|{two}|{three}", row) == f"{row['one']}|{two}|{{three}}"


@given(st.text(alphabet="ab{} .:!_x", max_size=30))
def test_filling_in_nothing_changes_nothing(text):
    assert fill(text, {}) == text
    assert fill(text, {name: f"{{{name}}}" for name in placeholders(text)}) == text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"text": "no column"}, "every row would be asked the same"),
        ({"text": "{a} {answer} {answer}"}, "more than once"),
        ({"text": "{a}", "answers": ("yes", "yes")}, "named twice"),
        ({"text": "{a}", "answers": ("yes", " ")}, "is empty"),
        ({"text": "{a}", "answers": ("yes",)}, "at least 2"),
        ({"text": "{a}", "answer": "x"}, "unknown key 'answer'"),
    ],
)
def test_a_prompt_that_asks_nothing_is_refused(words, sentence):
    with pytest.raises((ConfigIssues, ValidationError), match=sentence):
        PromptTemplate.model_validate(words)


@pytest.mark.parametrize(
    ("prompt", "task", "sentence"),
    [
        (PromptTemplate(text="{sentense}"), SST2, "no column of 'glue/sst2'. Did you mean 'sentence'"),
        (PromptTemplate(text="{sentence}", answers=("a", "b", "c")), SST2, "classes negative, positive"),
        (PromptTemplate(text="{sentence}", answers="letters"), SST2, "write a word for each class"),
        (PromptTemplate(text="{question}", answers=("a", "b")), MIDDLE, "answers: letters"),
        (PromptTemplate(text="{question}", answers=("a", "b")), SQUAD, "are words for classes"),
        (PromptTemplate(text="{sentence1}", answers=("low", "high")), STSB, "must be numbers"),
    ],
)
def test_a_prompt_that_does_not_fit_its_task_is_told(prompt, task, sentence):
    [(_, told)] = unfit(prompt, task)
    assert sentence in told


def test_options_may_stand_in_the_text():
    assert columns_of(MIDDLE) == ("article", "question", "options")
    assert lettered(["red", "blue"]) == "A. red\nB. blue"
    assert unfit(PromptTemplate(text="{question}\n{options}", answers="letters"), MIDDLE) == []
