"""What is learnt of answers: the loss of their tokens alone, and packed blocks in which no dialogue sees another."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from pipelines.core.errors import DataError, IncompatibleError, RecipeError
from pipelines.core.interfaces import IGNORED, Head
from pipelines.core.load import loads
from pipelines.data.chat_formats import Dialogue
from pipelines.data.chat_templates import TEMPLATES
from pipelines.data.completions import CompletionCollator, Completions, encode_completions, stops_of
from pipelines.models import varlen
from pipelines.objectives.losses import token_loss
from pipelines.tasks.causal.task import unfit
from pipelines.tasks.causal.training import (
    CausalTraining,
    Packed,
    named_next,
    numbered,
    pack_completions,
)
from tests import tiny

ROWS = [
    {"instruction": f"the {one}", "input": "" if at % 2 else "a film", "output": f"is {other}"}
    for at, (one, other) in enumerate(zip(tiny.WORDS[:12], tiny.WORDS[6:18], strict=True))
]
DECODER = "{preset: gpt-tiny, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: 96}"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    (tmp_path / "broken.jinja").write_text("{% for m in messages %}{{ m.content }")
    return tmp_path


def loaded(folder, keys="", architecture=DECODER, task="{kind: causal, train: rows.jsonl}"):
    text = f"name: x\nmodel: {{architecture: {architecture}}}\nlaunch: {{num_processes: 1}}\nstages:\n  - {{stage: supervised, task: {task}, max_length: 64{keys}}}\n"
    return loads(text, folder=folder)


def refused(folder, *arguments, **keywords):
    with pytest.raises(RecipeError) as caught:
        loaded(folder, *arguments, **keywords)
    return str(caught.value)


def prepared(folder, context, keys="", model=None, tokenizer=None, wrapped=None):
    recipe = loaded(folder, keys)
    stage = recipe.stages[0] if wrapped is None else wrapped(recipe.stages[0])
    model = model or tiny.build("finery", Head("causal_lm"), family="decoder", max_position_embeddings=96)
    tokenizer = tokenizer or copy.deepcopy(tiny.tokenizer())
    given = context("supervised", stage_id=stage.id, recipe=recipe)
    return (
        CausalTraining().prepare(stage, stage.resolved(stage.id), given, model, tokenizer, 96),
        model,
        tokenizer,
        given,
    )


def test_the_loss_is_that_of_transformers_on_the_answers(folder, context):
    lesson, model, _, _ = prepared(folder, context)
    model.eval()
    batch = lesson.collate([lesson.examples[at] for at in range(4)])
    loss, _ = lesson.loss(model, batch)
    whole = torch.full_like(batch["labels"], -100)
    whole[:, 1:] = batch["labels"][:, :-1]  # transformers shifts by itself
    count = (batch["labels"] != -100).sum()
    other = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=whole).loss * count
    assert loss.item() == pytest.approx(other.item(), rel=1e-5)


def test_the_share_of_tokens_that_the_model_finds_most_probable_stands_beside_the_loss(folder, context):
    """What TRL's SFTTrainer logs under the same name."""
    lesson, model, _, _ = prepared(folder, context)
    model.eval()
    batch = lesson.collate([lesson.examples[at] for at in range(4)])
    named = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
    wanted = batch["labels"] != -100
    batch["labels"] = torch.where(wanted & (torch.arange(wanted.shape[1]) % 2 == 0), named, batch["labels"])
    lesson.loss(model, batch)
    share = (named == batch["labels"])[wanted].double().mean().item()
    assert 0.3 < share < 0.9
    assert lesson.meter.take(training=False) == {"mean_token_accuracy": pytest.approx(share)}


def test_smoothing_is_that_of_torch_on_the_answers(folder, context):
    lesson, model, _, _ = prepared(folder, context, ", label_smoothing_factor: 0.2")
    model.eval()
    batch = lesson.collate([lesson.examples[at] for at in range(4)])
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum", label_smoothing=0.2
    )
    assert lesson.loss(model, batch)[0].item() == pytest.approx(expected.item(), rel=1e-5)


def test_logits_are_made_for_the_learnt_tokens_only(folder, context):
    lesson, model, _, _ = prepared(folder, context)
    batch = lesson.collate([lesson.examples[at] for at in range(4)])
    token_loss(model, batch)  # the first call tries whether the head allows it
    _, outputs = token_loss(model, batch)
    learnt = int((batch["labels"] != -100).sum())
    assert learnt < batch["input_ids"].numel() / 2
    assert outputs.logits.shape == (1, learnt, model.config.vocab_size)


def test_the_template_becomes_the_tokenizers_own_and_what_is_learnt_is_told(folder, context, events):
    _, _, tokenizer, given = prepared(folder, context, ", chat_template: zephyr")
    assert tokenizer.chat_template == TEMPLATES["zephyr"]
    sample = next(each for each in events(given) if each["event"] == "sample")
    assert (sample["format"], sample["template"], sample["examples"]) == (
        "alpaca",
        "zephyr",
        11,
    )  # a row of twelve is held out
    assert [learnt for _, learnt in sample["shown"][0]] == [False, True]
    assert sample["shown"][0][1][0].endswith("[SEP]")


