"""What `model.architecture` may say, sentence by sentence."""

import subprocess
import sys

import pytest

from pipelines.core import architecture_fields, files
from pipelines.core.architecture_fields import DEFAULTS, HEADS, heads, mistakes, presets, resolve


def sentences(**words):
    return {".".join(map(str, place)): message for place, message in mistakes(words)}


def test_a_preset_with_overrides_is_fine():
    assert (
        mistakes({"preset": "bert-mini", "position": "sinusoidal", "norm_position": "pre", "hidden_act": "relu"}) == []
    )
    assert mistakes({"family": "encoder", "hidden_size": 32, "num_attention_heads": 2}) == []


def test_overrides_win_over_the_preset_and_the_model_type_is_filled_in():
    words = resolve({"preset": "bert-mini", "hidden_size": 128, "initializer_range": 1})
    assert words["model_type"] == "finery"
    assert words["hidden_size"] == 128
    assert words["num_hidden_layers"] == 4
    assert isinstance(words["initializer_range"], float)
    assert "preset" not in words


@pytest.mark.parametrize(
    ("words", "place", "said"),
    [
        ({"preset": "bert-mni"}, "preset", "no preset. Did you mean 'bert-mini'?"),
        ({"preset": 3}, "preset", "is 3, which is no preset"),
        ({"preset": "bert-mini", "norm_positon": "pre"}, "norm_positon", "Did you mean 'norm_position'?"),
        ({"hidden_size": "wide"}, "hidden_size", 'is "wide", must be a whole number'),
        ({"hidden_size": True}, "hidden_size", "is true, must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "is 0, must be at least 1"),
        ({"hidden_act": "gelo"}, "hidden_act", "Did you mean 'gelu'?"),
        (
            {"family": "dekoder"},
            "family",
            "one of encoder, decoder, encoder-decoder, rnn, cnn. Did you mean 'decoder'?",
        ),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob", "at least 0 and below 1"),
        ({"layer_norm_eps": 0}, "layer_norm_eps", "must be a number above 0"),
        ({"pad_token_id": -1}, "pad_token_id", "must be the id of a token"),
        ({"pad_token_id": 40000}, "pad_token_id", "outside a vocabulary of 30522"),
        (
            {"position": "sinusoidal", "hidden_size": 9, "num_attention_heads": 3},
            "hidden_size",
            "pairs of sine and cosine",
        ),
        ({"preset": "bert-mini", "hidden_size": 250}, "hidden_size", "4 attention heads do not divide hidden_size 250"),
        ({"num_attention_heads": 5}, "num_attention_heads", "one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64"),
        ({"preset": "gpt2", "attention_pattern": "full"}, "attention_pattern", "use causal, sliding_window or linear"),
        ({"preset": "bert-mini", "sliding_window": 64}, "sliding_window", "only attention_pattern: sliding_window"),
        ({"preset": "bert-mini", "attention_pattern": "sliding_window"}, "attention_pattern", "needs sliding_window"),
        ({"preset": "llama-tiny", "num_key_value_heads": 3}, "num_key_value_heads", "one of 1, 2, 4"),
        ({"preset": "llama-tiny", "head_dim": 33}, "head_dim", "choose an even head_dim"),
        ({"preset": "t5-tiny", "embedding_size": 64}, "embedding_size", "only family: encoder can have"),
        ({"preset": "bert-mini", "num_decoder_layers": 2}, "num_decoder_layers", "is for family: encoder-decoder"),
        ({"preset": "gpt-tiny", "length_prediction": True}, "length_prediction", "is for family: encoder-decoder"),
        ({"preset": "t5-tiny", "relative_attention_num_buckets": 7}, "relative_attention_num_buckets", "even number"),
        ({"attention_pattern": "linear", "attention_scoring": "cosine"}, "attention_scoring", "has no meaning"),
        ({"attention_pattern": "linear", "position": "alibi"}, "position", "never computes"),
        ({"layerdrop": 1}, "layerdrop", "at least 0 and below 1"),
        ({"norm_bias": "no"}, "norm_bias", "must be true or false"),
        ({"num_labels": 3}, "num_labels", "is decided by the stage's task"),
        ({"model_type": "bret"}, "model_type", "Did you mean 'bert'?"),
        ({"model_type": 7}, "model_type", "is 7, which is no known text model"),
        ({"preset": "bert-mini", "model_type": "gpt2"}, "model_type", "is a shape of 'finery'"),
        ({"model_type": "xlnet", "n_layr": 4}, "n_layr", "Did you mean 'n_layer'?"),
        ({"model_type": "gpt2", "n_embd": "a"}, "n_embd", "must be a whole number"),
        ({"model_type": "gpt2", "hidden_size": 0}, "hidden_size", "is 0, must be at least 1"),
        ({"model_type": "gpt2", "hidden_size": 8, "n_embd": 8}, "hidden_size", "another name of 'n_embd'"),
        ({"model_type": "gpt2", "dtype": "bfloat16"}, "dtype", "launch.mixed_precision"),
        ({"model_type": "gpt2", "position": "learned"}, "position", "unknown key"),
        ({"attention_scoring": "none"}, "attention_scoring", "none is for family: rnn, whose decoder can do without"),
        ({"cell": "gru"}, "cell", "is a word of family: rnn; leave it out, or set that family"),
        ({"kernel_size": 3}, "kernel_size", "is a word of family: cnn"),
        ({"family": "rnn", "position": "rotary"}, "position", "family: rnn takes stack, cell, vocab_size, hidden_size"),
        ({"family": "rnn", "hiden_size": 8}, "hiden_size", "Did you mean 'hidden_size'?"),
        ({"family": "rnn", "cell": "lstmm"}, "cell", "must be one of lstm, gru, rnn. Did you mean 'lstm'?"),
        ({"family": "rnn", "attention_scoring": "cosine"}, "attention_scoring", "one of none, additive, dot_product"),
        ({"family": "rnn", "hidden_size": 33}, "hidden_size", "choose an even number, or bidirectional: false"),
        ({"family": "rnn", "stack": "decoder", "bidirectional": True}, "bidirectional", "use stack: encoder"),
        ({"family": "rnn", "stack": "encoder", "attention_scoring": "additive"}, "attention_scoring", "is 'encoder'"),
        ({"family": "rnn", "stack": "decoder", "num_decoder_layers": 1}, "num_decoder_layers", "is for stack: enc"),
        ({"family": "rnn", "attention_scoring": "none", "input_feeding": True}, "input_feeding", "nothing to feed"),
        ({"family": "rnn", "weight_dropout_prob": 1}, "weight_dropout_prob", "at least 0 and below 1"),
        ({"family": "rnn", "initializer_range": 0}, "initializer_range", "must be a number above 0"),
        ({"family": "rnn", "pad_token_id": 40000}, "pad_token_id", "outside a vocabulary of 30522"),
        ({"family": "rnn", "num_labels": 3}, "num_labels", "is decided by the stage's task"),
        ({"family": "rnn", "model_type": "bert"}, "model_type", "but family: rnn is 'finery-rnn'"),
        ({"family": "rnn", "preset": "bert-mini"}, "preset", "is a shape of a transformer, but the family is rnn"),
        ({"family": "rnn", "preset": "bert-mni"}, "preset", "is a shape of a transformer"),
        ({"model_type": "finery-rnn", "family": "encoder"}, "family", "but family: rnn is 'finery-rnn'"),
        ({"model_type": "finery-rnn", "hidden_size": 0}, "hidden_size", "is 0, must be at least 1"),
        ({"family": "cnn", "attention_scoring": "none"}, "attention_scoring", "none is for family: rnn"),
        ({"family": "cnn", "kernel_size": 4}, "kernel_size", "choose an odd number"),
        ({"family": "cnn", "cell": "gru"}, "cell", "unknown key"),
    ],
)
def test_one_mistake_is_one_sentence_at_its_key(words, place, said):
    found = sentences(**words)
    assert list(found) == [place]
    assert said in found[place]


def test_every_mistake_is_said_at_once():
    found = sentences(preset="bert-mni", hidden_act="gelo", vocab_size=0, layers=4)
    assert set(found) == {"preset", "hidden_act", "vocab_size", "layers"}


FAMILIES = ("encoder", "decoder", "encoder-decoder")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", sorted(presets()))
def test_any_preset_may_change_its_family_its_positions_and_its_pattern(preset, family):
    for words in (
        {},
        {"position": "learned"},
        {"position": "alibi"},
        {"attention_pattern": "linear", "position": "none"},
    ):
        value = {"preset": preset, "family": family, **words}
        assert mistakes(value) == [] or (
            words.get("attention_pattern") == "linear" and "dot_product" in str(mistakes(value))
        )
        resolved = resolve(value)
        assert resolved["family"] == family
        assert heads(value) == HEADS[family]
        assert value.items() - {("preset", preset)} <= resolved.items()


def test_what_goes_with_a_word_of_the_preset_goes_with_it():
    window = ("sliding_window", "global_attn_every_n_layers", "local_rope_theta")
    kept = resolve({"preset": "modern-encoder", "hidden_size": 384})
    assert kept["attention_pattern"] == "sliding_window"
    assert all(word in kept for word in window)
    changed = resolve({"preset": "modern-encoder", "attention_pattern": "full"})
    assert not any(word in changed for word in window)
    asked = resolve({"preset": "modern-encoder", "family": "decoder", "type_vocab_size": 2})
    assert asked["type_vocab_size"] == 2  # what the recipe says stands
    assert "embedding_norm" not in asked
    assert asked["sliding_window"] == 64


def test_heads_are_those_of_the_family():
    assert heads({"hidden_size": 32}) == HEADS["encoder"]
    assert "causal_lm" in heads({"preset": "gpt2"})
    assert "seq2seq_lm" in heads({"preset": "t5-small"})
    assert "pretraining" in heads({"model_type": "bert"})
    assert "pretraining" not in heads({"model_type": "electra"})


def test_a_mistake_in_one_field_hides_no_other():
    found = sentences(family="decoder", hidden_size=0, rope_theta="wide", layerdrop=2)
    assert set(found) == {"hidden_size", "rope_theta", "layerdrop"}


BASELINES = [
    ({"family": "rnn"}, "finery-rnn", ("seq2seq_lm",)),
    ({"family": "rnn", "stack": "decoder", "hidden_size": 8}, "finery-rnn", ("causal_lm", "sequence_classification")),
    ({"model_type": "finery-rnn", "stack": "encoder"}, "finery-rnn", ("sequence_classification", "bidirectional_lm")),
    ({"family": "cnn", "model_type": "finery", "kernel_size": 5}, "finery-cnn", ("seq2seq_lm",)),
]


@pytest.mark.parametrize(("words", "model_type", "kinds"), BASELINES)
def test_a_family_that_is_no_transformer_is_a_model_type_with_words_and_heads_of_its_own(words, model_type, kinds):
    assert mistakes(words) == []
    own = {key: value for key, value in words.items() if key not in ("family", "model_type")}
    assert resolve(words) == {"model_type": model_type, **own}
    assert heads(words) == kinds
    assert architecture_fields.stack_of(resolve(words)) == words.get("stack", "encoder-decoder")


def test_the_schema_takes_the_words_of_each_family_and_no_others():
    import jsonschema

    validator = jsonschema.Draft202012Validator(architecture_fields.json_schema())
    fine = [words for words, _, _ in BASELINES] + [{"family": "decoder", "position": "rotary"}, {"model_type": "bert"}]
    assert [words for words in fine if not validator.is_valid(words)] == []
    wrong = [
        {"family": "rnn", "position": "rotary"},
        {"family": "rnn", "cell": "lstmm"},
        {"family": "cnn", "attention_scoring": "none"},
        {"model_type": "finery-rnn", "heads": 3},
        {"cell": "gru"},
    ]
    assert [words for words in wrong if validator.is_valid(words)] == []


def test_nothing_at_all_is_a_mistake():
    assert "is empty" in sentences()[""]


def test_defaults_alone_contradict_nothing():
    assert mistakes(DEFAULTS) == []


def test_the_table_of_foreign_types_is_read_only_when_one_is_named():
    program = (
        "from pipelines.core import architecture_fields as a, model_types as m; "
        "a.mistakes({'preset': 'bert-mini', 'hidden_size': 128}); before = m.model_types.cache_info().currsize; "
        "a.mistakes({'model_type': 'gpt2'}); print(before, m.model_types.cache_info().currsize); "
        "import sys; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["0 1", "[]"]


def test_the_repositorys_folder_is_found(repository):
    assert files.configs_folder() == repository / "configs"
    assert "bert-mini" in architecture_fields.presets()


def test_a_wheel_carries_its_own(tmp_path, monkeypatch):
    inside = tmp_path / "site-packages" / "pipelines" / "configs" / "architectures"
    inside.mkdir(parents=True)
    (inside / "mine.yaml").write_text("hidden_size: 8\n")
    (tmp_path / "site-packages" / "configs").mkdir()  # somebody else's
    monkeypatch.setattr(files, "__file__", str(tmp_path / "site-packages" / "pipelines" / "core" / "files.py"))
    assert files.configs_folder() == inside.parent
    assert list(architecture_fields.presets()) == ["mine"]


def test_an_installation_without_them_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "a" / "pipelines" / "fields" / "places.py"))
    with pytest.raises(FileNotFoundError, match="install Finery again"):
        files.configs_folder()
