"""Policy and value function: log-probabilities as the model gives them, values of the right states, weights each once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipelines.architectures import FineryForCausalLMWithValueHead
from pipelines.trainers.actor_critic import ActorCritic, Critic, OfThePolicy, ValueHead, last_hidden_states, saved_head
from pipelines.trainers.ppo_experience import Layout
from pipelines.tuners.full import Full
from pipelines.tuners.lora import LoRA
from tests import tiny
from tests.pipelines.models.test_sampling import WRITERS, writer

PROMPTS, RESPONSES = [[5, 6, 7], [8]], [[11, 12], [13, 14, 15]]


def inputs_for(model: Any) -> dict[str, torch.Tensor]:
    both = model.config.is_encoder_decoder
    return Layout(tiny.tokenizer().pad_token_id, 2 if both else None).inputs(PROMPTS, RESPONSES, "cpu")


@pytest.mark.parametrize("name", WRITERS)
def test_it_says_what_the_model_says_about_each_token(name: str):
    model = writer(name).eval()
    inputs = inputs_for(model)
    whole = ActorCritic(model).eval()
    torch.nn.init.normal_(whole.head.value_head.weight)
    said = whole(inputs, temperature=0.5)
    rest = {key: value for key, value in inputs.items() if key != "labels"}
    states: list[torch.Tensor] = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda module, given: states.append(given[0]))
    plain = model(**rest)
    hook.remove()
    logits = plain.logits.float() / 0.5
    named = inputs["labels"] != -100
    wanted = logits.log_softmax(-1)[named].gather(-1, inputs["labels"][named][:, None])[:, 0]
    torch.testing.assert_close(said.log_probabilities, wanted, rtol=1e-5, atol=1e-5)
    probabilities = logits.softmax(-1)[named]
    torch.testing.assert_close(said.entropies, -(probabilities * probabilities.log()).sum(-1), rtol=1e-4, atol=1e-5)
    hidden = states[-1]
    if name == "t5":
        hidden = (
            hidden * model.config.d_model**0.5 if model.config.tie_word_embeddings else hidden
        )  # the head reads them scaled
    torch.testing.assert_close(said.values, whole.head(hidden[named]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["our decoder", "gpt2", "t5", "our encoder-decoder"])
def test_a_second_body_is_asked_for_its_own_states(name: str):
    policy, critic = writer(name), writer(name)
    tiny.disturb(critic)
    inputs = inputs_for(policy)
    whole = ActorCritic(policy, critic).eval()
    torch.nn.init.normal_(whole.head.value_head.weight)
    alone = ActorCritic(critic).eval()
    alone.head.load_state_dict(whole.head.state_dict())
    torch.testing.assert_close(whole(inputs).values, alone(inputs).values)
    torch.testing.assert_close(whole(inputs).log_probabilities, ActorCritic(policy).eval()(inputs).log_probabilities)
    whole(inputs).values.sum().backward()
    assert all(weight.grad is None for weight in policy.parameters())
    assert any(weight.grad is not None and weight.grad.any() for weight in critic.parameters())


def test_values_begin_at_zero():
    policy = writer("gpt2")
    assert ActorCritic(policy)(inputs_for(policy)).values.tolist() == [0.0] * 5


def test_entropies_have_gradients_only_when_they_are_learnt():
    policy = writer("llama")
    whole = ActorCritic(policy)
    assert not whole(inputs_for(policy)).entropies.requires_grad
    whole(inputs_for(policy), learns_entropy=True).entropies.sum().backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in policy.parameters())


def test_the_head_works_in_full_precision_under_autocast():
    head = ValueHead(4)
    torch.nn.init.normal_(head.value_head.weight)
    states = torch.randn(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (
            torch.equal(head(states), head.value_head(states.float()).squeeze(-1).float())
            or head(states).dtype == torch.float32
        )
    assert head(states).dtype == torch.float32


def test_only_what_learns_is_in_a_checkpoint():
    policy = LoRA(name="lora", r=2).apply(writer("gpt2"))
    names = ActorCritic(policy).learnt().keys()
    assert all("lora_" in name or name.startswith("head.") for name in names)
    assert sum("lora_" in name for name in names) == sum(weight.requires_grad for weight in policy.parameters())
    full = ActorCritic(writer("gpt2"))
    assert len(full.learnt()) == len(list(full.parameters()))  # tied matrices once


def test_rates_are_told_in_the_names_of_the_whole():
    tuner: Any = LoRA(name="lora", r=2, lora_plus_ratio=4.0)
    whole = ActorCritic(tuner.apply(writer("gpt2")), tuner.apply(writer("gpt2")))
    rates = OfThePolicy(tuner, whole).rates(whole)
    assert set(rates) <= {name for name, _ in whole.named_parameters()}
    assert {name.partition(".")[0] for name in rates} == {"policy", "critic"}
    assert set(rates.values()) == {4.0}
    assert OfThePolicy(tuner, whole).adapts


def test_the_value_function_is_saved_and_found_again(tmp_path: Any):
    head = ValueHead(8)
    torch.nn.init.normal_(head.value_head.weight)
    Critic(head, writer("gpt2")).save_pretrained(str(tmp_path))
    again = saved_head(tmp_path)
    states = torch.randn(2, 8)
    assert torch.equal(again(states), head(states))
    assert (tmp_path / "body" / "config.json").is_file()


def test_the_saved_head_is_that_of_our_own_decoder_with_a_value_head(tmp_path: Any):
    policy = writer("our decoder").eval()
    whole = ActorCritic(policy).eval()
    torch.nn.init.normal_(whole.head.value_head.weight)
    whole.as_critic(Full()).save_pretrained(str(tmp_path))
    both = FineryForCausalLMWithValueHead(policy.config).eval()
    both.load_state_dict(policy.state_dict() | load_file(str(tmp_path / "value_head.safetensors")))
    inputs = inputs_for(policy)
    values = both(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).value
    torch.testing.assert_close(values[inputs["labels"] != -100], whole(inputs).values)


def test_hidden_states_are_seen_before_a_head_is_told_where_to_look():
    model = writer("gpt2").eval()
    with last_hidden_states(model) as seen:
        model(**tiny.batch())
    assert seen[-1].shape == (4, 10, 32)
