import json

import numpy as np

from pipelines.core.interfaces import Rows
from pipelines.evaluation.examples import MOST, ScoredExamples, mistakes, write_mistakes
from pipelines.tasks.predictions import ClassPredictions


def test_the_worst_come_first_and_right_answers_not_at_all():
    count = MOST + 60
    rows = Rows([f"text {at}" for at in range(count)], None, [0] * count, list(range(count)))
    said = ClassPredictions("glue/sst2", "validation", "", rows, np.zeros((count, 2), dtype=np.float32))
    badness = np.arange(count) % 50 / 50.0
    found = mistakes(said, ScoredExamples(["a"] * count, ["b"] * count, np.arange(count) != 49, badness, "something"))
    assert len(found) == MOST
    assert [each["badness"] for each in found] == sorted((each["badness"] for each in found), reverse=True)
    assert [each["index"] for each in found[:2]] == [99, 149]  # 49 would be the first, but it is right
    assert found[0]["text_pair"] is None
    assert found[0]["confidence"] is None


def test_lines_are_json_in_any_language(tmp_path):
    write_mistakes(tmp_path / "mistakes.jsonl", [{"text": "schön\n世界"}, {"text": "b"}])
    lines = (tmp_path / "mistakes.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["schön\n世界", "b"]
    assert "世界" in lines[0]
