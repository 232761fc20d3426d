"""What extending costs: one file and one registry line, in a scratch copy of the repository, and the contracts pass.

A tuner, an objective, a metric, a reward, a judge, a destination and an executor are one file and one line; a kind of task
is one folder and one line; a benchmark is one YAML file. No other file of the copy is touched. The metric and the kind
bring a test of their own beside, of what they say beyond the contract.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

REGISTRY = "pipelines/core/registry.py"


class Extension(NamedTuple):
    """What a user adds, and the suite that must pick it up."""

    suite: str
    files: dict[str, str]
    """Path -> content."""
    table: str | None = None
    """The first line of the table that gets a line, and the line."""
    line: str = ""
    registry: str = REGISTRY


EXTENSIONS = {
    "norm_tuning": Extension(
        "tests/contracts/test_tuners.py",
        {
            "pipelines/tuners/norm_tuning.py": '''
"""Norm tuning: only the norms learn. Qi et al. 2022, arxiv.org/abs/2211.08682."""

from __future__ import annotations

from typing import Any, Literal

from pipelines.tuners.layer_groups import new_weights
from pipelines.tuners.tuner import TunerBlock


class NormTuning(TunerBlock):
    """Train the norms, and the modules that the checkpoint did not bring."""

    name: Literal["norm_tuning"] = "norm_tuning"

    def apply(self, model: Any) -> Any:
        new = new_weights(model)
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in new or "norm" in name.lower() or ".ln_" in name)
        return model
'''
        },
        "TUNERS = Registry(",
        '"norm_tuning": "pipelines.tuners.norm_tuning:NormTuning",',
    ),
    "second_half": Extension(
        "tests/contracts/test_objectives.py",
        {
            "pipelines/objectives/second_half.py": '''
"""The next word, asked in the second half of a block alone."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pipelines.objectives.causal_lm import CausalLM


class SecondHalf(CausalLM):
    """Predict the next word where there is context."""

    name: Literal["second_half"] = "second_half"  # type: ignore[assignment]

    def collate(self, tokenizer: Any, seed: int, config: Any) -> Any:
        return partial(_where_there_is_context, super().collate(tokenizer, seed, config))


def _where_there_is_context(collate: Any, examples: Any) -> Any:
    batch = collate(examples)
    for labels, mask in zip(batch["labels"], batch["attention_mask"], strict=True):
        labels[: int(mask.sum()) // 2] = -100
    return batch
'''
        },
        "OBJECTIVES = Registry(",
        '"second_half": "pipelines.objectives.second_half:SecondHalf",',
    ),
    "error_free": Extension(
        "tests/contracts/test_metrics.py",
        {
            "pipelines/metrics/error_free.py": '''
"""How often the class is right: over the examples, and over the classes, each weighing the same."""

from __future__ import annotations

from typing import Any, ClassVar

from pipelines.metrics.base import Metric, Values, paired_labels


class ErrorFree(Metric):
    """How often the class is right, from 0 to 100."""

    values: ClassVar[Values] = "classes"
    scores: ClassVar[tuple[str, ...]] = ("error_free", "class_average")
    best: ClassVar[float] = 100.0

    def compute(self, predictions: Any, references: Any, classes: int | None = None) -> dict[str, float]:
        import numpy as np

        predicted, true = paired_labels(predictions, references)
        of_each = [np.mean(predicted[true == each] == each) for each in np.unique(true)]
        return {"error_free": 100 * float(np.mean(predicted == true)), "class_average": 100 * float(np.mean(of_each))}
''',
            "tests/contracts/test_error_free.py": '''
"""Both scores are known wherever scores are read, by the registry line alone."""

from dataclasses import replace

import pytest

from pipelines.core.scores import bounds, percent_metrics, score_names
from pipelines.publishing.requirements import parse
from pipelines.tasks.base import resolve
from pipelines.tasks.scoring import score


def test_error_free_has_two_scores_with_bounds() -> None:
    assert score_names(("accuracy", "error_free")) == ("accuracy", "error_free", "class_average")
    assert percent_metrics(("accuracy", "error_free")) == ("error_free",)
    assert bounds("class_average_mm") == (0.0, 100.0)


def test_error_free_scores_a_task() -> None:
    task = replace(resolve("glue/sst2", "x"), metrics=("error_free",))
    assert score(task)([[1, 0], [1, 0], [0, 1]], [0, 1, 1]) == {
        "error_free": pytest.approx(200 / 3),
        "class_average": 75.0,
    }


def test_error_free_may_be_required() -> None:
    assert parse("mine.class_average", ">= 80").metric == "class_average"
''',
        },
        "METRICS = Registry(",
        '"error_free": "pipelines.metrics.error_free:ErrorFree",',
    ),
    "distinct_words": Extension(
        "tests/contracts/test_rewards.py",
        {
            "pipelines/rewards/distinct_words.py": '''
"""The share of a completion's words that it says for the first time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pipelines.rewards.reward import RewardBlock, Scorer
from pipelines.rewards.rules import words_of


class DistinctWords(RewardBlock):
    """Rewards a completion that does not repeat itself."""

    name: Literal["distinct_words"] = "distinct_words"

    def open(self, context: Any) -> Scorer:
        def scores(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
            words = [words_of(completion) for completion in completions]
            return [len(set(each)) / max(1, len(each)) for each in words]

        return scores
'''
        },
        "REWARDS = Registry(",
        '"distinct_words": "pipelines.rewards.distinct_words:DistinctWords",',
    ),
    "longest": Extension(
        "tests/contracts/test_judges.py",
        {
            "pipelines/feedback/judges/longest.py": '''
"""A judge that prefers the longer completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pipelines.feedback.judges.judge import Judge, JudgeBlock, Rating, Verdict


class Longest(JudgeBlock):
    """Prefers what has more letters."""

    name: Literal["longest"] = "longest"

    def open(self, context: Any) -> Judge:
        return LongestJudge()


class LongestJudge(Judge):
    """The opened judge."""

    def compare(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], principles: Any = None, draw: int = 0
    ) -> list[Verdict]:
        self.spent.questions += len(first)
        sides = [(len(one), len(two)) for one, two in zip(first, second, strict=True)]
        return [Verdict(0.5 if one == two else float(one > two)) for one, two in sides]

    def rate(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Rating]:
        self.spent.questions += len(completions)
        return [Rating(float(len(completion))) for completion in completions]
