import json

import numpy as np
import pytest
from pydantic import ValidationError

from pipelines.tasks.instruction_pairs.task import InstructionPairs
from pipelines.tasks.predictions import TextPredictions
from pipelines.tasks.scoring import score


def block(folder, **keys):
    rows = [{"instruction": "Add.", "input": "2", "output": "5"}, {"instruction": "Say.", "input": "", "output": "x"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return InstructionPairs.model_validate(
        {"kind": "instruction_pairs", "train": "rows.jsonl", **keys}, context={"folder": folder}
    )


def test_what_is_asked_becomes_the_source_and_the_answer_the_target(tmp_path):
    task = block(tmp_path, validation="rows.jsonl").task("x")
    assert (task.kind, task.head.kind, task.name) == ("seq2seq", "seq2seq_lm", "x")
    rows = task.rows("train")
    assert (list(rows.texts), list(rows.labels)) == (["Add.\n\n2", "Say."], ["5", "x"])
    assert task.scores == task.metrics == ("rouge1", "rouge2", "rougeL")


def test_plain_texts_ask_nothing(tmp_path):
    with pytest.raises(ValidationError, match="is text, which asks nothing"):
        block(tmp_path, format="text")


def test_an_answer_pattern_picks_out_what_scores_intervals_and_worst_answers_compare(tmp_path):
    task = block(tmp_path, validation="rows.jsonl", answer_pattern=r"is (\w+)").task("x")
    rows = task.rows("validation")
    rows.labels[:] = ["it is 5", "so it is x"]
    written = TextPredictions("x", "validation", "", rows, np.array(["the sum is 5", "I say y"], dtype=object))
    assert score(task)(written.answers, written.labels) == {"exact_match": 50.0}
    assert written.intervals(task, score(task), 0)["exact_match"] == (0.0, 100.0)
    assert written.scored_examples(task).wrong.tolist() == [False, True]
