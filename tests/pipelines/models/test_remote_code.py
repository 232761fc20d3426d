"""Code beside a checkpoint runs where the recipe's model says so, pinned to its repository and commit, and nowhere else."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pipelines.core.errors import ModelError, RecipeError
from pipelines.core.load import loads
from pipelines.core.recipe import Model, Recipe
from pipelines.models import heads, opening, remote_code, tokenizer
from tests import tiny, writers

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER = "f" * 40
NAME = "someone/odd"
CONFIGURATION = """
from pathlib import Path
from transformers import BertConfig
with open({trace!r}, "a") as file:
    file.write("configuration\\n")
class OddConfig(BertConfig):
    model_type = "odd"
"""
MODELING = """
from transformers import BertForSequenceClassification
from .configuration_odd import OddConfig
with open({trace!r}, "a") as file:
    file.write("modeling\\n")
class OddForSequenceClassification(BertForSequenceClassification):
    config_class = OddConfig
    def forward(self, *given, **keywords):
        found = super().forward(*given, **keywords)
        found.logits = found.logits + {shift}
        return found
"""
AUTO_MAP = {
    "AutoConfig": "configuration_odd.OddConfig",
    "AutoModelForSequenceClassification": "modeling_odd.OddForSequenceClassification",
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """The file that the code writes to when it runs."""
    return tmp_path / "trace"


@pytest.fixture
def odd(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes a checkpoint of a kind that only its own code knows."""
    import transformers.dynamic_module_utils as dynamic

    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "__init__.py").touch()
    monkeypatch.setattr(
        sys, "path", [str(tmp_path / "modules"), *sys.path]
    )  # before those that other tests have left there
    importlib.invalidate_caches()
    for name in [
        each for each in sys.modules if each.partition(".")[0] == "transformers_modules"
    ]:  # of another test's folder
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("transformers asked a question"))

    def write(folder: Path, shift: float = 0.0, auto_map: dict[str, str] = AUTO_MAP, model_type: str = "odd") -> Path:
        writers.saved(writers.model("bert-classifier", num_labels=3), folder)
        said = json.loads((folder / "config.json").read_text())
        said |= {"model_type": model_type, "auto_map": auto_map, "architectures": ["OddForSequenceClassification"]}
        (folder / "config.json").write_text(json.dumps(said))
        (folder / "configuration_odd.py").write_text(CONFIGURATION.format(trace=str(trace)))
        (folder / "modeling_odd.py").write_text(MODELING.format(trace=str(trace), shift=shift))
        return folder

    yield write
    for name in [each for each in sys.modules if each.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]  # or the code of other tests' checkpoints would be looked for in this folder


