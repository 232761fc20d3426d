"""The input of the stack: a word, its position and its segment, summed, normalised and dropped out.

Devlin et al. 2019, "BERT", section 3.2 and figure 2, arxiv.org/abs/1810.04805. With sinusoidal positions the word
embedding is scaled by the root of the width (Vaswani et al. 2017, section 3.4), or the waves would drown it. With
rotary positions nothing is added here: attention turns its queries and keys instead.
"""

import torch
from torch import Tensor, nn

from .configuration_finery import FineryConfig
from .position_sinusoidal import sinusoidal_table


class FinerySinusoidalPositions(nn.Module):
    """Looks up rows of the fixed table. Nothing is learned and nothing is saved."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.num_positions = config.max_position_embeddings
        self.dim = config.hidden_size
        # Loading a checkpoint leaves buffers that it does not hold with arbitrary content; the model's
        # `_init_weights` writes this one again from the same function.
        self.table = nn.Buffer(sinusoidal_table(self.num_positions, self.dim), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        return self.table[position_ids]


class FineryEmbeddings(nn.Module):
    """Token ids to vectors: (batch, query) -> (batch, query, dim)."""

    def __init__(self, config: FineryConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        if config.position == "sinusoidal":
            self.position_embeddings = FinerySinusoidalPositions(config)
            self.word_scale = config.hidden_size**0.5
        elif config.position == "rotary":
            self.position_embeddings = None
            self.word_scale = 1.0
        else:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
            self.word_scale = 1.0
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.max_positions = config.max_position_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """`inputs_embeds` replace the look-up of words only: they are scaled and get positions like words."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = self.positions_after(0, words)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(position_ids)
        total = words * self.word_scale if self.word_scale != 1.0 else words
        total = total + self.token_type_embeddings(token_type_ids)
        if self.position_embeddings is not None:
            total = total + self.position_embeddings(position_ids).to(words.dtype)
        return self.dropout(self.norm(total))

    def positions_after(self, past_length: int, sequence: Tensor) -> Tensor:
        """Places of a sequence (batch, query, …) that `past_length` keys precede in each layer: (1, query)."""
        end = past_length + sequence.shape[1]
        if end > self.max_positions:
            raise ValueError(
                f"the sequence ends at position {end}, but max_position_embeddings is {self.max_positions}: "
                "truncate the input, or build the model with more positions"
            )
        return torch.arange(past_length, end, device=sequence.device)[None]
