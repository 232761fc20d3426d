"""Attention by sequences: what a packed batch says and learns is what each sequence says and learns alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.attention import varlen as torchs
from transformers import DataCollatorWithFlattening
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.model_types import ATTENTION_DROPOUT, TAKE_MASKS, takes_sequences
from pipelines.data.completions import Completions
from pipelines.models import opening, varlen
from pipelines.objectives.attention_masks import SeparateDocuments
from pipelines.objectives.causal_lm import CausalLM
from pipelines.objectives.losses import token_loss
from pipelines.objectives.masked_lm import MaskedLM
from pipelines.tasks.causal.training import Packed, pack_completions
from pipelines.trainers.halving import parts_of
from tests import tiny

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
}
FOREIGN: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48},
    "gpt_neox": SIZES,
    "llama": SIZES | {"num_key_value_heads": 2},
    "qwen2": SIZES | {"num_key_value_heads": 1},
    "qwen3": SIZES | {"num_key_value_heads": 2, "head_dim": 16},
}
WINDOW = {"attention_pattern": "sliding_window", "sliding_window": 3, "global_attn_every_n_layers": 2}
OURS: dict[str, dict[str, Any]] = {
    "learned": {"position": "learned"},
    "sinusoidal": {"position": "sinusoidal"},
    "rotary": {"position": "rotary"},
    "no positions": {"position": "none"},
    "grouped queries": {"position": "rotary", "num_key_value_heads": 2},
    "one key for all": {"position": "learned", "num_key_value_heads": 1},
    "windows": {"position": "rotary", "num_key_value_heads": 2, **WINDOW},
    "unscaled": {"position": "learned", "attention_scoring": "dot_product"},
    "bilinear": {"position": "rotary", "attention_scoring": "general"},
    "cosine, normalised": {"position": "rotary", "attention_scoring": "cosine", "qk_norm": True},
}
END = tiny.tokenizer().sep_token_id


CLOSE = {"rtol": 1e-6, "atol": 1e-8}
IN_FLOAT32 = {"rtol": 1e-2, "atol": 1e-5}
"""For models of transformers that compute rotations, norms and softmax in float32 whatever they are in."""


class Case(NamedTuple):
    """A model and the objective that it learns by."""

    words: dict[str, Any]
    causal: bool

    @property
    def objective(self) -> Any:
        return CausalLM() if self.causal else MaskedLM(probability=0.3)

    def model(self, dtype: torch.dtype = torch.float64) -> Any:
        silent = {ATTENTION_DROPOUT[self.words["model_type"]][0]: 0.0}
        model = opening.build(silent | self.words, self.objective.head, tiny.tokenizer(), seed=0)
        tiny.disturb(model)
        return model.to(dtype).eval()

    @property
    def close(self) -> dict[str, float]:
        return CLOSE if self.words["model_type"] in ("bert", "finery", "gpt2") else IN_FLOAT32

    def batch(self, masks: bool, rows: tuple[tuple[int, ...], ...] = ((7, 3, 9), (1, 12, 6))) -> dict[str, Any]:
        collate = self.objective.collate(tiny.tokenizer(), 0)
        return SeparateDocuments(collate, END, self.causal, masks=masks)(blocks(rows))


CASES = {
    **{f"{family}, {name}": Case({"model_type": "finery", **SIZES, "family": family, **words}, family == "decoder")
       for family in ("encoder", "decoder") for name, words in OURS.items()},
    **{name: Case({"model_type": name, **words}, name != "bert") for name, words in FOREIGN.items()},
    "bert, looking back": Case({"model_type": "bert", **SIZES, "is_decoder": True}, True),
    "qwen2, a window": Case({"model_type": "qwen2", **FOREIGN["qwen2"], "use_sliding_window": True, "sliding_window": 3,
                             "max_window_layers": 1}, True),
}  # fmt: skip


def blocks(rows: tuple[tuple[int, ...], ...]) -> list[dict[str, Any]]:
    """Documents of these lengths and their ends, but for the last of a row, which the block's end cuts off."""
    generator = np.random.default_rng(0)
    found = []
    for number, lengths in enumerate(rows):
        tokens = [each for length in lengths for each in (*generator.integers(5, 60, length).tolist(), END)]
        found.append({"input_ids": tokens[:-1], "draw": number})
    return found


