"""The published models that ours must equal, and how their weights become ours.

Each reference says how to build it with random weights, which of our classes it corresponds to, the config that makes
ours the same, and a linear map from its weights to ours. The map renames, transposes, splits and reorders, so the
same map takes its gradients to ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput

Weights = dict[str, Tensor]

VOCAB, DIM, LAYERS, HEADS, HEAD_DIM, WIDE, POSITIONS = 61, 24, 3, 4, 6, 40, 19
"""Every size different, so that swapped dimensions cannot go unnoticed."""

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDE,
    "max_position_embeddings": POSITIONS,
}
"""The same sizes in our words."""


@dataclass(frozen=True)
class Reference:
    """One published model: `build` makes it, `head` and `fields` make ours, `weights` maps its weights to ours."""

    build: Callable[[], nn.Module]
    head: str
    fields: dict[str, object]
    weights: Callable[[Weights], Weights]
    left_out: str | None = None
    """A norm of ours that the reference does not have."""
    alone: str | None = None
    """A weight of ours that the reference does not have, zero there."""
    segments: bool = False
    """Whether it tells the texts of a pair apart."""


# --- the pieces of a map ----------------------------------------------------------------------------------------------


def renamed(weights: Weights, names: list[tuple[str, str]]) -> Weights:
    """Each name with every replacement made once, in order: the more specific ones come first."""

    def ours(name: str) -> str:
        for theirs, mine in names:
            name = name.replace(theirs, mine, 1)
        return name

    return {ours(name): weight for name, weight in weights.items()}


def taking_turns(size: int) -> Tensor:
    """Where the numbers of two halves lie once they take turns: 0, size/2, 1, size/2 + 1, …"""
    return torch.arange(size).view(2, -1).T.flatten()


def paired_by_neighbours(weight: Tensor, head_dim: int) -> Tensor:
    """The rows of a query or key matrix (heads * head_dim, dim) whose rotation pairs the two halves of a head."""
    return weight.unflatten(0, (-1, head_dim))[:, taking_turns(head_dim)].flatten(0, 1)


def split(weights: Weights, whole: str, parts: tuple[str, ...]) -> Weights:
    """A matrix that holds several, one above the other, as those."""
    found = {}
    for name, weight in weights.items():
        if whole in name:
            pieces = weight.chunk(len(parts))
            found |= {name.replace(whole, part): piece for part, piece in zip(parts, pieces, strict=True)}
        else:
            found[name] = weight
    return found


# --- encoders ---------------------------------------------------------------------------------------------------------

BERT_NAMES = [
    ("electra.embeddings_project", "model.embeddings.projection"),
    ("electra.", "model."),
    ("roformer.", "model."),
    ("bert.", "model."),
    ("encoder.layer.", "layers."),
    ("attention.self.", "attention."),
    ("attention.output.dense", "attention.output"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "feed_forward.intermediate"),
    ("output.dense", "feed_forward.output"),
    ("output.LayerNorm", "feed_forward_norm"),
    ("embeddings.LayerNorm", "embeddings.norm"),
    ("cls.predictions.bias", "lm_head.decoder.bias"),
    ("cls.predictions.transform.dense", "lm_head.dense"),
    ("cls.predictions.transform.LayerNorm", "lm_head.norm"),
    ("cls.seq_relationship", "seq_relationship"),
    ("generator_predictions.LayerNorm", "lm_head.norm"),
    ("generator_predictions.dense", "lm_head.dense"),
    ("generator_lm_head.bias", "lm_head.decoder.bias"),
]
"""BERT's and ELECTRA's names and ours."""


def bert(head: str) -> Reference:
    """BERT with a head. Devlin et al. 2019."""
    labels = {"num_labels": 3} if head in ("ForSequenceClassification", "ForTokenClassification") else {}

    def build() -> nn.Module:
        config = transformers.BertConfig(**SHAPE, type_vocab_size=2, pad_token_id=0, **labels)
        return getattr(transformers, f"Bert{head}")(config)

    fields = {"pad_token_id": 0, **labels}
    return Reference(build, f"Finery{head}", fields, partial(renamed, names=BERT_NAMES), segments=True)


def roformer() -> Reference:
    """BERT whose queries and keys turn. Su et al. 2021, section 3.2."""

    def build() -> nn.Module:
        return transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**SHAPE, type_vocab_size=2, pad_token_id=0))

    fields = {"position": "rotary", "pad_token_id": 0}
    return Reference(build, "FineryForMaskedLM", fields, partial(renamed, names=BERT_NAMES), segments=True)


def electra() -> Reference:
    """ELECTRA's generator, whose embeddings are narrower than its layers. Clark et al. 2020, section 3.2."""

    def build() -> nn.Module:
        return transformers.ElectraForMaskedLM(transformers.ElectraConfig(**SHAPE, embedding_size=16))

    return Reference(
        build, "FineryForMaskedLM", {"embedding_size": 16, "pad_token_id": 0}, partial(renamed, names=BERT_NAMES)
    )


