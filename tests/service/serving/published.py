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


def publish_adapter(served: Served, name: str, seed: int) -> Path:
    """A LoRA adapter on the GPT-2 of `tests.writers`, as `merge: false` publishes it. Returns its folder."""
    import torch
    from peft import LoraConfig, get_peft_model

    folder = publish(served, "gpt2", name)
    base = folder.with_name("base")
    folder.rename(base)
    tuned = get_peft_model(type(writers.model("gpt2")).from_pretrained(base), LoraConfig(target_modules=["c_attn"]))
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in tuned.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.5)
    tuned.save_pretrained(folder)
    for file in base.glob("*token*"):
        shutil.copy(file, folder / file.name)
    base.rename(folder / "base")
    return folder
