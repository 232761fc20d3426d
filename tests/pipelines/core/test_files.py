import json
import math

import numpy as np
import pytest

from pipelines.core.files import lines_of, restored, whole_file, write_json


def test_a_file_is_there_only_when_it_is_whole(tmp_path):
    path = tmp_path / "metrics.json"
    with whole_file(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.json"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "metrics.json"
    path.write_text("old")

    def interrupted() -> None:
        with whole_file(path) as temporary:
            temporary.write_text("ne")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        interrupted()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.json"]


def test_json_is_read_back_equal(tmp_path):
    content = {"glue/mrpc": {"f1": 0.1 + 0.2}, "größe": [1, None]}
    write_json(tmp_path / "a.json", content)
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == content


def test_what_is_not_finite_stays_valid_json_and_can_be_had_back(tmp_path):
    content = {"f1": math.nan, "best": [-math.inf, math.inf, np.float64("nan"), 1.0], "name": "none"}
    write_json(tmp_path / "a.json", content)
    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert read == {"f1": "nan", "best": ["-inf", "inf", "nan", 1.0], "name": "none"}
    assert repr(restored(read)) == repr({**content, "best": [-math.inf, math.inf, math.nan, 1.0]})


def test_lines_of_rows_end_at_line_feeds_alone():
    assert lines_of("a\u2028b\x0b\x0c\x85\r\n\nc\r") == ["a\u2028b\x0b\x0c\x85", "", "c"]
    assert lines_of("a\n") == ["a"]
    assert lines_of("") == []
