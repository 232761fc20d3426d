"""The input of a stack: a word, its position and its segment, summed, normalised and dropped out.

Devlin et al. 2019, "BERT", section 3.2 and figure 2, arxiv.org/abs/1810.04805. With sinusoidal positions the word
embedding is scaled by the root of the width (Vaswani et al. 2017, section 3.4), or the waves would drown it. Rotary,
ALiBi and relative positions add nothing here: they act in attention.
"""

import torch
from torch import Tensor, nn

from .configuration_finery import FineryConfig
from .norms import norm
from .position_sinusoidal import sinusoidal_table
from .shifting import start_token

BOUNDED = ("learned", "sinusoidal", "rotary")
"""Positions that max_position_embeddings limits. The others take any length."""


def row_of_padding(config: FineryConfig) -> int | None:
    """The word that is never read, so its row stays zero. None if it also begins or ends texts: it is learned then.

    T5's decoder starts from its padding token; GPT-2 has one token for the end of a text and for what comes after.
    """
    read = (config.bos_token_id, config.eos_token_id, start_token(config) if config.is_encoder_decoder else None)
    return None if config.pad_token_id in read else config.pad_token_id


class FinerySinusoidalPositions(nn.Module):
    """Looks up rows of the fixed table. Nothing is learned and nothing is saved."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.num_positions = config.max_position_embeddings
        self.dim = config.usual("embedding_size")
        # Loading a checkpoint leaves buffers that it does not hold with arbitrary content; the model's
        # `_init_weights` writes this one again from the same function.
        self.table = nn.Buffer(sinusoidal_table(self.num_positions, self.dim), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        return self.table[position_ids]


class FineryEmbeddings(nn.Module):
    """Token ids to vectors: (batch, query) -> (batch, query, dim)."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        width, segments = config.usual("embedding_size"), config.usual("type_vocab_size")
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=row_of_padding(config))
        self.token_type_embeddings = nn.Embedding(segments, width) if segments else None
        self.position_embeddings = None
        if config.position == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        elif config.position == "sinusoidal":
            self.position_embeddings = FinerySinusoidalPositions(config)
        self.word_scale = config.hidden_size**0.5 if config.usual("scale_embedding") else 1.0
        self.norm = norm(config, width) if config.usual("embedding_norm") else None
        self.dropout = nn.Dropout(config.usual("embedding_dropout_prob"))
        self.projection = nn.Linear(width, config.hidden_size) if width != config.hidden_size else None
        self.max_positions = config.max_position_embeddings if config.position in BOUNDED else None

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """`inputs_embeds` replace the look-up of words only: they are scaled and get positions like words.

        A model without segments takes no notice of `token_type_ids`, which tokenizers give unasked.
        """
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = self.positions_after(0, words)
        total = words * self.word_scale if self.word_scale != 1.0 else words
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            total = total + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            total = total + self.position_embeddings(position_ids).to(words.dtype)
        total = self.dropout(total if self.norm is None else self.norm(total))
        return total if self.projection is None else self.projection(total)

    def positions_after(self, past_length: int | Tensor, sequence: Tensor) -> Tensor:
        """Places of a sequence (batch, query, …) that `past_length` keys precede in each layer: (1, query)."""
        query = sequence.shape[1]
        if isinstance(past_length, int):  # a static cache counts in a tensor, which is not worth waiting for
            self.refuse_beyond(past_length + query)
        return (torch.arange(query, device=sequence.device) + past_length)[None]

    def refuse_beyond(self, end: int) -> None:
        """Raises ValueError if the positions end before a sequence does."""
        if self.max_positions is not None and end > self.max_positions:
            raise ValueError(
                f"the sequence ends at position {end}, but max_position_embeddings is {self.max_positions}: "
                "truncate the input, or build the model with more positions"
            )