MODERN_BERT_NAMES = [
    ("embeddings.tok_embeddings", "embeddings.word_embeddings"),
    ("attn.Wo", "attention.output"),
    ("attn.W", "attention."),
    ("attn_norm", "attention_norm"),
    ("mlp.Wo", "feed_forward.output"),
    ("mlp_norm", "feed_forward_norm"),
    ("mlp.", "feed_forward."),
    ("head.", "lm_head."),
]


def modern_bert() -> Reference:
    """Alternating windows of 2 to each side, gated GELU, no biases. Warner et al. 2024, arxiv.org/abs/2412.13663."""

    def build() -> nn.Module:
        config = transformers.ModernBertConfig(
            **SHAPE,
            local_attention=4,
            pad_token_id=0,
            classifier_bias=True,
            attn_implementation="eager",
            global_attn_every_n_layers=2,
        )
        return transformers.ModernBertForMaskedLM(config)

    def weights(theirs: Weights) -> Weights:
        theirs = dict(theirs)
        decoder_bias = theirs.pop("decoder.bias")
        theirs = split(theirs, "Wqkv", ("Wquery", "Wkey", "Wvalue"))
        theirs = split(theirs, "mlp.Wi", ("mlp.gate", "mlp.intermediate"))
        ours = renamed(theirs, MODERN_BERT_NAMES)
        for name in ours:
            if "attention.query" in name or "attention.key" in name:
                ours[name] = paired_by_neighbours(ours[name], HEAD_DIM)
        return ours | {"lm_head.decoder.bias": decoder_bias}

    fields = {
        "position": "rotary",
        "rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "norm_position": "pre",
        "norm_bias": False,
        "layer_norm_eps": 1e-5,
        "attention_pattern": "sliding_window",
        "sliding_window": 2,
        "global_attn_every_n_layers": 2,
        "attention_bias": False,
        "mlp_bias": False,
        "is_gated_act": True,
        "type_vocab_size": 0,
        "pad_token_id": 0,
    }
    # The reference's first layer reads the embeddings as their own norm left them.
    return Reference(build, "FineryForMaskedLM", fields, weights, left_out="layers.0.attention_norm")


# --- decoders ---------------------------------------------------------------------------------------------------------

GPT_NAMES = [
    ("transformer.wte", "model.embeddings.word_embeddings"),
    ("transformer.wpe", "model.embeddings.position_embeddings"),
    ("transformer.tokens_embed", "model.embeddings.word_embeddings"),
    ("transformer.positions_embed", "model.embeddings.position_embeddings"),
    ("transformer.ln_f", "model.final_norm"),
    ("transformer.h.", "model.layers."),
    ("attn.c_proj", "attention.output"),
    ("attn.", "attention."),
    ("ln_1", "attention_norm"),
    ("mlp.c_fc", "feed_forward.intermediate"),
    ("mlp.c_proj", "feed_forward.output"),
    ("ln_2", "feed_forward_norm"),
    ("score.", "classifier."),
]