def learnt(model: Any, *batches: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of batches together, and its gradients."""
    model.zero_grad()
    losses = [token_loss(model, dict(batch))[0] for batch in batches]
    torch.stack(losses).sum().backward()
    gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.stack(losses).sum().detach(), torch.cat(gradients)


def alone(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Each sequence of a batch without masks as a batch of its own, without positions or a mask."""
    bounds = varlen.sequences_of(batch["position_ids"])["cu_seq_lens_q"].tolist()
    flat = {name: batch[name].flatten() for name in ("input_ids", "labels")}
    cut = [slice(*each) for each in pairwise(bounds)]
    return [each for each in ({name: value[None, part] for name, value in flat.items()} for part in cut)
            if (each["labels"] != IGNORED).any()]  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Windows that sequences were computed with, one a layer and pass."""
    found: list[tuple[int, int]] = []
    plain = varlen.one_by_one

    def noted(*args: Any, window_size: tuple[int, int], **kwargs: Any) -> torch.Tensor:
        found.append(window_size)
        return plain(*args, window_size=window_size, **kwargs)

    monkeypatch.setattr(varlen, "one_by_one", noted)
    return found


HALF = {f"{('encoder', 'decoder')[at % 2]}, {name}" for at, name in enumerate(OURS)} | {"encoder, windows"}
"""Each design of ours in one family, windows in both."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in HALF or case.words["model_type"] != "finery" else pytest.mark.long)
        for name, case in CASES.items()
    ],
)
def test_packed_sequences_teach_what_each_teaches_alone(name: str, asked: list[tuple[int, int]]) -> None:
    case = CASES[name]
    model = case.model()
    expected = learnt(model, *alone(case.batch(masks=False)))
    batch = case.batch(masks=True)
    masked = learnt(model, batch | {"attention_mask": batch["attention_mask"].double()})
    assert asked == []
    varlen.adopt(model)
    found = learnt(model, case.batch(masks=False))
    assert len(asked) >= 2  # every layer, and once more where the head is tried
    window = 3 if "window" in name else None
    beside = -1 if window is None else window - 1 if case.causal else window
    assert set(asked) <= {(-1, 0 if case.causal else -1), (beside, 0 if case.causal else beside)}
    assert window is None or len(set(asked)) == 2
    torch.testing.assert_close(found, expected, **case.close)
    if name != "qwen2, a window":  # transformers hands a ready mask to windowed layers as it comes
        torch.testing.assert_close(found, masked, **case.close)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "decoder, windows", "encoder, rotary"])
def test_single_precision_differs_by_rounding_alone(name: str) -> None:
    case = CASES[name]
    model = case.model(torch.float32)
    expected = learnt(model, case.batch(masks=True))
    varlen.adopt(model)
    torch.testing.assert_close(learnt(model, case.batch(masks=False)), expected, rtol=1e-4, atol=1e-5)


def test_padding_is_a_sequence_of_its_own() -> None:
    case = CASES["encoder, learned"]
    model, uneven = case.model(), ((7, 3, 9), (4, 2))
    expected = learnt(model, case.batch(True, uneven))
    varlen.adopt(model)
    batch = case.batch(False, uneven)
    assert batch["position_ids"][1].tolist() == [0, 1, 2, 3, 4, 0, 1, *range(14)]
    torch.testing.assert_close(learnt(model, batch), expected, **case.close)


def test_packed_dialogues_teach_the_same_with_and_without_masks() -> None:
    generator = np.random.default_rng(0)
    lengths = np.array([9, 4, 7, 12, 5, 3])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = generator.integers(5, 60, starts[-1])
    completions = completions_of(ids, starts)
    packs = pack_completions(completions, 16)
    parts = [packs[at] for at in range(len(packs))]
    case = CASES["llama"]
    model = case.model()
    expected = learnt(model, Packed(0)(parts))
    varlen.adopt(model)
    batch = Packed(0, masks=False)(parts)
    assert "attention_mask" not in batch
    torch.testing.assert_close(learnt(model, batch), expected, **case.close)


def completions_of(ids: np.ndarray, starts: np.ndarray) -> Any:
    """Dialogues of which the first two tokens are the prompt."""

    class Rows:
        lengths = np.diff(starts)

        def __len__(self) -> int:
            return len(self.lengths)

        def __getitem__(self, at: int) -> dict[str, Any]:
            tokens = ids[starts[at] : starts[at + 1]]
            return {"input_ids": tokens, "labels": np.where(np.arange(len(tokens)) < 2, IGNORED, tokens)}

    rows: Completions = Rows()  # type: ignore[assignment]
    return rows


def test_parts_of_a_halved_batch_add_up_to_it() -> None:
    case = CASES["gpt2"]
    model = case.model()
    varlen.adopt(model)
    batch = case.batch(masks=False)
    torch.testing.assert_close(learnt(model, *parts_of(batch, 2)), learnt(model, batch), **case.close)


