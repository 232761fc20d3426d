"""The bare recurrent models: an encoder, a decoder, or both with attention between them.

Elman 1990; Hochreiter and Schmidhuber 1997 (LSTM); Cho et al. 2014, arxiv.org/abs/1406.1078 (GRU). The encoder-decoder
without attention is that of Sutskever et al. 2014, arxiv.org/abs/1409.3215: the decoder begins where the encoder ended.
With attention each step of the decoder looks at all states of the encoder. All ways of scoring take Luong's path (Luong
et al. 2015, section 3.1, arxiv.org/abs/1508.04025): the state of a step asks, and the answer c goes into
tanh(W [c; state]), which the head reads and, with input feeding, the next step. Bahdanau et al. 2015 ask with the state
of the step before; here two models differ in their score alone.

Padding changes no output: sequences are packed, wherever their padding stands.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    BaseModelOutputWithPooling,
    Seq2SeqModelOutput,
)
from transformers.utils.generic import can_return_tuple

from .configuration_finery_rnn import FineryRnnConfig
from .sequence_states import FinerySequenceStates, hidden_outside, shared_embeddings, shifted_right

CELLS: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
STEPS = {"lstm": torch.lstm_cell, "gru": torch.gru_cell, "rnn": torch.rnn_tanh_cell}
"""The same for a single token, without what torch does to prepare a sequence."""


@dataclass
class FineryRnnEncoderOutput(BaseModelOutput):
    """`final_state` (batch, layers, parts, dim): each layer's last state, of both directions side by side; an LSTM's
    second part is its cell."""

    final_state: Tensor | None = None


@dataclass
class FineryRnnDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    """`pooler_output` (batch, dim): the last layer's state after the last token."""

    pooler_output: Tensor | None = None