def gpt_weights(theirs: Weights) -> Weights:
    """GPT's and GPT-2's matrices are written (in, out), and query, key and value are one."""
    upright = {
        name: weight.T if weight.ndim == 2 and any(part in name for part in ("c_attn", "c_proj", "c_fc")) else weight
        for name, weight in theirs.items()
    }
    return renamed(split(upright, "c_attn", ("query", "key", "value")), GPT_NAMES)


GPT_SHAPE = {
    "vocab_size": VOCAB,
    "n_embd": DIM,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_positions": POSITIONS,
    "attn_implementation": "eager",
}


def gpt2(head: str = "ForCausalLM") -> Reference:
    """Pre-norm decoder. Radford et al. 2019, section 2.3."""
    labels = {"num_labels": 3} if "Classification" in head else {}

    def build() -> nn.Module:
        config = transformers.GPT2Config(**GPT_SHAPE, n_inner=WIDE, pad_token_id=0, **labels)
        return getattr(transformers, "GPT2LMHeadModel" if head == "ForCausalLM" else f"GPT2{head}")(config)

    fields = {
        "family": "decoder",
        "norm_position": "pre",
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 0,
        **labels,
    }
    alone = "classifier.bias" if head == "ForSequenceClassification" else None
    return Reference(build, f"Finery{head}", fields, gpt_weights, alone=alone)


def gpt() -> Reference:
    """Post-norm decoder, four times as wide inside as the model asks for. Radford et al. 2018, section 4.1."""

    def build() -> nn.Module:
        return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**GPT_SHAPE))

    fields = {
        "family": "decoder",
        "intermediate_size": 4 * DIM,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "pad_token_id": None,
    }
    return Reference(build, "FineryForCausalLM", fields, gpt_weights)


LLAMA_NAMES = [
    ("model.embed_tokens", "model.embeddings.word_embeddings"),
    ("model.norm", "model.final_norm"),
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.output"),
    ("self_attn.q_norm", "attention.query_norm"),
    ("self_attn.k_norm", "attention.key_norm"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "feed_forward_norm"),
    ("mlp.gate_proj", "feed_forward.gate"),
    ("mlp.up_proj", "feed_forward.intermediate"),
    ("mlp.down_proj", "feed_forward.output"),
]


def llama_weights(theirs: Weights, head_dim: int) -> Weights:
    """Llama's names; a query or key whose rotation pairs the two halves of a head becomes one that pairs neighbours."""
    ours = renamed(theirs, LLAMA_NAMES)
    for name, weight in ours.items():
        if "attention.query" in name or "attention.key" in name:  # the norms over a head follow its order
            ours[name] = paired_by_neighbours(weight, head_dim)
    return ours


LLAMA_FIELDS = {
    "family": "decoder", "position": "rotary", "norm_type": "rms_norm", "norm_position": "pre", "layer_norm_eps": 1e-6,
    "num_key_value_heads": 2, "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "is_gated_act": True,
    "tie_word_embeddings": False, "pad_token_id": None,
}  # fmt: skip


def llama() -> Reference:
    """Rotary, RMSNorm, gated SiLU, two queries to a key. Touvron et al. 2023, section 2.2; Ainslie et al. 2023."""

    def build() -> nn.Module:
        config = transformers.LlamaConfig(
            **SHAPE, num_key_value_heads=2, rms_norm_eps=1e-6, attn_implementation="eager"
        )
        return transformers.LlamaForCausalLM(config)

    return Reference(build, "FineryForCausalLM", LLAMA_FIELDS, partial(llama_weights, head_dim=HEAD_DIM))


def qwen3() -> Reference:
    """Llama with norms over each head's query and key, and heads wider than the model's width divided."""

    def build() -> nn.Module:
        config = transformers.Qwen3Config(
            **SHAPE, num_key_value_heads=2, head_dim=8, rms_norm_eps=1e-6, attn_implementation="eager"
        )
        return transformers.Qwen3ForCausalLM(config)

    fields = LLAMA_FIELDS | {"head_dim": 8, "qk_norm": True}
    return Reference(build, "FineryForCausalLM", fields, partial(llama_weights, head_dim=8))


