"""`generate` as transformers' users know it, for every design that writes.

transformers' own tests of generation are not part of its distribution; these check the same promises.
"""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from transformers import CompileConfig, EncoderDecoderCache, GenerationConfig, StaticCache

from tests.covering import covering

from .designs import WRITERS, each_writer, language_model, prompt

NEW = 7
MEMORIES = ("learned", "modern", "alibi", "relative", "linear", "window")
"""Designs that differ in what is kept of a text, and in how places are counted in it."""
each_memory = pytest.mark.parametrize(
    ("family", "design"),
    covering(WRITERS, ways=lambda family, design: {family, design} if design in MEMORIES else set()),
)


def settings(**choices: object) -> GenerationConfig:
    """Seven new tokens, all different and none of them the last: a model that stops or sticks compares less."""
    fixed = {
        "max_new_tokens": NEW,
        "do_sample": False,
        "no_repeat_ngram_size": 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": None,
        "decoder_start_token_id": 1,
    }
    return GenerationConfig(**{**fixed, **choices})


def written(model: nn.Module, inputs: dict[str, Tensor], **choices: object) -> Tensor:
    """The new tokens (batch, 7)."""
    torch.manual_seed(13)
    calls = {name: choices.pop(name) for name in list(choices) if name in ("past_key_values", "assistant_model")}
    return model.generate(**inputs, generation_config=settings(**choices), **calls)[:, -NEW:]


def by_hand(model: nn.Module, family: str, inputs: dict[str, Tensor]) -> Tensor:
    """Greedy search without a cache: the whole sequence again for every token."""
    rows = []
    for tokens, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        read = tokens[mask.bool()][None]
        own = torch.tensor([[1]]) if family == "encoder-decoder" else read
        start, said = own.shape[1], own if family == "encoder-decoder" else tokens[None]
        for _ in range(NEW):
            if family == "encoder-decoder":
                logits = model(input_ids=read, decoder_input_ids=own).logits
            else:
                logits = model(input_ids=own).logits
            word = logits[:, -1].scatter(1, said, -torch.inf).argmax(-1, keepdim=True)
            own, said = torch.cat([own, word], 1), torch.cat([said, word], 1)
        rows.append(own[0, start:])
    return torch.stack(rows)


@each_writer
@torch.no_grad()
def test_greedy_search_is_the_likeliest_token_again_and_again(family, design):
    """With a cache and without, and a padded prompt is continued like the prompt alone."""
    model, inputs = language_model(family, design), prompt(family)
    expected = by_hand(model, family, inputs)
    assert written(model, inputs).tolist() == expected.tolist()
    assert written(model, inputs, use_cache=False).tolist() == expected.tolist()


