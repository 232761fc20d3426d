"""What words alone give away on tasks of classes: naive Bayes on words and on pairs of words, beside the majority class.

Each reads what a model of so many tokens reads, by one tokenizer for all tasks, and is fitted on the training rows that the
recipes of docs/results train on. No model is trained.

    FINERY_DATA=<mirror> python benchmarks/baselines.py --tokenizer <folder or Hub id>
"""

from __future__ import annotations

import argparse

from transformers import AutoTokenizer

from pipelines.core.registry import TASKS
from pipelines.data.encoding import read_part
from pipelines.evaluation.baselines import score_baselines
from pipelines.tasks import scoring

ROWS: tuple[tuple[str, int | None, int | None, int], ...] = (
    ("glue/sst2", 1_000, None, 128),
    ("glue/sst2", 20_000, None, 128),
    ("glue/mrpc", None, None, 128),
    ("glue/cola", None, None, 128),
    ("glue/rte", None, None, 128),
    ("glue/qqp", None, None, 128),
    ("glue/qnli", None, None, 128),
    ("glue/mnli", None, None, 128),
    ("trec/coarse", None, None, 64),
    ("imdb", 4_000, 2_000, 256),
)
"""Task, training rows, evaluated rows (None: all that are there) and tokens."""
NAMES = ("majority", "naive_bayes", "naive_bayes_pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    tokenizer = AutoTokenizer.from_pretrained(parser.parse_args().tokenizer)
    print(
        "| task | rows | tokens | metric | majority | naive Bayes | on pairs of words |\n|---|---:|---:|---|---:|---:|---:|"
    )
    for name, limit, evaluated, length in ROWS:
        task = TASKS.load(name)
        train = read_part(tokenizer, task.rows("train", limit), length)
        splits = {
            suffix: read_part(tokenizer, task.rows(split, evaluated), length)
            for suffix, split in task.evaluation_splits.items()
        }
        found, _ = score_baselines(NAMES, scoring.score(task), len(task.head.labels), train, splits)
        for metric in found["majority"]:
            figures = " | ".join(f"{found[each][metric]:.3f}" for each in NAMES)
            print(f"| {name} | {len(train):,} | {length} | {metric} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
