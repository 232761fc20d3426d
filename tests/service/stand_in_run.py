"""Stands in for `python -m pipelines` where hundreds of attempts are killed: same files, same signals, no model.

`run recipe.yaml` and `resume runs/NAME` write events through the real event log, a checkpoint every few steps, answer
SIGTERM with a checkpoint and exit 75, hold the run folder's lock, and publish at the end as the publish stage does. What
it did is noted in `steps.log` (one line a step: process, step, step of the checkpoint it began with), from which a test
sees that work went on from the last checkpoint and that two processes never wrote at once.
"""

import fcntl
import hashlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipelines.core.events import EventLog

EVERY = 2
"""Steps between two checkpoints."""


def write(path, content):
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def main(verb, word):
    recipe = Path(word).read_text() if verb == "run" else (Path(word) / "recipe.yaml").read_text()
    name = re.search(r"^name: (\S+)", recipe, re.M).group(1)
    total = int(re.search(r"max_steps: (\d+)", recipe).group(1))
    target = re.search(r"published/[\w.:-]+", recipe)
    seconds = float(os.environ.get("STAND_IN_STEP_SECONDS", "0.05"))
    folder = Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    lock = open(folder / ".lock", "a")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        write(folder / "two-writers", str(os.getpid()))
        print("finery: in use by another process", file=sys.stderr)
        return 1
    write(folder / "recipe.yaml", recipe)
    events = EventLog(folder / "events.jsonl")
    events.emit("started", name=name, stages=["pretrain"])
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    checkpoint = folder / "checkpoint.json"
    began = step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    stage = events.of("pretrain")
    while step < total:
        if asked:
            write(checkpoint, json.dumps({"step": step}))
            stage.emit("stopped", message="stopped by SIGTERM", reason="stopped")
            return 75
        time.sleep(seconds)
        step += 1
        with open(folder / "steps.log", "a") as file:
            file.write(f"{os.getpid()} {step} {began}\n")
        stage.emit("metric", step=step, metrics={"loss": 1 / step})
        if step % EVERY == 0:
            write(checkpoint, json.dumps({"step": step}))
            stage.emit("checkpoint", step=step, path="checkpoint.json")
    if "fail-with-" in recipe:
        reason = re.search(r"fail-with-(\w+)", recipe).group(1)
        stage.emit("failed", message=f"stage 'pretrain': it ended with {reason}", reason=reason)
        return 1
    stage.emit("stage_finished", seconds=1.0, reused=False, fingerprint="a" * 32, metrics={"train_runtime": 1.0})
    events.of("evaluate").emit(
        "stage_finished", seconds=0.1, reused=False, fingerprint="b" * 32, metrics={"glue/mrpc": {"f1": 0.8}}
    )
    if target:
        publish(Path(target.group(0)), name, recipe)
    events.emit("finished", seconds=1.0)
    return 0


def publish(place, name, recipe):
    incoming = place.with_name(f".{place.name}.incoming")
    incoming.mkdir(parents=True, exist_ok=True)
    (incoming / "model.safetensors").write_bytes(name.encode())
    (incoming / "recipe.yaml").write_text(recipe)
    stages = [
        {"stage": "evaluate", "metrics": {"glue/mrpc": {"f1": 0.8}}},
        {"stage": "pretrain", "metrics": {"all_parameters": 7}},
    ]
    (incoming / "manifest.json").write_text(json.dumps({"stages": stages}))
    mark = hashlib.sha256(name.encode()).hexdigest()[:32]
    (incoming / "publication.json").write_text(json.dumps({"complete": True, "fingerprint": mark, "checksums": {}}))
    if place.exists():
        import shutil

        shutil.rmtree(incoming)
    else:
        incoming.rename(place)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
