"""What a stack does besides its layers: positions, biases, caches, layerdrop, one graph."""

import logging
import math
from dataclasses import fields
from itertools import product

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    RoFormerConfig,
    RoFormerModel,
    Trainer,
    TrainingArguments,
)
from transformers import logging as transformers_logging

from pipelines.architectures import (
    FineryConfig,
    FineryForCausalLM,
    FineryForConditionalGeneration,
    FineryForMaskedLM,
    FineryForSequenceClassification,
    FineryModel,
)
from pipelines.architectures.arithmetic import DEFAULTS
from pipelines.architectures.configuration_rules import ATTENTION_SCORINGS, POSITIONS
from pipelines.architectures.layers import start_token
from pipelines.architectures.modeling_finery import (
    PROBLEM_LOSSES,
    binary_cross_entropy,
    cross_entropy,
    mean_squared_error,
    problem_type_of,
    shifted_right,
)
from pipelines.architectures.positions import alibi_slopes, rotation_at, sinusoidal_table
from tests.covering import by_turns, some

from .references import BERT_NAMES, renamed

HEADS = [FineryModel, FineryForMaskedLM, FineryForSequenceClassification]

each_head = pytest.mark.parametrize("head", HEADS, ids=lambda head: head.__name__)


def bert_config(config: FineryConfig) -> BertConfig:
    """BERT of the same shape: its config has the same words."""
    shared = {field.name: getattr(config, field.name) for field in fields(BertConfig) if hasattr(config, field.name)}
    return BertConfig(**shared, attn_implementation=config._attn_implementation)


def stir(model: nn.Module) -> nn.Module:
    """Give every learned weight a random value: fresh norms and biases would hide a misplaced or missing one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:  # RoFormer keeps its sines among its parameters
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
    return model


def main_output(outputs) -> torch.Tensor:
    return outputs.logits if "logits" in outputs else outputs.last_hidden_state


# --- a prefix, as RoFormer and BERT see it -----------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_a_prefix_is_seen_by_every_token_as_roformer_sees_it(tiny, batch, implementation):
    """Its keys are not turned, and the sequence's places count from its end."""
    config = tiny(position="rotary", attn_implementation=implementation)
    shared = {field.name: getattr(config, field.name) for field in fields(RoFormerConfig) if field.name in DEFAULTS}
    roformer = stir(RoFormerModel(RoFormerConfig(**shared))).eval()
    finery = FineryModel(config, add_pooling_layer=False).eval()
    learned = {name: weight for name, weight in roformer.state_dict().items() if "embed_positions" not in name}
    finery.load_state_dict(renamed(learned, BERT_NAMES))  # all but RoFormer's table of sines
    layers = [(torch.randn(2, 4, 3, 6), torch.randn(2, 4, 3, 6)) for _ in range(3)]
    theirs = roformer(batch["input_ids"], past_key_values=DynamicCache(layers)).last_hidden_state
    ours = finery(batch["input_ids"], past_key_values=DynamicCache(layers)).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    elsewhere = finery(
        batch["input_ids"], past_key_values=DynamicCache(layers), position_ids=torch.arange(9)[None]
    ).last_hidden_state
    assert not torch.allclose(elsewhere, ours, atol=1e-3)


def test_a_fresh_model_is_initialised_as_bert_is(tiny):
    torch.manual_seed(0)
    model = FineryForMaskedLM(tiny(hidden_size=256, num_attention_heads=4, vocab_size=900, initializer_range=0.02))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert weight.eq(0).all(), name
        elif "norm" in name:
            assert weight.eq(1).all(), name
        elif weight.numel() > 2000:
            assert weight.std().item() == pytest.approx(0.02, rel=0.05), name
    assert model.get_input_embeddings().weight[0].eq(0).all()  # the padding token


