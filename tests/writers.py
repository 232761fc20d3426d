"""Saved checkpoints small enough for a test: an encoder, a decoder and an encoder-decoder of transformers, random weights."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests import tiny

_PLACE = TemporaryDirectory(prefix="finery-writers-")  # gone when the process ends
TEXT = "the cat saw a good book"


@cache
def tokenizer() -> Any:
    """The WordPiece tokenizer of the other tests, its ends known as ends of a text."""
    found = tiny.tokenizer()
    found.bos_token, found.eos_token = found.cls_token, found.sep_token
    return found


def model(kind: str, seed: int = 0, **overrides: Any) -> Any:
    """`bert`, `gpt2`, `t5` or a head of theirs, with weights large enough for attention to differ."""
    import torch
    import transformers as hf

    words = tokenizer()
    ends = {"pad_token_id": words.pad_token_id, "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    torch.manual_seed(seed)
    made: Any
    if kind == "bert":
        shape = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "max_position_embeddings": 40,
        }
        made = hf.BertForMaskedLM(hf.BertConfig(vocab_size=len(words), **shape | overrides))
    elif kind == "bert-classifier":
        shape = {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "max_position_embeddings": 40,
        }
        made = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=len(words), **shape | overrides))
    elif kind == "gpt2":
        shape = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 40}
        made = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(words), **ends, **shape | overrides))
    elif kind == "t5":
        shape = {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 16,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": words.pad_token_id,
        }
        made = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=len(words), **ends, **shape | overrides))
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim == 2:
                weight.mul_(10)
    return made.eval()


def saying(word: str) -> Any:
    """A decoder that writes one word again and again: its last norm gives that word's own vector, whatever it read."""
    import torch

    made = model("gpt2")
    with torch.no_grad():
        made.transformer.ln_f.weight.zero_()
        made.transformer.ln_f.bias.copy_(made.lm_head.weight[tokenizer().convert_tokens_to_ids(word)])
    return made


@cache
def folder(kind: str) -> Path:
    """The checkpoint, saved once a process; `saying good` is the decoder that says so."""
    made = saying(kind.removeprefix("saying ")) if kind.startswith("saying ") else model(kind)
    return saved(made, Path(_PLACE.name) / kind.replace(" ", "-"))


def saved(made: Any, place: Path) -> Path:
    """Weights and tokenizer in one folder."""
    made.save_pretrained(place)
    tokenizer().save_pretrained(place)
    return place


def finery(head: str, **words: object) -> Any:
    """A model of our own family with its language-modelling head: `masked_lm`, `causal_lm` or `seq2seq_lm`."""
    from pipelines.core.interfaces import Head
    from pipelines.models import opening

    family = {"masked_lm": "encoder", "causal_lm": "decoder", "seq2seq_lm": "encoder-decoder"}[head]
    shape = {
        "model_type": "finery",
        "family": family,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 40,
        **words,
    }
    made = opening.build(shape, Head(head), tokenizer(), seed=0)  # type: ignore[arg-type]
    tiny.disturb(made, by=0.5)
    return made.eval()