@pytest.fixture
def hub(tmp_path: Path, odd: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hub cache that holds NAME at two commits; main is the later one, whose code is another."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    place = tmp_path / "hub" / "models--someone--odd"
    odd(place / "snapshots" / COMMIT, shift=1.0)
    odd(place / "snapshots" / LATER, shift=100.0)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(LATER)
    return place


def leave(checkpoint: str | Path, revision: str | None = None) -> Model:
    return Model.model_validate({"checkpoint": str(checkpoint), "revision": revision, "trust_remote_code": True})


def test_the_tests_of_each_process_keep_such_code_in_a_folder_of_their_own() -> None:
    """Or one imports what another has half written: tests/conftest.py."""
    from transformers.dynamic_module_utils import HF_MODULES_CACHE

    assert os.environ["HF_MODULES_CACHE"] == HF_MODULES_CACHE
    assert Path(HF_MODULES_CACHE).name == os.environ.get("PYTEST_XDIST_WORKER", Path(HF_MODULES_CACHE).name)


def test_code_in_a_folder_never_runs_without_leave_and_nothing_is_asked(
    odd: Callable[..., Path], trace: Path, tmp_path: Path
) -> None:
    place = odd(tmp_path / "odd")
    for start in (None, Model.model_validate({"checkpoint": str(place)})):
        with pytest.raises(
            ModelError, match="can only be opened with Python code of its own, which runs only where the recipe says so"
        ):
            opening.open_folder(place, tiny.THREE, seed=0, start=start)
        assert tokenizer.open_tokenizer(str(place), start=start).is_fast  # the tokenizer is transformers' own
    assert not trace.exists()


def test_telling_a_policys_head_runs_no_code_without_leave_either(
    odd: Callable[..., Path], trace: Path, tmp_path: Path
) -> None:
    place = odd(tmp_path / "odd")
    policy = loads(
        f"name: x\nmodel: {{checkpoint: {place}}}\nstages:\n  - {{stage: ppo, prompts: {{path: builtin/python-docs, text: text}}, reward: {{name: keyword, words: [a]}}, arguments: {{response_length: 8}}}}\n"
    )
    with pytest.raises(ModelError, match="trust_remote_code"):
        heads.read_by(policy, "model", {})
    assert not trace.exists()


def test_with_leave_the_code_of_a_folder_runs_and_is_saved_with_the_model(
    odd: Callable[..., Path], trace: Path, tmp_path: Path
) -> None:
    place = odd(tmp_path / "odd", shift=7.0)
    start = leave(place)
    model = opening.open_folder(place, tiny.THREE, seed=0, start=start)
    assert type(model).__name__ == "OddForSequenceClassification"
    assert "modeling" in trace.read_text()
    model.save_pretrained(tmp_path / "stage")
    assert (tmp_path / "stage" / "modeling_odd.py").is_file()
    again = opening.open_folder(tmp_path / "stage", tiny.THREE, seed=0, trained_head=True, start=start)
    assert torch.equal(tiny.logits(again, tiny.batch()), tiny.logits(model, tiny.batch()))
    with pytest.raises(ModelError, match="Python code of its own"):
        opening.open_folder(tmp_path / "stage", tiny.THREE, seed=0)


@pytest.mark.usefixtures("hub")
def test_the_code_is_that_of_the_commit_and_not_of_main() -> None:
    at_commit = opening.open_folder(
        NAME, tiny.THREE, seed=0, revision=COMMIT, start=leave(NAME, COMMIT), trained_head=True
    )
    later = opening.open_folder(NAME, tiny.THREE, seed=0, revision=LATER, start=leave(NAME, LATER), trained_head=True)
    shift = tiny.logits(later, tiny.batch()) - tiny.logits(at_commit, tiny.batch())
    torch.testing.assert_close(shift, torch.full_like(shift, 99.0), atol=1e-3, rtol=0)


@pytest.mark.usefixtures("hub")
def test_leave_for_one_repository_is_none_for_another(odd: Callable[..., Path], trace: Path, hub: Path) -> None:
    other = hub.parent / "models--someone--else" / "snapshots" / COMMIT
    odd(other)
    with pytest.raises(ModelError, match="'someone/else' can only be opened with Python code of its own"):
        opening.open_folder("someone/else", tiny.THREE, seed=0, revision=COMMIT, start=leave(NAME, COMMIT))
    assert not trace.exists()


@pytest.mark.usefixtures("hub")
def test_a_checkpoint_that_names_code_of_another_repository_is_refused(
    odd: Callable[..., Path], trace: Path, hub: Path, tmp_path: Path
) -> None:
    away = {kind: f"{NAME}--{target}" for kind, target in AUTO_MAP.items()}
    shutil.rmtree(hub / "snapshots" / COMMIT)
    odd(hub.parent / "models--someone--thief" / "snapshots" / COMMIT, auto_map=away)
    with pytest.raises(
        ModelError, match="names code of another repository, 'someone/odd', which trust_remote_code does not cover"
    ):
        opening.open_folder("someone/thief", tiny.THREE, seed=0, revision=COMMIT, start=leave("someone/thief", COMMIT))
    place = odd(tmp_path / "folder", auto_map=away)
    with pytest.raises(ModelError, match="names code of another repository"):
        opening.open_folder(place, tiny.THREE, seed=0, start=leave(place))
    assert not trace.exists()


def test_a_kind_that_transformers_knows_is_opened_by_its_own_class(
    odd: Callable[..., Path], trace: Path, tmp_path: Path
) -> None:
    place = odd(tmp_path / "bert", model_type="bert")
    assert type(opening.open_folder(place, tiny.THREE, seed=0)).__name__ == "BertForSequenceClassification"
    assert not trace.exists()


def test_our_own_checkpoints_are_opened_by_our_own_classes_with_and_without_leave(
    odd: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers.dynamic_module_utils as dynamic

    from pipelines.architectures.modeling_finery_classification import FineryForSequenceClassification

    place = writers.saved(tiny.build("finery", tiny.THREE), tmp_path / "finery")
    assert json.loads((place / "config.json").read_text())["auto_map"]
    for path in place.glob("*.py"):
        path.write_text("raise AssertionError('ran')")
    monkeypatch.setattr(dynamic, "get_cached_module_file", lambda *_, **__: pytest.fail("code was fetched"))
    for start in (None, leave(place)):
        assert isinstance(opening.open_folder(place, tiny.THREE, seed=0, start=start), FineryForSequenceClassification)
        assert tokenizer.open_tokenizer(str(place), start=start).is_fast


@pytest.mark.usefixtures("hub")
def test_an_adapter_opens_its_base_at_the_commit_of_the_recipe(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    start = leave(NAME, COMMIT)
    base = opening.open_folder(NAME, tiny.THREE, seed=0, revision=COMMIT, start=start, trained_head=True)
    tuned = get_peft_model(base, LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    tuned.save_pretrained(tmp_path / "adapter")
    opened = opening.open_folder(tmp_path / "adapter", tiny.THREE, seed=0, trained_head=True, start=start)
    torch.testing.assert_close(tiny.logits(opened, tiny.batch()), tiny.logits(tuned, tiny.batch()))


WRITTEN = """\
name: odd
model: {{{model}}}
stages:
  - {{stage: supervised, task: {{kind: classification, train: train.csv, validation: train.csv, columns: [text], label: label}}}}
"""


@pytest.mark.parametrize(
    ("model", "key", "sentence"),
    [
        (
            "checkpoint: a/b, trust_remote_code: true",
            "model.revision",
            "is missing: trust_remote_code runs the repository's code, so it must be a full commit",
        ),
        (
            "checkpoint: a/b, revision: main, trust_remote_code: true",
            "model.revision",
            'is "main": trust_remote_code runs',
        ),
        (
            f"checkpoint: a/b, revision: {COMMIT[:12]}, trust_remote_code: true",
            "model.revision",
            "must be a full commit",
        ),
        (
            f"checkpoint: a/b, revision: {COMMIT.upper()}, trust_remote_code: true",
            "model.revision",
            "must be a full commit",
        ),
        (
            "architecture: {preset: bert-tiny}, trust_remote_code: true",
            "model.trust_remote_code",
            "leave it out for a model from scratch",
        ),
        ("checkpoint: a/b, trust_remote_code: 1", "model.trust_remote_code", "must be true or false"),
    ],
)
def test_a_recipe_pins_the_code_that_it_runs(model: str, key: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    with pytest.raises(RecipeError) as caught:
        loads(WRITTEN.format(model=model), folder=tmp_path)
    assert [(each.key, sentence in each.message) for each in caught.value.mistakes] == [(key, True)]


def test_a_recipe_with_a_full_commit_or_a_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "odd").mkdir()
    for model in (
        f"checkpoint: a/b, revision: {COMMIT}, trust_remote_code: true",
        "checkpoint: odd, trust_remote_code: true",
    ):
        found = loads(WRITTEN.format(model=model), folder=tmp_path)
        assert found.model.trust_remote_code
    assert "trust_remote_code" not in loads(WRITTEN.format(model="checkpoint: a/b"), folder=tmp_path).model.plain()


def test_what_opening_is_told() -> None:
    assert remote_code.opening("a/b", "main", None) == {"revision": "main", "trust_remote_code": False}
    assert remote_code.named({"AutoModel": "a.B", "AutoTokenizer": ["c.D", None]}) == ["a.B", "c.D"]
    assert remote_code.named(None) == []


RUN = """\
name: odd
model: {{checkpoint: {folder}{leave}}}
stages:
  - stage: supervised
    id: films
    task: {{kind: classification, train: train.csv, validation: train.csv, columns: [text], label: label, labels: [x, y, z]}}
    max_length: 16
    arguments: {{max_steps: 2, global_batch_size: 4}}
  - {{stage: evaluate}}{more}
"""


def job(odd: Callable[..., Path], folder: Path, with_leave: bool = True, more: str = "") -> Recipe:
    (folder / "train.csv").write_text(
        "text,label\n" + "".join(f"{text},{'xyz'[row % 3]}\n" for row, text in enumerate(tiny.TEXTS[:12]))
    )
    place = odd(folder / "odd", shift=0.5)
    return loads(
        RUN.format(folder=place, leave=", trust_remote_code: true" if with_leave else "", more=more), folder=folder
    )


def test_a_run_trains_and_evaluates_a_model_with_code_of_its_own(
    odd: Callable[..., Path], trace: Path, tmp_path: Path
) -> None:
    from pipelines.runs.run import run
    from pipelines.runs.workspace import StageStore

    store = StageStore(tmp_path / "home")
    with pytest.raises(ModelError, match="can only be opened with Python code of its own"):
        run(job(odd, tmp_path, with_leave=False), tmp_path / "without", store)
    assert not trace.exists()
    place = run(job(odd, tmp_path), tmp_path / "with", store)
    assert (place / "stages" / "01-films" / "model" / "modeling_odd.py").is_file()
    metrics = json.loads((place / "stages" / "02-evaluate" / "metrics.json").read_text())
    assert metrics


@pytest.mark.long
def test_a_model_with_code_of_its_own_is_published_with_it(odd: Callable[..., Path], tmp_path: Path) -> None:
    from pipelines.runs.run import run
    from pipelines.runs.workspace import StageStore

    to = tmp_path / "registry" / "odd"
    run(
        job(odd, tmp_path, more=f"\n  - {{stage: publish, to: {to}}}"), tmp_path / "with", StageStore(tmp_path / "home")
    )
    assert (to / "modeling_odd.py").is_file()
    assert json.loads((to / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert "trust_remote_code=True" in (to / "README.md").read_text()