'''
        },
        "JUDGES = Registry(",
        '"longest": "pipelines.feedback.judges.longest:Longest",',
    ),
    "shelf": Extension(
        "tests/contracts/test_destinations.py",
        {
            "pipelines/publishing/destinations/shelf.py": '''
"""Publishing to a shelf: a folder below `shelves`."""

from __future__ import annotations

from typing import ClassVar

from pipelines.publishing.destinations.folder import Folder


class Shelf(Folder):
    """A folder on this machine that is called `shelf:NAME`."""

    example: ClassVar[str] = "shelf:demo"

    def __init__(self, to: str, private: bool = True) -> None:
        super().__init__(f"shelves/{to.removeprefix('shelf:')}", private)

    @staticmethod
    def claims(to: str) -> bool:
        return to.startswith("shelf:")
'''
        },
        "DESTINATIONS = Registry(",
        '"shelf": "pipelines.publishing.destinations.shelf:Shelf",',
    ),
    "nice": Extension(
        "tests/service/executors",
        {
            "service/executors/nice.py": '''
"""An executor that runs attempts on this machine under a name of its own."""

from __future__ import annotations

from service.executors.local import LocalExecutor
from service.executors.protocol import Executor
from service.settings import Settings


class Nice(LocalExecutor):
    """Runs attempts on this machine."""

    name = "nice"


def nice(settings: Settings) -> Executor:
    """The executor for these settings."""
    return Nice()
'''
        },
        "EXECUTORS = {",
        '"nice": "service.executors.nice:nice",',
        "service/executors/registry.py",
    ),
    "star_rating": Extension(
        "tests/contracts/test_task_kinds.py",
        {
            "pipelines/tasks/star_rating/__init__.py": '"""Star ratings: a text and one to five stars."""\n',
            "pipelines/tasks/star_rating/task.py": '''
"""Star ratings: a text and one to five stars."""

from __future__ import annotations

from typing import Literal

from pipelines.tasks.classification.task import Classification


class StarRating(Classification):
    """How many stars a text gives."""

    kind: Literal["star_rating"]  # type: ignore[assignment]
''',
            "pipelines/tasks/star_rating/training.py": '''
"""Learning star ratings: as classes."""

from pipelines.tasks.classification.training import ClassificationTraining


class StarRatingTraining(ClassificationTraining):
    """Cross-entropy over the stars."""
''',
            "pipelines/tasks/star_rating/evaluation.py": '''
"""Evaluating star ratings: as classes, of which some lie nearer than others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelines.tasks.classification.evaluation import ClassificationEvaluation
from pipelines.tasks.evaluation import EvaluationRequest, Predictions
from pipelines.tasks.predictions import ClassPredictions
from pipelines.tasks.scored_examples import Columns, ScoredExamples


@dataclass(frozen=True)
class StarPredictions(ClassPredictions):
    """The worst mistake is the farthest; people read the mean number of stars too."""

    def scored_examples(self, task: Any) -> ScoredExamples:
        distance = np.abs(self.logits.argmax(axis=1) - np.asarray(self.labels)).astype(float)
        return replace(super().scored_examples(task), badness=distance, order="stars beside the right number")

    def columns(self, task: Any) -> Columns:
        columns = super().columns(task)
        shares = np.stack([columns[f"probability_{name}"] for name in task.head.labels], axis=1)
        return columns | {"mean_stars": [float(row @ np.arange(len(row))) for row in shares]}


class StarRatingEvaluation(ClassificationEvaluation):
    """The likeliest number of stars."""

    def ask(self, request: EvaluationRequest) -> Predictions:
        asked = super().ask(request)
        return replace(asked, predicted=[StarPredictions(**vars(each)) for each in asked.predicted])
''',
            "tests/contracts/test_star_rating.py": '''
"""What the kind says of its predictions reaches the files of a stage, and what people read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipelines.core.interfaces import Head, Rows
from pipelines.core.load import loads
from pipelines.tasks.star_rating.evaluation import StarPredictions
from tests import tiny

