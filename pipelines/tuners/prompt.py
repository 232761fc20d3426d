"""Prompt tuning: learn embeddings before those of the words. Lester et al. 2021, arxiv.org/abs/2104.08691.

`num_virtual_tokens * embedding width` weights, nothing else. The paper trains them with a learning rate of 0.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from pipelines.core.config import ConfigIssues
from pipelines.core.errors import ModelError
from pipelines.tuners.soft_prompt import SoftPrompt

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

RANGE = 0.5
"""Section 3.2: random prompts are drawn evenly from -0.5 to 0.5."""


class Prompt(SoftPrompt):
    """Learn embeddings before those of every text; everything else stays frozen."""

    name: Literal["prompt"] = "prompt"
    init: Literal["random", "sampled_vocabulary", "text"] = "sampled_vocabulary"
    """How the prompt begins: as random numbers, as the embeddings of words drawn from the vocabulary, or as those of
    `init_text`."""
    init_text: str | None = None
    """For `init: text`: what the prompt says at first, repeated or cut to `num_virtual_tokens` tokens. Class names
    serve well."""

    @model_validator(mode="after")
    def _text_and_its_init(self) -> Prompt:
        if self.init == "text" and not (self.init_text or "").strip():
            raise ConfigIssues([(("init_text",), "is missing: init is text, so say what the prompt begins with")])
        if self.init != "text" and self.init_text is not None:
            raise ConfigIssues(
                [(("init_text",), f"is given, but init is {self.init}; write init: text to begin with it")]
            )
        return self

    def apply(self, model: PreTrainedModel) -> PreTrainedModel | PeftModel:
        """A PEFT model around `model`. Raises ModelError when `init_text` has no tokens, or no tokenizer is at hand."""
        import torch

        from pipelines.tuners.virtual_tokens import reading_stack

        tokenizer = getattr(model, "finery_tokenizer", None)
        tuned = self.tuned(model, "PROMPT_TUNING")
        prompt = tuned.prompt_encoder[tuned.active_adapter].embedding.weight
        words = reading_stack(model).get_input_embeddings()
        if words.weight.is_meta:  # a plan counts weights and fills none
            return tuned
        with torch.no_grad():
            if self.init == "random":
                prompt.uniform_(-RANGE, RANGE)
            else:
                chosen = (
                    self._sampled(model.config, words.weight.shape[0])
                    if self.init == "sampled_vocabulary"
                    else self._read(model, tokenizer)
                )
                prompt.copy_(words(chosen.to(words.weight.device)))
        return tuned

    def _sampled(self, config: PreTrainedConfig, rows: int) -> Tensor:
        """Token ids (tokens,) drawn from the vocabulary, those that begin, end or fill texts left out."""
        import torch

        special = {
            getattr(config, f"{name}_token_id", None)
            for name in ("pad", "bos", "eos", "cls", "sep", "mask", "decoder_start")
        }
        usual = torch.tensor([row for row in range(min(config.vocab_size, rows)) if row not in special])
        return usual[torch.randint(len(usual), (self.num_virtual_tokens,))]

    def _read(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Tensor:
        """Token ids (tokens,) of `init_text`, as often as it takes."""
        import torch

        if tokenizer is None:
            tokenizer = _tokenizer_of(model)
        ids = tokenizer(self.init_text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ModelError(
                f"prompt.init_text {self.init_text!r} has no tokens in the model's vocabulary; say something else"
            )
        return torch.tensor((ids * -(-self.num_virtual_tokens // len(ids)))[: self.num_virtual_tokens])


def _tokenizer_of(model: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer that lies beside the model's weights. Raises ModelError where none does."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model.name_or_path, trust_remote_code=False)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(
            "prompt.init is text, but no tokenizer lies beside the model; use init: sampled_vocabulary"
        ) from error
