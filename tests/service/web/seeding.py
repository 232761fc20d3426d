"""A service with some history, written straight into the store: jobs in every state, curves, scores, models, hosts, hostile texts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.jobs.job import Attempt, GpuSlot, Host, HostShare, Job, JobRequest, Resources
from service.jobs.states import Ending, Move, Reason
from service.settings import Settings
from service.store.projects import new_token
from service.store.store import Store

HOUR = 3_600
TEAM, OTHERS = "team", "others"
HOSTILE = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
WIDE = "很长的名字—" + "ä" * 40
RECIPE = """\
# Vocabulary and masked LM, then two ways to learn MRPC.
name: {name}
seed: 42
model:
  architecture: {{preset: bert-mini, position: rotary}}
tokenizer: {{train: wordpiece, vocab_size: 8192}}
stages:
  - stage: pretrain
    objective: masked_lm
    datasets: [{{path: english_novels}}]
    arguments: {{max_steps: 1500, learning_rate: 1e-3}}
  - {{stage: supervised, id: full, from: pretrain, task: glue/mrpc, arguments: {{num_train_epochs: 3}}}}
  - {{stage: supervised, id: lora, from: pretrain, task: glue/mrpc, tuner: {{name: lora, r: {rank}}}, arguments: {{num_train_epochs: 3}}}}
  - {{stage: evaluate, id: evaluate-full, from: full}}
  - {{stage: evaluate, id: evaluate-lora, from: lora}}
  - {{stage: publish, from: lora, to: {name}}}
"""
STUDY = """\
name: tuners-on-mrpc
model:
  architecture: {preset: bert-tiny}
stages:
  - {stage: supervised, task: glue/mrpc}
  - {stage: evaluate}
matrix:
  stages.supervised.tuner: [full, {name: lora, r: 8}, {name: adapter}]
  stages.supervised.seed: [1, 2]
"""
CARD = f"""\
---
license: apache-2.0
---
# MRPC by a small encoder

It tells whether **two sentences** say the same. {HOSTILE}

| metric | value |
|:--|--:|
| F1 | 0.806 |

