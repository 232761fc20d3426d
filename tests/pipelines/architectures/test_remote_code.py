"""A saved folder loads where Finery is not installed, from the code that it carries."""

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
import transformers
from transformers.dynamic_module_utils import get_relative_import_files

import pipelines.architectures
from pipelines.architectures import (
    FineryCnnConfig,
    FineryCnnForConditionalGeneration,
    FineryForMaskedLM,
    FineryForSequenceClassification,
    FineryModel,
    FineryRnnConfig,
    FineryRnnForCausalLM,
    FineryRnnForConditionalGeneration,
    FineryRnnForPreTraining,
    FineryRnnForSequenceClassification,
    FineryRnnModel,
)
from pipelines.architectures.configuration_finery import AUTO_MAP
from pipelines.architectures.configuration_finery_cnn import AUTO_MAP as CNN_MAP
from pipelines.architectures.configuration_finery_rnn import AUTO_MAP as RNN_MAP
from tests import strangers
from tests.covering import covering

from .designs import HEADED, headed

CODE = Path(pipelines.architectures.__file__).parent


def carried_by(configuration: str) -> set[str]:
    """The files that a model type's configuration needs, itself among them: what transformers copies."""
    file = CODE / configuration
    return {configuration, *(Path(needed).name for needed in get_relative_import_files(file))}


CARRIED = carried_by("configuration_finery.py")
CARRIED_BY_RNN = carried_by("configuration_finery_rnn.py")
CARRIED_BY_CNN = carried_by("configuration_finery_cnn.py")

STRANGER = """
import torch, transformers
for name, (auto_class, folder, inputs) in task["load"].items():
    inputs = {key: torch.tensor(value) for key, value in inputs.items()}
    if hasattr(transformers, auto_class):
        loader = getattr(transformers, auto_class)
    else:  # not one of transformers' own Auto classes: auto_map still says where the class is
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
        loader = transformers.dynamic_module_utils.get_class_from_dynamic_module(config.auto_map[auto_class], folder)
    model = loader.from_pretrained(folder, trust_remote_code=True)
    if isinstance(model, transformers.PreTrainedModel):
        with torch.no_grad():
            output = model.eval()(**inputs)
        output = output["logits"] if "logits" in output else output[0]
        answer[name] = [type(model).__name__, output.tolist()]
        if model.can_generate():
            answer[name].append(model.generate(inputs["input_ids"], max_new_tokens=4, do_sample=False).tolist())
    if name in task["save"]:
        model.save_pretrained(task["save"][name])
if "merge" in task:
    from peft import LoraConfig, get_peft_model
    folder, target = task["merge"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).merge_and_unload().save_pretrained(target)
"""
AUTO_CLASSES = {"Model": "AutoModel", "ForConditionalGeneration": "AutoModelForSeq2SeqLM"}
"""Where a head's Auto class is not named like the head."""


def stranger(folder: Path, tokens: list, load: dict, save: dict | None = None, **task: object) -> dict:
    """What each (Auto class, folder) says to the tokens in a process that cannot import this project."""
    inputs = {"input_ids": tokens}
    load = {name: (auto_class, str(place), *(rest or [inputs])) for name, (auto_class, place, *rest) in load.items()}
    return strangers.run(STRANGER, folder / "elsewhere", load=load, save=save or {}, **task)


def test_at_most_eight_files_travel():
    assert max(len(CARRIED), len(CARRIED_BY_RNN), len(CARRIED_BY_CNN)) <= 8


def test_every_file_travels_with_a_family_or_is_named_here_as_staying():
    staying = {"__init__", "registration", "arithmetic", "recurrent_arithmetic", "convolutional_arithmetic"}
    here = {file.name for file in CODE.glob("*.py")}
    assert {*CARRIED, *CARRIED_BY_RNN, *CARRIED_BY_CNN} == here - {f"{name}.py" for name in staying}


def test_no_family_carries_the_code_of_another():
    assert CARRIED.isdisjoint(CARRIED_BY_RNN | CARRIED_BY_CNN)
    assert {"field_rules.py", "sequence_states.py"} == CARRIED_BY_RNN & CARRIED_BY_CNN


def assert_complete(folder: Path, auto_map: dict[str, str] = AUTO_MAP, carried: set[str] = CARRIED) -> None:
    """Every head in the auto_map, and the code byte for byte."""
    assert json.loads((folder / "config.json").read_text())["auto_map"] == auto_map
    assert {file.name for file in folder.glob("*.py")} == carried
    for name in carried:
        assert (folder / name).read_bytes() == (CODE / name).read_bytes()


@torch.no_grad()
def test_a_stranger_loads_every_head_from_any_save_and_saves_it_whole_again(tiny, tmp_path):
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
        tmp_path,
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
        class_name, output, *_ = answers[name]
        assert class_name == type(model).__name__
        torch.testing.assert_close(torch.tensor(output), model(ids)[0], rtol=0, atol=1e-6)
    assert answers["other-head"][0] == "FineryForSequenceClassification"
    torch.testing.assert_close(
        torch.tensor(answers["encoder-of-masked"][1]), masked_lm.model(ids)[0], rtol=0, atol=1e-6
    )
    for folder in (*copies.values(), merged):
        assert_complete(Path(folder))

    again = stranger(tmp_path, tokens=tokens, load={"masked": ("AutoModelForMaskedLM", copies["masked"])})
    torch.testing.assert_close(torch.tensor(again["masked"][1]), masked_lm(ids)[0], rtol=0, atol=1e-6)


