"""Stands in for `python -m pipelines serve-model`: speaks its words, and does what `behaviour` in the model's folder says."""

import faulthandler
import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

request = json.loads(sys.argv[-1])
behaviour = (Path(request["model"]) / "behaviour").read_text()
with suppress(OSError), open(Path(request["model"]) / "starts", "a", encoding="utf-8") as file:  # it may be isolated
    file.write(".")
if behaviour == "ends":
    print("finery: the model is of no use", flush=True)
    sys.exit(1)
if behaviour == "hangs in its template":
    faulthandler.dump_traceback_later(0.1, exit=True, file=2)
    time.sleep(20)
connection = socket.socket(socket.AF_UNIX)
connection.connect(request["socket"])
lines = connection.makefile("rb")


def say(**message):
    connection.sendall(json.dumps(message).encode() + b"\n")


key = (Path(os.environ["FINERY_SECRETS"]) / "SERVE_KEY").read_text()
say(key="wrong" if behaviour == "wrong key" else key)
if behaviour == "fails":
    say(failed="the weights are torn")
    sys.exit(1)
beside = {name: folder for name, folder in request.get("beside", {}).items() if not (Path(folder) / "torn").exists()}
models = {"models": [request["name"], *beside]} if request.get("beside") else {}
say(ready={"kind": "causal", "can": ["complete"], "engine": "stand-in", "why": "", "context": 8, **models})
for line in lines:
    message = json.loads(line)
    if "cancel" in message:
        (Path.cwd() / "cancelled").write_text(str(message["cancel"]))
        continue
    number = message["id"]
    if behaviour == "crashes":
        os._exit(139)
    if behaviour == "garbage":
        connection.sendall(b"no json\n")
    elif behaviour == "floods":
        for _ in range(80):
            say(id=number, piece={"index": 0, "text": "x" * (1 << 20), "tokens": []})
    elif behaviour == "wrong ids":
        say(id="x", end={})
        say(id=[1], end={})
        say(id=10**9, end={})
        say(id=number, end={"answer": 1})
    elif behaviour == "eats":
        eaten = b"x" * (600 << 20)
        time.sleep(600)
    elif behaviour == "breaks off":
        say(id=number, piece={"index": 0, "text": "hi", "tokens": []})
    elif behaviour == "writes":
        say(id=number, piece={"index": 0, "text": "hi", "tokens": []})
        say(id=number, end={"answer": 1, "prompt_tokens": 3, "completion_tokens": 2})
    elif behaviour == "lies":
        say(id=number, end={"answer": 1, "prompt_tokens": -3, "completion_tokens": 10**30})
    elif behaviour == "is silent":
        time.sleep(600)
    elif behaviour == "errs":
        say(id=number, error={"message": "no " * 1000, "code": 7, "status": "x"})
    else:
        say(id=number, piece={"index": 0, "text": "hi", "tokens": []})
        say(id=number, end={"answer": message.get("n", 0)})
