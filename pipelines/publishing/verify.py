"""The proof that a folder reproduces what was measured: loaded in a clean process, its logits are compared.

Equal logits row by row imply equal predictions and equal scores. What may differ is stated: the order in which floats
are added depends on the batch, and an evaluation in bf16 or fp16 rounds more than this check in fp32 does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import PublishError
from pipelines.core.files import JSONObject
from pipelines.core.model_types import positions_for_text
from pipelines.core.results import BenchmarkScores
from pipelines.publishing import clean_room

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from pipelines.core.interfaces import Context, Head

    Logits = Mapping[str, NDArray[np.float32]]
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MOST_ROWS = 2000
"""Rows of predictions that are computed again, spread evenly over benchmarks and splits."""
WRITTEN_ROWS = 16
"""Rows of a benchmark with written answers that are asked again: each has a row of logits for every token."""
PROBE_ROWS = 64
"""Rows on which the model is also computed in this process, merged and unmerged."""
EVALUATED = 1e-3
"""Largest difference of a logit to an evaluation in fp32, which may have run on another device."""
SAVED = 1e-4
"""Largest difference of a logit between this process and the clean one, as a part of the largest logit where that is
above 1: the same weights, both in fp32 on the CPU."""
MERGING = 1e-3
"""Largest difference that merging may make, measured likewise: adding the adapter's product to the weights rounds once
more."""
FLIPS = 0.001
"""Part of the predictions (and at least one) that may differ in fp32: those whose two best logits are almost equal."""
HALF = {"bf16": 0.06, "fp16": 0.01}
"""Largest difference, as a part of the largest logit, when the evaluation ran in half precision."""
SENTENCES = (
    "The train to the coast leaves at nine.",
    "She opened the letter, read it twice, and said nothing.",
    "Return a new list with the items in reverse order.",
    "In the year 1847 the harbour was closed for repairs.",
    "Why?",
)
"""What is computed when no rows were predicted."""
SPOKEN = re.compile(r"(system|user|assistant|tool): ")
"""How the words of a prompt of several messages begin."""
FIXED = "fixed sentences"
MOST_TOKENS = 512
"""Tokens of a fixed sentence at most: fewer where the model has fewer positions."""


@dataclass
class ProofInputs:
    """One group of texts, and what the evaluation answered."""

    texts: list[str]
    pairs: list[str] | None
    max_length: int | None
    logits: NDArray[np.float32] | None = None
    """(rows, outputs) as the evaluate stage wrote them; None when there was none."""
    precision: str = "no"
    columns: list[int] | None = None
    """The model's output behind each column of `logits`, where the task orders its classes otherwise."""
    targets: list[str] | None = None
    """What the evaluation wrote for each text, where the answers are texts."""
    words: list[list[str]] | None = None
    """The words of each text, where each has an answer: a row of logits a word that was read."""
    choices: int | None = None
    """Options of each question, where texts and pairs are as many for each: a row of logits a question."""
    spans: list[list[int]] | None = None
    """(window, first token, last token) of the answer that the evaluation found in each pair: two logits a row."""
    stride: int = 0
    """Tokens that the windows of a pair share."""
    reading: JSONObject | None = None
    """How prompts (`texts`) and answers (`pairs`) are read by a model that scores them: a score an answer, `choices`
    answers a row."""
    tokens: list[JSONObject] | None = None
    """Those texts as the model is given them."""

    @property
    def rows(self) -> int:
        """Rows of predictions."""
        return len(self.texts) // (self.choices or 1)

    def first(self, rows: int) -> ProofInputs:
        """The first rows only, without what the evaluation answered."""
        texts = rows * (self.choices or 1)
        return replace(
            self,
            texts=self.texts[:texts],
            pairs=self.pairs and self.pairs[:texts],
            logits=None,
            targets=self.targets and self.targets[:rows],
            words=self.words and self.words[:rows],
            spans=self.spans and self.spans[:rows],
            tokens=self.tokens and self.tokens[:texts],
        )

    def encoded(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> ProofInputs:
        """The same with its tokens, where it is told how the texts are read."""
        if self.reading is None:
            return self
        from pipelines.data.completions import stops_of
        from pipelines.data.reward_inputs import RewardInputFormat, encode_scored

        reading = RewardInputFormat(**self.reading)
        dialogues = reading.dialogues(self.texts, self.pairs or [])
        columns = encode_scored(tokenizer, dialogues, reading, stops_of(model))
        return replace(self, tokens=[columns[place] for place in range(len(columns))])

    def asked(self) -> JSONObject:
        """What the model is asked, as plain data."""
        plain = {"texts": self.texts, "pairs": self.pairs, "max_length": self.max_length, "targets": self.targets}
        others: dict[str, Any] = {"words": self.words, "choices": self.choices, "spans": self.spans}
        others |= {"stride": self.stride, "tokens": self.tokens}
        return plain | {name: value for name, value in others.items() if value}


@dataclass
class Proof:
    """What the comparison found."""

    rows: int = 0
    """Rows of predictions computed again in the clean process."""
    of: int = 0
    """Rows of predictions that there are."""
    flips: int = 0
    """Rows whose highest logit is another one than in the evaluation."""
    largest_difference: float = 0.0
    """Between the logits of the evaluation and those of the clean process."""
    tolerance: float = 0.0
    here: float = 0.0
    """Largest difference between this process and the clean one, both in fp32."""
    merging: float | None = None
    """Largest difference between the merged and the unmerged model."""
    groups: dict[str, int] = field(default_factory=dict)
    texts: int = 0
    """Texts whose logits were compared between this process and the clean one."""
    written: bool = False
    """Whether those are texts of the evaluation, with what the model wrote, for want of predictions with logits."""

    def plain(self) -> JSONObject:
        """As it stands in publication.json."""
        return {
            "rows": self.rows,
            "of": self.of,
            "flips": self.flips,
            "largest_difference": self.largest_difference,
            "tolerance": self.tolerance,
            "largest_difference_to_this_process": self.here,
            "largest_difference_by_merging": self.merging,
            "rows_by_group": self.groups,
            "texts": self.texts,
            "written": self.written,
        }


def questions_of(scores: Mapping[str, BenchmarkScores], precision: str) -> tuple[dict[str, ProofInputs], int]:
    """Up to MOST_ROWS rows of the predictions of this model, by benchmark and split, and how many there are.

    Of written answers, which have no logits, the first WRITTEN_ROWS are asked again, and are not counted. Held-out text
    that a language model was measured on has no rows.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    tables = {}
    for benchmark, scored in scores.items():
        if {"few_shot", "policy"} & set(scored.details):  # asked in prompts, which no head answers; or sampled
            continue
        assert scored.folder is not None
        table = pq.read_table(scored.folder / "predictions.parquet")
        table = table.filter(pc.equal(table["benchmark"], benchmark))
        for split in pc.unique(table["split"]).to_pylist():
            tables[benchmark, split] = table.filter(pc.equal(table["split"], split))
    decided = {key: table for key, table in tables.items() if not _is_written(table)}
    most = MOST_ROWS // max(1, len(decided))
    groups = {
        f"{benchmark} {split}": _decided(table.slice(0, most).to_pydict(), scores[benchmark].details, precision)
        if (benchmark, split) in decided
        else _written(table.slice(0, WRITTEN_ROWS).to_pydict(), scores[benchmark].details)
        for (benchmark, split), table in tables.items()
    }
    return groups, sum(table.num_rows for table in decided.values())


def _is_written(table: pa.Table) -> bool:
    return "hypothesis" in table.column_names and table["hypothesis"].null_count < table.num_rows


def _decided(part: JSONObject, about: JSONObject, precision: str) -> ProofInputs:
    """The questions behind predictions with logits, by the columns that the kind of answer leaves."""
    import numpy as np

    settings: dict[str, Any] = {
        "max_length": about.get("max_length"),
        "precision": about.get("precision", precision),
        "columns": about.get("columns"),
    }
    if _filled(part, "tokens"):
        rows = [
            np.asarray(row, dtype=np.float32).reshape(len(words), -1)
            for row, words in zip(part["logits"], part["tokens"], strict=True)
        ]
        each = np.concatenate(rows)
        read = ~np.isnan(each).any(axis=1)  # a word without a token of its own has no logits
        return ProofInputs(
            [" ".join(words) for words in part["tokens"]], None, logits=each[read], words=part["tokens"], **settings
        )
    if _filled(part, "options"):
        texts = [text for text, options in zip(part["text"], part["options"], strict=True) for _ in options]
        beside = [option for options in part["options"] for option in options]
        return ProofInputs(
            texts,
            beside,
            logits=np.asarray(part["logits"], dtype=np.float32),
            choices=len(part["options"][0]),
            **settings,
        )
    if "answer" in part and _filled(part, "id"):
        row_numbers = [row for row, window in enumerate(part["window"]) if window is not None]
        spans = [[part[name][row] for name in ("window", "start_token", "end_token")] for row in row_numbers]
        texts, contexts, ends = ([part[name][row] for row in row_numbers] for name in ("text", "text_pair", "logits"))
        answers = np.asarray(ends, dtype=np.float32).reshape(-1, 2)
        stride = about.get("spans", {}).get("doc_stride", 0)
        return ProofInputs(texts, contexts, logits=answers, spans=spans, stride=stride, **settings)
    if _filled(part, "chosen"):
        # a prompt of several messages is told in words that are not what the model read
        whole = [at for at, text in enumerate(part["text"]) if not SPOKEN.match(text)]
        return ProofInputs(
            [part["text"][at] for at in whole for _ in range(2)],
            [part[side][at] for at in whole for side in ("chosen", "rejected")],
            logits=np.asarray([part["logits"][at] for at in whole], dtype=np.float32).reshape(len(whole), 2),
            choices=2,
            reading=about["reading"],
            **settings,
        )
    pairs = None if all(pair is None for pair in part["text_pair"]) else [pair or "" for pair in part["text_pair"]]
    logits = np.asarray(part["logits"], dtype=np.float32).reshape(len(part["text"]), -1)
    return ProofInputs(part["text"], pairs, logits=logits, **settings)


def _filled(part: JSONObject, column: str) -> bool:
    """Whether the predictions have a column, and not only because others in the file do."""
    return bool(part.get(column)) and any(value is not None for value in part[column])


def _written(part: JSONObject, about: JSONObject) -> ProofInputs:
    return ProofInputs(part["source"], None, about.get("max_length"), targets=part["hypothesis"])


def clean_answers(
    folder: Path,
    groups: Mapping[str, ProofInputs],
    auto_class: str,
    adapter: bool,
    code: Mapping[str, str] | None = None,
) -> dict[str, NDArray[np.float32]]:
    """Logits by group, computed by a process that has never heard of Finery. Raises PublishError.

    `code` is the Python in the folder that may run there, relative path -> SHA-256.
    """
    from safetensors.numpy import load_file

    request = {
        "auto_class": auto_class,
        "adapter": adapter,
        "code": dict(code or {}),
        "groups": {name: group.asked() for name, group in groups.items()},
    }
    with TemporaryDirectory(prefix="clean-room-") as place:
        script, questions, answers = (
            Path(place) / name for name in ("clean_room.py", "questions.json", "answers.safetensors")
        )
        shutil.copyfile(clean_room.__file__, script)
        questions.write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-I", str(script), str(folder.resolve()), str(questions), str(answers)]
        done = subprocess.run(
            command, cwd=place, env=_bare(place), capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            reason = lines[-1] if lines else f"it ended with {done.returncode}"
            raise PublishError(
                f"the checkpoint cannot be loaded by a process without Finery: {reason}; nothing was published"
            )
        return dict(load_file(answers))


def _bare(place: str) -> dict[str, str]:
    """The environment of a stranger: no Hub, no token, no caches, no GPU."""
    names = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "SYSTEMROOT")
    return {name: os.environ[name] for name in names if name in os.environ} | {
        "HOME": place,
        "HF_HOME": place,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }


def answers_here(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, groups: Mapping[str, ProofInputs]
) -> dict[str, NDArray[np.float32]]:
    """The same logits, computed by this process with a model at hand."""
    model.eval()
    return {name: clean_room.answer(model, tokenizer, **group.asked()).numpy() for name, group in groups.items()}


def largest_difference(one: Logits, other: Logits) -> float:
    """Over every logit of every group. Infinite when shapes differ or a logit is not a number."""
    import numpy as np

    largest = 0.0
    for name, logits in one.items():
        if logits.shape != other[name].shape:
            return float("inf")
        if logits.size:
            difference = float(np.abs(logits - other[name]).max())
            largest = max(largest, difference if np.isfinite(difference) else float("inf"))
    return largest


def largest(logits: Logits) -> float:
    """The largest of all logits, at least 1: what rounding is measured by."""
    import numpy as np

    return max([1.0, *(float(np.abs(each).max(initial=0.0)) for each in logits.values())])


def _usable_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens that the model can read at once, MOST_TOKENS at most."""
    limits = (MOST_TOKENS, positions_for_text(model), tokenizer.model_max_length)
    return min(limit for limit in limits if isinstance(limit, int) and limit > 0)


def compare(groups: Mapping[str, ProofInputs], clean: Logits, proof: Proof) -> None:
    """Hold the clean process's logits against the evaluation's. Raises PublishError when they differ by too much."""
    import numpy as np

    for name, group in groups.items():
        if group.logits is None:
            continue
        again = clean[name] if group.columns is None else clean[name][:, group.columns]
        difference = largest_difference({name: group.logits}, {name: again})
        scale = max(1.0, float(np.abs(group.logits).max(initial=0.0)))
        tolerance = HALF[group.precision] * scale if group.precision in HALF else EVALUATED
        if not difference <= tolerance:
            raise PublishError(
                f"the checkpoint does not reproduce its evaluation: a logit of '{name}' differs by {difference:.3g}, "
                f"allowed are {tolerance:.3g}; run the evaluate stage again, and report this if it stays"
            )
        flips = 0
        if group.logits.shape[1] > 1 and group.spans is None:
            flips = int((group.logits.argmax(axis=1) != again.argmax(axis=1)).sum())
        if flips > max(1, FLIPS * len(group.logits)) and group.precision not in HALF:
            raise PublishError(
                f"the checkpoint does not reproduce its evaluation: {flips} of {len(group.logits)} predictions "
                f"of '{name}' change when it is loaded again; run the evaluate stage again, and report this if it stays"
            )
        proof.rows += group.rows
        proof.flips += flips
        proof.largest_difference = max(proof.largest_difference, difference)
        proof.tolerance = max(proof.tolerance, tolerance)
        proof.groups[name] = group.rows


def prove(
    context: Context,
    head: Head,
    stage_id: str,
    folder: Path,
    auto_class: str,
    mergeable: bool,
    adapter: bool,
    scores: Mapping[str, BenchmarkScores],
    code: Mapping[str, str] | None = None,
) -> Proof:
    """Everything that must hold before `folder` may be published. Raises PublishError.

    `code` is the Python that was put there, relative path -> SHA-256: nothing else runs in the clean process.

    `adapter` says that the folder holds an adapter beside its base, `mergeable` that the stage left one that is
    published merged or could be: then both ways must agree.
    """
    groups, there_are = questions_of(scores, context.precision)
    proof = Proof(of=there_are)
    tokenizer = context.open_tokenizer(stage_id)
    model = context.open_model(head, stage_id=stage_id, merge=not adapter, trained_head=True)
    groups = {name: group.encoded(model, tokenizer) for name, group in groups.items() if group.texts}
    if not groups or any(group.tokens for group in groups.values()):  # the tokenizer is looked at too
        choices = 1 if head.kind == "multiple_choice" else None
        groups[FIXED] = ProofInputs(list(SENTENCES), None, _usable_length(model, tokenizer), choices=choices)
    context.events.emit("progress", what="loading the checkpoint in a clean process")
    clean = clean_answers(folder, groups, auto_class, adapter, code)
    compare(groups, clean, proof)

    probes = {name: group.first(PROBE_ROWS) for name, group in groups.items()}
    here = answers_here(model, tokenizer, probes)
    # Padding depends on the batch, so a probe is not bit-equal to the same rows among others; all are in fp32.
    proof.here = largest_difference(here, {name: logits[: len(here[name])] for name, logits in clean.items()})
    proof.texts = sum(group.rows for group in probes.values())
    proof.written = not there_are and FIXED not in groups
    allowed = SAVED * largest(here)
    if not proof.here <= allowed:
        raise PublishError(
            f"the checkpoint changed when it was saved: a logit differs by {proof.here:.3g}, allowed are "
            f"{allowed:.3g}; "
            "report this with the recipe"
        )
    if mergeable:
        other = answers_here(
            context.open_model(head, stage_id=stage_id, merge=adapter, trained_head=True), tokenizer, probes
        )
        proof.merging, allowed = largest_difference(here, other), MERGING * largest(here)
        if not proof.merging <= allowed:
            raise PublishError(
                f"merging the adapter changes a logit by {proof.merging:.3g}, allowed are {allowed:.3g}; "
                "publish it with merge: false"
            )
    return proof
