"""GGUF: a decoder as llama.cpp reads it, in one file with its tokenizer, in fp32. Proven with llama-cpp-python.

llama.cpp computes by the name of an architecture. Two are written here: `llama` (RMSNorm before each sublayer, rotary
positions, a gated feed-forward network, no biases) and `gpt2` (LayerNorm before each sublayer, learned positions, GELU
by its tanh approximation, biases). Our own decoders and transformers' Llama and GPT-2 have a form where their config
says the same; llama.cpp turns neighbouring numbers by rotary positions as we do, so that only transformers' Llama needs
its rows in another order. The tokenizer must be byte-level BPE as GPT-2's. llama.cpp looks GELU up in a table in half
precision, so logits differ by more than the order of sums.

Scores that are read off logits are measured again with llama.cpp's: held-out text and the likelihoods of answers. Texts
are not written with it here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pipelines.architectures.configuration_rules import completed
from pipelines.core.architecture_fields import OURS
from pipelines.core.errors import ModelError
from pipelines.data.chat_templates import end_of_turn
from pipelines.publishing.exports.export import ExportedModel, Original, refuse_missing
from pipelines.publishing.verify import SENTENCES

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

FILE = "model.gguf"
OTHERS = "export it to onnx, int8 or int4 instead"
WRITTEN = 16
"""Tokens that are written greedily and compared."""
PLAIN = ("use_cache", "return_dict", "output_attentions", "output_hidden_states")
"""Arguments of a model that change no logits."""
TANH = ("gelu_new", "gelu_tanh", "gelu_pytorch_tanh")
LINES = """\
from llama_cpp import Llama

model = Llama("model.gguf", n_ctx={length})
print(model("The answer is", max_tokens=30, temperature=0)["choices"][0]["text"])"""
NAMES = {
    "llama": {
        "attention.query": "attn_q",
        "attention.key": "attn_k",
        "attention.value": "attn_v",
        "attention.output": "attn_output",
        "attention_norm": "attn_norm",
        "feed_forward.intermediate": "ffn_up",
        "feed_forward.gate": "ffn_gate",
        "feed_forward.output": "ffn_down",
        "feed_forward_norm": "ffn_norm",
    },
    "gpt2": {
        "attention.output": "attn_output",
        "attention_norm": "attn_norm",
        "feed_forward.intermediate": "ffn_up",
        "feed_forward.output": "ffn_down",
        "feed_forward_norm": "ffn_norm",
    },
}
"""By architecture: a part of one of our layers -> its name in GGUF."""
FROM_LLAMA = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_proj": "ffn_gate",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
FROM_GPT2 = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_1": "attn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "ln_2": "ffn_norm",
}


class Gguf:
    """As `Export` promises."""

    name: ClassVar[str] = "gguf"
    packages: ClassVar[tuple[str, ...]] = ("gguf", "llama_cpp")
    extra: ClassVar[str] = "gguf"
    tolerance: ClassVar[float | None] = 1e-3

    @staticmethod
    def misfit(words: Mapping[str, Any], vocabulary: str | None) -> str | None:
        """As `Export` promises."""
        kind = words.get("model_type", OURS)
        if kind not in (OURS, "llama", "gpt2"):
            return f"is for what llama.cpp computes as llama or gpt2, and this is {kind}; write onnx, int8 or int4"
        if kind == OURS:
            name, lacking = nearest_to(completed(dict(words)))
            if lacking:
                return f"needs, for the nearest architecture of llama.cpp ({name}), {', '.join(lacking)}"
        if vocabulary not in (None, "byte_bpe"):
            return f"holds byte-level BPE alone (tokenizer: {{train: byte_bpe}}), and this one is {vocabulary}"
        return None

    @staticmethod
    def write(original: Original, out: Path) -> ExportedModel:
        """Write the file, open it with llama.cpp, and compare tokens, logits and greedy texts."""
        arch = architecture(original)
        vocabulary = byte_level(original.tokenizer)
        refuse_missing(Gguf)  # last: of a model that GGUF cannot hold, no package makes an export
        _write(original, arch, vocabulary, out / FILE)
        length = length_of(original.model.config)
        theirs = opened(out / FILE, length)
        agreement, facts = prove(original, theirs, length)
        lines = LINES.format(length=length)
        facts = {"architecture": arch, **facts}
        model = answering_by(theirs, original.model)
        return ExportedModel(model, lines, facts, ("llama_cpp_python",), agreement=agreement)


def architecture(original: Original) -> str:
    """llama.cpp's name for what the model computes. Raises ModelError where it has none."""
    config, kind = original.model.config, type(original.model).__name__
    if original.head.kind != "causal_lm":
        raise ModelError(f"GGUF holds decoders that continue texts, and {kind} is none; {OTHERS}")
    if config.model_type == "llama":
        plain = not (config.attention_bias or config.mlp_bias) and config.hidden_act == "silu"
        scaled = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") != "default"
        if plain and not scaled:
            return "llama"
    elif config.model_type == "gpt2":
        usual = config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx
        if usual and config.activation_function in TANH:
            return "gpt2"
    elif config.model_type == "finery":
        name, lacking = nearest_to(completed(config.__dict__))
        if not lacking:
            return name
        raise ModelError(
            f"llama.cpp has no architecture that computes as this {kind}: its nearest, {name}, needs "
            f"{', '.join(lacking)}; {OTHERS}"
        )
    raise ModelError(
        f"llama.cpp has no architecture that computes as {kind} with this config does; those that can be written are "
        f"llama's and gpt2's; {OTHERS}"
    )


