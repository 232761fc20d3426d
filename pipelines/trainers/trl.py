"""The only file that knows TRL: its trainers of GRPO and RLOO, with what every stage here has.

TRL's trainers are transformers' Trainer, so events, complete checkpoints, the stop by signal and the end at the first
NaN are added to them as to our own (`stage_trainer`). What TRL would decide by itself is decided here:

- prompts come tokenised: TRL's own way would put an encoder's end of text behind them;
- the policy lies in a folder, from which TRL reads the reference again; an adapter's reference is TRL's frozen copy
  of it;
- precision, padding and the end of texts are said, not guessed; nothing is reported to anybody.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_utils import set_seed

from pipelines.core.errors import Diverged, IncompatibleError
from pipelines.core.interfaces import IGNORED, Context
from pipelines.core.training_arguments import TrainingArguments
from pipelines.data.completions import padding_token
from pipelines.data.packing import end_of_text
from pipelines.models.log_probabilities import token_log_probabilities
from pipelines.trainers.profile import profiled
from pipelines.trainers.stage_callback import StageCallback
from pipelines.trainers.stage_trainer import StageTrainer, newest_checkpoint
from pipelines.trainers.throughput import reset_peak_memory
from pipelines.trainers.trackers import trackers
from pipelines.trainers.training_args import live_words
from pipelines.tuners.tuner import Tuner

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.trainers.checkpoints import State

FOUND_BY_TRL = "ref"
"""What TRL calls the adapter that it holds a tuned policy to."""
SHOWN = 3
"""Completions in a `sample` event."""


def prepared(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """(the model and a copy of the tokenizer, both told which tokens fill up a batch and end a text; the model,
    where it lies)."""
    marked = copy.deepcopy(tokenizer)
    ends, fills = end_of_text(tokenizer), padding_token(tokenizer)
    marked.eos_token, marked.pad_token = tokenizer.convert_ids_to_tokens(ends), tokenizer.convert_ids_to_tokens(fills)
    model.config.pad_token_id = fills
    for config in (model.config, model.generation_config):
        if config.eos_token_id is None:
            config.eos_token_id = ends
    model.generation_config.pad_token_id = fills
    model.config.name_or_path = model.name_or_path
    return model, marked


def train(
    context: Context,
    method: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tuner: Tuner,
    arguments: TrainingArguments,
    overrides: Mapping[str, object],
    rows: Sequence[Mapping[str, object]],
    **keywords: Any,
) -> tuple[PreTrainedModel, dict[str, float]]:
    """Train a tuned `model` by TRL's trainer of that `method` (`GRPO`, `RLOO`) on `rows`, resuming where a run
    was broken off.

    `arguments` hold TRL's settings of the method too, and `overrides` what the stage decides; `keywords` are those of
    the class that `METHODS` makes of TRL's. Returns (the trained model, the stage's metrics). Raises Stopped and
    Diverged as the training loop does.
    """
    import trl
    from datasets import Dataset

    reset_peak_memory()
    set_seed(context.seed)
    words = live_words(context, arguments) | arguments.own() | dict(overrides)
    words.setdefault("activation_checkpointing", False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        live = getattr(trl, f"{method}Config")(**words, gradient_checkpointing=bool(words["activation_checkpointing"]))
        newest = newest_checkpoint(context)
        every_stage = StageCallback(context)
        trainer = METHODS[method](getattr(trl, f"{method}Trainer"))(
            context=context,
            tuner=tuner,
            model=model,
            args=live,
            train_dataset=Dataset.from_list([dict(row) for row in rows]),
            processing_class=tokenizer,
            callbacks=[every_stage, *profiled(context), *trackers(context, arguments)],
            **keywords,
        )
        every_stage.trainer = trainer
        trainer.train_stage(newest)
    return without_reference(trainer.accelerator.unwrap_model(trainer.model)), trainer.stage_metrics()


def without_reference(model: PreTrainedModel) -> PreTrainedModel:
    """The tuned model without the frozen adapter that TRL put beside it, and with its own forward pass."""
    if FOUND_BY_TRL in getattr(model, "peft_config", {}):
        model.delete_adapter(FOUND_BY_TRL)
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    vars(bare).pop("forward", None)
    return model


def _staged(theirs: type) -> type:
    """TRL's trainer with what every stage has."""

    class Staged(StageTrainer, theirs):  # type: ignore[misc]
        def __init__(self, *, context: Context, tuner: Tuner, **keywords: Any) -> None:
            self.begin(context, tuner)
            super().__init__(**keywords)
            refuse_other_heads(self.model, getattr(self, "temperature", 1.0))

        def _send_telemetry(self) -> None:
            return

        def create_model_card(self, *_: object, **__: object) -> None:
            return

        def own_state(self) -> State:
            """What TRL has gathered since the last log, of every process."""
            return {
                "since_log": self.context.gather(
                    {name: list(values) for name, values in self._metrics["train"].items()}
                )
            }

        def restore_own(self, state: State) -> None:
            if len(state["since_log"]) == self.context.world.size:
                for name, values in state["since_log"][self.context.world.rank].items():
                    self._metrics["train"][name].extend(values)

    return Staged


