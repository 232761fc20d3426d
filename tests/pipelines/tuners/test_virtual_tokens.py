"""Virtual tokens join a text in the body of a model and leave before its head: held against passes written out by hand."""

from __future__ import annotations

import copy
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, PromptTuningConfig, get_peft_model

from pipelines.core.interfaces import Head
from pipelines.tuners import virtual_tokens
from pipelines.tuners.virtual_tokens import CONFIGS, FILE, VirtualTokensModel
from tests import strangers, tiny
from tests.covering import covering

TOKENS = 5
METHODS = tuple(CONFIGS)
CAUSAL, PAIRS = Head("causal_lm"), Head("seq2seq_lm")
TAGS, SPANS, CHOICES = (
    Head("token_classification", ("O", "B", "I")),
    Head("question_answering"),
    Head("multiple_choice"),
)
DECODERS = {"finery": {"family": "decoder", "num_key_value_heads": 1}, "gpt2": {}, "llama": {"num_key_value_heads": 1}}
TRANSLATORS = {
    "finery": {"family": "encoder-decoder", "num_decoder_layers": 3},
    "t5": {},
    "bart": {"decoder_layers": 3},
}
ENCODERS = ("finery", "bert", "roberta", "electra", "distilbert", "albert", "modernbert", "deberta-v2")
NO_PREFIX = ("deberta-v2",)
CASES = [
    *((family, head, {}) for family in ENCODERS for head in (tiny.THREE, TAGS, SPANS, CHOICES, tiny.MASKED)),
    *((family, head, words) for family, words in DECODERS.items() for head in (tiny.THREE, CAUSAL)),
    *((family, PAIRS, words) for family, words in TRANSLATORS.items()),
    ("t5", PAIRS, {"num_decoder_layers": 3}),
]


def tuned(model: Any, method: str, **settings: Any) -> VirtualTokensModel:
    torch.manual_seed(3)
    fresh = list(getattr(model, "finery_new_modules", ())) or None
    return VirtualTokensModel(
        model, CONFIGS[method](num_virtual_tokens=TOKENS, modules_to_save=fresh, **settings)
    ).eval()


def batch(head: Head) -> dict[str, Any]:
    inputs = tiny.batch(rows=2)
    if head == CHOICES:
        return {name: value[None].repeat(2, 1, 1) for name, value in inputs.items()}
    return inputs | ({"decoder_input_ids": tiny.batch(rows=2, length=4, seed=1)["input_ids"]} if head == PAIRS else {})


