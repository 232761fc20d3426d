"""The ppo stage: a reward that rises, resumed to the bit, on every family and with every body under the value function.

PPO's numbers: whole numbers stand for floats, and what no run could use is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from pipelines.core.errors import DataError, IncompatibleError, ModelError, RecipeError, StageError, Stopped
from pipelines.core.interfaces import Context, Head
from pipelines.core.load import loads
from pipelines.models import heads, opening
from pipelines.trainers import tuning
from pipelines.trainers.actor_critic import ActorCritic, saved_head
from pipelines.trainers.ppo_settings import PPOArguments
from tests import tiny

DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 48, max_position_embeddings: 48}"
BOTH = (
    "{preset: transformer-tiny, hidden_size: 32, num_hidden_layers: 1, num_decoder_layers: 1, num_attention_heads: 2, "
    "intermediate_size: 48, max_position_embeddings: 48}"
)
RECIPE = """\
name: aligned
model: {{architecture: {shape}}}
stages:
  - stage: ppo
    prompts: {{path: prompts.txt, max_length: 6}}
    reward: {reward}
    {keys}
"""
REWARD = "{name: keyword, words: [good, film]}"
ARGUMENTS = {
    "response_length": 8,
    "max_steps": 6,
    "global_batch_size": 8,
    "learning_rate": 3e-3,
    "num_ppo_epochs": 2,
    "num_mini_batches": 2,
    "save_steps": 2,
}


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Any]:
    """`stage(response_length=4, …)`: a recipe with a ppo stage on a dozen prompts; None leaves an argument out."""
    (tmp_path / "prompts.txt").write_text("\n".join(tiny.TEXTS[:12]) + "\n")

    def build(shape: str = DECODER, reward: str = REWARD, keys: str = "", **arguments: Any) -> Any:
        said = json.dumps({name: value for name, value in (ARGUMENTS | arguments).items() if value is not None})
        return loads(RECIPE.format(shape=shape, reward=reward, keys=f"{keys}\n    arguments: {said}"), folder=tmp_path)

    return build


@pytest.fixture
def prepared(context: Callable[..., Context]) -> Callable[..., Context]:
    """A context in which a stage reads the recipe's own model, with random weights."""

    def build(recipe: Any, name: str = "stage", **fields: Any) -> Context:
        shape = recipe.model.architecture
        model_type = "finery" if "preset" in shape else shape["model_type"]
        words = {"family": "encoder-decoder"} if "transformer" in shape.get("preset", "") else {"family": "decoder"}

        def opened(head: Any, stage_id: str | None = None, keep_base: Path | None = None, **_: Any) -> Any:
            model = tiny.build(
                model_type, head, seed=7, **(words | {"hidden_dropout_prob": 0.1} if model_type == "finery" else {})
            )
            if keep_base is not None:
                model.save_pretrained(keep_base)
                model.name_or_path = str(keep_base)
            return model

        return context(
            name,
            open_model=opened,
            open_tokenizer=lambda *_, **__: tiny.tokenizer(),
            recipe=recipe,
            stage_id="ppo",
            **fields,
        )

    return build


def ran(recipe: Any, place: Context) -> Context:
    recipe.stages[0].run(place)
    return place


def metrics(events: Any, place: Context) -> list[dict[str, Any]]:
    return [event["metrics"] for event in events(place) if event["event"] == "metric"]


def weights(place: Context) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}/{name}": value
        for path in sorted(place.folder.glob("*/*.safetensors"))
        for name, value in load_file(path).items()
    }


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


