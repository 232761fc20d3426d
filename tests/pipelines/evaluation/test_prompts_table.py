from dataclasses import replace

import pytest

from pipelines.core.registry import TASKS
from pipelines.evaluation.few_shot.prompts import PROMPTS, prompt_for, unfit

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
