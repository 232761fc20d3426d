import ast
import json
from pathlib import Path

import pytest
from transformers import AutoConfig

import pipelines.architectures
from pipelines.architectures import FineryConfig
from pipelines.architectures.configuration_finery import AUTO_MAP

CODE = Path(pipelines.architectures.__file__).parent
NOT_FOR_CHECKPOINTS = {"__init__.py", "registration.py", "arithmetic.py"}


def test_a_contradiction_is_refused_by_the_constructor():
    with pytest.raises(ValueError, match=r"^hidden_size is 128 and num_attention_heads is 3, which does not divide it"):
        FineryConfig(hidden_size=128, num_attention_heads=3)


def test_a_family_that_is_not_built_is_refused():
    with pytest.raises(
        ValueError, match=r"^family is 'decoder', must be one of: encoder \(the only one built so far\)$"
    ):
        FineryConfig(family="decoder")


def test_a_config_edited_into_a_contradiction_is_not_written(tiny, tmp_path):
    config = tiny()
    config.num_attention_heads = 7
    with pytest.raises(ValueError, match="num_attention_heads is 7"):
        config.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_what_is_saved_comes_back(tiny, tmp_path):
    config = tiny(position="rotary", rope_theta=500, norm_position="pre", sparse_prediction=True, num_labels=5)
    config.pad_token_id = None
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is FineryConfig
    assert loaded.num_labels == 5
    ours = {name: value for name, value in config.to_dict().items() if name != "_name_or_path"}
    assert {name: value for name, value in loaded.to_dict().items() if name != "_name_or_path"} == ours


def test_a_config_saved_alone_carries_the_whole_family(tiny, tmp_path):
    tiny().save_pretrained(tmp_path)
    expected = {file.name for file in CODE.glob("*.py")} - NOT_FOR_CHECKPOINTS
    assert {file.name for file in tmp_path.glob("*.py")} == expected
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_an_auto_map_that_points_to_another_repository_is_made_local_when_saved(tiny, tmp_path):
    """transformers writes "owner/name--" before each entry when a config comes from the Hub."""
    config = tiny()
    config.auto_map = {"AutoModel": "someone/model--modeling_finery.FineryModel"}
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_every_entry_of_the_auto_map_names_a_class_in_its_file():
    for entry in AUTO_MAP.values():
        module, name = entry.split(".")
        tree = ast.parse((CODE / f"{module}.py").read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("file", sorted(CODE.glob("*.py")), ids=lambda file: file.name)
def test_files_import_only_their_siblings_and_the_libraries_a_checkpoint_may_need(file):
    """Two dots, a nested folder or another package of ours would be missing beside a published checkpoint."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level == 1, ast.unparse(node)
            assert (CODE / f"{node.module}.py").is_file(), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            allowed = {"torch", "transformers", "typing", "os", "collections", "difflib", "importlib"}
            assert {name.split(".")[0] for name in names} <= allowed, ast.unparse(node)
