"""A last layer that runs for the places that are read: the same losses, gradients and weights, only where nothing else
is read."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pipelines.core.interfaces import Head
from pipelines.core.registry import TUNERS as TUNERS_TABLE
from pipelines.models import fsdp, read_places
from pipelines.models.log_probabilities import distributions_of, token_log_probabilities
from pipelines.models.read_places import text_alone, without_wrappers
from pipelines.objectives.losses import classification_loss, pretraining_loss, regression_loss, token_loss
from pipelines.tasks.preference.training import pair_loss
from pipelines.tuners.adapter import Adapter
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.covering import covering

DECODER: dict[str, Any] = {"family": "decoder"}
MODELS: dict[str, dict[str, Any]] = {
    "finery": {},
    "finery pre": {"norm_position": "pre", "position": "rotary", "norm_type": "rms_norm"},
    "finery sandwich": {"norm_position": "sandwich", "position": "alibi", "layerdrop": 0.0},
    "finery linear": {"attention_pattern": "linear"},
    "finery window": {"attention_pattern": "sliding_window", "sliding_window": 3},
    "finery decoder": DECODER,
    "finery decoder pre": DECODER | {"norm_position": "pre", "position": "rotary", "norm_type": "rms_norm"},
    "finery seq2seq": {"family": "encoder-decoder"},
    "bert": {},
    "roberta": {},
    "electra": {},
    "deberta-v2": {},
    "gpt2": {},
    "llama": {},
}
FIRST, OF_MASK, LAST = read_places.RULES
PLACE = dict.fromkeys(MODELS, FIRST) | {
    "finery decoder": OF_MASK,
    "finery decoder pre": OF_MASK,
    "finery seq2seq": OF_MASK,
    "gpt2": LAST,
    "llama": LAST,
}
TUNERS = {"full": None, "lora": LoRA(r=2), "adapter": Adapter()}
REWARD = Head("reward")
MASKED_MODELS = ("finery", "finery pre", "bert", "roberta", "electra")
CAUSAL_MODELS = ("finery decoder", "finery decoder pre", "gpt2", "llama")


def built(name: str, head: Any = tiny.THREE, tuner: Any = None, **more: Any) -> Any:
    model = tiny.build(name.split()[0], head, **MODELS.get(name, {}), **more)
    tiny.disturb(model)
    if tuner is not None:
        model = tuner.apply(model)
        tiny.disturb(model)
    return model


def batch(padding: str = "right") -> dict[str, torch.Tensor]:
    """Four texts, of which the second one is shorter, and their classes."""
    given = tiny.batch()
    if padding == "left":
        given = {name: torch.cat([value[:1], value[1:2].roll(3, dims=1), value[2:]]) for name, value in given.items()}
    return given | {"labels": torch.tensor([0, 2, 1, 1])}


def hidden_words(share: float = 0.25) -> dict[str, torch.Tensor]:
    """Four texts with labels at some places, in the third one at none."""
    given = tiny.batch()
    wanted = torch.rand(given["input_ids"].shape, generator=torch.Generator().manual_seed(5)) < share
    wanted &= given["attention_mask"] == 1
    wanted[2] = False
    return given | {"labels": torch.where(wanted, (given["input_ids"] * 3) % 60, -100)}


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every layer runs for all places."""
    monkeypatch.setattr(read_places, "can_be_cut", lambda model, layer: False)


def rows_of_the_last_network(model: Any, ask: Any) -> int:
    """How many states the feed-forward network of the last layer reads."""
    layer: Any = read_places.last_layer(without_wrappers(model))
    network = next(getattr(layer, name) for name in ("feed_forward", "intermediate", "mlp") if hasattr(layer, name))
    ask()  # so that what is tried once has been tried
    read: list[int] = []
    hook = network.register_forward_pre_hook(lambda module, given: read.append(given[0][..., 0].numel()))
    ask()
    hook.remove()
    return read[-1]


