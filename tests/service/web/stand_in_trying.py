"""Stands in for `python -m pipelines serve-model` on a page: offers and answers what `behaviour` in the model's folder says."""

import json
import os
import socket
import sys
import time
from pathlib import Path

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}"
FIELD = {"name": "text", "label": "Text"}
FORM = {"name": "predict", "title": "Ask", "button": "Ask", "fields": [FIELD], "examples": [{"text": "one"}]}
request = json.loads(sys.argv[-1])
behaviour = (Path(request["model"]) / "behaviour").read_text()
connection = socket.socket(socket.AF_UNIX)
connection.connect(request["socket"])
lines = connection.makefile("rb")


def say(**message):
    connection.sendall(json.dumps(message).encode() + b"\n")


say(key=(Path(os.environ["FINERY_SECRETS"]) / "SERVE_KEY").read_text())
if behaviour == "cannot be opened":
    say(failed="the weights are torn")
    sys.exit(1)
if behaviour == "starts slowly":
    time.sleep(1.5)
forms = [FORM]
if behaviour == "hostile":
    field = {"name": HOSTILE[:200], "label": HOSTILE, "hint": HOSTILE}
    streamed = {**FORM, "name": "chat", "streams": True, "note": HOSTILE}
    forms = [{**FORM, "title": HOSTILE, "fields": [field], "examples": [{HOSTILE[:200]: HOSTILE}]}, streamed]
if behaviour == "offers nonsense":
    forms = [{"name": "predict", "title": 3}]
say(ready={"kind": "causal", "can": ["predict"], "engine": "stand-in", "why": "", "forms": forms})
for line in lines:
    message = json.loads(line)
    if "cancel" in message:
        continue
    number = message["id"]
    if behaviour == "answers nonsense":
        say(id=number, end={"parts": [{"show": "magic"}]})
    elif behaviour == "refuses":
        say(id=number, error={"message": f"no: {HOSTILE}", "code": "x", "status": 400})
    elif behaviour == "hostile":
        piece = {"text": HOSTILE, "mark": HOSTILE, "share": 0.5}
        head = {"layer": 1, "head": 1, "entropy": 1.0, "distance": None, "picture": "AAAA"}
        view = {
            "name": "x",
            "title": HOSTILE,
            "queries": [HOSTILE],
            "keys": ["b"],
            "heads": [head],
            "layer": 1,
            "head": 1,
            "weights": [[1.0]],
        }
        writing = {"title": HOSTILE, "text": HOSTILE, "facts": [[HOSTILE, HOSTILE]]}
        parts = [
            {"show": "bars", "title": HOSTILE, "bars": [{"label": HOSTILE, "share": 1.0, "text": HOSTILE}]},
            {"show": "marked", "title": HOSTILE, "pieces": [piece]},
            {"show": "number", "title": HOSTILE, "value": 0.5, "low": 0.0, "high": 1.0},
            {"show": "writings", "writings": [writing]},
            {"show": "attention", "views": [view]},
            {"show": "sentence", "text": HOSTILE},
        ]
        say(id=number, texts=[HOSTILE])
        say(id=number, piece={"index": 99, "text": HOSTILE})
        say(id=number, end={"parts": parts, "notes": [HOSTILE]})
    else:
        given = message["values"]["text"]
        say(id=number, end={"parts": [{"show": "sentence", "text": f"heard {given}"}]})