def test_a_tokenizer_without_a_template_gets_a_simple_one_and_one_with_it_keeps_its_own(folder, context):
    assert prepared(folder, context)[2].chat_template == TEMPLATES["simple"]
    own = copy.deepcopy(tiny.tokenizer())
    own.chat_template = TEMPLATES["zephyr"]
    assert prepared(folder, context, tokenizer=own)[2].chat_template == TEMPLATES["zephyr"]


def test_a_template_from_a_file(folder, context):
    assert (
        prepared(folder, context, ", chat_template: mine.jinja")[2].chat_template == (folder / "mine.jinja").read_text()
    )


class OneOfSeveral:
    """A stage as a task of several, which brings no arguments of its own."""

    def __init__(self, stage):
        self.stage = stage

    def __getattr__(self, name):
        if name == "arguments":
            raise AttributeError(name)
        return getattr(self.stage, name)


@pytest.mark.parametrize(
    ("shortest", "several", "by_sequences"), [(8, False, True), (1024, False, False), (8, True, False)]
)
def test_packed_blocks_have_no_masks_where_sequences_serve(
    shortest, several, by_sequences, folder, context, monkeypatch
):
    monkeypatch.setattr(varlen, "WITHOUT_KERNEL", shortest)
    lesson, model, _, _ = prepared(folder, context, ", packing: true", wrapped=OneOfSeveral if several else None)
    assert varlen.names_sequences(model.config) == by_sequences
    batch = lesson.collate([lesson.examples[at] for at in range(2)])
    assert ("attention_mask" in batch) != by_sequences
    assert lesson.loss(model, batch)[0].item() > 0


def test_a_window_that_a_ready_mask_would_lose_is_refused(folder, context):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    window = {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=120, **sizes, **window))
    with pytest.raises(IncompatibleError, match="packing is true, which needs a mask for each pair of 64 tokens"):
        prepared(folder, context, ", packing: true", model=model)
    prepared(folder, context, model=model)


def test_a_changed_template_changes_what_the_stage_stands_on(folder):
    before = loaded(folder, ", chat_template: mine.jinja").stages[0].training_content("x")
    (folder / "mine.jinja").write_text("{% for m in messages %}{{ m.content }}!{{ eos_token }}{% endfor %}")
    after = loaded(folder, ", chat_template: mine.jinja").stages[0].training_content("x")
    assert before != after


def test_what_cannot_be_is_refused_with_the_recipe(folder):
    assert "'alpacca' is no known template. Did you mean 'alpaca'?" in refused(folder, ", chat_template: alpacca")
    assert "is no valid Jinja template: line 1" in refused(folder, ", chat_template: broken.jinja")
    assert "an encoder-decoder learns the same rows as pairs: {kind: instruction_pairs" in refused(
        folder, architecture="{preset: t5-tiny}"
    )
    assert "needs a model that sees only what comes before" in refused(folder, architecture="{preset: bert-tiny}")
    assert "max_source_length: is for tasks of the kind seq2seq" in refused(folder, ", max_source_length: 32")
    assert "auxiliary_lm: is for tasks with one answer a text" in refused(folder, ", auxiliary_lm: 0.5")
    text = "{kind: causal, format: text, train: rows.jsonl, columns: {text: output}}"
    assert "chat_template: joins messages, but the task's format is text" in refused(
        folder, ", chat_template: alpaca", task=text
    )
    linear = DECODER.replace("gpt-tiny", "gpt-tiny, attention_pattern: linear")
    assert "packing: needs attention that takes a mask" in refused(folder, ", packing: true", architecture=linear)


def test_its_keys_are_refused_for_other_kinds(folder):
    other = "{kind: classification, columns: [instruction], label: output, train: rows.jsonl}"
    for key in ("chat_template: alpaca", "train_on: all", "packing: true"):
        assert (
            f"{key.partition(':')[0]}: is for tasks of the kind causal, but this task's kind is classification"
            in refused(folder, f", {key}", task=other)
        )


def test_the_marks_of_a_template_are_tokens_of_a_trained_tokenizer(folder):
    assert loaded(folder, ", chat_template: chatml").stages[0].special_tokens() == ("<|im_start|>", "<|im_end|>")
    assert loaded(folder).stages[0].special_tokens() == ()


def test_the_texts_for_a_tokenizer_are_all_messages(folder):
    texts = list(loaded(folder).stages[0].texts())
    assert len(texts) == 22
    assert "is on" in texts or "is very" in texts


def test_without_room_for_answers_there_is_nothing_to_learn(folder, context):
    recipe = loaded(folder, "").stages[0].model_copy(update={"max_length": 4})
    given = context("supervised", stage_id="supervised", recipe=loaded(folder))
    model = tiny.build("finery", Head("causal_lm"), family="decoder")
    with pytest.raises(DataError, match="no answer is left of any"):
        CausalTraining().prepare(recipe, recipe.resolved("x"), given, model, copy.deepcopy(tiny.tokenizer()), None)


