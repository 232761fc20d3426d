"""SQuAD: questions on Wikipedia, whose answers are spans of a paragraph.

1.1: Rajpurkar et al. 2016, arxiv.org/abs/1606.05250, every question has an answer. 2.0: Rajpurkar et al. 2018,
arxiv.org/abs/1806.03822, half of the development set has none. The second asks the model that learnt the first where no
stage trained it: its training rows may be out of reach.
"""

from __future__ import annotations

from pipelines.data.extractive_qa import QuestionTask
from pipelines.data.tasks import Place


def _task(name: str, config: str, version_2: bool, trained_by: str | None = None) -> QuestionTask:
    return QuestionTask(
        name=name,
        kind="qa",
        columns=("question", "context"),
        label="answers",
        metrics=(name,),
        places={split: Place(f"rajpurkar/{name}", config, split) for split in ("train", "validation")},
        trained_by=trained_by,
        id_column="id",
        version_2=version_2,
    )


SQUAD = _task("squad", "plain_text", version_2=False)
SQUAD_V2 = _task("squad_v2", "squad_v2", version_2=True, trained_by="squad")
