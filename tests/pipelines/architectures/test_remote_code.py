"""A saved folder loads where Finery is not installed, from the code that it carries."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
import transformers

import pipelines.architectures
from pipelines.architectures import (
    FineryForMaskedLM,
    FineryForSequenceClassification,
    FineryModel,
)
from pipelines.architectures.configuration_finery import AUTO_MAP

CODE = Path(pipelines.architectures.__file__).parent
CARRIED = {file.name for file in CODE.glob("*.py")} - {"__init__.py", "registration.py", "arithmetic.py"}

STRANGER = """
import json, sys
sys.modules["pipelines"] = sys.modules["service"] = None  # importing them fails, installed or not
import torch, transformers
transformers.utils.logging.disable_progress_bar()
task = json.loads(sys.argv[1])
tokens = torch.tensor(task["tokens"])
answers = {}
for name, (auto_class, folder) in task["load"].items():
    if hasattr(transformers, auto_class):
        opened = getattr(transformers, auto_class)
    else:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
        from transformers.dynamic_module_utils import get_class_from_dynamic_module
        opened = get_class_from_dynamic_module(config.auto_map[auto_class], folder)
    model = opened.from_pretrained(folder, trust_remote_code=True)
    if isinstance(model, transformers.PreTrainedModel):
        output = model.eval()(tokens)
        output = output["logits"] if "logits" in output else output[0]
        answers[name] = [type(model).__name__, output.tolist()]
    if name in task["save"]:
        model.save_pretrained(task["save"][name])
if "merge" in task:
    from peft import LoraConfig, get_peft_model
    folder, target = task["merge"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).merge_and_unload().save_pretrained(target)
print(json.dumps(answers))
"""


@pytest.fixture
def stranger(tmp_path):
    """Runs a task in a process that cannot import this project and has a module cache of its own."""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "HF_MODULES_CACHE")}

    def run(**task: object) -> dict:
        command = [sys.executable, "-I", "-c", STRANGER, json.dumps({"save": {}, **task})]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run


def test_at_most_eight_files_travel():
    assert len(CARRIED) <= 8


def assert_complete(folder: Path) -> None:
    """Every head in the auto_map, and the code byte for byte."""
    assert json.loads((folder / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert {file.name for file in folder.glob("*.py")} == CARRIED
    for name in CARRIED:
        assert (folder / name).read_bytes() == (CODE / name).read_bytes()


@torch.no_grad()
def test_a_stranger_loads_every_head_from_any_save_and_saves_it_whole_again(tiny, stranger, tmp_path):
    tokens = [[5, 6, 7, 8], [9, 10, 11, 12]]
    ids = torch.tensor(tokens)
    masked_lm = FineryForMaskedLM(tiny(position="sinusoidal", norm_position="pre")).eval()
    classifier = FineryForSequenceClassification(tiny(num_labels=3)).eval()
    bare = FineryModel(tiny(position="rotary", rope_theta=50.0)).eval()
    folders = {}
    for name, model in {"masked": masked_lm, "classifier": classifier, "bare": bare}.items():
        model.save_pretrained(tmp_path / name)
        assert_complete(tmp_path / name)
        folders[name] = str(tmp_path / name)

    copies = {name: str(tmp_path / f"{name}-copy") for name in ("masked", "classifier", "bare", "config", "other-head")}
    merged = str(tmp_path / "merged")
    answers = stranger(
        tokens=tokens,
        load={
            "config": ("AutoConfig", folders["masked"]),
            "masked": ("AutoModelForMaskedLM", folders["masked"]),
            "classifier": ("AutoModelForSequenceClassification", folders["classifier"]),
            "bare": ("AutoModel", folders["bare"]),
            "other-head": ("AutoModelForSequenceClassification", folders["masked"]),
            "encoder-of-masked": ("AutoModel", folders["masked"]),
        },
        save=copies,
        merge=(folders["classifier"], merged),
    )
    expected = {"masked": masked_lm, "classifier": classifier, "bare": bare}
    for name, model in expected.items():
        class_name, output = answers[name]
        assert class_name == type(model).__name__
        torch.testing.assert_close(torch.tensor(output), model(ids)[0], rtol=0, atol=1e-6)
    assert answers["other-head"][0] == "FineryForSequenceClassification"
    torch.testing.assert_close(
        torch.tensor(answers["encoder-of-masked"][1]), masked_lm.model(ids)[0], rtol=0, atol=1e-6
    )
    for folder in (*copies.values(), merged):
        assert_complete(Path(folder))

    again = stranger(tokens=tokens, load={"masked": ("AutoModelForMaskedLM", copies["masked"])})
    torch.testing.assert_close(torch.tensor(again["masked"][1]), masked_lm(ids)[0], rtol=0, atol=1e-6)


@pytest.fixture
def published_before(tmp_path: Path) -> tuple[dict[str, Path], dict]:
    """Checkpoints by Auto class as an earlier Finery published them, of 28 files of code each, and what they
    answered.
    """
    with tarfile.open(Path(__file__).parent / "published_before.tar.xz") as archive:
        archive.extractall(tmp_path / "before", filter="data")
    expected = json.loads((tmp_path / "before" / "expected.json").read_text())
    folders = {name: tmp_path / "before" / name for name in expected["logits"]}
    for folder in folders.values():
        for file in (tmp_path / "before" / "code").iterdir():
            shutil.copy(file, folder)
    return folders, expected


def test_what_was_published_before_runs_its_own_code_elsewhere(published_before, stranger):
    folders, expected = published_before
    answers = stranger(tokens=expected["input_ids"], load={name: (name, str(path)) for name, path in folders.items()})
    for name, logits in expected["logits"].items():
        torch.testing.assert_close(torch.tensor(answers[name][1]), torch.tensor(logits), rtol=0, atol=1e-4)


@torch.no_grad()
def test_what_was_published_before_is_opened_by_the_family_and_carries_its_code_from_then_on(
    published_before, tmp_path
):
    folders, expected = published_before
    for name, path in folders.items():
        for file in path.glob("*.py"):
            file.write_text("raise AssertionError('ran')")
        model = getattr(transformers, name).from_pretrained(path)
        assert type(model).__module__.startswith("pipelines.architectures.")
        logits = model.eval()(torch.tensor(expected["input_ids"])).logits
        torch.testing.assert_close(logits, torch.tensor(expected["logits"][name]), rtol=0, atol=1e-4)
        model.save_pretrained(tmp_path / "again" / name)
        assert_complete(tmp_path / "again" / name)
