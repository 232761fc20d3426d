"""Which weights the tuners `full` and `last_layer` train where layers are cells or convolutions, and what is refused."""

from types import SimpleNamespace

import pytest
import torch

from pipelines.core.errors import IncompatibleError, RecipeError
from pipelines.core.interfaces import Head, World
from pipelines.core.load import loads
from pipelines.models import opening
from pipelines.trainers import tuning
from pipelines.tuners.full import Full
from pipelines.tuners.last_layer import LastLayer
from pipelines.tuners.layer_groups import layer_groups
from pipelines.tuners.lora import LoRA
from tests import tiny

SHAPES = {
    "rnn": ({"model_type": "finery-rnn", "hidden_size": 16, "num_hidden_layers": 2}, Head("seq2seq_lm")),
    "cnn": ({"model_type": "finery-cnn", "hidden_size": 16, "num_hidden_layers": 2}, Head("seq2seq_lm")),
    "classifier": (
        {"model_type": "finery-rnn", "stack": "decoder", "hidden_size": 16, "num_hidden_layers": 2},
        tiny.TWO,
    ),
}
TOP = {"rnn": "model.decoder.layers.1", "cnn": "model.decoder.layers.1", "classifier": "model.layers.1"}


def build(name):
    shape, head = SHAPES[name]
    return opening.build(shape, head, tiny.tokenizer(), 0)


@pytest.mark.parametrize("name", SHAPES)
def test_layers_are_ordered_from_the_embeddings_to_the_head(name):
    names = [group.name for group in layer_groups(build(name))]
    below = [TOP[name].replace("1", "0"), TOP[name]]
    encoder = [each.replace("decoder", "encoder") for each in below] if name != "classifier" else []
    assert names == ["embeddings", *encoder, *below, *(["head"] if name == "classifier" else [])]


@pytest.mark.parametrize("name", SHAPES)
def test_the_last_layer_is_the_decoders_with_its_attention_and_all_else_rests(name):
    model = LastLayer(layers=1).apply(build(name))
    learning = {each for each, weight in model.named_parameters() if weight.requires_grad}
    own = {each for each, _ in model.named_parameters() if each.startswith((f"{TOP[name]}.", "classifier."))}
    beside = {"rnn": "model.decoder.attention.", "cnn": "model.decoder.narrow."}.get(name)
    assert learning == own | {each for each, _ in model.named_parameters() if beside and each.startswith(beside)}
    inputs = tiny.batch()
    before = {each: weight.detach().clone() for each, weight in model.named_parameters()}
    labels = torch.zeros(4, dtype=torch.long) if name == "classifier" else inputs["input_ids"]
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], 0.5)
    model.train()(**inputs, labels=labels).loss.backward()
    optimizer.step()
    assert {each for each, weight in model.named_parameters() if not torch.equal(weight, before[each])} == learning


@pytest.mark.parametrize("name", SHAPES)
def test_full_trains_everything(name):
    assert all(weight.requires_grad for weight in Full().apply(build(name)).parameters())


@pytest.mark.parametrize("family", ["rnn", "cnn"])
def test_tuners_of_a_transformers_layers_are_refused_in_one_sentence(family):
    text = (
        f"name: x\nmodel: {{architecture: {{family: {family}}}}}\n"
        "stages: [{stage: supervised, task: multi30k/en-de, tuner: lora}]\n"
    )
    with pytest.raises(RecipeError) as refused:
        loads(text)
    assert "is lora, which changes the layers of transformers, which families rnn and cnn do not have" in str(
        refused.value
    )
    loads(text.replace("lora", "full"))


def test_the_open_model_is_judged_again():
    words = build("rnn").config.to_dict()
    assert tuning.misfit(LoRA(), words, "seq2seq_lm")
    assert tuning.misfit(LastLayer(layers=1), words, "seq2seq_lm") is None
    with pytest.raises(IncompatibleError, match=r"last_layer\.layers is 9"):
        LastLayer(layers=9).apply(build("rnn"))


def test_what_cells_cannot_do_is_refused_at_its_key():
    text = (
        "name: x\nmodel: {architecture: {family: rnn}}\nlaunch: {profile: fsdp2, num_processes: 2}\nstages:\n"
        "  - {stage: supervised, task: multi30k/en-de, arguments: {activation_checkpointing: true}}\n"
    )
    with pytest.raises(RecipeError) as refused:
        loads(text)
    assert "activation_checkpointing: is true, which is for the layers of transformers" in str(refused.value)
    assert "which launch.profile fsdp2 does not divide; use ddp" in str(refused.value)


def test_a_checkpoint_of_cells_is_refused_where_weights_would_be_divided(tmp_path):
    text = "name: x\nmodel: {architecture: {family: rnn}}\nstages: [{stage: supervised, task: multi30k/en-de}]\n"
    stage = loads(text).stages[0]
    for profile, size in (("ddp", 2), ("fsdp2", 2), ("zero3", 2)):
        context = SimpleNamespace(
            folder=tmp_path,
            world=World(0, size, profile),
            open_model=lambda head, **_: build("rnn"),
            gather=lambda value: [value],
        )
        if profile == "ddp":
            tuning.opened(stage, context, SHAPES["rnn"][1])
            continue
        with pytest.raises(IncompatibleError, match=f"which launch.profile {profile} does not divide; use ddp"):
            tuning.opened(stage, context, SHAPES["rnn"][1])