WAYS = {
    "beam": {"num_beams": 3, "num_return_sequences": 2},
    "sample": {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "beam-sample": {"do_sample": True, "num_beams": 2},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
}


@pytest.mark.parametrize(
    ("family", "way", "design"), covering((family, way, design) for family, design in WRITERS for way in WAYS)
)
@torch.no_grad()
def test_the_cache_changes_nothing(family, design, way):
    model, inputs = language_model(family, design), prompt(family)
    expected = written(model, inputs, use_cache=False, **WAYS[way])
    assert written(model, inputs, use_cache=True, **WAYS[way]).tolist() == expected.tolist()


@each_memory
@torch.no_grad()
def test_scores_attentions_and_hidden_states_come_with_the_tokens(family, design):
    model, inputs = language_model(family, design, attn_implementation="eager"), prompt(family)
    told = model.generate(
        **inputs,
        generation_config=settings(
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            output_hidden_states=True,
            output_attentions=design != "linear",
        ),
    )
    assert [tuple(scores.shape) for scores in told.scores] == [(3, 61)] * NEW
    states = told.decoder_hidden_states if family == "encoder-decoder" else told.hidden_states
    layers = 3 if family == "encoder-decoder" else 2
    assert {len(step) for step in states} == {layers + 1}
    assert [step[0].shape[1] for step in states] == [1 if family == "encoder-decoder" else 6] + [1] * (NEW - 1)
    if design == "linear":
        return
    if family == "encoder-decoder":
        assert len(told.encoder_attentions) == 2
        assert {tuple(step[0].shape) for step in told.cross_attentions} == {(3, 4, 1, 6)}
        assert [step[0].shape[-1] for step in told.decoder_attentions] == list(range(1, NEW + 1))
    else:
        assert [step[0].shape[-1] for step in told.attentions] == list(range(6, 6 + NEW))


@each_memory
@torch.no_grad()
def test_a_text_can_be_continued_from_where_the_cache_stopped(family, design):
    """Three tokens, then four more from the same cache, are the seven written at once."""
    model, inputs = language_model(family, design), prompt(family)
    full = written(model, inputs)
    first = model.generate(**inputs, generation_config=settings(return_dict_in_generate=True, max_new_tokens=3))
    cache = first.past_key_values
    if family == "encoder-decoder":
        own = torch.ones_like(first.sequences)  # by which transformers sees that some of them are in the cache
        rest = {**inputs, "decoder_input_ids": first.sequences, "decoder_attention_mask": own}
    else:
        seen = torch.cat([inputs["attention_mask"], torch.ones(3, 3, dtype=torch.long)], 1)
        rest = {"input_ids": first.sequences, "attention_mask": seen}
    second = model.generate(**rest, past_key_values=cache, generation_config=settings(max_new_tokens=4))
    assert second[:, -NEW:].tolist() == full.tolist()


@each_memory
@torch.no_grad()
def test_prompts_may_be_vectors(family, design):
    model, inputs = language_model(family, design), prompt(family)
    vectors = model.get_input_embeddings()(inputs["input_ids"])
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    for choices in ({}, {"num_beams": 2}):
        free = {**choices, "no_repeat_ngram_size": 0}  # nobody knows which words the prompt had
        expected = written(model, inputs, **free)
        assert written(model, {**rest, "inputs_embeds": vectors}, **free).tolist() == expected.tolist()
    if family == "decoder":  # with the words beside them
        expected = written(model, inputs)
        assert written(model, {**inputs, "inputs_embeds": vectors}).tolist() == expected.tolist()


@pytest.mark.parametrize(("family", "design"), covering(pair for pair in WRITERS if pair[1] != "linear"))
@torch.no_grad()
def test_a_static_cache_gives_the_same_text(family, design):
    """Linear attention has none: it takes no mask of places that are yet to be filled."""
    model, inputs = language_model(family, design), prompt(family)
    expected = written(model, inputs)
    assert written(model, inputs, cache_implementation="static", disable_compile=True).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("family", "design"),
    [
        pytest.param(*case, marks=() if case == ("encoder-decoder", "modern") else pytest.mark.long)
        for case in product(("decoder", "encoder-decoder"), ("modern", "learned", "relative", "window"))
    ],
)
@torch.no_grad()
def test_a_step_with_a_static_cache_is_one_graph_that_is_built_once(family, design):
    """`generate` compiles the step by itself where the cache allows; other texts of the same shape reuse the graph."""
    torch.compiler.reset()
    layers = 2 if design == "window" else 1  # a window's layers are of two kinds
    depth = {"num_hidden_layers": layers, **({"num_decoder_layers": layers} if family == "encoder-decoder" else {})}
    model, inputs = language_model(family, design, **depth), prompt(family)
    others = {**inputs, "input_ids": inputs["input_ids"].flip(0), "attention_mask": inputs["attention_mask"].flip(0)}
    expected = [written(model, given).tolist() for given in (inputs, others)]
    compiling = CompileConfig(fullgraph=True, dynamic=False, backend="eager", mode=None)
    compiling._compile_all_devices = True  # on a CPU too
    counted = torch._dynamo.utils.counters
    counted.clear()
    found = written(model, inputs, cache_implementation="static", compile_config=compiling).tolist()
    graphs = counted["stats"]["unique_graphs"]
    assert graphs > 0
    again = written(model, others, cache_implementation="static", compile_config=compiling).tolist()
    assert [found, again] == expected
    assert counted["stats"]["unique_graphs"] == graphs


@each_memory
@torch.no_grad()
def test_the_cache_has_the_form_that_transformers_knows(family, design):
    """Keys and values (batch, key-value heads, length, head_dim) for each layer, by which other tools find their way."""
    model, inputs = language_model(family, design), prompt(family)
    config = model.config
    told = model.generate(**inputs, generation_config=settings(return_dict_in_generate=True, num_beams=2))
    cache = told.past_key_values
    layers, length = config.num_hidden_layers, 6 + NEW - 1
    if family == "encoder-decoder":
        assert isinstance(cache, EncoderDecoderCache)
        layers, length = config.num_decoder_layers, NEW
        if design != "linear":
            across = {tuple(layer.keys.shape) for layer in cache.cross_attention_cache.layers}
            assert across == {(6, config.num_key_value_heads, 6, config.head_dim)}
        cache = cache.self_attention_cache
    assert len(cache.layers) == layers
    for index, layer in enumerate(cache.layers):
        kept = length
        if (family, design) == ("decoder", "window") and config.windowed(index):
            kept = config.sliding_window - 1  # what the next token will see beside itself
        assert layer.keys.shape == layer.values.shape == (6, config.num_key_value_heads, kept, config.head_dim)
    without = model.generate(**inputs, generation_config=settings(return_dict_in_generate=True), use_cache=False)
    assert without.past_key_values is None


@each_memory
@torch.no_grad()
def test_a_draft_speeds_up_the_same_text(family, design):
    """Assisted decoding (Leviathan et al. 2023) and prompt look-up take back what the model would not have written."""
    model, inputs = language_model(family, design), prompt(family)
    one = {name: value[:1] for name, value in inputs.items()}
    expected = written(model, one)
    assert written(model, one, prompt_lookup_num_tokens=2).tolist() == expected.tolist()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.01)
    other.generation_config.num_assistant_tokens = 2
    assert written(model, one, assistant_model=other).tolist() == expected.tolist()


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_contrastive_search_is_refused_with_a_sentence(family):
    """transformers takes it from a Hub repository by now, that is, runs code that nobody here has read."""
    model = language_model(family, "learned")
    with pytest.raises(ValueError, match=r"[Cc]ontrastive search"):
        model.generate(**prompt(family), penalty_alpha=0.6, top_k=4, max_new_tokens=3)


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_a_static_cache_is_initialised_for_the_decoder(family):
    """The number of its layers is the decoder's, whatever the encoder's."""
    model = language_model(family, "learned")
    cache = StaticCache(config=model.config, max_cache_len=8)
    assert len(cache.layers) == (3 if family == "encoder-decoder" else 2)
