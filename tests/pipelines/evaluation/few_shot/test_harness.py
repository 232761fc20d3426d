"""The harness' own model, its own arithmetic and ours, on the same checkpoint and the same prompts."""

import copy
import json
import math
import random

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head, World
from pipelines.evaluation.few_shot.decoders import DecoderReader
from pipelines.evaluation.few_shot.encoder_decoders import EncoderDecoderReader
from pipelines.evaluation.few_shot.encoders import MaskReader
from pipelines.evaluation.few_shot.harness import FineryLM
from pipelines.objectives.causal_lm import CausalLM
from tests import tiny

lm_eval = pytest.importorskip("lm_eval")
LIMIT = 48

OWN = """
task: own_choice
dataset_path: json
dataset_kwargs: {{data_files: {{train: {folder}/train.jsonl, validation: {folder}/dev.jsonl}}}}
output_type: multiple_choice
training_split: train
validation_split: validation
doc_to_text: "{{{{text}}}} it was"
doc_to_choice: ["bad", "very good", "dull film"]
doc_to_target: label
num_fewshot: {shots}
fewshot_config: {{sampler: first_n}}
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
ROLLING = """
task: own_text
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {folder}/dev.jsonl}}}}
output_type: loglikelihood_rolling
validation_split: validation
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
WRITING = """
task: own_writing
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {folder}/dev.jsonl}}}}
output_type: generate_until
validation_split: validation
doc_to_text: "{{{{text}}}} it was"
doc_to_target: "good"
generation_kwargs: {{until: ["film", "dog"], max_gen_toks: 6}}
metric_list: [{{metric: exact_match}}]
"""


def rows(count, seed):
    words = random.Random(seed)
    return [{"text": " ".join(words.choices(tiny.WORDS, k=3 + row % 5)), "label": row % 3} for row in range(count)]


@pytest.fixture
def tasks(tmp_path):
    """A folder with tasks and their data."""
    for name, seed, count in (("train", 1, 6), ("dev", 2, 8)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(count, seed)))
    for name, text in (("zero", OWN), ("text", ROLLING), ("writing", WRITING)):
        (tmp_path / f"{name}.yaml").write_text(text.format(folder=tmp_path, shots=0))
    (tmp_path / "two.yaml").write_text(OWN.format(folder=tmp_path, shots=2).replace("own_choice", "own_two"))
    return tmp_path


def results(model, folder, *names):
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0, log_samples=True
    )


def likelihoods(found, name):
    return [nats for sample in found["samples"][name] for nats, _ in sample["filtered_resps"]]


def decoder(model_type="finery"):
    model = tiny.build(
        model_type, Head("causal_lm"), **({"family": "decoder"} if model_type == "finery" else {})
    ).eval()
    tiny.disturb(model)
    return model


def theirs(model, backend="causal"):
    from lm_eval.models.huggingface import HFLM

    tokenizer = copy.deepcopy(tiny.tokenizer())
    # the tokenizer is one for encoders: without this the harness would ask with [CLS] and [SEP] around each text
    words = {"add_bos_token": False, "prefix_token_id": tokenizer.eos_token_id} if backend == "causal" else {}
    return HFLM(
        pretrained=model, tokenizer=tokenizer, backend=backend, max_length=LIMIT, batch_size=4, device="cpu", **words
    )


@pytest.mark.parametrize("model_type", ["finery", pytest.param("gpt2", marks=pytest.mark.long)])
def test_a_decoder_scores_what_the_harness_own_model_scores(model_type, tasks):
    model = decoder(model_type)
    names = ("own_choice", "own_two", "own_text", "own_writing")
    reader = DecoderReader(model, copy.deepcopy(tiny.tokenizer()), LIMIT)
    ours, other = (results(each, tasks, *names) for each in (FineryLM(reader), theirs(model)))
    for name in names[:2]:
        assert likelihoods(ours, name) == pytest.approx(likelihoods(other, name), rel=1e-4)
        assert len(likelihoods(ours, name)) == 24
        for metric in ("acc,none", "acc_norm,none"):
            assert ours["results"][name][metric] == other["results"][name][metric]
    for metric in ("word_perplexity,none", "byte_perplexity,none", "bits_per_byte,none"):
        assert ours["results"]["own_text"][metric] == pytest.approx(other["results"]["own_text"][metric], rel=1e-4)
    written = [[sample["filtered_resps"] for sample in each["samples"]["own_writing"]] for each in (ours, other)]
    assert written[0] == written[1]
    assert len({text for [text] in written[0]}) > 1


@pytest.mark.long
def test_an_encoder_decoder_scores_what_the_harness_own_model_scores(tasks):
    model = tiny.build("t5", Head("seq2seq_lm")).eval()
    tiny.disturb(model)
    ours = results(
        FineryLM(EncoderDecoderReader(model, copy.deepcopy(tiny.tokenizer()), LIMIT)), tasks, "own_choice", "own_two"
    )
    other = results(theirs(model, "seq2seq"), tasks, "own_choice", "own_two")
    for name in ("own_choice", "own_two"):
        assert likelihoods(ours, name) == pytest.approx(likelihoods(other, name), rel=1e-4)
        assert ours["results"][name]["acc_norm,none"] == other["results"][name]["acc_norm,none"]


def test_a_long_text_is_read_in_windows_that_name_every_token_once():
    model = decoder()
    reader = DecoderReader(model, copy.deepcopy(tiny.tokenizer()), limit=8)
    text = " ".join(tiny.WORDS[:21])
    ids = [reader.tokenizer.eos_token_id, *reader.plain(text)]
    expected = 0.0
    for first in range(
        0, 21, 8
    ):  # eight tokens, then eight more from the last one of those; the last window is filled up to its left
        until = min(first + 8, 21)
        begin = until - 8
        with torch.no_grad():
            chances = model(input_ids=torch.tensor([ids[begin:until]])).logits[0].double().log_softmax(-1)
        expected += sum(chances[at - begin, ids[at + 1]].item() for at in range(first, until))
    [found] = FineryLM(reader).loglikelihood_rolling([_Request(text)])
    assert found == pytest.approx(expected, rel=1e-4)


def test_bits_per_byte_of_held_out_text_are_those_of_the_harness(tmp_path):
    """The evaluate stage's own figure, `rolling` over whole documents, against the harness' arithmetic."""
    from pipelines.evaluation import language_modeling

    model, texts = decoder(), [row["text"] for row in rows(8, 3)]
    tokenizer = copy.deepcopy(tiny.tokenizer())
    objective = CausalLM()
    reader = language_modeling.HeldOutModel(
        model, tokenizer, objective, None, 32, 32, 4, "cpu", World(), lambda value: [value]
    )
    found = language_modeling.measure(reader, texts, None, tmp_path, "key", 0)
    nats = FineryLM(DecoderReader(model, tokenizer)).loglikelihood_rolling([_Request(text) for text in texts])
    size = sum(len(text.encode()) for text in texts)
    assert found.metrics["bits_per_byte"] == pytest.approx(-sum(nats) / size / math.log(2), rel=1e-4)


def test_an_encoder_answers_by_its_mask_and_writes_nothing(tasks):
    model = tiny.build("finery", Head("masked_lm")).eval()
    asker = FineryLM(MaskReader(model, copy.deepcopy(tiny.tokenizer())))
    found = results(asker, tasks, "own_choice")
    assert len(likelihoods(found, "own_choice")) == 24
    with pytest.raises(ModelError, match="an encoder writes none"):
        asker.generate_until([_Request("the film", {"until": ["."]})])


class _Request:
    def __init__(self, *args):
        self.args = args