def mistral() -> Reference:
    """Llama where a token sees itself and the three before it. Jiang et al. 2023, section 2."""

    def build() -> nn.Module:
        config = transformers.MistralConfig(
            **SHAPE, num_key_value_heads=2, sliding_window=4, rms_norm_eps=1e-6, attn_implementation="eager"
        )
        return transformers.MistralForCausalLM(config)

    fields = LLAMA_FIELDS | {"attention_pattern": "sliding_window", "sliding_window": 4}
    return Reference(build, "FineryForCausalLM", fields, partial(llama_weights, head_dim=HEAD_DIM))


BLOOM_NAMES = [
    ("transformer.word_embeddings_layernorm", "model.embeddings.norm"),
    ("transformer.word_embeddings", "model.embeddings.word_embeddings"),
    ("transformer.ln_f", "model.final_norm"),
    ("transformer.h.", "model.layers."),
    ("input_layernorm", "attention_norm"),
    ("self_attention.dense", "attention.output"),
    ("self_attention.", "attention."),
    ("post_attention_layernorm", "feed_forward_norm"),
    ("mlp.dense_h_to_4h", "feed_forward.intermediate"),
    ("mlp.dense_4h_to_h", "feed_forward.output"),
]


def bloom() -> Reference:
    """ALiBi in a pre-norm decoder. Le Scao et al. 2022; the biases of Press et al. 2022."""

    def build() -> nn.Module:
        config = transformers.BloomConfig(
            vocab_size=VOCAB, hidden_size=DIM, n_layer=LAYERS, n_head=HEADS, attn_implementation="eager"
        )
        return transformers.BloomForCausalLM(config)

    def weights(theirs: Weights) -> Weights:
        """The rows of one head's query, key and value lie together."""
        ours = {}
        for name, weight in renamed(theirs, BLOOM_NAMES).items():
            if "query_key_value" not in name:
                ours[name] = weight
                continue
            by_head = weight.unflatten(0, (HEADS, 3, HEAD_DIM))
            for place, part in enumerate(("query", "key", "value")):
                ours[name.replace("query_key_value", part)] = by_head[:, place].flatten(0, 1)
        return ours

    fields = {
        "family": "decoder",
        "position": "alibi",
        "norm_position": "pre",
        "embedding_norm": True,
        "intermediate_size": 4 * DIM,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 3,
    }
    return Reference(build, "FineryForCausalLM", fields, weights)


# --- encoder-decoders -------------------------------------------------------------------------------------------------

T5_NAMES = [
    ("shared.", "model.encoder.embeddings.word_embeddings."),
    ("encoder.final_layer_norm", "model.encoder.final_norm"),
    ("decoder.final_layer_norm", "model.decoder.final_norm"),
    ("encoder.block.", "model.encoder.layers."),
    ("decoder.block.", "model.decoder.layers."),
    ("layer.0.SelfAttention", "attention"),
    ("layer.1.EncDecAttention", "cross_attention"),
    ("attention.q.", "attention.query."),
    ("attention.k.", "attention.key."),
    ("attention.v.", "attention.value."),
    ("attention.o.", "attention.output."),
    ("layer.0.layer_norm", "attention_norm"),
    ("layer.1.DenseReluDense", "feed_forward"),
    ("layer.2.DenseReluDense", "feed_forward"),
    ("feed_forward.wi_0", "feed_forward.gate"),
    ("feed_forward.wi_1", "feed_forward.intermediate"),
    ("feed_forward.wi", "feed_forward.intermediate"),
    ("feed_forward.wo", "feed_forward.output"),
    ("layer.2.layer_norm", "feed_forward_norm"),
]


