"""Prediction for an evaluation: Finery's way beside `Trainer.predict` and lm_eval, and an article read once beside once an option, in one run.

Of classes, and of SQuAD's windows of 384 tokens, from whose logits the best spans are then found for both: batches of
neighbours from all over the validation set, since the first ones are padded less than most.

The same model, the same rows, the same batch size; logits are checked to be equal first. Peer: transformers' `Trainer.predict`
with dynamic padding, the faster of eager and fused attention, and `bf16_full_eval` for bf16 (measured where the machine is faster in it), tokenised beforehand for both. Ours: batches of similar length, the longest first. The second part is RACE
with a decoder: `FineryForMultipleChoice` called with every sequence as a whole, and with the article's keys and values kept. The third is
lm_eval: the log-likelihoods of RACE's options by its own `hf` model, and by the reader that `few_shot` and `finery harness` ask with.
A ratio above 1 means that ours is faster. Weights are random, since time does not depend on them.

    FINERY_DATA=<mirror> python benchmarks/evaluation.py [--rounds 3] [--rows 800]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from products import alone, products_of
from rows import Row, report

from pipelines.architectures.registration import register
from pipelines.core.architecture_fields import resolve
from pipelines.core.decoding import SpanSettings
from pipelines.core.interfaces import Head, Rows
from pipelines.core.registry import TASKS
from pipelines.data.encoding import collate, encode
from pipelines.models.opening import auto_class, head_settings
from pipelines.models.predict import _logits, device, forward
from pipelines.runs.hardware import precision
from pipelines.tasks.extractive_qa.evaluation import Window, _both_ends, best_spans, grouped
from pipelines.tasks.extractive_qa.training import collate_questions, encode_questions
from pipelines.tasks.multiple_choice.evaluation import _logits as option_logits
from pipelines.tasks.multiple_choice.shared_articles import articles_of, pays, read_articles
from pipelines.tasks.multiple_choice.training import collate_choices, encode_choices

TASKS_READ = ("glue/sst2", "glue/mrpc", "glue/rte")
ENCODER = {"preset": "bert-mini"}
DECODER = {
    "preset": "gpt-tiny",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
}
BATCH, LENGTH, ARTICLE_LENGTH = 32, 128, 384
WINDOW, STRIDE = 384, 128
"""Of BERT's `run_squad.py`."""


def tokenizer() -> Any:
    """The mirror's vocabulary of BERT."""
    from transformers import BertTokenizerFast

    for root in os.environ.get("FINERY_DATA", "").split(os.pathsep):
        file = Path(root) / "tokenizers" / "bert-base-uncased" / "vocab.txt"
        if file.is_file():
            return BertTokenizerFast(vocab=str(file), model_max_length=512)
    raise SystemExit("set FINERY_DATA to the folder with the data sets and tokenizers")


def model(architecture: dict[str, Any], head: Head) -> Any:
    """A model with random weights."""
    from transformers import AutoConfig

    register()
    torch.manual_seed(0)
    words = dict(resolve(architecture))
    kind = words.pop("model_type")
    config = AutoConfig.for_model(kind, **(words | {"vocab_size": 30522}), **head_settings(head))
    return auto_class(head).from_config(config, attn_implementation="eager" if device().type == "cpu" else None).eval()


def best_trainer(opened: Any, words: Any, examples: Any, mixed: bool, rounds: int) -> tuple[float, Any]:
    """`Trainer.predict` with the faster of eager and fused attention: (its time, what came out)."""
    before, found = opened.config._attn_implementation, []
    for attention in ("eager", "sdpa"):
        opened.set_attn_implementation(attention)
        found.append(seconds(trainer_logits(opened, words, examples, mixed), rounds))
    opened.set_attn_implementation(before)
    return min(found, key=lambda each: each[0])


def trainer_logits(opened: Any, words: Any, examples: Any, mixed: bool) -> Callable[[], Any]:
    """`Trainer.predict` on the tokenised rows."""
    from datasets import Dataset
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    columns = {"input_ids": [list(each) for each in examples.input_ids]}
    if examples.token_type_ids is not None:
        columns["token_type_ids"] = [list(each) for each in examples.token_type_ids]
    data = Dataset.from_dict(columns)
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_eval_batch_size=BATCH,
        report_to=[],
        bf16=mixed,
        bf16_full_eval=mixed,
        disable_tqdm=True,
        use_cpu=device().type == "cpu",
        dataloader_pin_memory=device().type != "cpu",
    )
    trainer = Trainer(opened, arguments, data_collator=DataCollatorWithPadding(words))
    return lambda: trainer.predict(data).predictions


