"""Replaced-token detection: a small generator fills masks in, and the model tells its tokens from the original ones.

Clark et al. 2020, "ELECTRA", sections 2 and 3, arxiv.org/abs/2003.10555: the generator learns masked language modelling
and nothing from being found out; the model (the discriminator) decides about every token, and its loss weighs 50 times
as much (section 2, appendix A). Generator and discriminator share their embeddings (section 3.2), and the generator has
a quarter to a half of the width (section 3.2, figure 3). Both as one module: `pipelines.objectives.generator`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from pipelines.core.costs import Example, SecondModel
from pipelines.core.interfaces import Head
from pipelines.objectives.masked_lm import MaskedLM
from pipelines.objectives.objective import Collate, Objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput

MODEL_TYPES = ("finery", "electra", "bert")


class ReplacedTokenDetection(Objective):
    """Tell the tokens of the text from those that a generator put in their place."""

    name: Literal["replaced_token_detection"] = "replaced_token_detection"
    separates: ClassVar[bool] = True
    two_models: ClassVar[bool] = True
    text_scores: ClassVar[tuple[str, ...]] = ("accuracy", "f1")
    unaskable: ClassVar[str] = "tells replaced tokens from original ones and names none"
    probability: float = Field(0.15, gt=0, lt=1)
    """The share of the tokens that is masked and filled in by the generator."""
    generator_size: float = Field(0.25, gt=0, le=1)
    """The generator's width as a share of the model's: hidden size, attention heads and feed-forward size."""
    discriminator_weight: float = Field(50.0, gt=0)
    """The weight of the model's loss beside the generator's."""

    @property
    def head(self) -> Head:
        """The head that decides about every token."""
        return Head("token_classification", ("original", "replaced"))

    @property
    def label_names(self) -> Mapping[str, float]:
        """`labels` are the masked tokens, which the generator names; `replaced` are all, which the model judges."""
        return {"labels": 1.0, "replaced": self.discriminator_weight}

    def misfit(self, architecture: Mapping[str, Any]) -> str | None:
        model_type = architecture.get("model_type", "finery")
        if model_type not in MODEL_TYPES:
            return (
                f"needs a generator that shares the model's embeddings, which is built for {', '.join(MODEL_TYPES)}, "
                f"but the model is '{model_type}'; choose one of these, or masked_lm"
            )
        if architecture.get("family", "encoder") != "encoder":
            return (
                "needs an encoder, which sees both sides of a token, "
                f"but the family is '{architecture['family']}'; set family: encoder"
            )
        return None

    def masking(self) -> MaskedLM:
        """What the generator learns: every chosen token becomes the mask."""
        return MaskedLM(probability=self.probability, replace_with_mask=1.0, replace_with_random=0.0)

    def example(self, block_size: int) -> Example:
        words = partial(generator_words, size=self.generator_size)
        named = self.masking().example(block_size).predicted
        return replace(
            super().example(block_size), second=SecondModel("generator", Head("masked_lm"), words, predicted=named)
        )

    def collate(self, tokenizer: PreTrainedTokenizerBase, seed: int, config: PreTrainedConfig | None = None) -> Collate:
        from pipelines.objectives.generator import Replacing

        return Replacing(self.masking().collate(tokenizer, seed, config), seed)

    def prepare(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, build: Callable[..., PreTrainedModel]
    ) -> PreTrainedModel:
        """The model and its generator in one module."""
        from pipelines.objectives.generator import GeneratorAndDiscriminator

        generator = build(Head("masked_lm"), **generator_words(model.config.to_dict(), size=self.generator_size))
        return GeneratorAndDiscriminator(model, generator)

    def finish(self, model: PreTrainedModel) -> PreTrainedModel:
        """The discriminator; the generator is kept beside it, in `generator/`."""
        discriminator = model.discriminator
        discriminator.finery_beside = {"generator": model.generator}
        return discriminator

    def loss(self, model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, ModelOutput]:
        from pipelines.objectives.generator import both_losses

        return both_losses(model, batch)


def generator_words(config: Mapping[str, Any], size: float) -> dict[str, Any]:
    """The words of the generator's config where they differ from the model's: `size` times its width, the same
    embeddings.

    A BERT's generator is an ELECTRA's, which has the same embeddings and projects them to its own width. Heads are
    kept of an even size.
    """
    heads = max(1, round(config["num_attention_heads"] * size))
    width = max(1, round(config["hidden_size"] * size / (2 * heads))) * 2 * heads
    words = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": max(1, round(config["intermediate_size"] * size)),
        "embedding_size": config.get("embedding_size") or config["hidden_size"],
    }
    groups = config.get("num_key_value_heads")
    if groups is not None:
        grouped = max(1, round(groups * size))
        words["num_key_value_heads"] = grouped if heads % grouped == 0 else heads
    if config.get("model_type") == "bert":
        words["model_type"] = "electra"
    return words
