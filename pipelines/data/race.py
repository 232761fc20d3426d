"""RACE: English examinations of Chinese middle and high schools, four options a question.

Lai et al. 2017, "RACE: Large-scale ReAding Comprehension Dataset From Examinations", arxiv.org/abs/1704.04683; section 5
scores accuracy on the two schools and on all of their questions together. Half of the questions of its development set have a gap `_`.
"""

from __future__ import annotations

from pipelines.data.multiple_choice import ChoiceTask, choice_task
from pipelines.data.tasks import Place

PATH = "ehovy/race"


def _task(config: str) -> ChoiceTask:
    places = {split: Place(PATH, config, split) for split in ("train", "validation", "test")}
    return choice_task(f"race/{config}", "question", ("options",), "answer", "article", "_", 0, places)


MIDDLE = _task("middle")
HIGH = _task("high")
ALL = _task("all")
