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


def publish_byte_pairs(served: Served, name: str) -> Path:
    """A chat model whose tokens are byte pairs and whose weights know nothing. Returns its folder."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.byte_pairs import byte_pairs

    tokenizer = byte_pairs()
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    config = GPT2Config(vocab_size=len(tokenizer) + 4, n_positions=600, n_embd=16, n_layer=1, n_head=2, **ends)
    folder = publish(served, "gpt2", name, chats=True)
    GPT2LMHeadModel(config).save_pretrained(folder)
    for file in folder.glob("*token*"):
        file.unlink()
    tokenizer.save_pretrained(folder)
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