def said(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        output = model(**inputs)
    return output.logits if "logits" in output else torch.stack([output.start_logits, output.end_logits], -1)


def gradients(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(0)  # heads have dropout of their own
    output = model.train()(**inputs)
    logits = output.logits if "logits" in output else output.start_logits + output.end_logits
    logits.square().sum().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


HEARD = [(*case, method) for at, case in enumerate(CASES) for method in METHODS[at % 3 :] + METHODS[: at % 3]]


def heard(family: str, head: Head, words: dict[str, Any], method: str) -> set[Any]:
    """Each model inside its attention and before its text, and each head with each method."""
    return {(family, str(words), method == "PREFIX_TUNING"), (head.kind, method)}


@pytest.mark.parametrize(
    ("family", "head", "words", "method"),
    covering(HEARD, name=lambda family, head, words, method: f"{family}-{head.kind}-{method}", ways=heard),
)
def test_every_head_hears_the_virtual_tokens_and_sees_none(
    family: str, head: Head, words: dict[str, Any], method: str
) -> None:
    model = tiny.build(family, head, **words)
    if method == "PREFIX_TUNING" and family in NO_PREFIX:
        assert not virtual_tokens.attentions(model)
        return
    inputs = batch(head)
    base = said(model.eval(), inputs)
    adapted = tuned(model, method)
    heard = said(adapted, inputs)
    assert heard.shape == base.shape
    assert not torch.equal(heard, base)
    with adapted.disable_adapter():
        assert torch.equal(said(adapted, inputs), base)
    assert torch.equal(said(adapted, inputs), heard)

    plain = gradients(adapted, inputs)
    assert any(grad.any() for name, grad in plain.items() if "prompt_encoder" in name)
    if not model.supports_gradient_checkpointing:  # ALBERT
        return
    adapted.gradient_checkpointing_enable()
    again = gradients(adapted, inputs)
    assert (
        plain.keys()
        == again.keys()
        == {name for name, weight in adapted.named_parameters() if weight.requires_grad and name in plain}
    )
    for name, grad in plain.items():
        torch.testing.assert_close(again[name], grad, rtol=1e-4, atol=1e-6)


def words_and_prompt(model: Any, adapted: Any, ids: torch.Tensor) -> torch.Tensor:
    prompt = adapted.prompt_encoder["default"].embedding.weight
    return torch.cat([prompt.expand(len(ids), -1, -1), model.get_input_embeddings()(ids)], 1)


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert", "gpt2", "finery"])
def test_a_class_is_read_off_the_texts_own_first_last_or_mean_token(family: str) -> None:
    model = tiny.build(family, tiny.THREE).eval()
    untouched = copy.deepcopy(model)
    adapted, inputs = tuned(model, "PROMPT_TUNING"), tiny.batch()
    mask = inputs["attention_mask"]
    wide = torch.cat([torch.ones(len(mask), TOKENS, dtype=torch.long), mask], 1)
    with torch.no_grad():
        body = untouched.base_model(
            inputs_embeds=words_and_prompt(untouched, adapted, inputs["input_ids"]), attention_mask=wide
        )
        text = body.last_hidden_state[:, TOKENS:]
        if family == "bert":
            expected = untouched.classifier(torch.tanh(untouched.bert.pooler.dense(text[:, 0])))
        elif family == "finery":
            expected = untouched.classifier(torch.tanh(untouched.model.pooler.dense(text[:, 0])))
        elif family == "distilbert":
            expected = untouched.classifier(torch.relu(untouched.pre_classifier(text[:, 0])))
        elif family == "modernbert":
            pooled = (
                text[:, 0]
                if untouched.config.classifier_pooling == "cls"
                else (text * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            )
            expected = untouched.classifier(untouched.head(pooled))
        else:
            expected = untouched.score(text[torch.arange(len(mask)), mask.sum(1) - 1])
    torch.testing.assert_close(said(adapted, inputs), expected)


@pytest.mark.parametrize("family", ["distilbert", "albert", "modernbert"])
def test_a_prefix_inside_attention_is_softmax_over_prefix_and_text(family: str) -> None:
    """The first layer's attention, spelled out: softmax([q kₚ; q k] / √d) [vₚ; v] with padding hidden."""
    model = tiny.build(family, tiny.THREE).eval()
    adapted, inputs = tuned(model, "PREFIX_TUNING"), tiny.batch()
    module = virtual_tokens.attentions(model)[0]
    seen: list[Any] = []
    own = sys.modules[type(module).__module__].eager_attention_forward

    def watch(*args: Any, **keywords: Any) -> Any:
        seen.append((args, own(*args, **keywords)[0]))
        return seen[-1][1], None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[type(module).__module__], "eager_attention_forward", watch)
        said(adapted, inputs)
    (_, query, key, value, _, *_), attended = seen[0]
    keys, values = adapted.prefix()[0]
    assert torch.equal(key[:, :, :TOKENS], keys.expand_as(key[:, :, :TOKENS]))
    hidden = torch.cat([torch.zeros(4, TOKENS), 1.0 - inputs["attention_mask"]], 1)[:, None, None]
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 - 1e9 * hidden
    with torch.no_grad():
        expected = scores.softmax(-1) @ torch.cat([values.expand(4, -1, -1, -1), value[:, :, TOKENS:]], 2)
    torch.testing.assert_close(attended, expected.transpose(1, 2))


@pytest.mark.parametrize(
    ("family", "beams", "method"),
    covering(
        product([*DECODERS, *(f"{name} pairs" for name in TRANSLATORS)], [1, 2], METHODS),
        ways=lambda family, beams, method: {(family, method == "PREFIX_TUNING"), (beams, method), (family, beams)},
    ),
)
def test_what_is_generated_is_what_full_passes_say(family: str, beams: int, method: str) -> None:
    family, _, pairs = family.partition(" ")
    model = tiny.build(family, PAIRS if pairs else CAUSAL, **(TRANSLATORS if pairs else DECODERS)[family])
    tiny.disturb(model, by=0.3)
    adapted = tuned(model, method)
    tiny.disturb(adapted, by=1.0)  # loud enough to change what is said
    inputs = tiny.batch(rows=2, length=6)
    if not pairs:  # padding of decoders stands on the left
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    settings = {
        "max_new_tokens": 5,
        "min_new_tokens": 5,
        "do_sample": False,
        "num_beams": beams,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "return_dict_in_generate": True,
        "output_scores": True,
    }
    cached, whole = (adapted.generate(**inputs, **settings, use_cache=kept) for kept in (True, False))
    assert torch.equal(cached.sequences, whole.sequences)
    for one, other in zip(cached.scores, whole.scores, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with adapted.disable_adapter():
        deaf = adapted.generate(**inputs, **settings)
    assert not torch.allclose(deaf.scores[0], cached.scores[0], rtol=1e-3, atol=1e-3)
    if (
        beams == 1 and not pairs
    ):  # the first score is what a pass says last; it counts positions of padding, so of the row without
        torch.testing.assert_close(cached.scores[0][:1, 3:], said(adapted, inputs)[:1, -1, 3:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_step_by_step_pass_with_a_cache_of_ones_own_agrees(method: str) -> None:
    adapted = tuned(tiny.build("gpt2", CAUSAL), method)
    ids = tiny.batch(rows=2)["input_ids"]
    whole = said(adapted, {"input_ids": ids})
    with torch.no_grad():
        first = adapted(input_ids=ids[:, :6], use_cache=True)
        rest = adapted(input_ids=ids[:, 6:], past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole)


COUNTS = {  # (family, words): layers, key-value heads, head_dim, embedding width
    "bert": ({}, 2, 2, 16, 32),
    "electra": ({}, 2, 2, 16, 24),
    "albert": ({}, 1, 2, 16, 24),  # its layers share their weights, and so a prefix
    "distilbert": ({}, 2, 2, 16, 32),
    "llama": ({"num_key_value_heads": 1}, 2, 1, 16, 32),
    "gpt2": ({}, 2, 2, 16, 32),
    "t5": ({"num_decoder_layers": 3, "d_kv": 10}, 3, 2, 10, 32),
    "bart": ({"decoder_layers": 3, "decoder_attention_heads": 4}, 3, 4, 8, 32),
    "finery": ({"num_key_value_heads": 1}, 2, 1, 16, 32),
}


@pytest.mark.parametrize("family", COUNTS)
def test_there_are_as_many_weights_as_the_formula_says(family: str) -> None:
    words, layers, heads, head_dim, width = COUNTS[family]
    head = CAUSAL if family in ("llama", "gpt2") else PAIRS if family in ("t5", "bart") else tiny.MASKED

    def count(method: str, **settings: Any) -> int:
        adapted = tuned(tiny.build(family, head, **words), method, **settings)
        return sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)

    wide = heads * head_dim
    assert count("PREFIX_TUNING") == TOKENS * 2 * layers * wide
    mlp = TOKENS * wide + (wide + 1) * 7 + (7 + 1) * 2 * layers * wide
    assert count("PREFIX_TUNING", prefix_projection=True, encoder_hidden_size=7) == mlp
    assert count("PROMPT_TUNING") == TOKENS * width
    assert count("P_TUNING", encoder_hidden_size=7) == TOKENS * width + (width + 1) * 7 + 8 * 7 + 8 * width
    lstm = 2 * 4 * (width * 7 + 7 * 7 + 2 * 7) + 2 * 4 * (14 * 7 + 7 * 7 + 2 * 7)
    assert count("P_TUNING", encoder_reparameterization_type="LSTM", encoder_hidden_size=7) == (
        TOKENS * width + lstm + (14 + 1) * 14 + (14 + 1) * width
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_two_adapters_on_one_base_do_not_disturb_each_other(family: str, method: str, tmp_path: Path) -> None:
    inputs = tiny.batch()
    adapted = tuned(tiny.build(family, tiny.THREE), method)
    one = said(adapted, inputs)
    adapted.add_adapter(
        "other", CONFIGS[method](num_virtual_tokens=3, modules_to_save=adapted.peft_config["default"].modules_to_save)
    )
    assert torch.equal(said(adapted, inputs), one)
    adapted.set_adapter("other")
    learning = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert learning
    assert all(".other." in name for name in learning)
    tiny.disturb(adapted)
    other = said(adapted, inputs)
    adapted.set_adapter("default")
    assert torch.equal(said(adapted, inputs), one)
    adapted.save_pretrained(tmp_path, reparameterization=False)
    again = VirtualTokensModel.from_pretrained(tiny.build(family, tiny.THREE), str(tmp_path))
    again.load_adapter(str(tmp_path / "other"), "other")
    assert torch.equal(said(again, inputs), one)
    again.set_adapter("other")
    assert torch.equal(said(again, inputs), other)
    again.delete_adapter("default")
    assert torch.equal(said(again, inputs), other)


@pytest.mark.parametrize("method", METHODS)
def test_a_copy_learns_on_its_own_and_an_unloaded_base_is_itself_again(method: str) -> None:
    inputs = tiny.batch()
    model = tiny.build("distilbert", tiny.THREE).eval()
    base = said(model, inputs)
    adapted = tuned(model, method)
    before = said(adapted, inputs)
    twin = copy.deepcopy(adapted)
    tiny.disturb(twin)
    assert torch.equal(said(adapted, inputs), before)
    assert not torch.equal(said(twin, inputs), before)
    assert torch.equal(said(adapted.unload(), inputs), base)
    with pytest.raises(ValueError, match="cannot be merged"):
        adapted.merge_and_unload()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("PREFIX_TUNING", {}),
        ("PREFIX_TUNING", {"prefix_projection": True}),
        ("PROMPT_TUNING", {}),
        ("P_TUNING", {}),
        ("P_TUNING", {"encoder_reparameterization_type": "LSTM"}),
    ],
)
def test_training_goes_on_from_a_checkpoint_to_the_bit(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    def fresh() -> Any:
        return tuned(tiny.build("bert", tiny.THREE), method, **settings)

    def learn(model: Any, steps: range) -> None:
        for step in steps:
            said = model.train()(**tiny.batch(seed=step)).logits
            model.zero_grad()
            said.square().sum().backward()
            with torch.no_grad():
                for weight in model.parameters():
                    if weight.requires_grad and weight.grad is not None:
                        weight -= 0.1 * weight.grad

    through, broken = fresh(), fresh()
    learn(through, range(2))
    learn(broken, range(1))
    broken.save_pretrained(str(tmp_path))
    resumed = fresh()
    tiny.disturb(resumed)
    resumed.load_adapter(str(tmp_path), "default", is_trainable=True)
    learn(resumed, range(1, 2))
    wanted, found = dict(through.named_parameters()), dict(resumed.named_parameters())
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())

    resumed.save_pretrained(str(tmp_path / "done"), reparameterization=False)
    done = VirtualTokensModel.from_pretrained(tiny.build("bert", tiny.THREE), str(tmp_path / "done"))
    assert torch.equal(said(done, tiny.batch()), said(through.eval(), tiny.batch()))
    if settings or method == "P_TUNING":
        with pytest.raises(ValueError, match="the reparameterization was dropped"):
            fresh().load_adapter(str(tmp_path / "done"), "default", is_trainable=True)


READ_ALONE = """
import sys, torch, transformers
from peft import PeftModel
def base(folder, kind):
    return getattr(transformers, "Auto" + kind).from_pretrained(folder + "/base", attn_implementation="eager")
for folder, kind in task["folders"] if task["ours"] else []:
    try:
        PeftModel.from_pretrained(base(folder, kind), folder + "/tuned")
    except KeyError:
        sys.path.insert(0, folder + "/tuned")
    else:
        raise SystemExit("PEFT guessed")
if task["ours"]:
    import finery_adapter
for folder, kind in task["folders"]:
    model = PeftModel.from_pretrained(base(folder, kind), folder + "/tuned").eval()
    inputs, expected = torch.load(folder + "/expected.pt")
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, expected), folder
"""
PLAIN = [
    ("PREFIX_TUNING", "bert", tiny.THREE, "ModelForSequenceClassification", {}),
    ("PREFIX_TUNING", "gpt2", CAUSAL, "ModelForCausalLM", {}),
    ("PROMPT_TUNING", "t5", PAIRS, "ModelForSeq2SeqLM", {}),
    ("P_TUNING", "bart", PAIRS, "ModelForSeq2SeqLM", {}),
]
"""Adapters that PEFT's own classes compute alike."""
OURS = [
    ("PROMPT_TUNING", "bert", tiny.THREE, "ModelForSequenceClassification", {}),
    ("PREFIX_TUNING", "distilbert", tiny.THREE, "ModelForSequenceClassification", {}),
    ("PREFIX_TUNING", "t5", PAIRS, "ModelForSeq2SeqLM", {"num_decoder_layers": 3}),
    ("P_TUNING", "gpt2", CAUSAL, "ModelForCausalLM", {}),
]
"""Adapters that PEFT refuses until the module beside them is imported."""


@pytest.mark.parametrize("ours", [False, True], ids=["plain", "ours"])
def test_saved_adapters_are_read_without_this_project(ours: bool, tmp_path: Path) -> None:
    folders = []
    for number, (method, family, head, kind, words) in enumerate(OURS if ours else PLAIN):
        folder = tmp_path / str(number)
        model = tiny.build(family, head, **words)
        model.save_pretrained(folder / "base")
        adapted = tuned(model, method)
        adapted.save_pretrained(str(folder / "tuned"), reparameterization=False)
        assert ours == (folder / "tuned" / FILE).exists()
        said_type = json.loads((folder / "tuned" / "adapter_config.json").read_text())["peft_type"]
        assert said_type == (virtual_tokens.TYPES[method] if ours else method)
        torch.save((batch(head), said(adapted, batch(head))), folder / "expected.pt")
        folders.append((str(folder), kind))
    strangers.run(READ_ALONE, tmp_path, folders=folders, ours=ours)


def test_a_head_that_was_not_trained_is_not_expected_by_peft(tmp_path: Path) -> None:
    """PEFT's class for classifiers looks for a trained head in every adapter; without one the adapter is ours to read."""
    model = tiny.build("bert", tiny.THREE)
    model.finery_new_modules = []
    adapted = tuned(model, "PREFIX_TUNING")
    adapted.save_pretrained(str(tmp_path))
    assert (tmp_path / FILE).exists()
    again = VirtualTokensModel.from_pretrained(tiny.build("bert", tiny.THREE), str(tmp_path))
    assert torch.equal(said(again, tiny.batch()), said(adapted, tiny.batch()))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["bert", "distilbert", "llama"])
def test_a_base_in_bfloat16_keeps_its_adapter_in_float32(family: str, method: str) -> None:
    head = CAUSAL if family == "llama" else tiny.THREE
    adapted = tuned(tiny.build(family, head).to(torch.bfloat16), method)
    assert said(adapted, tiny.batch()).dtype == torch.bfloat16
    found = gradients(adapted, tiny.batch())
    assert all(torch.isfinite(grad).all() for grad in found.values())
    assert {weight.dtype for weight in adapted.prompt_encoder.parameters()} == {torch.float32}


def test_what_cannot_be_served_is_said() -> None:
    adapted = tuned(tiny.build("gpt2", CAUSAL), "PREFIX_TUNING")
    inputs = tiny.batch()
    with pytest.raises(ValueError, match="attention_mask of shape"):
        adapted(**inputs | {"attention_mask": inputs["attention_mask"][:, None, None]})
    with pytest.raises(ValueError, match="static cache"):
        adapted.generate(**inputs, max_new_tokens=2, cache_implementation="static")
    adapted.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant"):
        adapted.train()(**inputs)


def test_peft_still_needs_help() -> None:
    """When one of these fails, PEFT serves that case by itself: let `peft_task` of virtual_tokens say so."""
    inputs = tiny.batch()
    bert = get_peft_model(
        tiny.build("bert", tiny.THREE), PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=TOKENS)
    ).eval()
    with pytest.raises(UnboundLocalError), bert.disable_adapter():
        pass
    ours = tuned(tiny.build("bert", tiny.THREE), "PROMPT_TUNING")
    ours.base_model.load_state_dict(bert.base_model.state_dict(), strict=False)
    ours.prompt_encoder.load_state_dict(bert.prompt_encoder.state_dict())
    assert not torch.equal(said(bert, inputs), said(ours, inputs))  # it pools a virtual token
    tags = get_peft_model(
        tiny.build("bert", TAGS), PromptTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=TOKENS)
    ).eval()
    assert said(tags, inputs).shape[1] == inputs["input_ids"].shape[1] + TOKENS
    masked = PeftModel(tiny.build("bert", tiny.MASKED), PromptTuningConfig(num_virtual_tokens=TOKENS)).eval()
    with torch.no_grad():
        before = said(masked, inputs)
        masked.prompt_encoder["default"].embedding.weight.add_(1)
    assert torch.equal(said(masked, inputs), before)  # a head it does not know never hears the prompt
