"""When a training had done so many steps: what lies between two of its logs, without start-up and saving.

A log reads the loss, so that a GPU has done what it was given. Both sides log as often.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

Times = dict[int, float]
"""Seconds of a clock, by the steps that were done."""


def of_run(run: Path) -> Times:
    """The logs of the stage that a run folder's events name: of one stage that trains."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    logs = [each for each in events if each["event"] == "metric" and "loss" in each["metrics"]]
    return {each["step"]: datetime.fromisoformat(each["time"]).timestamp() for each in logs}


def callback(times: Times) -> Any:
    """A callback for transformers' Trainer that fills in `times`."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_log(self, _: Any, state: Any, __: Any, logs: Any = None, **___: Any) -> None:
            if logs and "loss" in logs:
                times[state.global_step] = time.time()

    return Clock()


def a_step(times: Times, few: int, many: int) -> float:
    """Seconds of a step between the logs at `few` and at `many`."""
    return (times[many] - times[few]) / (many - few)