class FineryRnnPreTrainedModel(PreTrainedModel):
    """The base class of stacks and heads."""

    config_class = FineryRnnConfig
    config: FineryRnnConfig
    base_model_prefix = "model"
    _no_split_modules: ClassVar[list[str]] = ["FineryRnnLayer"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Cells as torch starts them, everything else uniform within ± initializer_range, biases 0."""
        bound = self.config.initializer_range
        if isinstance(module, nn.RNNBase):
            for weight in module.parameters():
                init.uniform_(weight, -(module.hidden_size**-0.5), module.hidden_size**-0.5)
        elif isinstance(module, nn.Linear | nn.Embedding):
            init.uniform_(module.weight, -bound, bound)
            if isinstance(module, nn.Linear) and module.bias is not None:
                init.zeros_(module.bias)
            padding = module.padding_idx if isinstance(module, nn.Embedding) else None
            if padding is not None and not getattr(module.weight, "_is_hf_initialized", False):  # else it was loaded
                init.zeros_(module.weight[padding])


class FineryRnnDropout(nn.Module):
    """Dropout of (batch, query, dim), drawn anew for each token or once for all tokens of a sequence."""

    def __init__(self, probability: float, variational: bool) -> None:
        super().__init__()
        self.dropout = nn.Dropout(probability)
        self.variational = variational

    def forward(self, states: Tensor) -> Tensor:
        if not self.variational or not self.training or self.dropout.p == 0:
            return self.dropout(states)
        return states * self.dropout(torch.ones_like(states[:, :1]))

    def factors(self, batch: int, length: int, dim: int, like: Tensor) -> Tensor | None:
        """What each step of a loop multiplies with, (batch, length, dim); None where nothing is dropped."""
        if not self.training or self.dropout.p == 0:
            return None
        return self(like.new_ones(batch, length, dim))


class FineryRnnWords(nn.Module):
    """Word ids to vectors: the embedding is the stack's own, the dropouts are here."""

    def __init__(self, config: FineryRnnConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Dropout(config.word_dropout_prob)
        self.dropout = FineryRnnDropout(config.embedding_dropout_prob, config.variational_dropout)

    def forward(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, table: nn.Module) -> Tensor:
        """(batch, query) ids, or vectors in their place, to (batch, query, dim)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds, one of the two")
        if inputs_embeds is None:
            inputs_embeds = table(input_ids)
            if self.training and self.words.p:
                kept = self.words(
                    inputs_embeds.new_ones(self.config.vocab_size)
                )  # a word is dropped wherever it stands
                inputs_embeds = inputs_embeds * kept[input_ids][..., None]
        return self.dropout(inputs_embeds)


State = tuple[Tensor, ...]
"""Of one layer, (batch, directions, width) each: the state and, in an LSTM, the cell."""


class FineryRnnLayer(nn.Module):
    """One layer of cells over (batch, query, dim), in one direction or in both, whose states have a `width` each."""

    def __init__(self, config: FineryRnnConfig, inputs: int, width: int, bidirectional: bool) -> None:
        super().__init__()
        self.rnn = CELLS[config.cell](inputs, width, batch_first=True, bidirectional=bidirectional)
        self.cell = config.cell
        self.weight_dropout_prob = config.weight_dropout_prob

    def dropped(self) -> dict[str, Tensor]:
        """The matrices from state to state with some of their entries at 0: one draw for a whole sequence. Empty where
        nothing is dropped."""
        if not self.training or self.weight_dropout_prob == 0:
            return {}
        return {
            name: nn.functional.dropout(weight, self.weight_dropout_prob)
            for name, weight in self.rnn.named_parameters()
            if name.startswith("weight_hh")
        }

    def forward(
        self, states: Tensor, lengths: Tensor | None, before: State | None, dropped: dict[str, Tensor]
    ) -> tuple[Tensor, State]:
        """(what each token gives, the state after the last one). Of each row the first `lengths` tokens are read,
        default all; `before` is the state that they begin from, default 0."""
        start = None if before is None else tuple(part.transpose(0, 1).contiguous() for part in before)
        if start is not None and not isinstance(self.rnn, nn.LSTM):
            start = start[0]
        if lengths is not None:
            states, longest = pack_padded_sequence(states, lengths, True, enforce_sorted=False), states.shape[1]
        arguments = (states, start)
        output, after = functional_call(self.rnn, dropped, arguments) if dropped else self.rnn(*arguments)
        if lengths is not None:
            output, _ = pad_packed_sequence(output, True, total_length=longest)
        parts = after if isinstance(self.rnn, nn.LSTM) else (after,)
        return output, tuple(part.transpose(0, 1) for part in parts)

    def step(self, token: Tensor, before: State, dropped: dict[str, Tensor]) -> State:
        """The state (batch, 1, width) after one more token (batch, dim), for layers of one direction."""
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [dropped.get(name, getattr(self.rnn, name)) for name in names]
        parts = [part[:, 0] for part in before]
        after = STEPS[self.cell](token, parts if self.cell == "lstm" else parts[0], *weights)
        return tuple(part[:, None] for part in (after if self.cell == "lstm" else (after,)))


class FineryRnnSeparateLayer(nn.Module):
    """One layer of each of two networks, which read from either end and never see each other.

    The first layer's two read the same words; those above, the half of the states that is their own direction's.
    """

    def __init__(self, config: FineryRnnConfig, inputs: int, first: bool) -> None:
        super().__init__()
        self.first = first
        half = config.hidden_size // 2
        self.directions = nn.ModuleList([FineryRnnLayer(config, inputs, half, False) for _ in range(2)])

    def dropped(self) -> dict[str, Tensor]:
        """Nothing here: each direction draws its own."""
        return {}

    def forward(
        self, states: Tensor, lengths: Tensor | None, before: State | None, dropped: dict[str, Tensor]
    ) -> tuple[Tensor, State]:
        """As FineryRnnLayer's. Real tokens come first in each row."""
        halves = (states, states) if self.first else states.chunk(2, dim=-1)
        outputs, after = [], []
        for index, (layer, own) in enumerate(zip(self.directions, halves, strict=True)):
            start = None if before is None else tuple(part[:, index : index + 1] for part in before)
            own = backwards(own, lengths) if index else own
            output, state = layer(own, lengths, start, layer.dropped())
            outputs.append(backwards(output, lengths) if index else output)
            after.append(state)
        return torch.cat(outputs, dim=-1), tuple(torch.cat(parts, dim=1) for parts in zip(*after, strict=True))


def backwards(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Each row's first `lengths` tokens in the opposite order, (batch, query, dim); what follows stays."""
    if lengths is None:
        return states.flip(1)
    places = torch.arange(states.shape[1], device=states.device)[None, :]
    ends = lengths.to(states.device)[:, None]
    order = torch.where(places < ends, ends - 1 - places, places)
    return states.gather(1, order[..., None].expand_as(states))


def in_place(states: Tensor, order: Tensor | None) -> Tensor:
    """What was read in this `order` (batch, query), each token where it stood."""
    if order is None:
        return states
    return torch.zeros_like(states).scatter(1, order[..., None].expand_as(states), states)


def together(state: State) -> Tensor:
    """A layer's state as (batch, parts, dim), its directions side by side."""
    return torch.stack([part.flatten(1) for part in state], dim=1)


class FineryRnnStack(FineryRnnPreTrainedModel):
    """Layers on word embeddings."""

    def _build(self, layers: int, bidirectional: bool, feeds: int = 0) -> None:
        """The modules; `feeds` is the width of what each step reads beside its word."""
        config = self.config
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.words = FineryRnnWords(config)
        above = config.hidden_size // (2 if config.separate_directions else 1)
        widths = [config.embedding_size + feeds] + [above] * (layers - 1)
        if config.separate_directions:
            built = [FineryRnnSeparateLayer(config, width, index == 0) for index, width in enumerate(widths)]
        else:
            own = config.hidden_size // (2 if bidirectional else 1)
            built = [FineryRnnLayer(config, width, own, bidirectional) for width in widths]
        self.layers = nn.ModuleList(built)
        self.dropout = FineryRnnDropout(config.hidden_dropout_prob, config.variational_dropout)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings = value

    def _read(
        self,
        states: Tensor,
        attention_mask: Tensor | None,
        before: list[State] | None,
        said: list[Tensor] | None = None,
    ) -> tuple[Tensor, list[State]]:
        """All tokens through one layer after the other: (what the last layer gives, each layer's last state).

        Tokens whose mask is 0 are not read, and have nothing but zeros as their output. What each layer gives is added
        to `said`.
        """
        lengths = order = None
        if attention_mask is not None and not bool(attention_mask.all()):
            order = (attention_mask == 0).to(torch.int8).argsort(dim=-1, stable=True)  # real tokens first
            lengths = attention_mask.ne(0).sum(-1).clamp(min=1).cpu()
            states = states.gather(1, order[..., None].expand_as(states))
        after = []
        for index, layer in enumerate(self.layers):
            if index:
                states = self.dropout(states)
            states, state = layer(states, lengths, before[index] if before else None, layer.dropped())
            after.append(state)
            if said is not None:
                said.append(in_place(states, order))
        return in_place(states, order), after

    def _kept(self, past: FinerySequenceStates | None) -> list[State] | None:
        """Each layer's state after the tokens before; None at the beginning."""
        if past is None or not past.length:
            return None
        return [tuple(past.tensors[f"layers.{index}"].unbind(1)) for index in range(len(self.layers))]

    def _keep(
        self, past: FinerySequenceStates | None, after: list[State], tokens: int, **others: Tensor | None
    ) -> FinerySequenceStates:
        """The states after so many further tokens."""
        past = past or FinerySequenceStates()
        past.tensors = {f"layers.{index}": torch.stack(state, dim=1) for index, state in enumerate(after)}
        past.tensors |= {name: tensor for name, tensor in others.items() if tensor is not None}
        past.length += tokens
        return past


class FineryRnnEncoder(FineryRnnStack):
    """The encoder of an encoder-decoder."""

    def __init__(self, config: FineryRnnConfig) -> None:
        super().__init__(config)
        self._build(config.num_hidden_layers, config.bidirectional)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> FineryRnnEncoderOutput:
        """Encode (batch, query) tokens."""
        states, after = self._read(self.words(input_ids, inputs_embeds, self.embeddings), attention_mask, None)
        final = torch.stack([together(state) for state in after], dim=1)
        return FineryRnnEncoderOutput(last_hidden_state=self.dropout(states), final_state=final)


class FineryRnnAttention(nn.Module):
    """What a decoder's state takes from the encoder's: a mean of them, weighed by a score of each.

    "additive": v · tanh(W s + U h) (Bahdanau et al. 2015, appendix A.1.2); "dot_product": s · h; "general": s · W h
    (Luong et al. 2015, equation 8).
    """

    def __init__(self, config: FineryRnnConfig) -> None:
        super().__init__()
        dim, self.scoring = config.hidden_size, config.attention_scoring
        additive = self.scoring == "additive"
        self.key = nn.Linear(dim, dim, bias=False) if self.scoring != "dot_product" else None
        self.query = nn.Linear(dim, dim, bias=False) if additive else None
        self.score = nn.Linear(dim, 1, bias=False) if additive else None
        self.output = nn.Linear(2 * dim, dim, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """The part of the score that is the same for every step: (batch, key, dim)."""
        return memory if self.key is None else self.key(memory)

    def forward(
        self, states: Tensor, keys: Tensor, memory: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """States (batch, query, dim) to (attentional vectors (batch, query, dim), weights (batch, query, key))."""
        if self.score is None or self.query is None:
            scores = states @ keys.transpose(1, 2)
        else:
            scores = self.score(torch.tanh(self.query(states)[:, :, None] + keys[:, None])).squeeze(-1)
        weights = hidden_outside(scores, attention_mask).softmax(-1)
        seen = weights.to(memory.dtype) @ memory
        return torch.tanh(self.output(torch.cat([seen, states], dim=-1))), weights


class FineryRnnDecoder(FineryRnnStack):
    """The decoder of an encoder-decoder."""

    def __init__(self, config: FineryRnnConfig) -> None:
        super().__init__(config)
        self._build(config.num_decoder_layers, False, config.hidden_size if config.input_feeding else 0)
        self.attention = FineryRnnAttention(config) if config.attention_scoring != "none" else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_outputs: FineryRnnEncoderOutput | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: FinerySequenceStates | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode (batch, query) tokens, from where the encoder ended or from the states that were kept."""
        if encoder_outputs is None or getattr(encoder_outputs, "final_state", None) is None:
            raise ValueError(
                "the decoder begins where its encoder ended: pass encoder_outputs as the encoder gave them"
            )
        inputs = self.words(input_ids, inputs_embeds, self.embeddings)
        memory, mask = encoder_outputs.last_hidden_state, attention_mask
        if mask is not None:
            mask = mask[:, -inputs.shape[1] :]
        before = self._kept(past_key_values) or self._begin(encoder_outputs.final_state)
        keys = None
        if self.attention is not None:
            kept = None if past_key_values is None else past_key_values.tensors.get("keys")
            keys = self.attention.keys(memory) if kept is None else kept
        fed = weights = None
        if self.attention is None or keys is None:
            states, after = self._read(inputs, mask, before)
        elif not self.config.input_feeding:
            states, after = self._read(inputs, mask, before)
            states, weights = self.attention(states, keys, memory, encoder_attention_mask)
        else:
            kept = None if past_key_values is None else past_key_values.tensors.get("fed")
            fed = memory.new_zeros(len(memory), self.config.hidden_size) if kept is None else kept
            states, weights, after, fed = self._step_by_step(
                inputs, mask, before, fed, keys, memory, encoder_attention_mask
            )
        past = self._keep(past_key_values, after, inputs.shape[1], keys=keys, fed=fed) if use_cache else None
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.dropout(states),
            past_key_values=past,
            cross_attentions=(weights[:, None],) if weights is not None and kwargs.get("output_attentions") else None,
        )

    def _begin(self, final: Tensor) -> list[State]:
        """Where each layer begins: at the encoder's layer as far from the top, the lowest one for those beyond."""
        depth, count = len(self.layers), final.shape[1]
        places = [max(0, count - depth + index) for index in range(depth)]
        return [tuple(part[:, None] for part in final[:, place].unbind(1)) for place in places]

    def _step_by_step(
        self,
        inputs: Tensor,
        mask: Tensor | None,
        states: list[State],
        fed: Tensor,
        keys: Tensor,
        memory: Tensor,
        encoder_attention_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, list[State], Tensor]:
        """Each token reads what attention gave to the one before (`fed`). Tokens whose mask is 0 change no state."""
        assert self.attention is not None
        batch, length = inputs.shape[:2]
        dim, padded = self.config.hidden_size, mask is not None and not bool(mask.all())
        factors = [self.dropout.factors(batch, length, dim, inputs) for _ in self.layers[1:]]
        dropped = [layer.dropped() for layer in self.layers]
        said, looked = [], []
        for step in range(length):
            token, after = torch.cat([inputs[:, step], fed], dim=-1), []
            for index, layer in enumerate(self.layers):
                if index and (factor := factors[index - 1]) is not None:
                    token = token * factor[:, step]
                after.append(layer.step(token, states[index], dropped[index]))
                token = after[-1][0][:, 0]
            vector, weights = self.attention(token[:, None], keys, memory, encoder_attention_mask)
            if padded and mask is not None:
                real = mask[:, step, None].bool()
                after = [
                    tuple(torch.where(real[..., None], new, old) for new, old in zip(*pair, strict=True))
                    for pair in zip(after, states, strict=True)
                ]
                fed = torch.where(real, vector[:, 0], fed)
            else:
                fed = vector[:, 0]
            states = after
            said.append(vector)
            looked.append(weights)
        return torch.cat(said, dim=1), torch.cat(looked, dim=1), states, fed


class FineryRnnModel(FineryRnnStack):
    """Token ids to one vector a token, without a head."""

    _auto_class = "AutoModel"

    def __init__(self, config: FineryRnnConfig) -> None:
        super().__init__(config)
        if config.is_encoder_decoder:
            self._tied_weights_keys = shared_embeddings(self)
            self.encoder = FineryRnnEncoder(config)
            self.decoder = FineryRnnDecoder(config)
        else:
            self._build(config.num_hidden_layers, config.bidirectional)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embeddings if self.config.is_encoder_decoder else self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        for stack in (self.encoder, self.decoder) if self.config.is_encoder_decoder else (self,):
            stack.embeddings = value

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Encoder and decoder share their word embeddings even if the output matrix is not tied to them."""
        if all_submodels or not self.config.is_encoder_decoder:
            return super().get_expanded_tied_weights_keys(all_submodels)
        return shared_embeddings(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: FineryRnnEncoderOutput | None = None,
        past_key_values: FinerySequenceStates | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling | BaseModelOutputWithPastAndCrossAttentions | Seq2SeqModelOutput:
        """Read (batch, query) tokens; the arguments that begin with `decoder_` are an encoder-decoder's.

        An encoder or a decoder alone also gives its last layer's last state, as `pooler_output` or among the states
        that are kept. Without `decoder_input_ids` the decoder reads the input, shifted right. With
        `output_hidden_states` an encoder or a decoder alone gives the word embeddings and what each layer made of them.
        """
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if not self.config.is_encoder_decoder:
            hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
            return self._read_alone(input_ids, attention_mask, past_key_values, inputs_embeds, use_cache, hidden)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            if input_ids is None:
                raise ValueError("without input_ids, pass decoder_input_ids or decoder_inputs_embeds")
            decoder_input_ids = shifted_right(input_ids, self.config)
        outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        )

    def _read_alone(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        past: FinerySequenceStates | None,
        inputs_embeds: Tensor | None,
        use_cache: bool,
        output_hidden_states: bool,
    ) -> BaseModelOutputWithPooling | BaseModelOutputWithPastAndCrossAttentions:
        """The pass of an encoder or a decoder alone."""
        inputs = self.words(input_ids, inputs_embeds, self.embeddings)
        if attention_mask is not None:
            attention_mask = attention_mask[:, -inputs.shape[1] :]
        said = [inputs] if output_hidden_states else None
        states, after = self._read(inputs, attention_mask, self._kept(past), said)
        hidden = None if said is None else tuple(said)
        last = together(after[-1])[:, 0]
        states = self.dropout(states)
        if self.config.stack == "encoder":
            return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=last, hidden_states=hidden)
        return FineryRnnDecoderOutput(
            last_hidden_state=states,
            past_key_values=self._keep(past, after, inputs.shape[1]) if use_cache else None,
            hidden_states=hidden,
            pooler_output=last,
        )