def test_stops_are_those_of_the_models_generation():
    assert stops_of(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[3, 5]))) == (3, 5)
    assert stops_of(SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=3))) == (3,)
    assert stops_of(SimpleNamespace()) == ()


def test_a_decoder_fits_and_nothing_else():
    assert unfit({"model_type": "gpt2"}, ("causal_lm",)) is None
    assert "instruction_pairs" in str(unfit({"model_type": "t5"}, ("seq2seq_lm",)))


def completions(lengths):
    rows = [[100 * at + place for place in range(length)] for at, length in enumerate(lengths)]
    return Completions(rows, rows, list(range(len(rows))), np.asarray(lengths), np.asarray(lengths), 0, ())


def test_best_fit_by_hand():
    # by length 7 5 4 3 1 in blocks of 8: 7 | 5 | 4 | 3 joins 5 (room 3, the tightest) | 1 joins 7 (room 1)
    packs = pack_completions(completions([3, 7, 1, 5, 4]), 8)
    assert packs.members == [[1, 2], [3, 0], [4]]
    assert packs.lengths.tolist() == [8, 8, 4]


@pytest.mark.parametrize("seed", range(5))
def test_every_example_is_in_one_block_and_no_block_is_too_long(seed):
    lengths = np.random.default_rng(seed).integers(1, 65, 200).tolist()
    packs = pack_completions(completions(lengths), 64)
    assert sorted(member for each in packs.members for member in each) == list(range(200))
    assert packs.lengths.max() <= 64
    assert packs.lengths.sum() == sum(lengths)
    assert len(packs) <= sum(lengths) / 64 * 11 / 9 + 1  # the bound of best fit decreasing (Johnson et al. 1974)


def test_numbers_and_labels_by_hand():
    parts = [{"parts": [{"ids": [1, 2, 3]}, {"ids": [4, 5]}]}, {"parts": [{"ids": [6, 7]}]}]
    ids, numbers = numbered(parts, "ids", 0)
    assert ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert numbers.tolist() == [[0, 0, 0, 1, 1], [0, 0, -1, -1, -1]]
    labels = np.where(numbers < 0, IGNORED, ids)
    assert named_next(labels, numbers).tolist() == [
        [2, 3, IGNORED, 5, IGNORED],
        [7, IGNORED, IGNORED, IGNORED, IGNORED],
    ]


def test_a_choice_of_blocks():
    packs = pack_completions(completions([3, 7, 1, 5, 4]), 8)
    chosen = packs.select([2, 0])
    assert [part["index"] for part in chosen[1]["parts"]] == [1, 2]
    assert chosen.lengths.tolist() == [4, 8]


SHAPES = {
    "learned": {"family": "decoder", "position": "learned"},
    "rotary": {"family": "decoder", "position": "rotary"},
    "alibi": {"family": "decoder", "position": "alibi"},
    "relative": {"family": "decoder", "position": "relative"},
}


def examples():
    dialogues = [
        Dialogue(
            ({"role": "user", "content": one}, {"role": "assistant", "content": other}), (False, True), templated=False
        )
        for one, other in zip(tiny.TEXTS[:12], tiny.TEXTS[12:24], strict=True)
    ]
    return encode_completions(tiny.tokenizer(), dialogues, range(12), 40)


def model(name):
    if name in SHAPES:
        return tiny.build("finery", Head("causal_lm"), **SHAPES[name]).eval()
    return tiny.build(name, Head("causal_lm")).eval()


@pytest.mark.parametrize("name", [*SHAPES, "gpt2"])
def test_the_losses_and_gradients_of_packed_and_unpacked_batches_are_equal(name):
    taught, given = model(name), examples()
    packs = pack_completions(given, 40)
    assert len(packs) < len(given)
    batches = CompletionCollator(0)([given[at] for at in range(12)]), Packed(0)([packs[at] for at in range(len(packs))])
    told = []
    for batch in batches:
        taught.zero_grad()
        loss, _ = token_loss(taught, batch)
        loss.backward()
        gradients = torch.cat([each.grad.flatten() for each in taught.parameters() if each.grad is not None])
        told.append((loss.item(), gradients, int((batch["labels"] != -100).sum())))
    assert told[0][2] == told[1][2]
    assert told[0][0] == pytest.approx(told[1][0], rel=1e-5)
    torch.testing.assert_close(told[0][1], told[1][1], rtol=1e-3, atol=2e-5)


def test_no_example_of_a_block_sees_another():
    taught, given = model("rotary"), examples()
    packs = pack_completions(given, 40)
    pack = next(packs[at] for at in range(len(packs)) if len(packs.members[at]) > 1)
    batch = Packed(0)([pack])
    batch.pop("labels")
    first = len(pack["parts"][0]["input_ids"])
    changed = batch | {"input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, first - 1] = 7 if batch["input_ids"][0, first - 1] != 7 else 8
    with torch.no_grad():
        before, after = taught(**batch).logits, taught(**changed).logits
    assert torch.equal(before[0, first:], after[0, first:])
    assert not torch.equal(before[0, first - 1], after[0, first - 1])
    assert batch["position_ids"][0, first].item() == 0
