"""A feedback stage against `transformers serve`, a server that is not ours: it completes, and a killed server costs nothing twice.

Questions go through a proxy that only counts: what was answered, and how often.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.events import read_events
from tests import tiny

pytestmark = pytest.mark.long
KILLED_AFTER = 15
"""Answers after which the server is killed."""
RECIPE = """\
name: served
model:
  architecture: {{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 64}}
tokenizer: {{train: byte_bpe, vocab_size: 600}}
stages:
  - stage: pretrain
    objective: causal_lm
    datasets: [{{path: builtin/python-docs}}]
    block_size: 32
    max_train_samples: 100
    arguments: {{max_steps: 2, global_batch_size: 8, learning_rate: 1e-3}}
  - stage: feedback
    prompts: {{path: builtin/python-docs, max_length: 8, max_samples: 40}}
    judge: {{name: endpoint, base_url: "http://127.0.0.1:{port}/v1", model: {model}, concurrency: 4, retries: 2, timeout: 120.0, prices: {{prompt: 1.0}}}}
    completions: 2
    response_length: 8
    constitution: default
"""


def chat_model(folder: Path) -> Path:
    """A decoder of two layers with a chat template that answers A or B, by what it read, and ends."""
    import torch

    from pipelines.core.interfaces import Head
    from pipelines.data.chat_templates import TEMPLATES
    from pipelines.data.tokenizers.bpe import ByteBPE
    from pipelines.feedback.judges import questions
    from pipelines.models import opening
    from pipelines.models.tokenizer import without_segments

    tokenizer = ByteBPE().train(
        iter([*tiny.TEXTS, questions.comparison("p", "a", "b")] * 3), 500, extra=["<|im_start|>", "<|im_end|>"]
    )
    tokenizer.chat_template = TEMPLATES["chatml"]
    model = opening.build(
        tiny.shape("llama", max_position_embeddings=4096, tie_word_embeddings=False, initializer_range=0.5),
        Head("causal_lm"),
        tokenizer,
        0,
    )
    letters = [tokenizer(letter, add_special_tokens=False)["input_ids"][0] for letter in "AB"]
    with torch.no_grad():  # dimension 0 says whether a letter was written; no layer writes to it
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0
            layer.mlp.down_proj.weight[0] = 0
        model.model.embed_tokens.weight[:, 0] = 0
        model.model.embed_tokens.weight[letters, 0] = 1000
        model.lm_head.weight.zero_()
        direction = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(1))
        direction[0] = 0
        model.lm_head.weight[letters[0]], model.lm_head.weight[letters[1]] = direction, -direction
        model.lm_head.weight[tokenizer.eos_token_id, 0] = 1000
    model.save_pretrained(str(folder))
    without_segments(tokenizer).save_pretrained(str(folder))
    return folder


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(model: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`transformers serve`, as it is installed."""
    command = [
        str(Path(sys.executable).with_name("transformers")),
        "serve",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with (
        open(log, "ab") as out,
        subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True) as server,
    ):
        try:
            end = time.monotonic() + 240
            while time.monotonic() < end:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert server.poll() is None, log.read_text()
                time.sleep(0.2)
            yield server
        finally:
            kill(server)


def kill(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class Proxy:
    """Passes requests on and counts those that were answered in full."""

    def __init__(self, target: int) -> None:
        self.answered: Counter[str] = Counter()
        self.asked = 0
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with outer.lock:
                    outer.asked += 1
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", target, timeout=120)
                    connection.request("POST", self.path, body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    content = response.read()
                except (OSError, http.client.HTTPException):  # the server is gone: so is the connection
                    self.close_connection = True
                    return
                self.send_response(response.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                if response.status == 200:
                    with outer.lock:
                        outer.answered[json.dumps(json.loads(body)["messages"])] += 1

            def log_message(self, *words: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait_for(self, count: int, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 400
        while sum(self.answered.values()) < count:
            assert process.poll() is None, "the run ended before enough was answered"
            assert time.monotonic() < end
            time.sleep(0.02)


def start(words: list[str], work: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FINERY_HOME": str(work / "home"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with open(work / "said", "ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli", *words], cwd=work, env=environment, stdout=out, stderr=out
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("judge"))


def test_a_server_killed_in_the_middle_ends_the_run_resumable_and_nothing_is_asked_twice(
    model: Path, tmp_path: Path
) -> None:
    port = free_port()
    proxy = Proxy(port)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(port=proxy.port, model=model))
    run = tmp_path / "runs" / "served"
    with served(model, port, tmp_path / "server.log") as server:
        first = start(["run", "recipe.yaml"], tmp_path)
        proxy.wait_for(KILLED_AFTER, first)
        kill(server)
        code = first.wait(300)
    assert code == 75, (tmp_path / "said").read_text()
    last = list(read_events(run / "events.jsonl"))[-1]
    assert (last["event"], last["stage"]) == ("stopped", "feedback")
    assert "finery resume" in last["message"]
    before = Counter(proxy.answered)
    assert KILLED_AFTER <= sum(before.values()) < 80
    assert not (run / "stages" / "02-feedback" / "preferences.jsonl").exists()
    with served(model, port, tmp_path / "server.log"):
        second = start(["resume", str(run)], tmp_path)
        assert second.wait(600) == 0, (tmp_path / "said").read_text()
    place = run / "stages" / "02-feedback"
    metrics = json.loads((place / "metrics.json").read_text())
    assert set(proxy.answered.values()) == {1}, "a question was answered, and so paid for, twice"
    assert len(proxy.answered) == metrics["questions"] == 2 * metrics["comparisons"]
    assert all(proxy.answered[question] == 1 for question in before)
    assert metrics["abstentions"] == 0
    assert metrics["preferences"] > 0
    assert metrics["cost"] == pytest.approx(metrics["prompt_tokens"] * 1e-6)
    kept = [
        json.loads(line)
        for path in (tmp_path / "home" / "data" / "feedback").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len({each["key"] for each in kept}) == len(kept) == metrics["questions"]
    print(
        f"{sum(before.values())} of {metrics['questions']} questions answered before the kill, {proxy.asked} requests in all, each answered once; {metrics}"
    )