LABELS = ("one", "two", "three")
RECIPE = """
name: t
model: {architecture: {preset: bert-tiny}}
stages:
  - {stage: supervised, id: mine, class_weights: balanced, task: {kind: star_rating, columns: [text], label: stars,
      labels: [one, two, three], train: rows.jsonl, validation: rows.jsonl}}
  - {stage: evaluate}
"""


def test_star_rating_orders_its_mistakes_and_names_its_columns(
    tmp_path: Path, evaluation_context: Callable[..., Any]
) -> None:
    rows = [{"text": text, "stars": LABELS[at % 3]} for at, text in enumerate(tiny.TEXTS)]
    (tmp_path / "rows.jsonl").write_text("\\n".join(map(json.dumps, rows)))
    recipe = loads(RECIPE, folder=tmp_path)
    model = tiny.build("bert", Head("sequence_classification", LABELS), initializer_range=0.5).eval()
    context = evaluation_context(
        recipe, "evaluate", {"mine": model}, open_tokenizer=lambda stage_id=None: tiny.tokenizer()
    )
    recipe.stage("evaluate").run(context)
    worst = [json.loads(line) for line in (context.folder / "mistakes.jsonl").read_text().splitlines()]
    assert {each["by"] for each in worst} == {"stars beside the right number"}
    assert {each["badness"] for each in worst} <= {1.0, 2.0}
    details = json.loads((context.folder / "details.json").read_text())["mine"]
    assert {"slices", "classes", "calibration", "mistakes"} <= details.keys()


def test_star_rating_shows_a_column_of_its_own() -> None:
    predictions = StarPredictions("x", "test", "", Rows(["a"], None, None, [0]), np.zeros((1, 3), dtype=np.float32))
    task = SimpleNamespace(name="x", head=Head("sequence_classification", LABELS))
    assert predictions.columns(task)["mean_stars"] == [1.0]
''',
        },
        "TASK_KINDS = TaskKinds(",
        '"star_rating": "pipelines.tasks.star_rating:StarRating",',
    ),
    "builtin/word-order": Extension(
        "tests/contracts/test_tasks.py",
        {
            "configs/tasks/builtin/word-order.yaml": """
# Are the words of a sentence in their order?
kind: classification
columns: [text]
label: label
labels: [shuffled, original]
train: builtin/python-docs
name: labelled
benchmark:
  splits: [train, validation]
"""
        },
    ),
}


@pytest.fixture(scope="module")
def outcomes(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    """How many cases of each extension passed, failed and were skipped, in a copy that holds all of them."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pipelines", "service", "configs", "tests"):
        shutil.copytree(repository / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "pyproject.toml", copy)
    for extension in EXTENSIONS.values():
        for name, content in extension.files.items():
            (copy / name).parent.mkdir(exist_ok=True)
            assert not (copy / name).exists()
            (copy / name).write_text(content.lstrip("\n"))
        if extension.table is not None:
            add_line(copy / extension.registry, extension.table, extension.line)
    own = [name for extension in EXTENSIONS.values() for name in extension.files if name.startswith("tests/")]
    suites = sorted({"tests/contracts/test_layers.py", *own, *(extension.suite for extension in EXTENSIONS.values())})
    report = copy / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *suites]
    command += [
        "-m",
        "not long",
        "-k",
        " or ".join(["schema", "heavy", *(name.rpartition("/")[2] for name in EXTENSIONS)]),
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    counts: dict[str, Counter[str]] = {name: Counter() for name in EXTENSIONS}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = {part.tag for part in case} & {"failure", "error", "skipped"}
        for name in EXTENSIONS:
            if name in str(case.get("name")):
                counts[name][parts.pop() if parts else "passed"] += 1
    assert done.returncode == 0, done.stdout[-6000:]
    return counts


def add_line(registry: Path, table: str, line: str) -> None:
    """Put the line first into the table that begins so."""
    before, start, after = registry.read_text().partition(table)
    assert start, f"{registry.name} has no {table}"
    head, brace, rest = (start + after).partition("{\n")
    indent = " " * (len(rest) - len(rest.lstrip(" ")))
    registry.write_text(f"{before}{head}{brace}{indent}{line}\n{rest}")


@pytest.mark.long
@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_file_and_a_line_pass_the_contract(name: str, outcomes: dict[str, Counter[str]]) -> None:
    assert outcomes[name]["passed"] >= 3
    assert outcomes[name].keys() <= {"passed", "skipped"}
