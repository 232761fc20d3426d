"""Publishing runs no code but Finery's: whatever a checkpoint's files name, in any JSON that transformers or PEFT reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import ModelError, PublishError
from pipelines.core.interfaces import Head
from pipelines.publishing import clean_room, foreign_code
from pipelines.publishing.verify import ProofInputs, clean_answers
from tests.clean_process import forked_proofs
from tests.covering import LONG
from tests.pipelines.publishing.conftest import LABELS, Job, make_model, make_tokenizer, recipe_text, write_evaluation
from tests.words import words_of

HEAD = Head("sequence_classification", LABELS)
AUTO_CLASS = "AutoModelForSequenceClassification"
KINDS = (
    "AutoConfig",
    "AutoModel",
    AUTO_CLASS,
    *words_of(
        "AutoTokenizer AutoProcessor AutoImageProcessor AutoVideoProcessor AutoFeatureExtractor "
        "AutoModelForMaskedLM AutoModelForCausalLM"
    ),
)


def names_read() -> list[str]:
    """Every JSON that transformers and PEFT look for beside weights, from their own constants."""
    from peft.utils import CONFIG_NAME as PEFT_CONFIG
    from transformers import tokenization_utils_base as tokenizers
    from transformers import utils
    from transformers.integrations.mistral.constants import TEKKEN_VOCAB_FILE
    from transformers.utils import hub

    return sorted(
        {
            utils.CONFIG_NAME,
            utils.FEATURE_EXTRACTOR_NAME,
            utils.IMAGE_PROCESSOR_NAME,
            utils.VIDEO_PROCESSOR_NAME,
            utils.AUDIO_TOKENIZER_NAME,
            utils.PROCESSOR_NAME,
            utils.GENERATION_CONFIG_NAME,
            utils.MODEL_CARD_NAME,
            utils.SAFE_WEIGHTS_INDEX_NAME,
            utils.WEIGHTS_INDEX_NAME,
            utils.ADAPTER_CONFIG_NAME,
            PEFT_CONFIG,
            tokenizers.SPECIAL_TOKENS_MAP_FILE,
            tokenizers.ADDED_TOKENS_FILE,
            tokenizers.TOKENIZER_CONFIG_FILE,
            tokenizers.FULL_TOKENIZER_FILE,
            hub.LEGACY_PROCESSOR_CHAT_TEMPLATE_FILE,
            TEKKEN_VOCAB_FILE,
            *words_of(
                "vocab.json config.4.0.0.json tokenizer.4.0.0.json quantize_config.json base/config.json "
                "base/generation_config.json sub/processor_config.json default/adapter_config.json"
            ),
        }
    )


NAMES = names_read()


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder of somebody's: importing anything in it leaves a marker."""
    folder = tmp_path / "planted"
    (folder / "custom_generate").mkdir(parents=True)
    source = f"open({str(tmp_path / 'marker')!r}, 'w').close()\nclass T: pass\ndef generate(**_): pass\n"
    for name in ("evil.py", "custom_generate/generate.py", "__init__.py"):
        (folder / name).write_text(source)
    return folder


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


def hatches(planted: Path) -> dict[str, Any]:
    """Every way to name code that the readers of these files know."""
    elsewhere = f"{planted}--evil.T"
    return {
        "auto_map": dict.fromkeys(KINDS, elsewhere) | {"AutoTokenizer": [elsewhere, elsewhere]},
        "custom_pipelines": {"text-classification": {"impl": elsewhere, "pt": ["AutoModel"]}},
        "custom_generate": str(planted),
        "auto_mapping": {"base_model_class": "T", "parent_library": str(planted)},
        "transformers_weights": "../planted/model.safetensors",
        "image_processor_type": elsewhere,
        "feature_extractor_type": elsewhere,
        "video_processor_type": elsewhere,
        "processor_class": elsewhere,
        "tokenizer_kwargs": {"trust_remote_code": True},
        "megatron_config": {"x": 1},
        "megatron_core": "evil",
        "attn_implementation": "owner/kernel",
        "kernel_config": {"kernel_mapping": {"x": "owner/kernel:T"}},
    }