@pytest.mark.parametrize("name", ["gpt2", "bert", "decoder, windows"])
def test_recomputed_activations_teach_the_same(name: str, asked: list[tuple[int, int]]) -> None:
    words = CASES[name].words
    silent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0} if name == "gpt2" else {"hidden_dropout_prob": 0.0}
    case = Case(words | silent, CASES[name].causal)
    model = case.model().train()
    varlen.adopt(model)
    batch = case.batch(masks=False)
    learnt(model, batch)  # the first call tries whether the head allows it
    asked.clear()
    expected = learnt(model, batch)
    assert len(asked) == 2
    model.activation_checkpointing_enable()
    torch.testing.assert_close(learnt(model, batch), expected, **case.close)
    assert len(asked) == 6


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_batches_without_padding_of_transformers_are_served(name: str, asked: list[tuple[int, int]]) -> None:
    case = CASES[name]
    model = case.model()
    rows = [
        {"input_ids": each["input_ids"][:length]} for each, length in zip(blocks(((20,), (20,))), (11, 5), strict=True)
    ]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=False)(rows)
    batch.pop("labels")
    with torch.no_grad():
        expected = torch.cat([model(input_ids=torch.tensor([row["input_ids"]])).logits[0] for row in rows])
        varlen.adopt(model)
        found = model(**batch).logits[0]
    assert len(asked) == 2
    torch.testing.assert_close(found, expected, **case.close)


@pytest.mark.parametrize("name", ["gpt2", "llama", "decoder, windows", "encoder, windows", "bert"])
def test_padded_batches_and_generation_are_what_they_were(name: str, asked: list[tuple[int, int]]) -> None:
    case = CASES[name]
    model, batch = case.model(), tiny.batch()
    if case.causal:
        model.generation_config.eos_token_id = None
    inputs = [batch, {"input_ids": batch["input_ids"]}]
    said = []
    for adopted in (False, True):
        if adopted:
            varlen.adopt(model)
        with torch.no_grad():
            logits = [model(**each).logits[:, :7] for each in inputs]  # what padding says nobody reads
            written = (
                model.generate(batch["input_ids"], max_new_tokens=6, do_sample=False) if case.causal else logits[0]
            )
        said.append((*logits, written))
    assert asked == []
    torch.testing.assert_close(said[1], said[0], **case.close)


def test_dropped_out_weights_are_computed_without_the_kernel() -> None:
    model = CASES["gpt2"].model()
    module = model.transformer.h[0].attn
    states = [torch.randn(1, 4, 6, 8, dtype=torch.float64) for _ in range(3)]
    named = varlen.sequences_of(torch.tensor([[0, 1, 2, 0, 1, 2]]))
    torch.manual_seed(0)
    dropped, _ = varlen.varlen_attention(module, *states, None, dropout=0.5, **named)
    kept, _ = varlen.varlen_attention(module, *states, None, **named)
    assert not torch.equal(dropped, kept)
    assert not varlen.on_kernel(states[0], 0.5)


# The kernel itself runs on a GPU alone: here its place is taken by what it promises.