FAMILIES = {
    "our decoder": DECODER,
    "gpt2": "{model_type: gpt2, n_embd: 32, n_layer: 2, n_head: 2, n_positions: 48}",
    "our encoder-decoder": BOTH,
    "t5": "{model_type: t5, d_model: 32, d_kv: 16, d_ff: 48, num_layers: 2, num_heads: 2}",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_leaves_a_plain_language_model(
    name: str, stage: Callable[..., Any], prepared: Callable[..., Context], events: Any
):
    recipe = stage(
        FAMILIES[name],
        max_steps=3,
        kl_target=2.0,
        reward_normalization="running",
        whiten_rewards=True,
        missing_eos_penalty=0.5,
    )
    place = ran(recipe, prepared(recipe))
    kind = "seq2seq_lm" if name in ("our encoder-decoder", "t5") else "causal_lm"
    assert heads.saved_head(place.folder / "model") == Head(kind)  # type: ignore[arg-type]
    model = opening.open_folder(place.folder / "model", Head(kind), seed=1, trained_head=True)  # type: ignore[arg-type]
    assert not any("value_head" in key for key in model.state_dict())
    assert saved_head(place.folder / "value").value_head.weight.any()
    told = metrics(events, place)
    assert len(told) == 3
    wanted = {
        "reward",
        "kl",
        "entropy",
        "clip_fraction",
        "value_loss",
        "policy_loss",
        "explained_variance",
        "response_length",
        "kl_coef",
        "loss",
        "learning_rate",
    }
    assert all(wanted <= each.keys() for each in told)
    assert told[0]["kl"] == pytest.approx(0, abs=1e-5)  # the policy is still the reference
    assert told[0]["kl_coef"] == 0.05
    assert told[-1]["kl_coef"] != 0.05
    assert all(0 <= each["reward"] <= 1 and 1 <= each["response_length"] <= 8 for each in told)
    samples = [event for event in events(place) if event["event"] == "sample"]
    assert len(samples) == 3
    assert set(samples[0]["completions"][0]) == {"prompt", "completion", "reward", "kl"}
    found = json.loads((place.folder / "metrics.json").read_text())
    assert found["train_steps"] == 3
    assert found["train_samples_per_second"] == pytest.approx(24 / found["train_runtime"])
    assert found["reward"] == told[-1]["reward"]


@pytest.mark.parametrize(
    ("stop_at", "arguments"),
    [
        pytest.param(1, {}, marks=pytest.mark.long),
        (3, {"kl_target": 0.5, "kl_horizon": 50, "reward_normalization": "running", "target_kl": 0.002}),
    ],
    ids=["plain", "with states"],
)
def test_a_stop_resumes_to_the_bit(
    arguments: dict[str, Any],
    stop_at: int,
    stage: Callable[..., Any],
    prepared: Callable[..., Context],
    events: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    from pipelines.trainers.ppo_trainer import PPOTrainer

    recipe = stage(max_steps=4, **arguments)
    whole = ran(recipe, prepared(recipe, "whole"))
    stopped = prepared(recipe, "stopped")
    original = PPOTrainer.training_step

    def stopping(self: Any, *given: Any, **keywords: Any) -> Any:
        if self.state.global_step + 1 == stop_at:
            self.context.stop.requested = True
        return original(self, *given, **keywords)

    monkeypatch.setattr(PPOTrainer, "training_step", stopping)
    with pytest.raises(Stopped):
        ran(recipe, stopped)
    monkeypatch.setattr(PPOTrainer, "training_step", original)
    stopped.stop.requested = False
    torch.manual_seed(12345)  # the state of a generator says nothing
    ran(recipe, stopped)
    assert metrics(events, stopped) == metrics(events, whole)
    assert same(weights(stopped), weights(whole))
    shown = [
        [event["completions"] for event in events(place) if event["event"] == "sample"] for place in (stopped, whole)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(("value", "tuner"), [("shared", "full"), ("separate", "{name: lora, r: 4}")])
def test_every_value_function_with_every_kind_of_tuner(
    value: str, tuner: str, stage: Callable[..., Any], prepared: Callable[..., Context], events: Any
):
    recipe = stage(keys=f"value: {value}\n    tuner: {tuner}", max_steps=2, entropy_coef=0.01, gamma=0.99)
    place = ran(recipe, prepared(recipe))
    assert saved_head(place.folder / "value").value_head.weight.any()
    assert (place.folder / "value" / "body").exists() == (value == "separate")
    assert (place.folder / "model" / "adapter_config.json").exists() == (tuner != "full")
    start = tiny.build("finery", Head("causal_lm"), seed=7, family="decoder")
    model = opening.open_folder(place.folder / "model", Head("causal_lm"), seed=1)
    assert not torch.equal(tiny.logits(model, tiny.batch()), tiny.logits(start, tiny.batch()))


def test_a_disabled_adapter_is_the_reference_that_a_copy_would_be(
    stage: Callable[..., Any], prepared: Callable[..., Context], events: Any, monkeypatch: pytest.MonkeyPatch
):
    from pipelines.trainers import reference

    recipe = stage(keys="tuner: {name: lora, r: 4}", max_steps=4, learning_rate=1e-2)
    by_adapter = ran(recipe, prepared(recipe, "adapter"))
    monkeypatch.setattr(reference, "reference_for", lambda model, tuner, precision: reference.FrozenCopy.of(model))
    by_copy = ran(recipe, prepared(recipe, "copy"))
    assert metrics(events, by_adapter)[-1]["kl"] > 0
    for mine, copied in zip(metrics(events, by_adapter), metrics(events, by_copy), strict=True):
        assert mine == pytest.approx(copied, rel=1e-4, abs=1e-5)
    ours, theirs = weights(by_adapter), weights(by_copy)
    assert all(torch.allclose(value, theirs[name], atol=1e-5) for name, value in ours.items())


@pytest.mark.parametrize("micro", [2, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 4))])
def test_an_iteration_does_not_depend_on_how_it_is_split(
    micro: int, stage: Callable[..., Any], prepared: Callable[..., Context], events: Any
):
    plain = {"num_mini_batches": 1, "max_steps": 2, "optim": "sgd"}
    recipes = [
        stage(**plain),
        stage(**plain, per_device_train_batch_size=micro, local_rollout_forward_batch_size=micro + 1),
    ]
    whole, split = (
        ran(recipe, prepared(recipe, name)) for recipe, name in zip(recipes, ("whole", "split"), strict=True)
    )
    for mine, other in zip(metrics(events, split), metrics(events, whole), strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("value", ["shared", "separate"])
def test_what_the_policy_says_before_it_learns_is_not_asked_for_twice(
    value: str,
    stage: Callable[..., Any],
    prepared: Callable[..., Context],
    events: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    passes: list[bool] = []
    forward = ActorCritic.forward

    def counted(self: ActorCritic, *given: Any, **named: Any) -> Any:
        passes.append(torch.is_grad_enabled())
        return forward(self, *given, **named)

    monkeypatch.setattr(ActorCritic, "forward", counted)

    def ran_with(**arguments: Any) -> Context:
        recipe = stage(keys=f"value: {value}", num_mini_batches=1, max_steps=2, **arguments)
        passes.clear()
        return ran(recipe, prepared(recipe, "-".join(arguments)))

    told = metrics(events, ran_with(num_ppo_epochs=1))
    assert passes == [True] * 2
    assert [(each["ratio"], each["approx_kl"]) for each in told] == [(1.0, 0.0)] * 2
    ran_with()
    assert passes == [True] * 4
    ran_with(per_device_train_batch_size=4)
    assert passes == [False, True, True, True, True] * 2


def test_pretraining_text_holds_the_policy_back(
    stage: Callable[..., Any], prepared: Callable[..., Context], events: Any
):
    recipe = stage(keys="datasets: [{path: prompts.txt}]\n    block_size: 16", ptx_coef=1.0, max_steps=4)
    told = metrics(events, ran(recipe, prepared(recipe)))
    assert told[-1]["ptx_loss"] < told[0]["ptx_loss"]


def test_a_policy_that_moves_too_far_has_no_further_epoch(
    stage: Callable[..., Any], prepared: Callable[..., Context], events: Any
):
    recipe = stage(target_kl=1e-9, max_steps=3)
    told = metrics(events, ran(recipe, prepared(recipe)))
    assert any(each["ppo_epochs"] == 1 for each in told)
    assert all(each["ppo_epochs"] == 1 or each["approx_kl"] <= 1e-9 for each in told)
    recipe = stage(target_kl=100.0, max_steps=1)
    assert all(each["ppo_epochs"] == 2 for each in metrics(events, ran(recipe, prepared(recipe, "far"))))


def test_a_reward_that_is_no_number_stops_the_stage(
    stage: Callable[..., Any], prepared: Callable[..., Context], monkeypatch: pytest.MonkeyPatch
):
    from pipelines.rewards import rules

    monkeypatch.setattr(rules, "keyword_share", lambda completion, words: float("nan"))
    recipe = stage()
    with pytest.raises(StageError, match="the reward gave nan"):
        ran(recipe, prepared(recipe))


def test_what_the_machine_has_not_got_is_said_before_anything_loads(stage: Callable[..., Any]):
    assert "vllm is not installed" in stage(keys="rollouts: vllm").stages[0].unavailable_reason()
    recipe = stage(keys="rollouts: vllm")
    for profile in ("ddp", "fsdp2"):
        issues = dict(tuning.profile_issues(recipe.stages[0], recipe, profile))
        assert (
            issues["rollouts",]
            == f"is vllm, which is used on one process here; use the profile single instead of {profile}"
        )
    assert not list(tuning.profile_issues(recipe.stages[0], recipe, "single"))
    assert stage().stages[0].unavailable_reason() is None


def test_prompts_too_long_for_the_model_are_refused(stage: Callable[..., Any], prepared: Callable[..., Context]):
    recipe = stage("{model_type: gpt2, n_embd: 32, n_layer: 2, n_head: 2, n_positions: 64}", response_length=47)
    smaller = recipe.model.model_copy(update={"architecture": {**recipe.model.architecture, "n_positions": 48}})
    recipe = recipe.model_copy(update={"model": smaller})  # as of a checkpoint, whose prompts may be short enough
    with pytest.raises(DataError, match="48 positions"):
        ran(recipe, prepared(recipe))


def test_a_model_that_writes_nothing_is_refused(
    stage: Callable[..., Any], prepared: Callable[..., Context], tmp_path: Path
):
    recipe = stage()
    folder = tmp_path / "before" / "model"
    folder.mkdir(parents=True)
    (folder / "head.json").write_text('{"kind": "sequence_classification", "labels": ["no", "yes"]}')
    recipe = recipe.model_copy(update={"stages": (recipe.stages[0].model_copy(update={"source": "before"}),)})
    with pytest.raises(ModelError, match="writes no texts"):
        ran(recipe, prepared(recipe, stage_folders={"before": tmp_path / "before"}))


def test_minibatches_that_do_not_divide_an_iteration_are_refused(
    stage: Callable[..., Any], prepared: Callable[..., Context]
):
    recipe = stage(global_batch_size=None, per_device_train_batch_size=8, num_mini_batches=3)
    with pytest.raises(IncompatibleError, match="num_mini_batches 3 does not divide"):
        ran(recipe, prepared(recipe))


@pytest.mark.parametrize(
    ("arguments", "keys", "said"),
    [
        ({"eval_strategy": "epoch"}, "", "no rows are set aside"),
        ({"top_p": 1.5}, "", "must be at most 1"),
        ({"lam": 2}, "", "must be at most 1"),
        ({"kl_horizon": 50}, "", "kl_target, which is not given"),
        ({"ptx_coef": 2.0}, "", "needs datasets"),
        ({}, "datasets: [{path: prompts.txt}]", "needs arguments.ptx_coef"),
        ({}, "block_size: 16", "which is not given"),
        ({}, "value: reward", "takes the body of a reward model trained in this recipe"),
        ({}, "tuner: {name: prompt, num_virtual_tokens: 4}", "virtual tokens"),
        ({"kl_estimator": "k4"}, "", "must be one of"),
        ({"kl_coeff": 0.1}, "", "Did you mean 'kl_coef'"),
        ({"cliprange": 1.0}, "", "must be less than 1"),
        ({"num_mini_batches": 3}, "", "does not divide global_batch_size 8"),
    ],
)
def test_recipes_that_cannot_work_are_refused(
    arguments: dict[str, Any], keys: str, said: str, stage: Callable[..., Any]
):
    with pytest.raises(RecipeError, match=said):
        stage(keys=keys, **arguments)


def test_recipes_whose_model_cannot_write_are_refused(stage: Callable[..., Any]):
    with pytest.raises(RecipeError, match="token by token; this architecture cannot"):
        stage(shape="{preset: bert-tiny}")
    with pytest.raises(RecipeError, match=r"response_length.*max_position_embeddings 12"):
        stage(shape=DECODER.replace("max_position_embeddings: 48", "max_position_embeddings: 12"))
    with pytest.raises(RecipeError, match="'sft' is no stage of this recipe"):
        stage(reward="{from: sft}")
    with pytest.raises(RecipeError, match="an encoder-decoder has no such objective"):
        stage(BOTH, keys="datasets: [{path: prompts.txt}]", ptx_coef=1.0)


def test_whole_numbers_may_stand_for_floats():
    arguments = PPOArguments(gamma=1, kl_coef=0, learning_rate=1e-4)
    assert (arguments.gamma, arguments.kl_coef) == (1.0, 0.0)
    assert isinstance(arguments.gamma, float)


@pytest.mark.parametrize(
    "wrong",
    [
        {"response_length": 0},
        {"temperature": 0},
        {"num_ppo_epochs": 1.5},
        {"kl_coef": -1},
        {"kl_estimator": "k4"},
        {"reward_normalization": "batch"},
        {"whiten_rewards": 1},
    ],
)
def test_what_no_run_could_use_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValidationError):
        PPOArguments.model_validate(wrong)
