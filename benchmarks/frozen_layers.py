"""Trainings whose lowest layers are frozen, with these layers asked once and with them asked in each step, in one run.

A BERT of MiniLM's shape (6 layers, 384 wide, random weights, dropout 0.1) learns rows of SST-2: by LoRA in the upper
third for three epochs, and layer by layer (gradual unfreezing, an epoch for each of head, layers and embeddings) over
the seeds of a study, which share what is kept on disk. The sides take turns seed by seed; processor time with one thread
is compared, from the call of `fit` to its end, so that the features' own computation, the look at both ways and the disk
are counted. A ratio above 1 means that asking once is faster.

    FINERY_DATA=<mirror> OMP_NUM_THREADS=1 python benchmarks/frozen_layers.py [--rows 2000] [--seeds 3] [--fp32]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification

from pipelines.core.events import EventLog
from pipelines.core.interfaces import Context, World
from pipelines.core.registry import TASKS
from pipelines.data.encoding import collate, encode
from pipelines.data.tokenizers.wordpiece import WordPiece
from pipelines.objectives.losses import classification_loss
from pipelines.trainers.trainer import fit
from pipelines.tuners.full import Full
from pipelines.tuners.lora import LoRA

SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
CASES: dict[str, tuple[Any, int]] = {
    "lora, 3 epochs": (LoRA(layers_to_transform=(4, 5)), 3),
    "gradual, 8 epochs": (Full(gradual_unfreezing=True), 8),
    "gradual, 4 epochs": (Full(gradual_unfreezing=True), 4),
}
"""Tuner and epochs: LoRA in the upper third of layers 0 to 5; all layers, and half of them."""


def training(
    folder: Path, case: str, seed: int, once: bool, rows: Any, tokenizer: Any, bf16: bool
) -> tuple[float, float]:
    """(processor seconds, mean loss) of one training; what is kept lies in `folder` for the next."""
    tuner, epochs = CASES[case]
    torch.manual_seed(0)
    config = BertConfig(**SHAPE, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, num_labels=2)
    model = BertForSequenceClassification(config)
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.classifier.weight, std=0.02)
    model.finery_new_modules = ("classifier",)
    own = Path(tempfile.mkdtemp(dir=folder))
    context = Context(
        stage_id="stage",
        folder=own,
        fingerprint="0",
        seed=seed,
        recipe=None,  # type: ignore[arg-type]
        events=EventLog(own / "events.jsonl", "stage"),
        world=World(),
        precision="bf16" if bf16 else "no",
        cache=folder / "cache",
        stage_folders={},
        open_model=None,  # type: ignore[arg-type]
        open_tokenizer=None,  # type: ignore[arg-type]
    )
    words = {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-4,
        "save_strategy": "no",
        "logging_steps": 100,
    }
    model = tuner.apply(model)
    started = time.process_time()
    _, metrics = fit(
        context,
        model,
        tokenizer,
        rows,
        collate=partial(collate, tokenizer),
        loss=partial(classification_loss, first_token=True),
        arguments=words,
        lengths=rows.lengths,
        tuner=tuner,
        only_named_rows=True,
        frozen_once=once,
    )
    return time.process_time() - started, metrics["train_loss"]


def main() -> None:
    """Print processor seconds by seed, and ratios of the first seed, of the later ones and of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fp32", action="store_true")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    texts = TASKS.load("glue/sst2").rows("train", given.rows)
    tokenizer = WordPiece().train(iter(texts.texts), 8_000)
    rows = encode(tokenizer, texts, 128)
    for case in given.cases:
        taken: dict[bool, list[float]] = {True: [], False: []}
        with tempfile.TemporaryDirectory() as place:
            for seed in range(given.seeds):
                for once in (True, False) if seed % 2 else (False, True):
                    seconds, loss = training(Path(place), case, seed, once, rows, tokenizer, not given.fp32)
                    taken[once].append(seconds)
                    print(
                        f"{case}, seed {seed}, {'once' if once else 'each step'}: {seconds:.1f} s, loss {loss:.4f}",
                        flush=True,
                    )
            kept = sum(file.stat().st_size for file in (Path(place) / "cache").glob("features-*"))
        each, once_ = taken[False], taken[True]
        later = f"later seeds {sum(each[1:]) / sum(once_[1:]):.2f}, " if given.seeds > 1 else ""
        print(
            f"{case}: first seed {each[0] / once_[0]:.2f}, {later}all {sum(each) / sum(once_):.2f} times as fast; "
            f"{kept / 2**20:.0f} MiB kept",
            flush=True,
        )
    print(
        f"{given.rows} rows of SST-2, {rows.lengths.mean():.1f} tokens each, {'fp32' if given.fp32 else 'bf16'}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, one thread, processor time"
    )


if __name__ == "__main__":
    main()