- [the paper](https://example.org/paper) and [a trap](javascript:alert(1))
- ![a picture](https://example.org/tracker.png)

```python
AutoModelForSequenceClassification.from_pretrained("mrpc")
```
"""


@dataclass(frozen=True)
class Seeded:
    """What a test needs to know."""

    tokens: dict[str, str]
    jobs: dict[str, Job]


class Seeder:
    """Writes history as a scheduler and a supervisor would."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.now = time.time()

    def token(self, role: str, project: str) -> str:
        made = new_token()
        self.store.add_token(made.prefix, made.sha256, project=project, role=role, name=role)
        return made.text

    def job(self, name: str, recipe: str = "", project: str = TEAM, **more: Any) -> Job:
        return self.store.submit(
            JobRequest(recipe=recipe or RECIPE.format(name=name, rank=8), project=project, name=name, **more)
        )[0]

    def start(self, job: Job, host: str = "gpu-01", gpus: tuple[int, ...] = (), log: str = "") -> Attempt:
        attempt = self.store.start(job.id, (HostShare(host, gpus),), executor="local", holder="seed", lease_seconds=1e6)
        attempt = self.store.attempt_started(attempt.id, attempt.fencing, {"pid": 1})
        folder = self.console(attempt)
        folder.mkdir(parents=True)
        (folder / "00000000000000000000.log").write_text(
            log or "Loading the data …\nstep 10\rstep 20\r\x1b[32mstep 30\x1b[0m\n", encoding="utf-8"
        )
        return attempt

    def console(self, attempt: Attempt) -> Path:
        return self.settings.jobs / attempt.job / "attempts" / attempt.id / "console"

    def events(self, attempt: Attempt, *events: dict[str, Any]) -> None:
        known = self.store.attempt(attempt.id)
        lines = [{"id": known.ingested + place, **event} for place, event in enumerate(events, start=1)]
        self.store.ingest(attempt.id, attempt.fencing, lines, known.offset + 1)

    def stage(
        self,
        attempt: Attempt,
        stage: str,
        steps: int = 0,
        of: int = 0,
        rate: float = 1e-3,
        metrics: dict[str, Any] | None = None,
        scores: bool = False,
    ) -> None:
        """A stage that began, wrote `steps` metrics and, unless it goes on (`of`), ended."""
        events: list[dict[str, Any]] = [{"event": "started", "stage": stage, "fingerprint": "ab" * 16}]
        for number in range(1, steps + 1):
            step = number * 25
            loss = 2.6 + 5.9 * math.exp(-number / 14) + 0.08 * math.sin(number * 1.7)
            found = {
                "loss": loss,
                "grad_norm": 1.2 + math.sin(number),
                "learning_rate": rate * (1 - number / max(steps, of // 25, 1)),
                "epoch": number / 10,
            }
            events.append({"event": "metric", "stage": stage, "step": step, "metrics": found})
            if number % 8 == 0:
                events.append({"event": "metric", "stage": stage, "step": step, "metrics": {"eval_loss": loss + 0.15}})
        if of:
            events.append({"event": "progress", "stage": stage, "step": steps * 25, "total": of})
        else:
            events.append(
                {
                    "event": "stage_finished",
                    "stage": stage,
                    "seconds": 100.0 + steps,
                    "reused": not steps and not metrics,
                    "metrics": metrics or {},
                }
            )
        self.events(attempt, *events)
        if not of:
            self.store.record_stage(
                attempt.id,
                attempt.fencing,
                stage,
                seconds=100.0 + steps,
                reused=not steps and not metrics,
                metrics=metrics,
                with_scores=scores,
            )

    def whole(self, job: Job, f1: float, publish: bool = True) -> Attempt:
        """A job that went all the way."""
        attempt = self.start(job)
        trained = {
            "train_runtime": 142.0,
            "trainable_parameters": 360_450,
            "all_parameters": 5_320_000,
            "peak_memory_bytes": 2_147_483_648,
            "train_loss": 0.31,
        }
        self.stage(attempt, "tokenizer", metrics={})
        self.stage(
            attempt, "pretrain", 60, metrics={**trained, "train_runtime": 1680.0, "trainable_parameters": 5_320_000}
        )
        self.stage(attempt, "full", 20, metrics=trained)
        self.stage(attempt, "lora", 20, metrics=trained)
        self.stage(
            attempt, "evaluate-full", metrics={"glue/mrpc": {"f1": f1 - 0.04, "accuracy": f1 - 0.12}}, scores=True
        )
        self.stage(attempt, "evaluate-lora", metrics={"glue/mrpc": {"f1": f1, "accuracy": f1 - 0.1}}, scores=True)
        self.stage(attempt, "publish")
        if publish:
            folder = self.settings.models / job.project / job.name / "c0ffee"
            folder.mkdir(parents=True)
            (folder / "README.md").write_text(CARD, encoding="utf-8")
            self.store.publish_model(
                attempt.id,
                attempt.fencing,
                name=job.name,
                fingerprint=f"c0ffee{f1}",
                path=str(folder),
                base="bert-mini",
                parameters=5_320_000,
                scores={"glue/mrpc": {"f1": f1, "accuracy": f1 - 0.1}},
            )
        self.events(attempt, {"event": "finished", "seconds": 2400.0})
        self.store.end_attempt(attempt.id, attempt.fencing, Ending(Move.SUCCEED, exit_code=0))
        return attempt


def seed(settings: Settings, store: Store) -> Seeded:
    """Fill an empty store."""
    seeder = Seeder(settings, store)
    tokens = {
        "admin": seeder.token("admin", TEAM),
        "submitter": seeder.token("submitter", TEAM),
        "viewer": seeder.token("viewer", TEAM),
        "foreign": seeder.token("submitter", OTHERS),
    }
    gpu = 141 << 30
    store.report_host(
        Host(
            "gpu-01",
            cpus=64,
            memory=512 << 30,
            slots=(GpuSlot(0, "NVIDIA H200", gpu), GpuSlot(1, "NVIDIA H200", gpu)),
            seen=time.time(),
        )
    )
    store.report_host(Host("cpu-01", cpus=16, memory=64 << 30, seen=time.time()))
    jobs = {
        "done": seeder.job("mini-encoder-mrpc"),
        "better": seeder.job("mini-encoder-wide", RECIPE.format(name="mini-encoder-wide", rank=16)),
    }
    seeder.whole(jobs["done"], 0.806)
    seeder.whole(jobs["better"], 0.8371)
    jobs["foreign"] = seeder.job("secret-plan", project=OTHERS)
    seeder.whole(jobs["foreign"], 0.99)
    jobs["failed"] = seeder.job("too-fast")
    attempt = seeder.start(jobs["failed"])
    seeder.stage(attempt, "pretrain", 12, of=1500)
    seeder.events(
        attempt,
        {
            "event": "failed",
            "message": "stage 'pretrain': the loss is NaN at step 310; lower arguments.learning_rate",
            "reason": "diverged",
        },
    )
    store.end_attempt(
        attempt.id,
        attempt.fencing,
        Ending(Move.FAIL, Reason.DIVERGED, "the loss is NaN at step 310; lower arguments.learning_rate", 1),
    )
    jobs["hostile"] = seeder.job(
        HOSTILE, RECIPE.format(name="hostile", rank=8) + f"# {HOSTILE}\n", resources=Resources(gpus=1)
    )
    attempt = seeder.start(
        jobs["hostile"],
        gpus=(0,),
        log=f"{HOSTILE}\n" + "0123456789" * 2_000 + "\n" + f"{WIDE} \u202eevil\x07\n" * 4_000,
    )
    seeder.stage(attempt, HOSTILE[:60], 3, of=100)
    seeder.events(
        attempt,
        {"event": "sample", "stage": HOSTILE, "text": HOSTILE},
        {"event": "warning", "stage": "pretrain", "message": HOSTILE},
    )
    jobs["study"] = seeder.job("tuners-on-mrpc", STUDY)
    attempt = seeder.start(jobs["study"])
    for number, status in enumerate(("done", "done", "failed", "running"), start=1):
        seeder.events(
            attempt,
            {
                "event": "cell",
                "cell": f"cells/{number:02d}",
                "status": status,
                "labels": {},
                "seconds": 61.5 if status == "done" else None,
                "message": "the loss is NaN" if status == "failed" else "",
            },
        )
        if status == "done":
            scores = {"glue/mrpc": {"f1": 0.78 + number / 100, "accuracy": 0.7}}
            store.record_stage(
                attempt.id, attempt.fencing, f"cells/{number:02d}/evaluate", metrics=scores, with_scores=True
            )
    jobs["paused"] = seeder.job("paused-for-lunch")
    attempt = seeder.start(jobs["paused"])
    seeder.stage(attempt, "pretrain", 20, of=1500)
    store.move(jobs["paused"].id, Move.PAUSE)
    store.end_attempt(attempt.id, attempt.fencing, Ending(Move.STOPPED, exit_code=75))
    jobs["cancelled"] = seeder.job("never-mind")
    store.move(jobs["cancelled"].id, Move.CANCEL)
    jobs["queued"] = seeder.job(WIDE, depends_on=(jobs["paused"].id,), priority=5)
    jobs["running"] = seeder.job(
        "mini-encoder-live", RECIPE.format(name="mini-encoder-live", rank=4), resources=Resources(gpus=1, cpus=4)
    )
    attempt = seeder.start(jobs["running"], gpus=(1,))
    seeder.stage(attempt, "tokenizer", metrics={})
    seeder.stage(
        attempt,
        "pretrain",
        60,
        metrics={"train_runtime": 1680.0, "trainable_parameters": 5_320_000, "peak_memory_bytes": 2_147_483_648},
    )
    seeder.events(
        attempt,
        {
            "event": "sample",
            "stage": "lora",
            "task": "lora",
            "examples": 40,
            "shown": [[["Which is larger, 3 or 5? ", False], ["5", True]]],
        },
    )
    seeder.events(
        attempt,
        {
            "event": "warning",
            "stage": "full",
            "message": "5 of 3,668 rows are longer than 128 tokens and lose their end; raise max_length",
        },
    )
    seeder.stage(attempt, "full", 20, metrics={"train_runtime": 142.0, "trainable_parameters": 5_320_000})
    seeder.stage(attempt, "lora", 9, of=345)
    return Seeded(tokens, {key: store.job(job.id) for key, job in jobs.items()})
