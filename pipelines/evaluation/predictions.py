"""`predictions.parquet`: what the model said about each example, one row an example, in the order of the files.

Columns: benchmark, split, index (row in the split), text, text_pair (null for single texts), label (null where it is
not public), prediction, logits (float32, one an output, in the task's order of classes). Labels and predictions are int64, or float64 once one of the
benchmarks in the file is a regression. Benchmarks whose answers are texts have source, reference (null where it is not
public) and hypothesis instead of the columns from text to logits; in a file with both kinds the others are null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.evaluation.atomic import whole_file
from pipelines.evaluation.scoring import decide
from pipelines.protocols import Rows


@dataclass(frozen=True)
class Predicted:
    """One evaluation split of one benchmark, with what the model said about it."""

    benchmark: str
    split: str
    suffix: str
    """What the names of this split's metrics end with: nothing, or `_mm`."""
    rows: Rows
    logits: NDArray[Any]
    """(examples, outputs), in the order of `rows`."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels as an array, None where they are not public."""
        return None if self.rows.labels is None else np.asarray(self.rows.labels)


    @property
    def said(self) -> NDArray[Any]:
        """What is scored: the logits."""
        return self.logits


@dataclass(frozen=True)
class Written:
    """One evaluation split of a benchmark whose answers are texts, with what the model wrote."""

    benchmark: str
    split: str
    suffix: str
    """What the names of this split's metrics end with."""
    rows: Rows
    said: NDArray[Any]
    """The written texts (examples,), in the order of `rows`."""

    @property
    def labels(self) -> NDArray[Any] | None:
        """The references as an array of texts, None where they are not public."""
        return None if self.rows.labels is None else np.asarray(self.rows.labels, dtype=object)


def write_predictions(path: Path, predicted: Sequence[Predicted | Written]) -> None:
    """Write every split into one file, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [_texts_table(each) for each in predicted if isinstance(each, Written)]
    decided = [each for each in predicted if isinstance(each, Predicted)]
    if decided or not tables:
        tables.insert(0, _decisions_table(decided))
    with whole_file(path) as temporary:
        pq.write_table(pa.concat_tables(tables, promote_options="default"), temporary, compression="zstd")


def _decisions_table(predicted: Sequence[Predicted]) -> Any:
    import pyarrow as pa

    numbers = any(each.logits.shape[1] == 1 for each in predicted)
    value = pa.float64() if numbers else pa.int64()
    schema = pa.schema(
        [
            ("benchmark", pa.string()),
            ("split", pa.string()),
            ("index", pa.int64()),
            ("text", pa.string()),
            ("text_pair", pa.string()),
            ("label", value),
            ("prediction", value),
            ("logits", pa.list_(pa.float32())),
        ]
    )
    tables = [_table(each, schema) for each in predicted]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _texts_table(written: Written) -> Any:
    import pyarrow as pa

    examples, references = len(written.rows), written.labels
    return pa.table(
        {
            "benchmark": pa.array([written.benchmark] * examples, pa.string()),
            "split": pa.array([written.split] * examples, pa.string()),
            "index": pa.array(np.asarray(written.rows.index, dtype=np.int64)),
            "source": pa.array(list(written.rows.texts), pa.string()),
            "reference": pa.nulls(examples, pa.string()) if references is None else pa.array(list(references), pa.string()),
            "hypothesis": pa.array(list(written.said), pa.string()),
        }
    )


def _table(predicted: Predicted, schema: Any) -> Any:
    import pyarrow as pa

    examples = len(predicted.rows)
    kind = np.float64 if schema.field("label").type == pa.float64() else np.int64
    labels = predicted.labels
    logits = predicted.logits.astype(np.float32)
    ends = np.arange(examples + 1, dtype=np.int32) * logits.shape[1]
    columns = [
        pa.array([predicted.benchmark] * examples, pa.string()),
        pa.array([predicted.split] * examples, pa.string()),
        pa.array(np.asarray(predicted.rows.index, dtype=np.int64)),
        pa.array(list(predicted.rows.texts), pa.string()),
        pa.nulls(examples, pa.string()) if predicted.rows.pairs is None else pa.array(list(predicted.rows.pairs)),
        pa.nulls(examples, schema.field("label").type) if labels is None else pa.array(labels.astype(kind)),
        pa.array(decide(predicted.logits).astype(kind)),
        pa.ListArray.from_arrays(pa.array(ends), pa.array(logits.ravel())),
    ]
    return pa.table(columns, schema=schema)


def read_predictions(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """By (benchmark, split): `index`, `label` (None where not public), `prediction`, `logits` (examples, outputs).

    Of benchmarks whose answers are texts: `index`, and `source`, `reference`, `hypothesis` as lists.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    names = list(zip(table["benchmark"].to_pylist(), table["split"].to_pylist(), strict=True))
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for benchmark, split in dict.fromkeys(names):
        part = table.filter(np.array([name == (benchmark, split) for name in names]))
        if "hypothesis" in part.column_names and part["hypothesis"].null_count < len(part):
            texts = {name: part[name].to_pylist() for name in ("source", "reference", "hypothesis")}
            found[benchmark, split] = {"index": part["index"].to_numpy(), **texts}
            continue
        hidden = part["label"].null_count == len(part)
        found[benchmark, split] = {
            "index": part["index"].to_numpy(),
            "label": None if hidden else part["label"].to_numpy(),
            "prediction": part["prediction"].to_numpy(),
            "logits": np.array(part["logits"].to_pylist(), dtype=np.float32),
        }
    return found
