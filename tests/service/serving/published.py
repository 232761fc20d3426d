"""Tiny models that are published in a served application, so that they can be asked."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests import writers
from tests.service.served import Served

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def publish(served: Served, kind: str, name: str, fingerprint: str = "0123abcd", chats: bool = False) -> Path:
    """One of `tests.writers` as a model of the project acme. Returns its folder."""
    attempt = served.started(served.job())
    served.written(attempt, [{"event": "started"}])
    folder = served.settings.models / "acme" / name / fingerprint
    shutil.copytree(writers.folder(kind), folder)
    if chats:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    served.store.publish_model(
        attempt.id, attempt.fencing, name=name, fingerprint=fingerprint, path=str(folder), scores={}
    )
    return folder