def seconds(work: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """(the median of the rounds, what came out), after one round that is not counted.

    Of the processor on a CPU, so that a busy machine changes little; of the clock on a GPU, whose results are waited for.
    """
    clock = time.process_time if device().type == "cpu" else time.perf_counter
    found = work()
    times = []
    for _ in range(rounds):
        started = clock()
        found = work()
        times.append(clock() - started)
    return statistics.median(times), found


def beside_trainer(rounds: int, rows: int) -> None:
    """One line a task and precision."""
    words = tokenizer()
    for name in TASKS_READ:
        task = TASKS.load(name)
        opened = model(ENCODER, task.head)
        examples = encode(words, task.rows("validation", rows), LENGTH)
        for mixed in (False, True) if precision("auto") == "bf16" else (False,):
            theirs, expected = best_trainer(opened, words, examples, mixed, rounds)
            score = partial(
                forward,
                opened,
                examples,
                partial(collate, words),
                _logits,
                head_alone=True,
                device=device(),
                batch_size=BATCH,
                precision="bf16" if mixed else "no",
            )
            ours, logits = seconds(score, rounds)
            found = np.stack(logits)
            difference = float(np.abs(found - expected).max())
            same = float(np.mean(found.argmax(-1) == expected.argmax(-1)))
            told(f"score {len(examples)} rows of {name}", mixed, (theirs, ours), same, difference, score)


def told(
    what: str, mixed: bool, both: tuple[float, float], same: float, difference: float, score: Callable[[], Any]
) -> None:
    """Report what `both`, the peer and Finery, took, and how far their answers agree; in fp32 their logits must."""
    assert mixed or difference < 1e-4, f"the logits differ by {difference}"
    theirs, ours = both
    equal = f"{same:.1%} same answers, largest difference of a logit {difference:.1e}"
    if device().type == "cpu":
        products = alone(products_of(score), time.process_time)
        equal += f"; its products alone {products:.3g} s, a ratio of {theirs / products:.2f}"
    report(Row(f"{what}, {'bf16' if mixed else 'fp32'}", "Trainer.predict", theirs, ours, "s", equal, 2.0))


def spans_beside_trainer(rounds: int, rows: int) -> None:
    """One line a precision: SQuAD's windows."""
    words = tokenizer()
    task: Any = TASKS.load("squad")
    opened = model(ENCODER, task.head)
    given: Any = spread(task.rows("validation", None), max(1, rows // 64))
    windows = encode_questions(words, given, WINDOW, STRIDE, keep_contexts=True)

    def texts(logits: Any) -> list[str]:
        parts = zip(logits, windows.contexts or (), windows.blanks.tolist(), strict=True)
        of_rows = grouped(windows.rows, [Window(*part) for part in parts])
        return [best_spans(each, text, SpanSettings()).answer for each, text in zip(of_rows, given.pairs, strict=True)]

    for mixed in (False, True) if precision("auto") == "bf16" else (False,):
        theirs, both = best_trainer(opened, words, windows, mixed, rounds)
        score = partial(
            forward,
            opened,
            windows,
            partial(collate_questions, words),
            _both_ends,
            device=device(),
            batch_size=BATCH,
            precision="bf16" if mixed else "no",
        )
        ours, found = seconds(score, rounds)
        expected = [np.stack(pair)[:, :tokens] for *pair, tokens in zip(*both, windows.lengths.tolist(), strict=True)]
        difference = max(float(np.abs(one - two).max()) for one, two in zip(found, expected, strict=True))
        same = float(np.mean([one == two for one, two in zip(texts(found), texts(expected), strict=True)]))
        told(f"score {len(windows)} windows of squad", mixed, (theirs, ours), same, difference, score)


def spread(given: Rows, batches: int) -> Rows:
    """So many batches of neighbouring rows, evenly spread."""
    starts = np.linspace(0, len(given) - BATCH, batches).astype(int)
    taken = [row for start in starts for row in range(start, start + BATCH)]
    columns = ((field.name, getattr(given, field.name)) for field in fields(given))
    return replace(given, **{name: column and [column[row] for row in taken] for name, column in columns})


def articles_once(rounds: int, rows: int) -> None:
    """One line: RACE with a decoder."""
    words = tokenizer()
    words.model_input_names = ["input_ids", "attention_mask"]
    opened = model(DECODER, Head("multiple_choice"))
    given = TASKS.load("race/middle").rows("validation", max(4, rows // 8))
    examples = encode_choices(words, given, min(ARTICLE_LENGTH, opened.config.max_position_embeddings))
    articles = articles_of(given.texts, examples)
    if not pays(articles, opened, device=device(), batch_size=BATCH):
        print("this model is too small for a GPU to gain by articles that are read once: Finery reads each sequence")
        return
    whole, expected = seconds(
        lambda: np.stack(
            forward(
                opened, examples, partial(collate_choices, words), option_logits, device=device(), batch_size=BATCH // 4
            )
        ),
        rounds,
    )
    once, found = seconds(
        lambda: read_articles(opened, articles, 4, words.pad_token_id, device=device(), batch_size=BATCH), rounds
    )
    logits, shared = found
    difference = float(np.abs(np.stack(logits) - expected).max())
    assert shared, "the logits of an article read once were not those of the plain way"
    assert difference < 1e-4, f"the logits differ by {difference}"
    tokens = sum(len(sequence) for question in examples.input_ids for sequence in question)
    report(
        Row(
            f"score {len(given)} questions of race/middle with articles read once",
            f"each of {tokens} tokens read, not {sum(each.tokens for each in articles)}",
            whole,
            once,
            "s",
            f"largest difference of a logit {difference:.1e}",
        )
    )


def beside_lm_eval(rounds: int, rows: int) -> None:
    """One line: the same (context, continuation) pairs, the likelihood of each."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from pipelines.evaluation.few_shot.decoders import DecoderReader
    from pipelines.evaluation.few_shot.harness import FineryLM

    words = tokenizer()
    words.model_input_names = ["input_ids", "attention_mask"]
    words.eos_token = "[SEP]"  # what a text without a context is asked behind
    opened = model(DECODER, Head("causal_lm"))
    given: Any = TASKS.load("race/middle").rows("validation", max(4, rows // 8))
    pairs = [
        (article, f" {option}")
        for article, options in zip(given.texts, given.options, strict=True)
        for option in options
    ]
    pairs = [
        pair for pair in pairs if len(words("".join(pair)).input_ids) <= ARTICLE_LENGTH
    ]  # the two do not cut longer ones alike
    requests = [Instance("loglikelihood", {}, pair, place) for place, pair in enumerate(pairs)]
    peer = HFLM(
        pretrained=opened,
        tokenizer=words,
        max_length=ARTICLE_LENGTH,
        batch_size=BATCH,
        device=device().type,
        add_bos_token=False,
        prefix_token_id=words.eos_token_id,
    )
    ours = FineryLM(DecoderReader(opened, words, ARTICLE_LENGTH), batch_size=BATCH)
    other, expected = seconds(lambda: peer.loglikelihood(requests, disable_tqdm=True), rounds)
    mine, found = seconds(lambda: ours.loglikelihood(requests), rounds)
    difference = max(abs(one[0] - two[0]) for one, two in zip(found, expected, strict=True))
    assert difference < 1e-2, f"the log-likelihoods differ by {difference}"
    report(
        Row(
            f"likelihoods of {len(pairs)} options of race/middle",
            "lm_eval hf",
            other,
            mine,
            "s",
            f"largest difference of a log-likelihood {difference:.1e}",
            4.0,
        )
    )


def main() -> None:
    """Print one ratio a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=800, help="rows of each task at most")
    given = parser.parse_args()
    beside_trainer(given.rounds, given.rows)
    spans_beside_trainer(given.rounds, given.rows)
    articles_once(given.rounds, given.rows)
    beside_lm_eval(given.rounds, given.rows)


if __name__ == "__main__":
    main()