class Asked(NamedTuple):
    """A call of the kernel."""

    shapes: list[tuple[int, ...]]
    dtypes: set[torch.dtype]
    bounds: list[int]
    longest: tuple[int, int]
    words: dict[str, Any]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Calls of `varlen_attn`, which a function of its signature answers."""
    calls: list[Asked] = []
    registered = torchs.varlen_attn

    def varlen_attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        assert all(each.stride(-1) == 1 and each.ndim == 3 for each in (query, key, value))
        assert cu_seq_k is cu_seq_q
        assert cu_seq_q.dtype == torch.int32
        assert cu_seq_q.is_contiguous()
        assert type(max_q) is int
        assert enable_gqa or query.shape == key.shape
        words = {"scale": scale, "window_size": window_size, "enable_gqa": enable_gqa}
        shapes = [tuple(each.shape) for each in (query, key, value)]
        dtypes = {each.dtype for each in (query, key, value)}
        calls.append(Asked(shapes, dtypes, cu_seq_q.tolist(), (max_q, max_k), words))
        # the op's own registration: shapes and types of the result, without a kernel
        meta = [each.detach().to("meta") for each in (query, key, value)]
        bounds = cu_seq_q.to("meta")
        promised = registered(*meta, bounds, bounds, max_q, max_k, **words)
        result = varlen.one_by_one(query, key, value, cu_seq_q, cu_seq_q, max_q, max_k, **words)
        assert (promised.shape, promised.dtype) == (result.shape, result.dtype)
        return result

    monkeypatch.setattr(torchs, "varlen_attn", varlen_attn)
    monkeypatch.setattr(varlen, "on_kernel", lambda query, dropout: query.dtype in varlen.HALF and dropout == 0)
    return calls


@pytest.mark.parametrize(
    ("name", "heads", "keys", "size", "windows"),
    [
        ("gpt2", 4, 4, 8, [(-1, 0), (-1, 0)]),
        ("bert", 4, 4, 8, [(-1, -1), (-1, -1)]),
        ("llama", 4, 2, 8, [(-1, 0), (-1, 0)]),
        ("qwen3", 4, 2, 16, [(-1, 0), (-1, 0)]),
        ("encoder, rotary", 4, 4, 8, [(-1, -1), (-1, -1)]),
        ("encoder, windows", 4, 2, 8, [(-1, -1), (3, 3)]),
        ("decoder, windows", 4, 2, 8, [(-1, 0), (2, 0)]),
        ("decoder, cosine, normalised", 4, 4, 8, [(-1, 0), (-1, 0)]),
    ],
)
def test_the_kernel_is_asked_as_it_promises(
    name: str, heads: int, keys: int, size: int, windows: list[tuple[int, int]], kernel: list[Asked]
) -> None:
    case = CASES[name]
    model = case.model(torch.float32)
    masked, batch = case.batch(masks=True), case.batch(masks=False)
    with torch.autocast("cpu", torch.bfloat16):
        expected = learnt(model, masked)
        varlen.adopt(model)
        kernel.clear()
        loss, gradients = learnt(model, batch)
    tokens = batch["input_ids"].numel()
    assert [each.words["window_size"] for each in kernel[-2:]] == windows
    for each in kernel[-2:]:
        assert each.shapes == [(tokens, heads, size), (tokens, keys, size), (tokens, keys, size)]
        assert each.dtypes == {torch.bfloat16}
        assert each.bounds == [0, 8, 12, 21, 23, 36, 42]
        assert each.longest == (13, 13)
        assert each.words["enable_gqa"] == (keys != heads)
        assert each.words["scale"] == (1.0 if "cosine" in name else size**-0.5)
    torch.testing.assert_close(loss, expected[0], rtol=2e-2, atol=1e-2)
    assert torch.nn.functional.cosine_similarity(gradients, expected[1], dim=0) > 0.995


def test_gradients_of_the_kernel_have_the_shapes_of_its_inputs() -> None:
    query = torch.empty(12, 4, 8, dtype=torch.bfloat16, device="meta", requires_grad=True)
    key, value = (torch.empty(12, 2, 8, dtype=torch.bfloat16, device="meta", requires_grad=True) for _ in range(2))
    bounds = torch.empty(3, dtype=torch.int32, device="meta")
    said = torchs.varlen_attn(query, key, value, bounds, bounds, 7, 7, window_size=(-1, 0), enable_gqa=True)
    said.sum().backward()
    assert [each.grad.shape for each in (query, key, value)] == [query.shape, key.shape, value.shape]


# Where it serves, and what it says where it does not.


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"position": "alibi"}, "no place for what position alibi adds"),
        ({"position": "relative"}, "no place for what position relative adds"),
        ({"attention_scoring": "additive"}, "attention_scoring is additive"),
        ({"attention_pattern": "linear"}, "attention_pattern is linear"),
        ({"family": "encoder-decoder"}, "family is encoder-decoder"),
        ({"attention_probs_dropout_prob": 0.1}, "drops no attention weights, but attention_probs_dropout_prob is 0.1"),
        ({}, "drops no attention weights, but attention_probs_dropout_prob is 0.1"),
        ({"model_type": "gpt2"}, "drops no attention weights, but attn_pdrop is 0.1"),
        ({"model_type": "llama", "attention_dropout": 0.2}, "drops no attention weights, but attention_dropout is 0.2"),
        ({"model_type": "mamba"}, "is not known to serve mamba"),
    ],
)
def test_what_it_does_not_serve_is_said(words: dict[str, Any], sentence: str) -> None:
    assert sentence in str(takes_sequences(words))


def test_every_model_that_takes_masks_has_a_chance_to_drop_weights() -> None:
    assert set(ATTENTION_DROPOUT) == set(TAKE_MASKS)
    for model_type, (key, usual) in ATTENTION_DROPOUT.items():
        model = tiny_config(model_type)
        assert getattr(model, key) == usual
        assert takes_sequences({"model_type": model_type, key: 0.0}) is None


def tiny_config(model_type: str) -> Any:
    from transformers import AutoConfig

    from pipelines.architectures import FineryConfig

    return FineryConfig() if model_type == "finery" else AutoConfig.for_model(model_type)


@pytest.mark.parametrize("words", [{"position": "alibi"}, {"position": "relative"}, {"attention_scoring": "additive"}])
def test_our_models_refuse_it_by_name_where_it_cannot_compute_them(words: dict[str, Any]) -> None:
    model = Case({"model_type": "finery", **SIZES, **words}, False).model()
    varlen.register()
    with pytest.raises(ValueError, match="attn_implementation 'finery_varlen'"):
        model.set_attn_implementation(varlen.NAME)
    with pytest.raises(ValueError, match=r"finery_varlen (has no place|computes products)"):
        varlen.adopt(model)


class Attention(torch.nn.Module):
    is_causal = True


@pytest.mark.parametrize(
    ("keys", "mask", "words", "sentence"),
    [
        (6, torch.ones(1, 1, 6, 6, dtype=torch.bool), {}, "no place for a mask beside the sequences"),
        (9, None, {}, "has 9 keys: sequences go with no cache and no prefix"),
        (6, None, {"softcap": 30.0}, "has no softcap, which Attention asks for"),
        (6, None, {"s_aux": torch.zeros(2)}, "has no s_aux"),
        (6, None, {"position_bias": torch.zeros(1)}, "has no position_bias"),
        (6, None, {"cu_seq_lens_k": None}, "needs cu_seq_lens_k, max_length_q and max_length_k"),
        (6, torch.ones(1, 1, 1, 1, dtype=torch.bool), {"cu_seq_lens_q": None}, "was not told where sequences begin"),
    ],
)
def test_what_does_not_go_with_sequences_is_refused(
    keys: int, mask: torch.Tensor | None, words: dict[str, Any], sentence: str
) -> None:
    query, key = torch.randn(1, 2, 6, 8), torch.randn(1, 2, keys, 8)
    named = varlen.sequences_of(torch.tensor([[0, 1, 2, 0, 1, 2]])) | words
    with pytest.raises(ValueError, match=sentence):
        varlen.varlen_attention(Attention(), query, key, key, mask, **named)


def test_a_prefix_goes_with_no_sequences() -> None:
    model = CASES["decoder, rotary"].model()
    varlen.adopt(model)
    batch = CASES["decoder, rotary"].batch(masks=False)
    batch.pop("labels")
    with pytest.raises(ValueError, match="prefix_length needs a mask"):
        model(**batch, prefix_length=torch.tensor([2, 2]))


def on_a_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def test_it_is_chosen_on_a_gpu_in_half_precision_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CASES["llama"].model().config
    assert "torch finds no GPU, and these have 512" in str(varlen.unavailable(config, "bf16", 512))
    assert varlen.unavailable(config, "no", varlen.WITHOUT_KERNEL) is None
    on_a_gpu(monkeypatch)
    assert varlen.unavailable(config, "bf16", 512) is None
    assert varlen.unavailable(config, "fp16", 512) is None
    assert "launch.mixed_precision is no" in str(varlen.unavailable(config, "no", 512))
    config.attention_dropout = 0.1
    assert "drops no attention weights" in str(varlen.unavailable(config, "bf16", 512))
    odd = Case({"model_type": "finery", **SIZES, "head_dim": 12}, False).model().config
    assert "in whole 8s, but those of the model have 12" in str(varlen.unavailable(odd, "bf16", 512))
    on_a_gpu(monkeypatch, (7, 5))
    config.attention_dropout = 0.0
    assert "compute capability 8.0" in str(varlen.unavailable(config, "bf16", 512))


def test_a_saved_model_does_not_name_it(tmp_path: Path) -> None:
    model = CASES["decoder, rotary"].model(torch.float32)
    batch = CASES["decoder, rotary"].batch(masks=True)
    expected = learnt(model, batch)
    varlen.adopt(model)
    model.save_pretrained(tmp_path)
    assert "varlen" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    again = opening.open_folder(tmp_path, Head("causal_lm"), seed=0).eval()
    assert again.config._attn_implementation in ALL_ATTENTION_FUNCTIONS or again.config._attn_implementation == "eager"
    assert not varlen.names_sequences(again.config)
    torch.testing.assert_close(learnt(again, batch), expected, rtol=1e-5, atol=1e-6)