# --- position and norm position ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_encoder_is_its_layers_in_order_and_pre_norm_adds_a_last_norm(tiny, variant, batch):
    model = stir(FineryModel(tiny(**variant))).eval()
    mask = batch["attention_mask"][:, None, None, :].bool().expand(2, 1, 9, 9)
    states = model.embeddings(batch["input_ids"], batch["token_type_ids"])
    rotation = rotation_at(torch.arange(9)[None], 6, 10000.0) if variant["position"] == "rotary" else None
    for layer in model.layers:
        states = layer(states, mask, rotation=rotation)
    if variant["norm_position"] == "pre":
        states = model.final_norm(states)
    output = model(**batch)
    torch.testing.assert_close(output.last_hidden_state, states, rtol=0, atol=1e-5)
    torch.testing.assert_close(output.pooler_output, torch.tanh(model.pooler.dense(states[:, 0])), rtol=0, atol=1e-5)


def test_post_norm_has_no_last_norm(tiny):
    assert FineryModel(tiny()).final_norm is None


@torch.no_grad()
def test_order_matters_to_every_position_scheme_and_to_nothing_else(tiny, variant):
    """Without position information the other tokens of a shuffled sequence would look the same to the first."""
    model = stir(FineryModel(tiny(**variant))).eval()
    tokens, shuffled = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[5, 8, 6, 7]])
    assert not torch.allclose(model(tokens).last_hidden_state[:, 0], model(shuffled).last_hidden_state[:, 0])
    same_places = torch.zeros(1, 4, dtype=torch.long)
    blind = [model(ids, position_ids=same_places).last_hidden_state[:, 0] for ids in (tokens, shuffled)]
    torch.testing.assert_close(*blind, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_only_distances_matter_to_rotary_positions(tiny, variant, batch):
    model = stir(FineryModel(tiny(**variant))).eval()
    places = torch.arange(9)[None]
    here, further, stretched = (
        model(**batch, position_ids=ids).last_hidden_state for ids in (places, places + 7, places * 2)
    )
    assert torch.allclose(further, here, atol=1e-5) is (variant["position"] == "rotary")
    assert not torch.allclose(stretched, here, atol=1e-3)


@torch.no_grad()
def test_theta_sets_how_fast_rotary_positions_turn(tiny, batch):
    slow, fast = (stir(FineryModel(tiny(position="rotary", rope_theta=theta))).eval() for theta in (10000, 10))
    fast.load_state_dict(slow.state_dict())
    assert not torch.allclose(slow(**batch).last_hidden_state, fast(**batch).last_hidden_state, atol=1e-3)


# --- padding and kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@torch.no_grad()
def test_padding_on_either_side_changes_no_token(tiny, variant, implementation):
    model = stir(FineryModel(tiny(**variant, attn_implementation=implementation))).eval()
    tokens = torch.tensor([[5, 6, 7, 8]])
    alone = model(tokens).last_hidden_state
    noise = torch.tensor([[9, 9]])  # not even the padding token: a masked place must not matter

    right = model(torch.cat([tokens, noise], 1), attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0]])).last_hidden_state
    torch.testing.assert_close(right[:, :4], alone, rtol=0, atol=1e-5)

    left = model(
        torch.cat([noise, tokens], 1),
        attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1]]),
        position_ids=torch.tensor([[0, 0, 0, 1, 2, 3]]),  # places count from the first real token
    ).last_hidden_state
    torch.testing.assert_close(left[:, 2:], alone, rtol=0, atol=1e-5)


@pytest.mark.long
@torch.no_grad()
def test_flex_attention_agrees_with_eager(tiny, variant, batch):
    eager = stir(FineryModel(tiny(**variant, hidden_size=64, attn_implementation="eager"))).eval()
    flex = FineryModel(tiny(**variant, hidden_size=64, attn_implementation="flex_attention")).eval()
    flex.load_state_dict(eager.state_dict())
    seen = batch["attention_mask"].bool()
    expected, found = eager(**batch).last_hidden_state[seen], flex(**batch).last_hidden_state[seen]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("masked", [True, False])
