"""What a stack does besides its layers: positions, biases, caches, layerdrop, one graph."""

from itertools import product

import pytest
import torch

from pipelines.architectures import FineryForCausalLM, FineryForConditionalGeneration, FineryModel
from pipelines.architectures.configuration_rules import ATTENTION_SCORINGS, POSITIONS
from pipelines.architectures.positions import alibi_slopes

PATTERNS = {
    "usual": {},
    "window": {"attention_pattern": "sliding_window", "sliding_window": 3, "global_attn_every_n_layers": 2},
    "linear": {"attention_pattern": "linear"},
}
CACHED = [
    (position, pattern)
    for position, pattern in product(POSITIONS, PATTERNS)
    if not (pattern == "linear" and position in ("alibi", "relative"))
]
LENGTH = 9


def built(head: type, config):
    torch.manual_seed(0)
    return head(config).eval()


def tokens(rows: int = 1) -> torch.Tensor:
    return torch.randint(1, 61, (rows, LENGTH), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(("position", "pattern"), CACHED)
@torch.no_grad()
def test_a_cache_changes_nothing_but_the_cost(tiny, position, pattern, implementation):
    """One token, four together, then one at a time; the second text has two tokens of padding on the left."""
    fields = {"position": position, "num_key_value_heads": 2, **PATTERNS[pattern]}
    model = built(FineryForCausalLM, tiny(family="decoder", **fields, attn_implementation=implementation))
    ids, mask = tokens(2), torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :2] = 0
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    past, parts = None, []
    for start, end in [(0, 4), (4, 5), *((place, place + 1) for place in range(5, LENGTH))]:
        output = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=past, use_cache=True)
        past = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], whole[mask.bool()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("position", "pattern"), CACHED)