def plant(path: Path, named: dict[str, Any], deep: bool = False) -> None:
    """Add to the JSON at `path`, or make it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    said = json.loads(path.read_text()) if path.is_file() else {}
    said |= {"sub_config": {"encoder": [{"text_config": named}]}} if deep else named
    path.write_text(json.dumps(said))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            root = tmp_path_factory.mktemp(kind)
            model = make_model(kind, root / "mrpc" / "model", HEAD)
            (root / "mrpc" / "stage.json").write_text(json.dumps({"fingerprint": "ab" * 16, "data": {}}))
            write_evaluation(root / "evaluate", model, "mrpc", "glue/mrpc", {"f1": 0.8})
            made[kind] = root
        return made[kind]

    return make


def job_of(folder: Path, stages: Path, kind: str, to: Path) -> Job:
    from pipelines.core.load import loads

    shutil.copytree(stages, folder / "stages")
    return Job(folder, loads(recipe_text(str(to))), kind)


def context_of(made: Job, **changes: Any) -> Any:
    """The tokenizer comes from the planted folder, as a stage's does."""
    from pipelines.models.tokenizer import open_tokenizer

    trained = made.folder / "stages/mrpc/model"
    return made.context(open_tokenizer=lambda stage_id=None: open_tokenizer(str(trained)), **changes)


@pytest.mark.wider
@pytest.mark.parametrize("kind", [pytest.param("bert", marks=pytest.mark.long), "finery"])
def test_what_is_published_of_a_planted_checkpoint_is_clean_and_nothing_of_it_ran(
    trained, planted, marker, tmp_path, kind
):
    """The whole stage: every file planted at once. With the long tests the clean process is a fresh one."""
    to = tmp_path / "registry" / "tiny"
    made = job_of(tmp_path / "run", trained(kind), kind, to)
    folder = made.folder / "stages/mrpc/model"
    for name in NAMES:
        harmless = name not in words_of(
            "adapter_config.json tokenizer.json special_tokens_map.json added_tokens.json vocab.json"
        )
        if harmless and "index" not in name and "/" not in name:  # those whose form the readers check are planted below
            named = (
                hatches(planted)
                if name != "config.json"
                else {key: value for key, value in hatches(planted).items() if key != "transformers_weights"}
            )
            plant(folder / name, named)
    shutil.copytree(planted / "custom_generate", folder / "custom_generate")
    shutil.copyfile(planted / "evil.py", folder / "evil.py")
    context = context_of(made)
    if kind == "bert":
        from pipelines.models.tokenizer import open_tokenizer

        open_tokenizer(str(folder)).save_pretrained(tmp_path / "again")
        assert '"auto_map":' not in (tmp_path / "again" / "tokenizer_config.json").read_text()
    with nullcontext() if os.environ.get(LONG) else forked_proofs():
        made.publish.run(context)
    assert not marker.exists()
    assert to.is_dir()
    for path in to.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".py", ".jinja", ".md", ".yaml"):
            assert str(planted) not in path.read_text(), path.name
            assert "evil" not in path.read_text(), path.name
    code = {path.name for path in to.rglob("*.py")}
    assert (code == set()) == (kind == "bert")
    assert code <= set(foreign_code.of_finery())


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assembled") / "tiny"
    make_model("finery", folder, HEAD)
    make_tokenizer().save_pretrained(folder)
    (folder / "head.json").unlink()
    return folder


@pytest.fixture
def copy(assembled: Path, tmp_path: Path) -> Path:
    shutil.copytree(assembled, tmp_path / "copy")
    return tmp_path / "copy"


def ask(folder: Path) -> dict[str, Any]:
    return clean_answers(folder, {"x": ProofInputs(["why"], None, 8)}, AUTO_CLASS, False, foreign_code.of_finery())


