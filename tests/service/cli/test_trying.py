"""`finery try`: the page of one folder, on this machine alone, from the start of the command to its end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.core.errors import CommandError
from service.cli.trying import model_in
from tests import writers
from tests.service.web.conftest import csrf


def serving(folder: Path) -> list[str]:
    """The processes that serve a folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if (line := place.read_bytes().decode(errors="replace")).count(str(folder)) and "serve-model" in line:
                found.append(place.parent.name)
    return found


def test_a_folder_is_tried_by_whoever_sits_at_the_machine_and_nothing_is_left(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "service.cli", "try", str(writers.folder("t5")), "--port", "0", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        assert told["url"].startswith("http://127.0.0.1:")
        with httpx.Client(base_url=told["url"], follow_redirects=True, timeout=60) as client:
            page = client.get("/")
            at = page.url.path
            secret = {"csrf": csrf(page.text)}
            assert client.post(f"{at}/start", data={"csrf": "0" * 64}).status_code == 403
            assert client.get(at, headers={"Host": "evil.example"}).status_code == 421
            assert client.get("/jobs").status_code == client.get("/api/v1/jobs").status_code == 404
            client.post(f"{at}/start", data=secret)
            limit = time.monotonic() + 120
            while "form-complete" not in (text := client.get(at).text) and time.monotonic() < limit:
                time.sleep(0.2)
            assert "Written by" in text
            values: dict[str, Any] = {**secret, "v.text": "the cat", "v.ways": ["greedy", "beam"], "v.max_tokens": "5"}
            answer = client.post(f"{at}/complete", data=values).text
            assert answer.count("<article>") == 2
            assert f"finery generate {writers.folder('t5')} &#39;the cat&#39; --max-new-tokens 5" in answer
            streamed = client.post(f"{at}/complete/stream", data=values).text
            kinds = [line.removeprefix("event: ") for line in streamed.splitlines() if line.startswith("event: ")]
            assert {"texts", "piece", "replace", "finished", "answer"} <= set(kinds)
            assert kinds[-1] == "answer"
        assert serving(writers.folder("t5")), "the model lives in a process of its own"
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0
        assert serving(writers.folder("t5")) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        child.kill()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "holds no model that can be tried"),
        ({"stages/01-x/stage.json": "{}"}, "is a run with several stages"),
        (
            {"config.json": '{"architectures": ["X2ForConditionalGeneration"], "bidirectional_decoder": true}'},
            "writes one text from another in a way that no process here answers",
        ),
        ({"config.json": "{"}, "holds no model that can be tried"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_listens(tmp_path: Path, files: Any, sentence: str) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(CommandError, match=sentence):
        model_in(tmp_path)
    with pytest.raises(CommandError, match="is no folder"):
        model_in(tmp_path / "none")


def test_a_stage_is_tried_by_the_model_that_it_left(tmp_path: Path) -> None:
    folder = tmp_path / "02-mrpc"
    folder.mkdir()
    (folder / "stage.json").write_text("{}")
    (folder / "model").symlink_to(writers.folder("bert"))
    found = model_in(folder)
    assert (found.name, Path(found.path)) == ("02-mrpc", folder / "model")