@torch.no_grad()
def test_a_cache_of_two_stacks_changes_nothing_but_the_cost(tiny, position, pattern):
    config = tiny(family="encoder-decoder", position=position, num_decoder_layers=2, **PATTERNS[pattern])
    model = built(FineryForConditionalGeneration, config)
    source, target = tokens(2), tokens(2).flip(1)
    source_mask = torch.ones(2, LENGTH, dtype=torch.long)
    source_mask[1, 5:] = 0
    whole = model(source, source_mask, target, use_cache=False).logits
    encoded, past, parts = model.get_encoder()(source, source_mask), None, []
    for place in range(LENGTH):
        output = model(
            encoder_outputs=encoded,
            attention_mask=source_mask,
            decoder_input_ids=target[:, place : place + 1],
            past_key_values=past,
            use_cache=True,
        )
        past = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scoring", ATTENTION_SCORINGS)
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_padding_on_the_left_changes_no_token_of_a_decoder(tiny, family, scoring):
    head = FineryForCausalLM if family == "decoder" else FineryForConditionalGeneration
    ids, noise = tokens()[:, :5], torch.tensor([[9, 9, 9]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    for position in POSITIONS:
        model = built(head, tiny(family=family, position=position, attention_scoring=scoring))
        if family == "decoder":
            alone = model(ids).logits
            padded = model(torch.cat([noise, ids], 1), attention_mask=mask).logits
        else:
            alone = model(tokens(), decoder_input_ids=ids).logits
            padded = model(tokens(), decoder_input_ids=torch.cat([noise, ids], 1), decoder_attention_mask=mask).logits
        torch.testing.assert_close(padded[:, 3:], alone, rtol=1e-4, atol=1e-5, msg=position)


def scores_of_equal_words(tiny, **fields) -> torch.Tensor:
    """Log attention weights (heads, query, key) of a text of one repeated word: only position tells its places apart."""
    model = built(FineryModel, tiny(num_hidden_layers=1, initializer_range=0.5, attn_implementation="eager", **fields))
    with torch.no_grad():
        (weights,) = model(torch.full((1, LENGTH), 5), output_attentions=True).attentions
    return weights[0].log()


def test_alibi_adds_a_slope_times_the_distance(tiny):
    scores = scores_of_equal_words(tiny, position="alibi")
    for head, slope in enumerate(alibi_slopes(4)):
        from_the_first = scores[head, 0] - scores[head, 0, 0]
        torch.testing.assert_close(from_the_first, -slope * torch.arange(LENGTH).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_relative_positions_add_a_number_of_the_bucket_that_all_layers_share(tiny, family):
    config = tiny(
        family=family,
        position="relative",
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        attn_implementation="eager",
    )
    model = built(FineryModel, config)
    assert model.relative_bias.weight.shape == (8, 4)
    assert sum("relative_bias" in name for name, _ in model.named_parameters()) == 1
    with torch.no_grad():
        weights = model(torch.full((1, LENGTH), 5), output_attentions=True).attentions[0][0].log()
        near = model.relative_bias.weight[1] - model.relative_bias.weight[0]  # one place before, and the same place
    for query in range(1, LENGTH):
        torch.testing.assert_close(weights[:, query, query - 1] - weights[:, query, query], near, rtol=1e-4, atol=1e-4)


def test_given_positions_are_the_places_that_biases_measure_from(tiny):
    for position in ("alibi", "relative"):
        model = built(FineryModel, tiny(position=position))
        ids = tokens()
        with torch.no_grad():
            usual = model(ids).last_hidden_state
            shifted = model(ids, position_ids=torch.arange(LENGTH)[None] + 5).last_hidden_state
            stretched = model(ids, position_ids=torch.arange(LENGTH)[None] * 3).last_hidden_state
        torch.testing.assert_close(shifted, usual)
        assert not torch.allclose(stretched, usual, atol=1e-3)


@torch.no_grad()
def test_positions_without_a_table_have_no_end(tiny):
    for position in ("alibi", "relative", "none"):
        longer = torch.ones(1, 30, dtype=torch.long)
        assert built(FineryModel, tiny(position=position))(longer).last_hidden_state.shape == (1, 30, 24)
    with pytest.raises(ValueError, match="ends at position 30, but max_position_embeddings is 19"):
        built(FineryModel, tiny(position="learned"))(longer)


@torch.no_grad()
def test_windowed_layers_turn_by_their_own_theta(tiny):
    window = {"attention_pattern": "sliding_window", "sliding_window": 3, "global_attn_every_n_layers": 2}
    model = built(FineryModel, tiny(position="rotary", rope_theta=100.0, local_rope_theta=7.0, **window))
    turns = []
    for layer in model.layers:
        layer.attention.register_forward_pre_hook(lambda _, __, kw: turns.append(kw["rotation"]), with_kwargs=True)
    model(tokens())
    places = torch.arange(LENGTH)[:, None]
    for (cos, _), theta in zip(turns, (100.0, 7.0, 100.0), strict=True):
        torch.testing.assert_close(cos[0, 0], (places * theta ** (-torch.arange(0, 6, 2) / 6)).cos())


def test_layerdrop_skips_whole_layers_in_training_only(tiny):
    model = built(FineryModel, tiny(layerdrop=0.5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    ids = tokens()
    usual = model(ids).last_hidden_state
    torch.testing.assert_close(model(ids).last_hidden_state, usual)
    embedded = model.embeddings(ids)
    kept = [embedded]
    for layer in model.layers:  # everything that skipping any of the three layers can give
        kept = [*kept, *(layer(states, None) for states in kept)]
    model.train()
    found = {
        next(i for i, states in enumerate(kept) if torch.allclose(model_output, states, atol=1e-5))
        for model_output in (model(ids).last_hidden_state for _ in range(60))
    }
    assert found == set(range(8))


def test_no_layer_is_skipped_without_layerdrop(tiny):
    model = built(FineryModel, tiny(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).train()
    torch.testing.assert_close(model(tokens()).last_hidden_state, model.eval()(tokens()).last_hidden_state)


def test_gradient_checkpointing_of_both_kinds_gives_the_same_gradients(tiny):
    """The learned bias of positions and the encoder's output must be followed too."""
    config = tiny(family="encoder-decoder", position="relative", norm_position="pre")
    model = built(FineryForConditionalGeneration, config).train()

    def gradients() -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        model.zero_grad()
        model(tokens(2), labels=tokens(2).flip(1)).loss.backward()
        return {name: weight.grad.clone() for name, weight in model.named_parameters()}

    plain = gradients()
    for reentrant in (True, False):
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        for name, gradient in gradients().items():
            torch.testing.assert_close(gradient, plain[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.long
@pytest.mark.parametrize("mode", ["evaluation", "training"])
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("encoder-decoder", {"position": "relative", "layerdrop": 0.5}),
        ("encoder", {"position": "rotary", **PATTERNS["window"]}),
        ("decoder", {"position": "rotary", **PATTERNS["linear"]}),
        ("decoder", {"position": "alibi", "attention_scoring": "additive"}),
    ],
    ids=["relative", "window", "linear", "additive"],
)
def test_it_traces_into_one_graph(tiny, family, fields, mode):
    """What torch.compile(fullgraph=True) asks for, without waiting for code generation."""
    torch.compiler.reset()
    model = built(FineryModel, tiny(family=family, num_hidden_layers=2, **fields)).train(mode == "training")
    inputs = {"input_ids": tokens(2), "attention_mask": torch.ones(2, LENGTH, dtype=torch.long), "use_cache": False}
    with torch.set_grad_enabled(model.training):
        traced = torch.compile(model, fullgraph=True, backend="eager")(**inputs).last_hidden_state
        assert traced.shape == (2, LENGTH, 24)
        if not model.training:
            torch.testing.assert_close(traced, model(**inputs).last_hidden_state)
