"""The lines of the card, run where Finery does not exist."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipelines.publishing.card import load
from pipelines.publishing.destinations.destination import destination_of

ADAPTER = "{name: adapter, kind: parallel, reduction_factor: 4}"
BLOCKED = "import sys\nfor name in ('pipelines', 'service', 'finery'):\n    sys.modules[name] = None\n"
ASKED = (
    "\nimport torch\ninputs = tokenizer('nine trains', return_tensors='pt')\n"
    "with torch.no_grad():\n    said = model.eval()(**inputs).logits\n"
    "print(said.double().sum().item(), said.double().abs().max().item())\n"
)


def lines_of_card(folder: Path) -> str:
    """The block that loads, as a reader copies it."""
    blocks = [part.split("```")[0] for part in (folder / "README.md").read_text().split("```python\n")[1:]]
    return next(block for block in blocks if "from_pretrained" in block)


def answered(code: str, place: Path) -> list[float]:
    """What a process of its own prints, isolated from this one's paths."""
    done = subprocess.run(
        [sys.executable, "-I", "-B", "-c", BLOCKED + code + ASKED],
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(place), "OMP_NUM_THREADS": "1"},
    )
    return [float(number) for number in done.stdout.split()]


@pytest.mark.parametrize(
    ("model_type", "publish"), [("bert", ""), ("finery", ""), ("bert", ", bake: true"), ("finery", ", bake: true")]
)
def test_an_adapter_loads_by_the_lines_of_its_card_where_finery_does_not_exist(
    pretrained: Any, quick: None, tmp_path: Path, model_type: str, publish: str
) -> None:
    made = pretrained(model_type, "masked_lm", tuner=ADAPTER, publish=publish)
    context = made.context()
    made.publish.run(context)
    model = context.open_model(made.recipe.stages[0].objective.head, stage_id="lm", trained_head=True).eval()
    with torch.no_grad():
        expected = model(**made.tokenizer("nine trains", return_tensors="pt")).logits.double()
        with model.disable_adapter():
            bare = model(**made.tokenizer("nine trains", return_tensors="pt")).logits.double()
    published = Path(made.publish.to)
    moved = tmp_path / "elsewhere"
    published.rename(moved)
    code = lines_of_card(moved).replace(json.dumps(str(published)), json.dumps(str(moved)))
    assert ("import finery_bottleneck" in code) == (not publish)
    found = answered(code, tmp_path)
    assert found == pytest.approx([expected.sum().item(), expected.abs().max().item()], rel=1e-5)
    assert found[1] != pytest.approx(bare.abs().max().item(), rel=1e-3)  # the probe sees the adapter


@pytest.mark.parametrize(
    "tuner",
    [
        "{name: prefix, num_virtual_tokens: 3}",
        "{name: prompt, num_virtual_tokens: 3}",
        "{name: p_tuning, num_virtual_tokens: 3}",
    ],
)
def test_virtual_tokens_load_by_the_lines_of_their_card(
    pretrained: Any, quick: None, tmp_path: Path, tuner: str
) -> None:
    made = pretrained("bert", "masked_lm", tuner=tuner)
    context = made.context()
    made.publish.run(context)
    model = context.open_model(made.recipe.stages[0].objective.head, stage_id="lm", trained_head=True).eval()
    with torch.no_grad():
        expected = model(**made.tokenizer("nine trains", return_tensors="pt")).logits.double()
    found = answered(lines_of_card(Path(made.publish.to)), tmp_path)
    assert found == pytest.approx([expected.sum().item(), expected.abs().max().item()], rel=1e-5)


def test_only_a_method_that_peft_lacks_brings_a_module(tmp_path: Path) -> None:
    place = destination_of(str(tmp_path / "x"))
    assert "sys" not in load("AutoModelForMaskedLM", place, tmp_path, adapter=True, own_code=False)
    (tmp_path / "finery_bottleneck.py").write_text("")
    lines = load("AutoModelForMaskedLM", place, tmp_path, adapter=True, own_code=False).splitlines()
    assert (
        lines.index("import finery_bottleneck  # teaches PEFT the method")
        == lines.index("sys.path.insert(0, folder)") + 1
    )
    assert "sys" not in load("AutoModelForMaskedLM", place, tmp_path, adapter=False, own_code=False)


def test_parts_of_a_repository_are_opened_from_a_snapshot(tmp_path: Path) -> None:
    """`owner/name/base` is no repository."""
    hub = SimpleNamespace(location="hub:ada/tiny", load_from=lambda: "ada/tiny")
    assert 'folder = snapshot_download("ada/tiny")' in load("AutoModel", hub, tmp_path, adapter=True, own_code=False)
    assert 'folder = "ada/tiny"' in load("AutoModel", hub, tmp_path, adapter=False, own_code=False)