def t5(gated: bool) -> Reference:
    """T5 (Raffel et al. 2020, section 2.1) or T5 1.1 (gated GELU after Shazeer 2020, unscaled logits)."""
    kind = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if gated else {}

    def build() -> nn.Module:
        config = transformers.T5Config(
            vocab_size=VOCAB,
            d_model=DIM,
            d_kv=8,
            d_ff=WIDE,
            num_layers=LAYERS,
            num_decoder_layers=2,
            num_heads=HEADS,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=7,
            attn_implementation="eager",
            decoder_start_token_id=0,
            **kind,
        )
        return transformers.T5ForConditionalGeneration(config)

    def weights(theirs: Weights) -> Weights:
        ours = {}
        for name, weight in renamed(theirs, T5_NAMES).items():
            if "relative_attention_bias" in name:
                name = name.replace("layers.0.attention.relative_attention_bias", "relative_bias")
            encoders = "model.encoder." in name
            name = name.replace("layer.1.layer_norm", "feed_forward_norm" if encoders else "cross_attention_norm")
            ours[name] = weight
        return ours

    fields = {
        "family": "encoder-decoder",
        "num_decoder_layers": 2,
        "head_dim": 8,
        "position": "relative",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 7,
        "norm_type": "rms_norm",
        "norm_position": "pre",
        "layer_norm_eps": 1e-6,
        "attention_scoring": "dot_product",
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "hidden_act": "gelu_new" if gated else "relu",
        "is_gated_act": gated,
        "scale_logits": not gated,
    }
    return Reference(build, "FineryForConditionalGeneration", fields, weights)


BART_NAMES = [
    ("model.shared.", "model.encoder.embeddings.word_embeddings."),
    ("embed_positions", "embeddings.position_embeddings"),
    ("layernorm_embedding", "embeddings.norm"),
    ("self_attn_layer_norm", "attention_norm"),
    ("encoder_attn_layer_norm", "cross_attention_norm"),
    ("final_layer_norm", "feed_forward_norm"),
    ("self_attn", "attention"),
    ("encoder_attn", "cross_attention"),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "output"),
    ("fc1", "feed_forward.intermediate"),
    ("fc2", "feed_forward.output"),
]

BART_SHAPE = {
    "vocab_size": VOCAB, "d_model": DIM, "encoder_layers": LAYERS, "decoder_layers": 2,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": WIDE,
    "decoder_ffn_dim": WIDE, "max_position_embeddings": POSITIONS, "attn_implementation": "eager",
    "forced_eos_token_id": None,
}  # fmt: skip


