"""The plan of a recurrent or convolutional model, against a model that is built."""

import subprocess
import sys

import pytest

from pipelines.core.interfaces import Head
from pipelines.core.load import loads
from pipelines.models import opening
from pipelines.runs.hardware import Device
from pipelines.runs.planning.baseline_size import BaselineShape
from pipelines.runs.planning.plan import plan
from pipelines.runs.planning.training_memory import Step
from pipelines.tuners.full import Full
from pipelines.tuners.last_layer import LastLayer
from tests import tiny

CPU = Device("2 CPU cores", "cpu", 2, "no", {"no": 1e9, "bf16": 2e9})
RECIPE = """
name: small
model: {architecture: {family: FAMILY, hidden_size: 32, num_hidden_layers: 2}}
tokenizer: {train: wordpiece, vocab_size: 1000}
stages:
  - stage: supervised
    task: {kind: seq2seq, source: text, target: label, train: rows.csv, validation: rows.csv}
    max_length: 16
    tuner: TUNER
    arguments: {max_steps: 7, global_batch_size: 8, per_device_train_batch_size: 4}
  - {stage: evaluate}
"""


LONG = " of more words than are read" * 3


def planned(folder, family, tuner="full"):
    (folder / "rows.csv").write_text("text,label\n" + f"row{LONG},answer{LONG}\n" * 40)
    return plan(loads(RECIPE.replace("FAMILY", family).replace("TUNER", tuner), folder=folder), device=CPU).stages


@pytest.mark.parametrize(("family", "model_type"), [("rnn", "finery-rnn"), ("cnn", "finery-cnn")])
@pytest.mark.parametrize("tuner", [Full(), LastLayer(layers=1)], ids=lambda tuner: tuner.name)
def test_what_a_stage_learns_and_holds_is_that_of_the_built_model(family, model_type, tuner, tmp_path):
    training, evaluation = planned(
        tmp_path, family, "{name: last_layer, layers: 1}" if tuner.name != "full" else "full"
    )
    shape = {"model_type": model_type, "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 1000}
    model = tuner.apply(opening.build(shape, Head("seq2seq_lm"), tiny.tokenizer(), 0))
    learns = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    everything = sum(weight.numel() for weight in model.parameters())
    assert (training.parameters["total"], training.trainable_parameters) == (everything, learns)
    memory = training.memory
    assert (memory.weights, memory.gradients, memory.optimizer) == (4 * everything, 4 * learns, 8 * learns)
    assert memory.weights + memory.optimizer + memory.activations <= memory.peak
    assert training.steps == 7
    assert training.target_length == 16
    forward = BaselineShape(shape).forward(Head("seq2seq_lm"), 16, 16, 16)
    assert evaluation.flops >= 40 * forward  # and every further beam
    if tuner.name == "full":
        assert training.flops == 3 * 7 * 8 * forward


@pytest.mark.parametrize("model_type", ["finery-rnn", "finery-cnn"])
def test_memory_grows_with_what_a_step_computes(model_type):
    shape = BaselineShape({"model_type": model_type, "hidden_size": 32, "vocab_size": 1000})
    head = Head("seq2seq_lm")
    count = shape.counts(head)["total"]

    def peak(**changes):
        step = Step(**{"batch": 4, "length": 16, "target": 16, "predicted": 16, **changes})
        return shape.memory(head, step, count, count).peak

    assert peak() < peak(length=32) < peak(batch=8, length=32)
    assert peak(processes=2) == peak() + 4 * count == peak(accumulated=2)
    assert peak(batch=4096, predicted=1024) < peak(batch=4096) + 4 * 2**26  # a chunk of logits at a time


def test_it_is_arithmetic_without_torch():
    code = (
        "from pipelines.runs.planning.baseline_size import BaselineShape\n"
        "from pipelines.core.interfaces import Head\n"
        "BaselineShape({'model_type': 'finery-rnn'}).counts(Head('seq2seq_lm'))\n"
        "import sys; print({'torch', 'transformers'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