def refuse_other_heads(model: PreTrainedModel, temperature: float) -> None:
    """Refuse a model of which TRL computes other log-probabilities than the model itself: it takes the head for
    one matrix. Raises Misfit."""
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = next(bare.parameters()).device
    ids = (torch.arange(6, device=device)[None] * 7 + 3) % bare.get_input_embeddings().weight.shape[0]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    training = bare.training
    bare.eval()
    with torch.no_grad():
        theirs = bare(**inputs, labels=ids, fused_lm_head=True).log_probs
        labels = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)], dim=1)
        ours = token_log_probabilities(bare, {**inputs, "labels": labels}, temperature=temperature).log_probabilities[
            :, :-1
        ]
    bare.train(training)
    if not torch.allclose(theirs.float(), ours, atol=1e-2, rtol=1e-2):
        raise IncompatibleError(
            f"TRL takes the head of {type(bare).__name__} for a single matrix, which it is not, and would "
            "learn other log-probabilities; use dpo or ppo"
        )


def _sampling(theirs: type) -> type:
    """GRPO and RLOO on prompts that are ready, scored by a reward of ours. A row's `prompt` is its number among
    `prompt_ids`."""

    class StagedSampling(_staged(theirs)):  # type: ignore[misc]
        def __init__(
            self,
            *,
            prompt_ids: Sequence[Sequence[int]],
            texts: Sequence[str],
            scorer: Callable[..., list[float]],
            **keywords: Any,
        ) -> None:
            self.prompt_ids = prompt_ids
            self.texts = texts

            def reward(prompts: Sequence[str], completions: Sequence[str], **_: object) -> list[float]:
                return scorer([texts[int(prompt)] for prompt in prompts], list(completions))

            super().__init__(reward_funcs=[reward], **keywords)

        def _tokenize_prompts(self, prompts: Sequence[str]) -> tuple[list[list[int]], None, dict[str, object]]:
            return [list(self.prompt_ids[int(prompt)]) for prompt in prompts], None, {}

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            try:
                return dict(super()._generate_and_score_completions(inputs))
            except RuntimeError as error:
                if "probability tensor" not in str(error):
                    raise
                raise Diverged(
                    f"the policy's logits are no longer finite after step {self.state.global_step}, so nothing can be "
                    f"sampled; lower arguments.learning_rate (now {self.args.learning_rate:g})"
                ) from None

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log(logs, start_time)
            if self.context.world.is_main and "loss" in logs and self._logs["completion"]:
                shown = zip(
                    self._logs["prompt"],
                    self._logs["completion"],
                    next(iter(self._logs["rewards"].values())),
                    strict=False,
                )
                samples = [
                    {"prompt": self.texts[int(prompt)], "completion": completion, "reward": reward}
                    for prompt, completion, reward in shown
                ][:SHOWN]
                self.context.events.emit("sample", step=self.state.global_step, what="completions", shown=samples)

    return StagedSampling


METHODS: dict[str, Callable[[type], type]] = {"GRPO": _sampling, "RLOO": _sampling}
"""TRL's trainers by the beginning of their names, and what is made of each."""
