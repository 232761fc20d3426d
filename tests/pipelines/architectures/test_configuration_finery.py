import ast
import json
from pathlib import Path

import pytest
from transformers import AutoConfig, DynamicCache

import pipelines.architectures
from pipelines.architectures import FineryConfig, FineryModel
from pipelines.architectures.configuration_finery import AUTO_MAP

from .test_remote_code import carried_by

CODE = Path(pipelines.architectures.__file__).parent
NOT_FOR_CHECKPOINTS = {
    "__init__.py",
    "registration.py",
    "arithmetic.py",
    "recurrent_arithmetic.py",
    "convolutional_arithmetic.py",
}


def test_a_contradiction_is_refused_by_the_constructor():
    with pytest.raises(
        ValueError, match=r"^3 attention heads do not divide hidden_size 128; set num_attention_heads to"
    ):
        FineryConfig(hidden_size=128, num_attention_heads=3)


def test_every_mistake_is_in_the_refusal():
    with pytest.raises(ValueError, match=r"(?s)^family is 'decodr'.*did you mean 'decoder'\?\nhidden_act is 'gelo'"):
        FineryConfig(family="decodr", hidden_act="gelo")


def test_a_config_edited_into_a_contradiction_is_not_written(tiny, tmp_path):
    config = tiny()
    config.num_attention_heads = 7
    with pytest.raises(ValueError, match="7 attention heads do not divide hidden_size 24"):
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


def test_a_loaded_config_is_judged_by_the_same_rules(tiny, tmp_path):
    tiny().save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    loaded.num_attention_heads = 7
    with pytest.raises(ValueError, match="7 attention heads do not divide"):
        loaded.save_pretrained(tmp_path)


def test_sizes_that_others_read_are_written_out_and_given_ones_are_kept(tiny):
    usual, given = tiny(), tiny(num_key_value_heads=2, head_dim=10)
    assert (usual.num_key_value_heads, usual.head_dim) == (4, 6)
    assert (usual.to_dict()["num_key_value_heads"], usual.to_dict()["head_dim"]) == (4, 6)
    assert (given.num_key_value_heads, given.head_dim) == (2, 10)


@pytest.mark.parametrize(
    ("fields", "name", "usual"),
    [
        ({"type_vocab_size": None}, "type_vocab_size", 2),
        ({"family": "decoder", "type_vocab_size": None}, "type_vocab_size", 0),
        ({"type_vocab_size": 0}, "type_vocab_size", 0),
        ({}, "attention_pattern", "full"),
        ({"family": "decoder"}, "attention_pattern", "causal"),
        ({"family": "encoder-decoder"}, "attention_pattern", "full"),
        ({"family": "encoder-decoder"}, "num_decoder_layers", 3),
        ({"family": "encoder-decoder", "num_decoder_layers": 5}, "num_decoder_layers", 5),
        ({}, "lm_head_bias", True),
        ({"family": "decoder"}, "lm_head_bias", False),
        ({"position": "sinusoidal"}, "scale_embedding", True),
        ({"hidden_dropout_prob": 0.3}, "embedding_dropout_prob", 0.3),
    ],
)
def test_what_is_usual_depends_on_the_family(tiny, fields, name, usual):
    assert tiny(**fields).usual(name) == usual


def test_only_a_decoders_windows_may_be_forgotten_by_a_cache(tiny):
    window = {"attention_pattern": "sliding_window", "sliding_window": 3, "global_attn_every_n_layers": 2}
    assert tiny(family="decoder", **window).layer_types == ["full_attention", "sliding_attention", "full_attention"]
    assert tiny(family="encoder", **window).layer_types == ["full_attention"] * 3
    assert tiny(family="decoder").layer_types == ["full_attention"] * 3


def test_an_encoder_decoders_cache_has_as_many_layers_as_its_decoder(tiny):
    config = tiny(family="encoder-decoder", num_decoder_layers=5)
    assert config.is_encoder_decoder
    assert len(DynamicCache(config=config).layers) == 5
    assert config.num_hidden_layers == 3


def test_the_tensor_parallel_plan_names_matrices_that_exist(tiny):
    names = {name for name, _ in FineryModel(tiny(is_gated_act=True, qk_norm=True)).named_modules()}
    planned = tiny(is_gated_act=True, qk_norm=True).base_model_tp_plan
    in_first_layer = {pattern.replace("*", "0") for pattern in planned if "cross_attention" not in pattern}
    assert in_first_layer <= names
    assert tiny(position="alibi").base_model_tp_plan is None


def test_a_config_saved_alone_carries_the_whole_family(tiny, tmp_path):
    tiny().save_pretrained(tmp_path)
    others = carried_by("configuration_finery_rnn.py") | carried_by("configuration_finery_cnn.py")
    expected = {file.name for file in CODE.glob("*.py")} - NOT_FOR_CHECKPOINTS - others
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
            allowed = {
                "torch",
                "transformers",
                "typing",
                "os",
                "collections",
                "difflib",
                "importlib",
                "math",
                "copy",
                "dataclasses",
            }
            assert {name.split(".")[0] for name in names} <= allowed, ast.unparse(node)
