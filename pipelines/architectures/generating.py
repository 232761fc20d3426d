"""What `generate` needs to know about the family, beside what transformers does for every model."""

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache

from .configuration_finery import FineryConfig
from .embeddings import BOUNDED
from .shifting import start_token


class FineryGenerationMixin(GenerationMixin):
    """Greedy, beam and sampled continuations, one token at a time."""

    config: FineryConfig

    def _prepare_to_generate(self) -> None:
        """Let `generate` start a decoder from the token that training starts it from."""
        if self.config.is_encoder_decoder and self.generation_config.decoder_start_token_id is None:
            self.generation_config.decoder_start_token_id = start_token(self.config)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """transformers' `generate`. Raises ValueError for what this model cannot do."""
        if self.config.bidirectional_decoder:
            raise ValueError(
                "a decoder with bidirectional_decoder sees the words that it would have to generate: use mask_predict"
            )
        chosen = kwargs.get("generation_config") or next(
            (argument for argument in args if isinstance(argument, GenerationConfig)), self.generation_config
        )
        penalty = kwargs.get("penalty_alpha", chosen.penalty_alpha)
        if penalty and kwargs.get("custom_generate") is None:
            raise ValueError(
                f"penalty_alpha is {penalty}, which asks for contrastive search; it is not built in, for transformers "
                "takes it from a repository: use greedy search, num_beams, or do_sample with temperature, top_k and top_p"
            )
        return super().generate(*args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """A `prefix_length` is for the pass that reads the prompt: what it wrote to the cache stays as it is.

        `generate` looks into this signature: without `inputs_embeds` in it, it refuses them.
        """
        self._refuse_beyond_positions(input_ids, attention_mask)
        inputs = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        if not is_first_iteration and inputs.get("past_key_values") is not None:
            inputs.pop("prefix_length", None)
        return inputs

    def _refuse_beyond_positions(self, input_ids: Tensor, attention_mask: Any) -> None:
        limit = self.config.max_position_embeddings
        length = input_ids.shape[-1]
        if self.config.position not in BOUNDED or length <= limit:
            return
        if not self.config.is_encoder_decoder and isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
            length = int(attention_mask.sum(-1).max())
        if length > limit:
            raise ValueError(
                f"the text is {length} tokens long, but max_position_embeddings is {limit}: shorten the prompt or set "
                "max_new_tokens, or build the model with more positions"
            )