@torch.no_grad()
def test_every_head_answers_and_writes_elsewhere_as_it_does_here(tmp_path):
    load, expected = {}, {}
    for family, head in (case.values for case in covering(HEADED, drop=True)):
        model, name = headed(family, head, "modern"), f"{family}-{head}"
        tokens = torch.randint(3, 61, (2, 6), generator=torch.Generator().manual_seed(2))
        inputs = {"input_ids": tokens[:, None].repeat(1, 2, 1) if head == "ForMultipleChoice" else tokens}
        if family == "encoder-decoder" and head in ("Model", "ForConditionalGeneration"):
            inputs["decoder_input_ids"] = tokens.flip(1)
        model.save_pretrained(tmp_path / name)
        auto_class = AUTO_CLASSES.get(head, f"AutoModel{head}")
        load[name] = auto_class, tmp_path / name, {key: value.tolist() for key, value in inputs.items()}
        output = model(**inputs)
        expected[name] = [f"Finery{head}", output["logits"] if "logits" in output else output[0]]
        if model.can_generate():
            expected[name].append(model.generate(tokens, max_new_tokens=4, do_sample=False).tolist())
    answers = stranger(tmp_path, [], load)
    assert answers.keys() == expected.keys()
    assert {answer[0] for answer in answers.values()} == {f"Finery{head}" for _, head in HEADED}
    for name, (class_name, output, *written) in expected.items():
        assert answers[name][0] == class_name
        torch.testing.assert_close(torch.tensor(answers[name][1]), output, rtol=0, atol=1e-6)
        assert answers[name][2:] == written


@torch.no_grad()
def test_recurrent_and_convolutional_models_answer_and_write_elsewhere_as_they_do_here(tmp_path):
    words = {"vocab_size": 61, "hidden_size": 8, "num_hidden_layers": 1, "bos_token_id": 1, "initializer_range": 1.0}
    lstm = FineryRnnConfig(**words)
    models = {
        "lstm": ("AutoModelForSeq2SeqLM", FineryRnnForConditionalGeneration(lstm)),
        "language": ("AutoModelForCausalLM", FineryRnnForCausalLM(FineryRnnConfig(**words, stack="decoder"))),
        "classifier": (
            "AutoModelForSequenceClassification",
            FineryRnnForSequenceClassification(FineryRnnConfig(**words, stack="encoder", cell="gru")),
        ),
        "both ways": (
            "AutoModelForPreTraining",
            FineryRnnForPreTraining(FineryRnnConfig(**words, stack="encoder", separate_directions=True)),
        ),
        "bare": ("AutoModel", FineryRnnModel(lstm)),
        "convolutions": ("AutoModelForSeq2SeqLM", FineryCnnForConditionalGeneration(FineryCnnConfig(**words))),
    }
    tokens = [[5, 6, 7, 8], [9, 10, 11, 12]]
    load, again, expected = {}, {}, {}
    for name, (auto_class, model) in models.items():
        model.eval().save_pretrained(tmp_path / name)
        auto_map, files = (CNN_MAP, CARRIED_BY_CNN) if name == "convolutions" else (RNN_MAP, CARRIED_BY_RNN)
        assert_complete(tmp_path / name, auto_map, files)
        load[name], again[name] = (auto_class, tmp_path / name), str(tmp_path / f"{name}-copy")
        output = model(input_ids=torch.tensor(tokens))
        expected[name] = output["logits"] if "logits" in output else output[0]
    answers = stranger(tmp_path, tokens, load, save=again)
    for name, (_, model) in models.items():
        class_name, output, *written = answers[name]
        assert class_name == type(model).__name__
        torch.testing.assert_close(torch.tensor(output), expected[name], rtol=0, atol=1e-6)
        if model.can_generate():
            assert written == [model.generate(torch.tensor(tokens), max_new_tokens=4, do_sample=False).tolist()]
        auto_map, files = (CNN_MAP, CARRIED_BY_CNN) if name == "convolutions" else (RNN_MAP, CARRIED_BY_RNN)
        assert_complete(Path(again[name]), auto_map, files)


@pytest.fixture
def published_before(tmp_path: Path) -> tuple[dict[str, Path], dict]:
    """Checkpoints by Auto class as an earlier Finery published them, of 28 files of code each, and what they
    answered.
    """
    with tarfile.open(Path(__file__).parent / "published_before.tar.xz") as archive:
        archive.extractall(
            tmp_path / "before", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )  # not before Python 3.11.4
    expected = json.loads((tmp_path / "before" / "expected.json").read_text())
    folders = {name: tmp_path / "before" / name for name in expected["logits"]}
    for folder in folders.values():
        for file in (tmp_path / "before" / "code").iterdir():
            shutil.copy(file, folder)
    return folders, expected


def test_what_was_published_before_runs_its_own_code_elsewhere(published_before, tmp_path):
    folders, expected = published_before
    answers = stranger(tmp_path, expected["input_ids"], {name: (name, path) for name, path in folders.items()})
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