@torch.no_grad()
def test_a_prefix_of_keys_and_values_is_seen_by_every_token(tiny, batch, implementation, masked):
    """The same as BERT given the same past, which is what prefix tuning builds on."""
    config = tiny(attn_implementation=implementation)
    bert = stir(BertModel(bert_config(config))).eval()
    finery = FineryModel(config).eval()
    finery.load_state_dict(renamed(bert.state_dict(), BERT_NAMES))

    layers = [(torch.randn(2, 4, 3, 6), torch.randn(2, 4, 3, 6)) for _ in range(3)]
    inputs = {"input_ids": batch["input_ids"]}
    if masked:
        inputs["attention_mask"] = torch.cat([torch.ones(2, 3, dtype=torch.long), batch["attention_mask"]], 1)
    theirs = bert(**inputs, past_key_values=DynamicCache(layers)).last_hidden_state
    ours = finery(**inputs, past_key_values=DynamicCache(layers)).last_hidden_state
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert not torch.allclose(ours[0], finery(input_ids=batch["input_ids"]).last_hidden_state[0], atol=1e-3)


# --- what transformers' models offer ----------------------------------------------------------------------------------


@each_head
@torch.no_grad()
def test_hidden_states_and_attentions_are_returned_when_asked_for(head, tiny, batch):
    model = stir(head(tiny(norm_position="pre", attn_implementation="eager"))).eval()
    plain = model(**batch)
    assert plain.hidden_states is None
    assert plain.attentions is None
    full = model(**batch, output_hidden_states=True, output_attentions=True)
    assert [tuple(states.shape) for states in full.hidden_states] == [(2, 9, 24)] * 4
    assert [tuple(weights.shape) for weights in full.attentions] == [(2, 4, 9, 9)] * 3
    assert full.attentions[0][1, :, :, 6:].eq(0).all()  # the second sequence's padding
    encoder = model if head is FineryModel else model.model
    embedded = encoder.embeddings(batch["input_ids"], batch["token_type_ids"])
    torch.testing.assert_close(full.hidden_states[0], embedded)
    torch.testing.assert_close(full.hidden_states[-1], encoder(**batch).last_hidden_state)


