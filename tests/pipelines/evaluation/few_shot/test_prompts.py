"""Prompts and the defaults of named tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.core.config import ConfigIssues
from pipelines.core.registry import TASKS
from pipelines.evaluation.few_shot.prompts import (
    PROMPTS,
    PromptTemplate,
    columns_of,
    fill,
    lettered,
    placeholders,
    prompt_for,
    unfit,
)

MIDDLE, SQUAD, SST2, STSB = (TASKS.load(name) for name in ("race/middle", "squad", "glue/sst2", "glue/stsb"))


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


SST2 = TASKS.load("glue/sst2")

WITHOUT = {"glue/ax", "alpaca_eval_preferences", "hh-rlhf/harmless-base"}
"""The labels of `glue/ax` are not public, so it is never asked; of two answers that people compared, a reward model scores each."""


def test_every_named_task_has_a_prompt():
    assert set(PROMPTS) <= set(TASKS) - WITHOUT


@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_fits_its_task(name):
    assert unfit(PROMPTS[name], TASKS.load(name)) == []


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "qqp", "qnli", "rte", "wnli"])
def test_the_prompts_of_glue_are_those_of_the_harness(name):
    """Read from the harness' own files, so that its scores and ours compare."""
    harness = pytest.importorskip("lm_eval.tasks")
    from pathlib import Path

    from ruamel.yaml import YAML

    told = YAML().load(Path(harness.__file__).parent / "glue" / name / "default.yaml")
    own = PROMPTS[f"glue/{name}"]
    assert own.text == told["doc_to_text"].replace("{{", "{").replace("}}", "}")
    assert list(own.answers) == list(told["doc_to_choice"])


def test_other_tasks_are_asked_by_their_columns():
    task = replace(SST2, name="own", columns=("title", "body"), label="topic")
    assert prompt_for(task).text == "title: {title}\nbody: {body}\ntopic:"