def assert_same_learning(model: Any, loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`loss(model)` and its gradients are those of the whole layer."""
    learnt = [weight for weight in model.parameters() if weight.requires_grad]
    narrow = loss(model)
    gradients = torch.autograd.grad(narrow.sum(), learnt, allow_unused=True)
    with monkeypatch.context() as patch:
        whole(patch)
        plain = loss(model)
    torch.testing.assert_close(narrow, plain, rtol=1e-5, atol=1e-6)
    for one, other in zip(gradients, torch.autograd.grad(plain.sum(), learnt, allow_unused=True), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


# -- heads that decide about a text ------------------------------------------------------------------------------------


def ways_of(name, tuner, padding):
    """Each model with each side of padding, and each rule for the place with each tuner."""
    return {(name, padding), (PLACE[name], tuner, padding)}


@pytest.mark.parametrize(
    ("name", "tuner", "padding"), covering(product(MODELS, TUNERS, ("right", "left")), ways=ways_of)
)
def test_a_classifier_learns_from_one_place_what_it_learns_from_the_whole_layer(name, tuner, padding, monkeypatch):
    model, given = built(name, tuner=TUNERS[tuner]), batch(padding)
    assert_same_learning(model, lambda model: classification_loss(model, given, head_alone=True)[0], monkeypatch)
    assert without_wrappers(model).finery_text_place == PLACE[name]
    assert rows_of_the_last_network(model, lambda: classification_loss(model, given, head_alone=True)) == 4


@pytest.mark.parametrize("tuner", ["prefix", "prompt", "p_tuning"])
@pytest.mark.parametrize("name", ["finery", "bert", "finery decoder", "gpt2"])
def test_virtual_tokens_change_nothing(name, tuner, monkeypatch):
    model = built(name, tuner=TUNERS_TABLE.load(tuner)())
    assert_same_learning(model, lambda model: classification_loss(model, batch(), head_alone=True)[0], monkeypatch)


@pytest.mark.parametrize("name", ["bert", "finery decoder", "llama"])
def test_a_regression_reads_no_more(name, monkeypatch):
    model = built(name, tiny.NUMBER)
    given = tiny.batch() | {"labels": torch.tensor([0.5, 3.0, -1.0, 5.0])}
    assert_same_learning(model, lambda model: regression_loss(model, given, head_alone=True)[0], monkeypatch)
    assert model.finery_text_place == PLACE[name]


@pytest.mark.parametrize("name", ["finery", "finery decoder", "bert", "gpt2", "llama"])
def test_a_reward_model_reads_one_place_of_each_answer(name, monkeypatch):
    model = built(name, REWARD)
    given = batch("left") | {"labels": torch.zeros(2, dtype=torch.long)}
    assert_same_learning(model, lambda model: pair_loss(model, given)[0], monkeypatch)
    assert rows_of_the_last_network(model, lambda: pair_loss(model, given)) == 4


@pytest.mark.parametrize("name", ["finery", "finery decoder", "bert"])
def test_multiple_choice_reads_one_place_of_each_option(name, monkeypatch):
    model = built(name, Head("multiple_choice"))
    given = {key: value.reshape(2, 2, -1) for key, value in tiny.batch().items()}
    given["labels"] = torch.tensor([1, 0])
    assert_same_learning(model, lambda model: classification_loss(model, given, head_alone=True)[0], monkeypatch)
    assert rows_of_the_last_network(model, lambda: classification_loss(model, given, head_alone=True)) == 4


@pytest.mark.parametrize("name", ["finery decoder", "gpt2", "llama"])
def test_a_text_that_ends_with_the_padding_token_is_read_where_the_head_reads_it(name, monkeypatch):
    """As where one token ends texts and fills them up: heads of transformers go by tokens, ours by the mask."""
    model, given = built(name), batch()
    given["input_ids"][:, -2:] = model.config.pad_token_id
    assert_same_learning(model, lambda model: classification_loss(model, given, head_alone=True)[0], monkeypatch)
    assert model.finery_text_place == PLACE[name]


class Mean(torch.nn.Module):
    """A pooler that reads all tokens."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.inner(hidden.mean(1, keepdim=True))


def test_a_head_that_reads_other_tokens_gets_them():
    model = built("bert")
    model.bert.pooler = Mean(model.bert.pooler)
    given = batch()
    assert rows_of_the_last_network(model, lambda: classification_loss(model, given, head_alone=True)) == 40
    assert model.finery_text_place == read_places.NOTHING


@pytest.mark.parametrize("name", ["modernbert", "distilbert", "albert", "bart", "t5", "xlnet"])
def test_models_of_another_build_run_as_they_are(name):
    model = built(name)
    inputs = tiny.batch()
    inputs["input_ids"][:, -1] = model.config.eos_token_id or 3  # BART and T5 read the last one of these
    before = tiny.logits(model.eval(), inputs)
    with torch.no_grad(), text_alone(model, inputs):
        assert torch.equal(model(**inputs).logits, before)
    assert not getattr(model, "finery_text_place", "")


# -- heads that name tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tuner"), covering(product(MASKED_MODELS, TUNERS)))
def test_masked_lm_learns_from_labelled_places_alone(name, tuner, monkeypatch):
    model, given = built(name, tiny.MASKED, TUNERS[tuner]), hidden_words()
    assert_same_learning(model, lambda model: token_loss(model, given)[0], monkeypatch)
    labelled = int((given["labels"] != -100).sum())
    assert rows_of_the_last_network(model, lambda: token_loss(model, given)) == labelled


@pytest.mark.parametrize(("name", "tuner"), covering(product(CAUSAL_MODELS, [*TUNERS, "prefix"])))
def test_causal_lm_learns_from_labelled_places_alone(name, tuner, monkeypatch):
    chosen = TUNERS_TABLE.load("prefix")() if tuner == "prefix" else TUNERS[tuner]
    model, given = built(name, Head("causal_lm"), chosen), hidden_words()
    assert_same_learning(model, lambda model: token_loss(model, given)[0], monkeypatch)
    labelled = int((given["labels"] != -100).sum())
    assert rows_of_the_last_network(model, lambda: token_loss(model, given)) == labelled


def test_sequence_to_sequence_learns_from_labelled_places_alone(monkeypatch):
    model, given = built("finery seq2seq", Head("seq2seq_lm")), hidden_words()
    given["decoder_input_ids"] = given["input_ids"].flip(1)
    assert_same_learning(model, lambda model: token_loss(model, given)[0], monkeypatch)
    labelled = int((given["labels"] != -100).sum())
    assert rows_of_the_last_network(model, lambda: token_loss(model, given)) == labelled


@pytest.mark.parametrize("name", ["finery", "bert"])
def test_a_head_on_the_pair_reads_the_first_token_besides(name, monkeypatch):
    model = built(name, Head("pretraining"))
    given = hidden_words() | {"pair_labels": torch.tensor([0, 1, 1, 0])}
    assert_same_learning(model, lambda model: pretraining_loss(model, given)[0], monkeypatch)
    assert model.finery_wanted_places == "wanted and first"
    read = given["labels"] != -100
    read[:, 0] = True
    assert rows_of_the_last_network(model, lambda: pretraining_loss(model, given)) == int(read.sum())


def test_where_most_places_are_labelled_the_whole_layer_runs():
    model, given = built("gpt2", Head("causal_lm")), tiny.batch()
    given["labels"] = given["input_ids"].clone()
    assert rows_of_the_last_network(model, lambda: token_loss(model, given)) == 40


def test_log_probabilities_are_those_of_the_whole_layer(monkeypatch):
    model, given = built("llama", Head("causal_lm")), hidden_words()
    with torch.inference_mode():
        narrow = token_log_probabilities(model, given, with_entropy=True)
        assert model.finery_wanted_places == "wanted"
        whole(monkeypatch)
        plain = token_log_probabilities(model, given, with_entropy=True)
    torch.testing.assert_close(narrow.log_probabilities, plain.log_probabilities)
    torch.testing.assert_close(narrow.entropies, plain.entropies)


# -- both --------------------------------------------------------------------------------------------------------------

LEARNING = {
    "finery": (tiny.THREE, False),
    "finery decoder": (tiny.THREE, False),
    "bert": (tiny.MASKED, True),
    "roberta": (tiny.THREE, False),
    "electra": (tiny.MASKED, True),
    "gpt2": (tiny.THREE, False),
    "llama": (Head("causal_lm"), True),
}


def learnt(model: Any, of_tokens: bool, steps: int, optimizer: Any = None) -> Any:
    """The optimizer after some steps of `model`, in training mode."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model.train()
    for _ in range(steps):
        loss = token_loss(model, hidden_words()) if of_tokens else classification_loss(model, batch(), head_alone=True)
        loss[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("name", LEARNING)
def test_weights_after_some_steps_are_those_of_the_whole_layer(name, monkeypatch):
    head, of_tokens = LEARNING[name]
    one, other = built(name, head), built(name, head)
    learnt(one, of_tokens, 4)
    whole(monkeypatch)
    learnt(other, of_tokens, 4)
    for (label, weight), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=1e-4, msg=label)


@pytest.mark.parametrize("name", ["finery", "llama"])
def test_a_run_that_is_resumed_learns_the_same_bits(name):
    """The model that goes on has tried nothing yet; its trial draws no numbers and leaves no gradients."""
    head, of_tokens = LEARNING[name]
    dropout = {"attention_dropout": 0.1} if name == "llama" else {"dropout": True}
    one, other = (built(name, head, **dropout) for _ in range(2))
    torch.manual_seed(1)
    optimizer = learnt(one, of_tokens, 2)
    other.load_state_dict(one.state_dict())
    beside = torch.optim.SGD(other.parameters(), lr=0.02, momentum=0.9)
    beside.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    torch.manual_seed(2)
    learnt(one, of_tokens, 2, optimizer)
    torch.manual_seed(2)
    learnt(other, of_tokens, 2, beside)
    assert all(map(torch.equal, one.parameters(), other.parameters()))


@pytest.mark.parametrize("name", ["bert", "gpt2", "finery decoder"])
def test_activations_that_are_computed_again_are_those_of_the_first_pass(name):
    model = built(name).train()
    model.gradient_checkpointing_enable()
    classification_loss(model, batch(), head_alone=True)[0].backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert rows_of_the_last_network(model, lambda: classification_loss(model, batch(), head_alone=True)) == 40


@pytest.mark.parametrize("name", ["finery", "bert", "llama"])
def test_bfloat16_agrees_within_its_precision(name, monkeypatch):
    model, given = built(name), batch()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        narrow = classification_loss(model, given, head_alone=True)[1].logits
        whole(monkeypatch)
        plain = classification_loss(model, given, head_alone=True)[1].logits
    assert model.finery_text_place == PLACE[name]
    torch.testing.assert_close(narrow, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", ["finery", "gpt2"])
def test_the_trial_leaves_nothing_behind(name):
    dropout = {"resid_pdrop": 0.1} if name == "gpt2" else {"dropout": True}
    model, given = built(name, **dropout).train(), batch()
    torch.manual_seed(3)
    first = classification_loss(model, given, head_alone=True)[0]
    assert model.finery_text_place == PLACE[name]
    assert model.training
    torch.manual_seed(3)
    assert torch.equal(classification_loss(model, given, head_alone=True)[0], first)
    assert all(weight.grad is None for weight in model.parameters())
    layer: Any = read_places.last_layer(model)
    hooks = [each for module in layer.modules() for each in (*module._forward_hooks, *module._forward_pre_hooks)]
    assert not hooks
    assert "_transform" not in vars(layer)


def test_layers_that_run_in_chunks_stay_whole():
    model, given = built("bert", chunk_size_feed_forward=5), batch()
    assert rows_of_the_last_network(model, lambda: classification_loss(model, given, head_alone=True)) == 20
    assert not hasattr(model, "finery_text_place")


def test_a_short_batch_decides_nothing():
    model = built("bert")
    given = {name: value[:, :2] for name, value in tiny.batch().items()} | {"labels": torch.tensor([0, 1, 2, 0])}
    classification_loss(model, given, head_alone=True)
    assert not hasattr(model, "finery_text_place")
    wanted = torch.zeros(4, 2, dtype=torch.bool)
    wanted[0, 1] = True
    language = built("bert", tiny.MASKED)
    given.pop("labels")
    distributions_of(language, given, wanted)
    assert language.finery_wanted_places == "wanted"


@pytest.mark.parametrize("name", ["finery", "finery decoder", "bert", "gpt2"])
def test_what_is_read_is_found_before_a_model_is_divided(name):
    model = built(name)
    fsdp.try_heads(model)
    assert model.finery_text_place == PLACE[name]
    if name != "gpt2":
        choice = built(name, Head("multiple_choice"))
        fsdp.try_heads(choice)
        assert choice.finery_text_place == PLACE[name]
    language = built(name, Head("causal_lm") if PLACE[name] != FIRST else tiny.MASKED)
    fsdp.try_heads(language)
    assert language.finery_wanted_places == "wanted"


@pytest.mark.parametrize(
    ("model_type", "found"),
    [("mistral", "wanted"), ("gemma2", "wanted"), ("gpt_neox", "wanted"), ("olmo2", ""), ("phi", None)],
)
def test_decoders_of_other_builds_are_cut_only_where_the_cut_is_exact(model_type, found, monkeypatch):
    """Gemma 2 normalises on both sides of the network. OLMo 2's norms of that name stand behind attention, before the
    residual sum, and Phi's network reads the norm before attention: both stay whole."""
    words = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = AutoConfig.for_model(model_type, vocab_size=100, pad_token_id=0, head_dim=16, **words)
    config.num_key_value_heads = 2
    model = AutoModelForCausalLM.from_config(config)
    tiny.disturb(model)
    assert_same_learning(model, lambda model: token_loss(model, hidden_words())[0], monkeypatch)
    assert getattr(model, "finery_wanted_places", None) == found
