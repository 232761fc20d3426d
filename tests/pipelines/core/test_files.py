import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pipelines.core.errors import DataError
from pipelines.core.files import lines_of, made_once, restored, whole_file, write_json


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


def test_of_several_at_once_one_makes_a_file_and_the_others_read_it(tmp_path):
    path, made = tmp_path / "data" / "made.txt", []

    def load():
        return path.read_text() if path.exists() else None

    def make():
        made.append(time.monotonic())
        time.sleep(0.2)  # in which the others ask
        path.write_text("once")

    with ThreadPoolExecutor(4) as several:
        got = [several.submit(made_once, path, load, make) for _ in range(4)]
    assert [each.result() for each in got] == ["once"] * 4
    assert len(made) == 1
    assert list(path.parent.iterdir()) == [path]


def test_another_makes_what_one_could_not_and_what_cannot_be_read_is_said(tmp_path):
    path = tmp_path / "made.txt"

    def fails():
        raise OSError(28, "No space left on device")

    def load():
        return path.read_text() if path.exists() else None

    with pytest.raises(OSError, match="No space left"):
        made_once(path, load, fails)
    assert made_once(path, load, lambda: path.write_text("later")) == "later"
    with pytest.raises(DataError, match=r"other\.txt was removed or damaged while it was prepared; run again"):
        made_once(tmp_path / "other.txt", lambda: None, lambda: None)


def test_lines_of_rows_end_at_line_feeds_alone():
    assert lines_of("a\u2028b\x0b\x0c\x85\r\n\nc\r") == ["a\u2028b\x0b\x0c\x85", "", "c"]
    assert lines_of("a\n") == ["a"]
    assert lines_of("") == []