def bart(head: str = "ForConditionalGeneration") -> Reference:
    """Learned positions, a norm on the embeddings. Lewis et al. 2020, section 2.1."""

    def build() -> nn.Module:
        return getattr(transformers, f"Bart{head}")(transformers.BartConfig(**BART_SHAPE, pad_token_id=1))

    def weights(theirs: Weights) -> Weights:
        return {
            name: weight[2:] if "position_embeddings" in name else weight  # its table begins with two unused rows
            for name, weight in renamed(theirs, BART_NAMES).items()
        }

    fields = {
        "family": "encoder-decoder",
        "num_decoder_layers": 2,
        "embedding_norm": True,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    return Reference(build, f"Finery{head}", fields, weights)


def marian() -> Reference:
    """Sinusoidal positions, sines first and cosines after, so the whole residual stream is reordered to ours."""

    def build() -> nn.Module:
        config = transformers.MarianConfig(
            **BART_SHAPE,
            pad_token_id=0,
            eos_token_id=2,
            decoder_start_token_id=3,
            scale_embedding=True,
            activation_function="silu",
        )
        model = transformers.MarianMTModel(config)
        model.model.encoder.embed_positions.weight.requires_grad = False
        model.model.decoder.embed_positions.weight.requires_grad = False
        return model

    order = taking_turns(DIM)
    writes_stream = ("output", "norm")
    reads_stream = ("query", "key", "value", "intermediate", "word_embeddings")

    def weights(theirs: Weights) -> Weights:
        ours = {}
        for name, weight in renamed(theirs, BART_NAMES).items():
            if "position_embeddings" in name:
                continue
            if any(part in name for part in writes_stream):
                weight = weight[order]
            elif weight.ndim == 2 and any(part in name for part in reads_stream):
                weight = weight[:, order]
            ours[name] = weight
        return ours

    fields = {
        "family": "encoder-decoder",
        "num_decoder_layers": 2,
        "position": "sinusoidal",
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 3,
    }
    return Reference(build, "FineryForConditionalGeneration", fields, weights)


class OriginalTransformer(nn.Module):
    """Vaswani et al. 2017 as PyTorch ships it, with the paper's embeddings and output matrix around it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.transformer = nn.Transformer(DIM, HEADS, LAYERS, 2, WIDE, activation="relu", batch_first=True)
        # PyTorch ends each stack in one more norm, which the paper's post-norm layers do not need.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None

    def embed(self, tokens: Tensor) -> Tensor:
        """Sections 3.4 and 3.5: words times √dim, plus waves."""
        waves = torch.empty(tokens.shape[1], DIM)
        for place in range(tokens.shape[1]):
            for pair in range(DIM // 2):
                angle = place / 10000 ** (2 * pair / DIM)
                waves[place, 2 * pair], waves[place, 2 * pair + 1] = math.sin(angle), math.cos(angle)
        return self.words(tokens) * math.sqrt(DIM) + waves

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, decoder_attention_mask: Tensor
    ) -> Seq2SeqLMOutput:
        length = decoder_input_ids.shape[1]
        states = self.transformer(
            self.embed(input_ids),
            self.embed(decoder_input_ids),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=attention_mask == 0,
            memory_key_padding_mask=attention_mask == 0,
            tgt_key_padding_mask=decoder_attention_mask == 0,
        )
        return Seq2SeqLMOutput(logits=states @ self.words.weight.T)


TORCH_NAMES = [
    ("words.", "model.encoder.embeddings.word_embeddings."),
    ("transformer.", "model."),
    ("self_attn", "attention"),
    ("multihead_attn", "cross_attention"),
    ("in_proj_weight", "in_proj.weight"),
    ("in_proj_bias", "in_proj.bias"),
    ("out_proj", "output"),
    ("linear1", "feed_forward.intermediate"),
    ("linear2", "feed_forward.output"),
    ("norm1", "attention_norm"),
]


def original() -> Reference:
    """The original post-norm encoder-decoder: `torch.nn.Transformer`. Vaswani et al. 2017."""

    def weights(theirs: Weights) -> Weights:
        ours = {}
        for name, weight in renamed(split(theirs, "in_proj", ("query", "key", "value")), TORCH_NAMES).items():
            name = name.replace("query_", "query.").replace("key_", "key.").replace("value_", "value.")
            second = "cross_attention_norm" if ".decoder." in name else "feed_forward_norm"
            ours[name.replace("norm2", second).replace("norm3", "feed_forward_norm")] = weight
        return ours

    fields = {
        "family": "encoder-decoder",
        "num_decoder_layers": 2,
        "position": "sinusoidal",
        "hidden_act": "relu",
        "layer_norm_eps": 1e-5,
        "pad_token_id": None,
    }
    return Reference(OriginalTransformer, "FineryForConditionalGeneration", fields, weights)


REFERENCES = {
    "bert-masked-lm": bert("ForMaskedLM"),
    "bert-pretraining": bert("ForPreTraining"),
    "bert-sequence-classification": bert("ForSequenceClassification"),
    "roformer": roformer(),
    "bert-token-classification": bert("ForTokenClassification"),
    "bert-question-answering": bert("ForQuestionAnswering"),
    "bert-multiple-choice": bert("ForMultipleChoice"),
    "electra": electra(),
    "modernbert": modern_bert(),
    "gpt": gpt(),
    "gpt2": gpt2(),
    "gpt2-sequence-classification": gpt2("ForSequenceClassification"),
    "gpt2-token-classification": gpt2("ForTokenClassification"),
    "gpt2-question-answering": gpt2("ForQuestionAnswering"),
    "llama": llama(),
    "qwen3": qwen3(),
    "mistral": mistral(),
    "bloom": bloom(),
    "t5": t5(gated=False),
    "t5-1.1": t5(gated=True),
    "bart": bart(),
    "bart-question-answering": bart("ForQuestionAnswering"),
    "marian": marian(),
    "torch": original(),
}
"""Every reference but BERT's and RoFormer's first heads, which `test_modeling_finery.py` compares."""