@each_head
@torch.no_grad()
def test_a_tuple_holds_what_the_output_holds(head, tiny, batch):
    model = head(tiny()).eval()
    as_tuple, as_output = model(**batch, return_dict=False), model(**batch)
    assert isinstance(as_tuple, tuple)
    for one, other in zip(as_tuple, as_output.to_tuple(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_output_matrix_is_the_word_embedding_if_tied_and_its_own_if_not(tiny):
    tied, untied = FineryForMaskedLM(tiny()), FineryForMaskedLM(tiny(tie_word_embeddings=False))
    assert tied.lm_head.decoder.weight is tied.model.embeddings.word_embeddings.weight
    assert untied.lm_head.decoder.weight is not untied.model.embeddings.word_embeddings.weight


@each_head
@torch.no_grad()
def test_a_saved_model_comes_back_exactly(head, tiny, batch, tmp_path):
    model = stir(head(tiny(norm_position="pre"))).eval()
    model.save_pretrained(tmp_path)
    loaded, report = head.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert torch.equal(main_output(loaded.eval()(**batch)), main_output(model(**batch)))


def test_the_fixed_table_is_rebuilt_by_loading_though_it_is_not_saved(tiny, tmp_path):
    model = FineryForMaskedLM(tiny(position="sinusoidal"))
    assert not any("table" in name for name in model.state_dict())
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = FineryForMaskedLM.from_pretrained(tmp_path, dtype=dtype)
        assert torch.equal(loaded.model.embeddings.position_embeddings.table.float(), sinusoidal_table(19, 24))


@torch.no_grad()
def test_rotary_positions_stay_exact_in_a_model_cast_to_bfloat16(tiny):
    """Tables cast with the model would confuse neighbours beyond position 256."""
    model = FineryModel(tiny(position="rotary", max_position_embeddings=400)).eval().to(torch.bfloat16)
    seen = []
    for layer in model.layers:
        layer.attention.register_forward_pre_hook(lambda _, __, kw: seen.append(kw["rotation"]), with_kwargs=True)
    model(torch.ones(1, 300, dtype=torch.long))
    exact = torch.arange(300, dtype=torch.float64)[:, None] * 10000 ** (-torch.arange(0, 6, 2).double() / 6)
    for cos, sin in seen:
        torch.testing.assert_close(cos[0, 0].double(), exact.cos(), rtol=0, atol=3e-5)
        torch.testing.assert_close(sin[0, 0].double(), exact.sin(), rtol=0, atol=3e-5)
    assert len(seen) == 3
    assert not list(model.buffers())


@pytest.mark.parametrize("source", [FineryModel, FineryForMaskedLM])
@torch.no_grad()
def test_a_head_on_another_heads_checkpoint_keeps_the_encoder_and_says_what_is_new(
    source, tiny, batch, tmp_path, caplog
):
    original = stir(source(tiny())).eval()
    original.save_pretrained(tmp_path)
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            classifier, report = FineryForSequenceClassification.from_pretrained(
                tmp_path, num_labels=3, output_loading_info=True
            )
    finally:
        transformers_logging.disable_propagation()
    new = {"classifier.weight", "classifier.bias"}
    if source is FineryForMaskedLM:
        new |= {"model.pooler.dense.weight", "model.pooler.dense.bias"}
    assert set(report["missing_keys"]) == new
    assert all(name in caplog.text for name in ("classifier.weight", "MISSING"))
    encoder = original if source is FineryModel else original.model
    torch.testing.assert_close(
        classifier.eval().model(**batch).last_hidden_state, encoder(**batch).last_hidden_state, rtol=0, atol=0
    )


@each_head
def test_ids_and_embeddings_are_alternatives(head, tiny, batch):
    model = head(tiny()).eval()
    words = model.get_input_embeddings()(batch["input_ids"])
    rest = {name: value for name, value in batch.items() if name != "input_ids"}
    torch.testing.assert_close(main_output(model(inputs_embeds=words, **rest)), main_output(model(**batch)))
    for wrong in ({}, {"input_ids": batch["input_ids"], "inputs_embeds": words}):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
            model(**wrong)


# --- the masked-LM head -----------------------------------------------------------------------------------------------


def test_sparse_prediction_gives_the_same_loss_and_gradients_from_the_masked_positions_alone(tiny, variant, batch):
    dense = stir(FineryForMaskedLM(tiny(**variant))).eval()
    sparse = FineryForMaskedLM(tiny(**variant, sparse_prediction=True)).eval()
    sparse.load_state_dict(dense.state_dict())
    labels = torch.full_like(batch["input_ids"], -100)
    labels[0, [1, 4, 8]], labels[1, 2] = torch.tensor([5, 17, 60]), 9
    inputs = {**batch, "labels": labels}
    full, part = dense(**inputs), sparse(**inputs)
    assert part.logits.shape == (4, 61)
    torch.testing.assert_close(part.logits, full.logits[inputs["labels"] != -100], rtol=0, atol=1e-5)
    torch.testing.assert_close(part.loss, full.loss)
    full.loss.backward()
    part.loss.backward()
    for (name, one), (_, other) in zip(sparse.named_parameters(), dense.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@torch.no_grad()
def test_sparse_prediction_without_labels_predicts_everywhere(tiny, batch):
    assert FineryForMaskedLM(tiny(sparse_prediction=True)).eval()(**batch).logits.shape == (2, 9, 61)


@pytest.mark.parametrize("sparse", [True, False])
def test_a_batch_without_a_masked_token_costs_nothing(tiny, batch, sparse):
    model = FineryForMaskedLM(tiny(sparse_prediction=sparse))
    loss = model(**batch, labels=torch.full_like(batch["input_ids"], -100)).loss
    loss.backward()
    assert loss.item() == 0


# --- the classification head ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "problem", "loss"),
    [
        (torch.tensor([[0.5], [-1.0]]), "regression", nn.functional.mse_loss),
        (torch.tensor([2, 0]), "single_label_classification", nn.functional.cross_entropy),
        (
            torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
            "multi_label_classification",
            nn.functional.binary_cross_entropy_with_logits,
        ),
    ],
)
def test_the_labels_choose_the_loss_and_the_config_remembers(tiny, batch, labels, problem, loss):
    num_labels = 1 if problem == "regression" else 3
    model = stir(FineryForSequenceClassification(tiny(num_labels=num_labels))).eval()
    output = model(**batch, labels=labels)
    assert model.config.problem_type == problem
    torch.testing.assert_close(output.loss, loss(output.logits, labels))
    torch.testing.assert_close(
        model(**batch, labels=labels, num_items_in_batch=100).loss, output.loss * labels.numel() / 100
    )


def test_classifier_dropout_defaults_to_the_encoders(tiny):
    assert FineryForSequenceClassification(tiny(hidden_dropout_prob=0.3)).dropout.p == 0.3
    assert FineryForSequenceClassification(tiny(hidden_dropout_prob=0.3, classifier_dropout=0.0)).dropout.p == 0.0


# --- loss scaling under Trainer ---------------------------------------------------------------------------------------


def test_accumulating_gradients_does_not_change_them(tiny, tmp_path):
    """The same 8 examples in one step or in four: with unequal numbers of labels a mean of means would differ."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for row in range(8):
        tokens = torch.randint(1, 61, (9,), generator=generator)
        rows.append({"input_ids": tokens, "labels": torch.where(torch.arange(9) <= row, tokens, -100)})

    def gradient_norm(batch_size: int, steps: int) -> float:
        torch.manual_seed(0)
        model = FineryForMaskedLM(tiny(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=steps,
            max_steps=1,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        return trainer.state.log_history[0]["grad_norm"]

    assert gradient_norm(2, 4) == pytest.approx(gradient_norm(8, 1), rel=1e-4)


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


@pytest.mark.parametrize(
    ("case", "implementation"),
    by_turns(CACHED, ("sdpa", "eager"), lambda case, implementation: "-".join((*case, implementation))),
)
@torch.no_grad()
def test_a_cache_changes_nothing_but_the_cost(tiny, case, implementation):
    """One token, four together, then one at a time; the second text has two tokens of padding on the left."""
    position, pattern = case
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


@pytest.mark.wider
@pytest.mark.parametrize("scoring", ATTENTION_SCORINGS)
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@torch.no_grad()
def test_padding_on_the_left_changes_no_token_of_a_decoder(tiny, family, scoring):
    head = FineryForCausalLM if family == "decoder" else FineryForConditionalGeneration
    ids, noise = tokens()[:, :5], torch.tensor([[9, 9, 9]])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    for position in some(POSITIONS, list(ATTENTION_SCORINGS).index(scoring), 2):
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
def test_layers_that_are_dropped_in_training_leave_one_graph(tiny):
    torch.compiler.reset()
    fields = {"family": "encoder-decoder", "position": "relative", "num_hidden_layers": 2, "layerdrop": 0.5}
    model = built(FineryModel, tiny(**fields)).train()
    traced = torch.compile(model, fullgraph=True, backend="eager")
    assert traced(input_ids=tokens(2), use_cache=False).last_hidden_state.shape == (2, LENGTH, 24)


@pytest.mark.parametrize(
    ("tokens", "start"),
    [
        ({"decoder_start_token_id": 5, "bos_token_id": 3, "pad_token_id": 0}, 5),
        ({"bos_token_id": 3, "pad_token_id": 0}, 3),
        ({"pad_token_id": 0}, 0),
        ({"pad_token_id": None}, None),
    ],
)
def test_a_decoder_starts_from_the_first_of_three_tokens_that_there_is(tiny, tokens, start):
    assert start_token(tiny(family="encoder-decoder", **tokens)) == start


def test_labels_move_one_place_and_ignored_ones_become_padding(tiny):
    config = tiny(family="encoder-decoder", decoder_start_token_id=5, pad_token_id=0)
    labels = torch.tensor([[7, 8, 9], [7, -100, -100]])
    assert shifted_right(labels, config).tolist() == [[5, 7, 8], [5, 7, 0]]
    assert labels.tolist() == [[7, 8, 9], [7, -100, -100]]


def test_the_start_stands_before_the_first_token_that_is_no_padding(tiny):
    config = tiny(family="encoder-decoder", decoder_start_token_id=5, pad_token_id=0)
    left = torch.tensor([[0, 0, 7, 8]]), torch.tensor([[0, 0, 1, 1]])
    right = torch.tensor([[7, 8, 0, 0]]), torch.tensor([[1, 1, 0, 0]])
    assert shifted_right(left[0], config, left[1]).tolist() == [[0, 0, 5, 7]]
    assert shifted_right(right[0], config, right[1]).tolist() == [[5, 7, 0, 0]]


def test_a_vocabulary_without_any_first_token_is_refused(tiny):
    with pytest.raises(ValueError, match="decoder_start_token_id is null, so the decoder has no first token"):
        shifted_right(torch.ones(1, 2), tiny(family="encoder-decoder", pad_token_id=None))


# Two classes with equal logits: each label costs log 2. The third row's label is ignored.
LOGITS = torch.zeros(3, 2)
LABELS = torch.tensor([0, 1, -100])


def test_without_a_count_cross_entropy_is_the_mean_over_the_labels_asked_for():
    assert cross_entropy(LOGITS, LABELS).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("count", [8, torch.tensor(8)])
def test_with_a_count_cross_entropy_is_the_sum_over_it(count):
    assert cross_entropy(LOGITS, LABELS, count).item() == pytest.approx(2 * math.log(2) / 8)


def test_a_batch_without_labels_costs_nothing_and_has_a_gradient_of_zero():
    logits = torch.zeros(3, 2, requires_grad=True)
    loss = cross_entropy(logits, torch.full((3,), -100))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.eq(0).all()


def test_squared_error_of_distances_one_and_three_is_five_on_average():
    assert mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0])).item() == 5
    assert mean_squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0]), 20).item() == 0.5


def test_binary_cross_entropy_of_even_odds_is_log_two_a_label():
    assert binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3)).item() == pytest.approx(math.log(2))
    assert binary_cross_entropy(torch.zeros(2, 3), torch.ones(2, 3), 12).item() == pytest.approx(math.log(2) / 2)


def test_half_precision_logits_are_summed_in_float32():
    assert cross_entropy(torch.zeros(4096, 2, dtype=torch.bfloat16), torch.zeros(4096, dtype=torch.long)).dtype == (
        torch.float32
    )


@pytest.mark.parametrize(
    ("labels", "num_labels", "problem"),
    [
        (torch.tensor([1.5]), 1, "regression"),
        (torch.tensor([1]), 1, "regression"),
        (torch.tensor([1]), 2, "single_label_classification"),
        (torch.tensor([1], dtype=torch.int32), 3, "single_label_classification"),
        (torch.tensor([[1.0, 0.0]]), 2, "multi_label_classification"),
        (torch.tensor([[True, False]]), 2, "multi_label_classification"),
    ],
)
def test_labels_choose_the_problem(labels, num_labels, problem):
    assert problem_type_of(labels, num_labels) == problem


@pytest.mark.parametrize("problem", PROBLEM_LOSSES)
def test_parts_of_a_batch_add_up_to_the_whole(problem):
    """Unequal parts: a mean of means would be wrong."""
    torch.manual_seed(0)
    outputs = 1 if problem == "regression" else 3
    logits = torch.randn(7, outputs)
    labels = {
        "regression": torch.randn(7),
        "single_label_classification": torch.randint(0, 3, (7,)),
        "multi_label_classification": torch.randint(0, 2, (7, 3)).float(),
    }[problem]
    loss = PROBLEM_LOSSES[problem]
    parts = loss(logits[:2], labels[:2], labels.numel()) + loss(logits[2:], labels[2:], labels.numel())
    torch.testing.assert_close(parts, loss(logits, labels))