def nearest_to(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """(the architecture of llama.cpp that is nearest to a decoder of our family, the fields that it needs otherwise).
    `fields` are all of the config's, completed."""
    shared = {
        "norm_position": "pre",
        "attention_scoring": "scaled_dot_product",
        "attention_pattern": "causal",
        "qk_norm": False,
        "scale_logits": False,
        "embedding_norm": False,
        "scale_embedding": False,
        "lm_head_bias": False,
        "type_vocab_size": 0,
    }
    llama = {
        "position": "rotary",
        "norm_type": "rms_norm",
        "is_gated_act": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    gpt2 = {
        "position": "learned",
        "norm_type": "layer_norm",
        "norm_bias": True,
        "is_gated_act": False,
        "hidden_act": TANH,
        "attention_bias": True,
        "mlp_bias": True,
        "num_key_value_heads": fields["num_attention_heads"],
    }
    others = {name: _different(fields, shared | wanted) for name, wanted in (("llama", llama), ("gpt2", gpt2))}
    name = min(others, key=lambda each: len(others[each]))
    return name, others[name]


def _different(fields: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """`norm_position: pre` for each field that has another value."""
    lacking = []
    for field, value in wanted.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if fields[field] not in allowed:
            lacking.append(f"{field}: {str(allowed[0]).lower() if isinstance(allowed[0], bool) else allowed[0]}")
    return lacking


def length_of(config: PreTrainedConfig) -> int:
    """Tokens that the model reads at once."""
    about: Any = config
    length: Any = getattr(about, "max_position_embeddings", None) or getattr(about, "n_positions", 512)
    return int(length)


def byte_level(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The vocabulary and merges of a byte-level BPE. Raises ModelError for any other tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    about = {} if backend is None else json.loads(backend.to_str())
    model, before = about.get("model") or {}, about.get("pre_tokenizer") or {}
    plain = before.get("type") == "ByteLevel" and not before.get("add_prefix_space") and before.get("use_regex", True)
    if model.get("type") != "BPE" or not plain or about.get("normalizer"):
        raise ModelError(
            "GGUF is written with byte-level BPE as GPT-2's alone (tokenizer: {train: byte_bpe}), "
            "and this tokenizer is "
            f"{model.get('type') or 'none of the tokenizers library'}; {OTHERS}"
        )
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    added = {each["id"]: each for each in about["added_tokens"]}
    return {"vocab": model["vocab"], "merges": merges, "added": added}


def _write(original: Original, arch: str, vocabulary: dict[str, Any], path: Path) -> None:
    import gguf

    config: Any = original.model.config
    writer = gguf.GGUFWriter(str(path), arch)
    layers = config.num_hidden_layers
    writer.add_block_count(layers)
    writer.add_context_length(length_of(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if arch == "llama":
        head = config.head_dim or config.hidden_size // config.num_attention_heads
        theta: Any = (getattr(config, "rope_parameters", None) or {}).get("rope_theta") or getattr(
            config, "rope_theta", 1e4
        )
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head)
        writer.add_value_length(head)
        writer.add_rope_dimension_count(head)
        writer.add_rope_freq_base(float(theta))
        writer.add_layer_norm_rms_eps(_epsilon(config))
    else:
        wide = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
        writer.add_feed_forward_length(wide)
        writer.add_layer_norm_eps(_epsilon(config))
    _tokens(writer, original.tokenizer, vocabulary, rows=original.model.get_input_embeddings().weight.shape[0])
    for name, tensor in tensors(original, arch):
        writer.add_tensor(name, tensor.detach().float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _epsilon(config: Any) -> float:
    names = ("layer_norm_eps", "rms_norm_eps", "layer_norm_epsilon")
    values: list[Any] = [getattr(config, name, None) for name in names]
    return float(next(value for value in values if value is not None))


def _tokens(writer: Any, tokenizer: PreTrainedTokenizerBase, vocabulary: dict[str, Any], rows: int) -> None:
    import gguf

    texts = {number: text for text, number in vocabulary["vocab"].items()}
    texts |= {number: each["content"] for number, each in vocabulary["added"].items()}
    tokens, types = [], []
    for number in range(rows):
        added = vocabulary["added"].get(number)
        tokens.append(texts.get(number, f"[unused{number}]"))
        special = gguf.TokenType.CONTROL if added and added["special"] else gguf.TokenType.USER_DEFINED
        types.append(gguf.TokenType.UNUSED if number not in texts else special if added else gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary["merges"])
    ends = {
        "bos": tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id,
        "eos": tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id,
        "eot": end_of_turn(tokenizer),
        "unk": tokenizer.unk_token_id,
        "pad": tokenizer.pad_token_id,
    }
    for name, number in ends.items():
        if number is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def tensors(original: Original, arch: str) -> Iterator[tuple[str, Tensor]]:
    """(name in GGUF, weight), all of them."""
    import torch

    config: Any = original.model.config
    state = original.model.state_dict()
    tied = original.model.get_output_embeddings().weight is original.model.get_input_embeddings().weight
    if not tied:
        yield "output.weight", state["lm_head.weight"]
    if config.model_type == "finery":
        yield "token_embd.weight", state["model.embeddings.word_embeddings.weight"]
        if arch == "gpt2":
            yield "position_embd.weight", state["model.embeddings.position_embeddings.weight"]
        yield from _parts(state, "model.final_norm", "output_norm")
        for layer in range(config.num_hidden_layers):
            before = f"model.layers.{layer}"
            for ours, name in NAMES[arch].items():
                yield from _parts(state, f"{before}.{ours}", f"blk.{layer}.{name}")
            if arch == "gpt2":
                for end in ("weight", "bias"):
                    parts = [state[f"{before}.attention.{part}.{end}"] for part in ("query", "key", "value")]
                    yield f"blk.{layer}.attn_qkv.{end}", torch.cat(parts)
        return
    if config.model_type == "llama":
        yield "token_embd.weight", state["model.embed_tokens.weight"]
        yield from _parts(state, "model.norm", "output_norm")
        for layer in range(config.num_hidden_layers):
            for theirs, name in FROM_LLAMA.items():
                for key, tensor in _parts(state, f"model.layers.{layer}.{theirs}", f"blk.{layer}.{name}"):
                    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name)
                    yield key, tensor if heads is None else neighbours(tensor, heads)
        return
    yield "token_embd.weight", state["transformer.wte.weight"]
    yield "position_embd.weight", state["transformer.wpe.weight"]
    yield from _parts(state, "transformer.ln_f", "output_norm")
    for layer in range(config.num_hidden_layers):
        for theirs, name in FROM_GPT2.items():
            for key, tensor in _parts(state, f"transformer.h.{layer}.{theirs}", f"blk.{layer}.{name}"):
                yield key, tensor.T if tensor.dim() == 2 else tensor  # a Conv1D holds (inputs, outputs)


def _parts(state: dict[str, Tensor], ours: str, name: str) -> Iterator[tuple[str, Tensor]]:
    for end in ("weight", "bias"):
        if f"{ours}.{end}" in state:
            yield f"{name}.{end}", state[f"{ours}.{end}"]


def neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in the order in which neighbours turn, from that in which halves do."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def continued(theirs: Any, logits: Any, end: int | list[int] | None) -> list[int]:
    """The tokens that llama.cpp writes greedily behind what it has read, whose last logits are given."""
    import numpy as np

    ends = end if isinstance(end, list) else [end]
    tokens: list[int] = []
    while len(tokens) < WRITTEN and (not tokens or tokens[-1] not in ends):
        tokens.append(int(np.argmax(logits)))
        if len(tokens) < WRITTEN:
            theirs.eval(tokens[-1:])
            logits = theirs.scores[theirs.n_tokens - 1]
    return tokens


def opened(path: Path, length: int) -> Any:
    """The file as llama-cpp-python's `Llama`, with keys and values in fp32. Raises ModelError."""
    from llama_cpp import Llama

    try:
        return Llama(
            str(path), n_ctx=length, n_batch=length, logits_all=True, verbose=False, type_k=0, type_v=0, n_gpu_layers=0
        )
    except (ValueError, RuntimeError, AssertionError) as error:
        raise ModelError(f"llama.cpp cannot open what was written: {str(error)[:300]}") from error


def answering_by(theirs: Any, original: PreTrainedModel) -> PreTrainedModel:
    """A model of the original's class whose logits llama.cpp computes, a row at a time. It keeps nothing between calls
    and writes no texts."""
    import numpy as np
    import torch
    from transformers.modeling_outputs import CausalLMOutput

    def forward(self: Any, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any) -> CausalLMOutput:
        if given := [name for name, value in others.items() if value is not None and name not in PLAIN]:
            raise ModelError(f"llama.cpp is asked with tokens alone here, and this evaluation gives {given[0]} too")
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits = np.zeros((*input_ids.shape, theirs.n_vocab()), dtype=np.float32)
        for row, places in enumerate(real.bool().cpu().numpy()):
            ids = input_ids[row].cpu().numpy()[places].tolist()
            theirs.reset()
            theirs.eval(ids)
            logits[row, places] = theirs.scores[: len(ids)]
        return CausalLMOutput(logits=torch.from_numpy(logits).to(input_ids.device))

    def refuse(self: Any, *given: Any, **words: Any) -> NoReturn:
        raise ModelError("this evaluation writes texts, and llama.cpp is asked for logits alone here")

    model = copy.copy(original)
    for learnt in ("finery_output_is_last", "finery_narrowing_is_exact"):  # of the original's own output layer
        vars(model).pop(learnt, None)
    model.forward, model.generate = MethodType(forward, model), MethodType(refuse, model)
    return model


def prove(original: Original, theirs: Any, length: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(how far llama.cpp's logits are, what else was compared). Raises ModelError where it answers otherwise."""
    import numpy as np
    import torch

    difference, scale, rows, best, texts = 0.0, 1.0, 0, 0, 0
    for sentence in SENTENCES:
        ids = original.tokenizer(sentence, add_special_tokens=False).input_ids[: length - WRITTEN]
        read = theirs.tokenize(sentence.encode(), add_bos=False, special=False)[: length - WRITTEN]
        if read != ids:
            raise ModelError(
                f"llama.cpp reads other tokens than the tokenizer in '{sentence}': {read} instead of {ids}"
            )
        inputs = torch.tensor([ids])
        with torch.no_grad():
            ours = original.model(inputs).logits[0].float().numpy()
        theirs.reset()
        theirs.eval(ids)
        logits = np.array(theirs.scores[: len(ids)])
        difference, scale = max(difference, float(np.abs(ours - logits).max())), max(scale, float(np.abs(ours).max()))
        rows, best = rows + len(ids), best + int((ours.argmax(-1) == logits.argmax(-1)).sum())
        with torch.no_grad():
            written = original.model.generate(
                inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=WRITTEN, do_sample=False
            )
        texts += (
            continued(theirs, logits[-1], original.model.generation_config.eos_token_id)
            == written[0, len(ids) :].tolist()
        )
    allowed = (Gguf.tolerance or 0.0) * scale
    if not difference <= allowed:
        raise ModelError(
            f"the gguf export answers otherwise: a logit differs by {difference:.3g}, allowed are {allowed:.3g}"
        )
    agreement = {
        "texts": len(SENTENCES),
        "rows": rows,
        "largest_difference": difference,
        "largest_logit": scale,
        "same_best": best / rows,
    }
    return agreement, {"greedy texts that are the same": f"{texts} of {len(SENTENCES)}", "weights": "fp32"}