@pytest.mark.parametrize(("name", "deep"), [(name, number % 2 == 1) for number, name in enumerate(NAMES)])
def test_a_json_that_names_code_is_cleaned_and_else_refused_before_transformers_is_imported(
    copy, planted, marker, name, deep
):
    plant(copy / name, hatches(planted), deep)
    with pytest.raises(PublishError, match="names code that is not beside it"):
        ask(copy)
    assert not marker.exists()
    foreign_code.settled(copy, {}, leave=False)
    assert str(planted) not in (copy / name).read_text()
    clean_room.refuse_foreign_code(str(copy), foreign_code.of_finery())


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, value in hatches(Path("/x")).items()])
def test_each_way_to_name_code_is_refused_by_itself(copy, key, value):
    plant(copy / "tokenizer_config.json", {key: value})
    with pytest.raises(ValueError, match=f"names code that is not beside it: {key}"):
        clean_room.refuse_foreign_code(str(copy), foreign_code.of_finery())


@pytest.mark.parametrize(
    "name",
    words_of(
        "evil.py custom_generate/generate.py finery_evil.py base/modeling_finery.py sub/__init__.py "
        "json.cpython-311-x86_64-linux-gnu.so evil.so __pycache__/modeling_finery.cpython-311.pyc evil.pth "
        "evil.zip modeling_with_adapter.py"
    ),
)
def test_code_that_finery_did_not_write_is_refused_before_anything_is_imported(copy, planted, marker, name):
    (copy / name).parent.mkdir(exist_ok=True)
    shutil.copyfile(planted / "evil.py", copy / name)
    with pytest.raises(PublishError, match="is code that Finery did not write"):
        ask(copy)
    with pytest.raises(ModelError, match=r"code that Finery did not write|a pickle"):
        foreign_code.settled(copy, {}, leave=False)
    assert not marker.exists()


def test_a_module_of_finery_that_was_changed_is_refused(copy, planted, marker):
    with open(copy / "modeling_finery.py", "a") as file:
        file.write((planted / "evil.py").read_text())
    with pytest.raises(PublishError, match=r"'modeling_finery\.py' is code that Finery did not write"):
        ask(copy)
    assert not marker.exists()


def test_a_link_is_refused_wherever_it_leads(copy, planted):
    (copy / "vocab.txt").symlink_to("/etc/passwd")
    with pytest.raises(PublishError, match=r"'vocab\.txt' is no plain file"):
        ask(copy)
    with pytest.raises(ModelError, match="no plain file"):
        foreign_code.settled(copy, {}, leave=False)


def test_an_adapters_module_is_finerys_own_and_not_the_one_that_lies_beside_it(tmp_path, planted):
    """What is published with an adapter is written anew, so that a planted copy goes nowhere."""
    from pipelines.tuners import bottleneck, virtual_tokens

    assert set(foreign_code.METHODS) == {bottleneck.FILE, virtual_tokens.FILE}
    (tmp_path / "model").mkdir()
    shutil.copyfile(planted / "evil.py", tmp_path / "model" / bottleneck.FILE)
    shutil.copyfile(planted / "evil.py", tmp_path / "model" / "finery_evil.py")
    found = foreign_code.adapter_modules(tmp_path / "model")
    assert found == {bottleneck.FILE: Path(str(bottleneck.__file__)).read_bytes()}


def test_a_vocabulary_may_hold_these_words():
    words = {"auto_map": 5, "custom_generate": 6, "--": 7}
    assert foreign_code.cleaned_of({"model": {"vocab": words}}, frozenset()) == {"model": {"vocab": words}}


def test_words_of_code_are_told_by_their_name_alone_in_the_config_of_our_own_family():
    said = {
        "auto_map": {"AutoConfig": "someone/else--configuration_finery.FineryConfig", "AutoModel": "elsewhere.Model"}
    }
    kept = foreign_code.cleaned_of(said, frozenset({"configuration_finery"}), top=True)
    assert kept == {"auto_map": {"AutoConfig": "configuration_finery.FineryConfig"}}
