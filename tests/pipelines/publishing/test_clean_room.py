"""The process without Finery: what it can import, what it refuses, and that its batches change nothing."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.core.errors import PublishError
from pipelines.publishing import clean_room
from pipelines.publishing.destinations.destination import checksums_of
from pipelines.publishing.foreign_code import of_finery
from pipelines.publishing.verify import ProofInputs, clean_answers


def test_it_imports_nothing_of_ours():
    tree = ast.parse(Path(clean_room.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    roots = {module.partition(".")[0] for module in modules}
    assert roots <= {
        "__future__",
        "collections",
        "gc",
        "hashlib",
        "importlib",
        "json",
        "os",
        "re",
        "sys",
        "typing",
        "torch",
        "transformers",
        "peft",
        "safetensors",
    }


def test_finery_cannot_be_imported_there_even_where_it_is_installed(tmp_path):
    """A checkpoint whose code imports Finery would load here and nowhere else."""
    (tmp_path / "transformers.py").write_text("")  # ends the script before it would need a checkpoint
    (tmp_path / "questions.json").write_text(json.dumps({"auto_class": "Missing", "adapter": False, "groups": {}}))
    code = (
        f"import sys\nsys.path[:0] = [{str(tmp_path)!r}, {str(Path(__file__).parents[3])!r}]\n"
        "import pipelines.core.errors\n"  # it is importable at first
        f"sys.argv = ['x', 'folder', {str(tmp_path / 'questions.json')!r}, 'answers']\n"
        f"import runpy\n"
        f"try:\n    runpy.run_path({clean_room.__file__!r}, run_name='__main__')\nexcept AttributeError:\n    pass\n"
        "for name in ('pipelines', 'service', 'finery', 'pipelines.core.registry'):\n"
        "    try:\n        __import__(name)\n"
        "    except ImportError:\n        continue\n"
        "    print('imported', name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_a_batch_gives_what_one_text_at_a_time_gives(job):
    """The evaluation in the fixture was computed without batches and without padding."""
    import numpy as np
    import pyarrow.parquet as pq

    made = job("finery")
    table = pq.read_table(made.folder / "stages/evaluate/predictions.parquet").to_pydict()
    folder = made.folder / "stages/mrpc/model"
    model, tokenizer = clean_room.load(str(folder), "AutoModelForSequenceClassification", False, of_finery())
    logits = clean_room.answer(model, tokenizer, table["text"], table["text_pair"], 24).numpy()
    np.testing.assert_allclose(logits, np.array(table["logits"]), atol=1e-5)
    assert len({round(float(value), 3) for value in logits[:, 0]}) == len(logits)  # the rows differ, so order matters
    other = clean_room.answer(model, tokenizer, table["text"], table["text_pair"], 12).numpy()
    assert not np.allclose(other[4], logits[4], atol=1e-3)  # and so does the length of the longest row


@pytest.mark.parametrize(
    ("model_type", "words"), [("t5", {}), ("bart", {}), ("finery", {"family": "encoder-decoder", "position": "rotary"})]
)
def test_a_writer_answers_with_its_logits_after_every_token_of_the_target(pretrained, model_type, words):
    """One pair at a time, without padding, as transformers computes them from decoder inputs made by hand."""
    import numpy as np
    import torch

    made = pretrained(model_type, "seq2seq", **words)
    folder = made.folder / "stages/lm/model"
    made.tokenizer.save_pretrained(folder)
    model, tokenizer = clean_room.load(str(folder), "AutoModelForSeq2SeqLM", False, of_finery())
    texts, targets = ["why", "she read the letter twice", "nine trains"], ["because it rains", "ten", ""]
    expected = []
    for text, target in zip(texts, targets, strict=True):
        told = [model.config.decoder_start_token_id, *tokenizer(target)["input_ids"]]
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt"), decoder_input_ids=torch.tensor([told])).logits
        expected.append(logits[0].numpy())
    found = clean_room.answer(model, tokenizer, texts, None, 24, targets).numpy()
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-5)
    assert not np.allclose(clean_room.answer(model, tokenizer, texts[:1], None, 24).numpy()[2], found[2], atol=1e-3)


def test_two_heads_answer_together(pretrained):
    import numpy as np
    import torch

    made = pretrained("bert", "next_sentence")
    folder = made.folder / "stages/lm/model"
    made.tokenizer.save_pretrained(folder)
    model, tokenizer = clean_room.load(str(folder), "AutoModelForPreTraining", False, of_finery())
    with torch.no_grad():
        outputs = model(**tokenizer("nine trains", return_tensors="pt"))
    expected = torch.cat([outputs.prediction_logits.flatten(), outputs.seq_relationship_logits.flatten()])
    np.testing.assert_allclose(clean_room.answer(model, tokenizer, ["nine trains"]).flatten(), expected, atol=1e-6)


def test_a_tokenizer_that_cannot_pad_is_asked_one_text_at_a_time(pretrained):
    import numpy as np

    made = pretrained("gpt2", "causal_lm")
    folder = made.folder / "stages/lm/model"
    made.tokenizer.save_pretrained(folder)
    model, tokenizer = clean_room.load(str(folder), "AutoModelForCausalLM", False, of_finery())
    texts = ["why", "she read the letter twice"]
    padded = clean_room.answer(model, tokenizer, texts)
    tokenizer.pad_token = None
    np.testing.assert_allclose(clean_room.answer(model, tokenizer, texts), padded, atol=1e-5)


def test_a_weight_that_is_missing_is_refused(job):
    from safetensors.torch import load_file, save_file

    made = job("bert")
    folder = made.folder / "stages/mrpc/model"
    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 weights are missing from the folder, the first is classifier\.weight"):
        clean_room.load(str(folder), "AutoModelForSequenceClassification", False, of_finery())


@pytest.mark.long
def test_code_that_needs_finery_is_refused(job):
    """The clean process must fail where the code beside the weights reaches back into an installed Finery."""
    made = job("finery")
    folder = made.folder / "stages/mrpc/model"
    code = folder / "modeling_finery.py"
    code.write_text(
        "import pipelines.core.errors\n" + code.read_text().replace("from __future__ import annotations\n", "")
    )
    group = {"x": ProofInputs(["why"], None, None)}
    with pytest.raises(PublishError, match=r"cannot be loaded by a process without Finery: .*pipelines"):
        clean_answers(folder, group, "AutoModelForSequenceClassification", False, checksums_of(folder))


@pytest.mark.long
def test_a_folder_that_cannot_be_loaded_is_one_sentence(job):
    made = job("bert")
    folder = made.folder / "stages/mrpc/model"
    (folder / "config.json").write_text("{}")
    with pytest.raises(PublishError) as raised:
        clean_answers(folder, {"x": ProofInputs(["why"], None, None)}, "AutoModelForSequenceClassification", False)
    assert raised.value.message.endswith("nothing was published")
    assert "\n" not in raised.value.message
