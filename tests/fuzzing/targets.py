"""What the fuzzers feed with bytes: every reader of files that users bring, with seeds that are made here.

A target may return, or raise an error of the program's own with a sentence. Anything else is a finding: another
exception, no end within `SECONDS`, more memory than `MEMORY`.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipelines.core.errors import FineryError, RecipeError

SECONDS = 20
"""For one input; the machine may be busy."""
LONGEST_SENTENCE = 200_000
RECIPE = """\
name: demo
seed: 1
model:
  architecture: {preset: bert-tiny, position: rotary}
tokenizer: {train: wordpiece, vocab_size: 600}
stages:
  - {stage: pretrain, objective: masked_lm, datasets: [{path: builtin/python-docs}], arguments: {max_steps: 2, learning_rate: 1e-3}}
  - stage: supervised
    id: words
    task: {kind: classification, columns: [text], label: label, train: 'file:abc', validation: 'file:def'}
    tuner: {name: lora, r: 8}
  - {stage: evaluate}
  - {stage: publish, to: demo, require: {"words.f1": ">= 0.5"}}
matrix: {stages.words.seed: [1, 2]}
launch: {num_processes: auto, mixed_precision: auto}
"""
COLLECTIONS = """\
? [a, b]
: &anchor {x: 0x1f, y: 0o17, z: 1e-3, d: 2026-11-24, n: ~, t: !!str 5, f: .nan, s: "\\u00e9\\x1b"}
b: *anchor
c: |-
  text
d: >+
  folded
<<: [*anchor]
"""


@dataclass(frozen=True)
class Target:
    """One reader."""

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]
    memory: int = 4 << 30
    """Bytes of address space that its process has; libraries take most of it."""

    def __call__(self, content: bytes) -> None:
        """Read it. Raises what is a finding, and nothing else."""
        try:
            self.read(content)
        except FineryError as error:
            if not 0 < len(str(error)) < LONGEST_SENTENCE:
                raise RuntimeError(f"{type(error).__name__} without a sentence") from error


def recipe(content: bytes) -> None:
    """As the server and the command read a recipe: the text, every check, what it names."""
    from pipelines.core.load import load
    from service.safety.network_recipes import check, needs, read_network

    file = scratch() / "recipe.yaml"
    file.write_bytes(content)
    text = content.decode("utf-8", "replace")
    for read in (read_network, needs, check):
        with suppress(RecipeError):
            read(text)
    load(file)


@cache
def scratch() -> Path:
    """A folder of this process's own, in memory where there is such a place."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=shared if shared.is_dir() else None))


def data(suffix: str) -> Callable[[bytes], None]:
    """As a training run and `finery init` read a file of this ending."""

    def read(content: bytes) -> None:
        from pipelines.data.tables import read_file
        from service.cli import columns

        file = scratch() / f"data{suffix}"
        file.write_bytes(content)
        try:
            read_file(file)
        finally:
            columns.read(file, 50)

    return read


def training_file(content: bytes) -> None:
    """As the OpenAI surface examines an upload, of either purpose. What it takes can be told in an answer."""
    from service.openai.training_files import examine, lines

    for shape in (None, "eval"):
        report = examine(io.BytesIO(content), shape)
        assert isinstance(report.sentence, str)
        if not report.mistakes:
            for _, line in lines(io.BytesIO(content)):
                json.dumps(json.loads(line.decode("utf-8-sig")), ensure_ascii=False).encode()


@cache
def tiny_model() -> Path:
    """A folder with the smallest of our models."""
    from transformers import BertConfig, BertForMaskedLM, set_seed

    set_seed(0)
    folder = scratch() / "model"
    shape = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 4, "max_position_embeddings": 4}
    config = BertConfig(**shape, num_hidden_layers=1, num_attention_heads=1)
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def weights(content: bytes) -> None:
    """As a stage opens the checkpoint that it begins with."""
    from pipelines.core.interfaces import Head
    from pipelines.models.opening import open_folder

    file = tiny_model() / "model.safetensors"
    file.unlink(missing_ok=True)
    file.write_bytes(content)
    open_folder(file.parent, Head("masked_lm"), 0)


def safetensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file as the format describes it: length, JSON header, bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


@cache
def good_weights() -> bytes:
    """The weights of the tiny model."""
    folder = tiny_model()
    kept = folder.with_name("kept.safetensors")
    if not kept.exists():
        kept.write_bytes((folder / "model.safetensors").read_bytes())
    return kept.read_bytes()


def weight_seeds() -> list[bytes]:
    """The tiny model's own weights, and headers that lie about them."""
    good = good_weights()
    size = struct.unpack("<Q", good[:8])[0]
    header, body = json.loads(good[8 : 8 + size]), good[8 + size :]
    name = next(key for key in header if key != "__metadata__")
    lying = {**header, name: {**header[name], "shape": [1 << 40]}}
    outside = {**header, name: {**header[name], "data_offsets": [0, 1 << 50]}}
    return [
        good,
        good[: len(good) // 2],
        safetensors(lying, body),
        safetensors(outside, body),
        safetensors({}, b"", 1 << 62),
    ]


def parquet_seeds() -> list[bytes]:
    """Small tables of the types that recipes use, in three encodings."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "text": ["one", "two", None],
            "label": [0, 1, 1],
            "words": [["a"], ["b", "c"], []],
            "answers": [{"text": ["a"], "start": [1]}] * 3,
            "score": [0.5, float("nan"), None],
        }
    )
    made = []
    for options in ({"compression": "none"}, {"compression": "zstd"}, {"use_dictionary": False, "version": "1.0"}):
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        made.append(sink.getvalue())
    return made


CSV = [b"text,label\none,0\ntwo,1\n", b'\xef\xbb\xbfa,b\n"x ""y""\n",2\n', b"a\tb\n1\t2\n", b"a,a\n", b"\n\n,\n", b'"']
JSONL = [
    b'{"text": "one", "label": 0}\n{"text": null, "label": 1}\n',
    b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
    b'{"a": [1, {"b": 1e400}], "c": 18446744073709551616}\n{"a": "x"}\n[]\n',
    b'{"prompt": "a", "completion": "b"}\n' * 3,
    b'{"input": {"messages": []}, "preferred_output": [], "non_preferred_output": []}\n',
]
ROWS_OF_EVALS = [
    b'{"item": {"a": "x", "b": [1, {"c": null}]}, "sample": {"output_text": "y"}}\n',
    b'{"item": {"a": "\\ud83d\\ude00"}}\n{"item": {"a": "\\ud800"}, "sample": {}}\n',
]
TARGETS = {
    "recipe": Target(recipe, lambda: [RECIPE.encode(), COLLECTIONS.encode(), json.dumps({"name": "x"}).encode()]),
    "csv": Target(data(".csv"), lambda: CSV),
    "tsv": Target(data(".tsv"), lambda: CSV),
    "jsonl": Target(data(".jsonl"), lambda: JSONL),
    "json": Target(data(".json"), lambda: [b"[" + each.splitlines()[0] + b"]" for each in JSONL]),
    "parquet": Target(data(".parquet"), parquet_seeds),
    "training-file": Target(training_file, lambda: JSONL + ROWS_OF_EVALS),
    "safetensors": Target(weights, weight_seeds, 12 << 30),
}
