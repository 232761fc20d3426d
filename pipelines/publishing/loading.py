"""The lines that load a publication, as its card shows them and as the clean process runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.publishing.clean_room import beside


def load(auto_class: str, destination: Any, folder: Path, adapter: bool, own_code: bool) -> str:
    """Python that leaves `tokenizer` and `model`. `folder` holds the publication while its card is written."""
    place, trust = json.dumps(destination.load_from()), ", trust_remote_code=True" if own_code else ""
    modules = beside(str(folder)) if adapter else []
    fetched = adapter and destination.location.startswith("hub:")  # its parts are opened one by one
    lines = ["import sys\n"] if modules else []
    lines += ["from huggingface_hub import snapshot_download"] if fetched else []
    lines += ["from peft import PeftModel"] if adapter else []
    lines += [f"from transformers import {auto_class}, AutoTokenizer", ""]
    lines += [f"folder = snapshot_download({place})" if fetched else f"folder = {place}"]
    if modules:
        lines += ["sys.path.insert(0, folder)", *(f"import {module}  # teaches PEFT the method" for module in modules), ""]
    lines += [f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})"]
    if adapter:
        lines += [f'base = {auto_class}.from_pretrained(folder + "/base"{trust})', "model = PeftModel.from_pretrained(base, folder)"]
    else:
        lines += [f"model = {auto_class}.from_pretrained(folder{trust})"]
    return "\n".join(lines)


def fetch(destination: Any) -> str:
    """Python that fetches the files from a URL first; nothing where they can be opened in place."""
    url = destination.location
    if "://" not in url:
        return ""
    place, folder = json.dumps(url), json.dumps(destination.load_from())
    return f"import fsspec\n\nfsspec.url_to_fs({place})[0].get({place}, {folder}, recursive=True)"


def answer(new_tokens: int) -> str:
    """Python behind the loading lines that asks a model which was taught to answer through its chat template."""
    return (
        'messages = [{"role": "user", "content": "Name three primary colours."}]\n'
        'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")\n'
        f"written = model.eval().generate(**inputs, max_new_tokens={new_tokens})\n"
        "print(tokenizer.decode(written[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))"
    )
