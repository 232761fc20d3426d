"""What every kind of task must do: described in a recipe, learnt, evaluated. A new kind is tested by its line in the table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from markupsafe import escape
from pydantic import ValidationError
from transformers import BertConfig

from pipelines.commands.predict import foreign_task, write_table
from pipelines.commands.trained_models import find
from pipelines.core.config import Block, flatten
from pipelines.core.interfaces import HeadKind
from pipelines.core.load import loads
from pipelines.core.presentation import Form, PageAnswer, field_of, plain
from pipelines.core.registry import METRICS, TASK_KINDS, TASKS
from pipelines.core.scores import score_names
from pipelines.evaluation.analysis import mistakes
from pipelines.evaluation.few_shot.prompts import AMONG_KNOWN, form_of, prompt_for, unfit
from pipelines.evaluation.few_shot.questions import questions_of
from pipelines.models.checkpoint import Checkpoint
from pipelines.tasks.base import HELD_OUT, LabelledTask
from pipelines.tasks.evaluation import BenchmarkChoice, EvaluationRequest, TaskEvaluation, evaluation_of
from pipelines.tasks.predictions import SplitPredictions
from pipelines.tasks.text_to_text import AsText
from pipelines.tasks.training import TaskTraining, training_of
from service.web.trying import drawn_answer
from tests import tiny

ROWS = 30


@pytest.fixture(params=list(TASK_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def filled(folder: Path, kind: str) -> Path:
    """The folder, with rows to learn from and to be scored on."""
    _, rows = TASK_KINDS.load(kind).example()
    many = [rows[place % len(rows)] for place in range(ROWS)]
    for name in ("train", "dev"):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, many)))
    return folder


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return filled(tmp_path, kind)


def block(kind: str, folder: Path, **changes: Any) -> Any:
    keys, _ = TASK_KINDS.load(kind).example()
    data = {"kind": kind, "train": "train.jsonl"} | keys | changes
    return TASK_KINDS.load(kind).model_validate(
        {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()},
        context={"folder": folder},
    )


def learnt_as(kind: str) -> str:
    return TASK_KINDS.load(kind).read_as or kind


def test_it_makes_a_task_with_rows_its_head_and_known_metrics(kind: str, folder: Path):
    task = block(kind, folder, validation="dev.jsonl").task("my-stage")
    assert isinstance(task, LabelledTask)
    assert (task.name, task.kind) == ("my-stage", learnt_as(kind))
    assert set(task.metrics) <= set(METRICS)
    assert len(task.rows("train")) == len(task.rows("validation")) == ROWS
    assert len(task.rows("train").labels or ()) == ROWS
    assert task.head.kind == TASK_KINDS.load(kind).head_kind
    assert set(task.content()) == {"train", "validation"}


def test_without_validation_rows_some_are_held_out(kind: str, folder: Path):
    task = block(kind, folder).task("my-stage")
    assert HELD_OUT in task.splits
    assert len(task.rows("train")) + len(task.rows(HELD_OUT)) == ROWS


@pytest.mark.parametrize("named", TASK_KINDS.where(lambda each: each.labels_texts))
def test_answers_that_can_be_written_are_read_back(named: str, tmp_path: Path):
    task = block(named, filled(tmp_path, named)).task("my-stage")
    written = [str(each) for each in AsText(task).rows("train").labels or ()]
    predictions, labels, unread = AsText(task).read(written, written)
    assert predictions == labels == pytest.approx(list(task.rows("train").labels or ()), abs=0.1)
    assert unread == 0


@pytest.mark.parametrize(
    "named", TASK_KINDS.where(lambda each: each.unnamed_columns is not None and each.read_as is None)
)
def test_a_model_that_does_not_say_what_it_learnt_is_asked_as_its_head_answers(named: str, tmp_path: Path):
    kind = TASK_KINDS.load(named)
    outputs = next(count for count in (2, 1) if kind.answers_with(count))
    BertConfig(num_labels=outputs).save_pretrained(str(tmp_path))
    (tmp_path / "head.json").write_text(json.dumps({"kind": kind.head_kind, "labels": []}))
    model: Any = SimpleNamespace(checkpoint=Checkpoint("mine", str(tmp_path), str(tmp_path)))
    task = foreign_task(model)
    asked = TASK_KINDS.load(task.kind)  # its own, or that of which it is a variety
    assert issubclass(kind, asked)
    assert (type(task), task.columns) == (asked.task_class(), asked.unnamed_columns)
    assert evaluation_of(task.kind).ways(task)


@pytest.mark.parametrize("named", TASK_KINDS.where(lambda each: each.prompt_form is not None))
def test_a_row_of_a_kind_that_can_be_asked_becomes_a_question(named: str, tmp_path: Path):
    task = block(named, filled(tmp_path, named)).task("my-stage")
    prompt = prompt_for(task)
    if form_of(task) == "numbers":
        prompt = prompt.model_copy(update={"answers": ("0", "1")})
    assert unfit(prompt, task) == []
    asked = questions_of(task, prompt, "train").each
    assert len(asked) == len(task.rows("train"))
    assert all(each.answer for each in asked)
    assert {bool(each.options) for each in asked} == {form_of(task) in AMONG_KNOWN}


def test_it_writes_itself_down_and_reads_itself_back(kind: str, folder: Path):
    made = block(kind, folder, validation="dev.jsonl")
    assert isinstance(made, Block)
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in made.plain().items()}
    assert type(made).model_validate(plain, context={"folder": Path("/")}) == made


@pytest.mark.parametrize("rows", ["gone.jsonl", "file:file-0123abcd", "gone/*.csv"])
@pytest.mark.parametrize("among", [False, True], ids=["alone", "among several"])
def test_what_a_publication_learnt_is_known_without_its_rows(
    kind: str, folder: Path, rows: str, among: bool, tmp_path_factory: pytest.TempPathFactory
):
    """On another machine, and on a server, whose recipes name the rows by the ids of uploaded files."""
    keys, _ = TASK_KINDS.load(kind).example()
    learnt = {"task": {"kind": kind, **keys, "train": rows, "test": rows}, "max_length": 300}
    stage = {"stage": "reward" if TASK_KINDS.load(kind).head_kind == "reward" else "supervised", **learnt}
    if among:
        stage = {"stage": "multi_task", "tasks": [{"id": "mine", **learnt}, {"task": "glue/rte"}]}
    stage["id"], name = ("several", "several/mine") if among else ("mine", "mine")
    publish = {"stage": "publish", "from": name, "to": "registry/m"}
    place = tmp_path_factory.mktemp("elsewhere")
    for file, content in {
        "config.json": {"model_type": "finery"},
        "recipe.yaml": {"name": "t", "model": {"architecture": {}}, "stages": [stage, publish]},
        "publication.json": {"to": "registry/m"},
    }.items():
        (place / file).write_text(json.dumps(content))
    (found,) = find(str(place))
    assert found.id == name
    assert found.subject.max_length == 300
    task, expected = found.subject.resolved("mine"), block(kind, folder).task("mine")
    assert replace(task, places={}) == replace(expected, places={})


def test_what_is_missing_or_unknown_is_an_issue_at_its_key(kind: str, folder: Path):
    with pytest.raises(ValidationError) as caught:
        TASK_KINDS.load(kind).model_validate({"kind": kind, "trian": "train.jsonl"}, context={"folder": folder})
    found = dict(flatten(caught.value))
    assert found.pop(("trian",)).startswith("unknown key 'trian'. Did you mean 'train'?")
    needed = {name for name, field in TASK_KINDS.load(kind).model_fields.items() if field.is_required()} - {"kind"}
    assert found == {(key,): "is missing" for key in needed}
    assert needed == {"train", *TASK_KINDS.load(kind).example()[0]}


def test_every_key_is_explained(kind: str):
    assert {*TASK_KINDS.load(kind).model_fields} - {*TASK_KINDS.load(kind).descriptions()} <= {"kind"}


def test_it_is_learnt_and_evaluated_with_a_known_head(kind: str):
    assert TASK_KINDS.load(kind).head_kind in get_args(HeadKind)
    training, evaluation = training_of(learnt_as(kind)), evaluation_of(learnt_as(kind))
    assert isinstance(training, TaskTraining)
    assert type(training).prepare is not TaskTraining.prepare
    assert isinstance(evaluation, TaskEvaluation)
    assert type(evaluation).ask is not TaskEvaluation.ask
    assert type(evaluation).score is not TaskEvaluation.score


FAMILIES = {"causal_lm": "decoder", "reward": "decoder", "seq2seq_lm": "encoder-decoder"}
RECIPE = """
name: t
model: {checkpoint: some/model}
stages: [{stage: evaluate, benchmarks: [glue/sst2], per_device_eval_batch_size: 4}]
"""


@pytest.fixture(scope="module")
def kept() -> dict[str, tuple[LabelledTask, SplitPredictions]]:
    """By kind: predictions are made once, and only read."""
    return {}


@pytest.fixture
def predicted(
    kind: str,
    kept: dict[str, tuple[LabelledTask, SplitPredictions]],
    evaluation_context: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[LabelledTask, SplitPredictions]:
    """A task of the kind, and what a model without training answers."""
    if kind not in kept:
        kept[kind] = asked(kind, filled(tmp_path_factory.mktemp(kind), kind), evaluation_context)
    return kept[kind]


def asked(kind: str, folder: Path, evaluation_context: Callable[..., Any]) -> tuple[LabelledTask, SplitPredictions]:
    made = block(kind, folder, validation="dev.jsonl")
    task = made.task("mine")
    family = FAMILIES.get(task.head.kind, "encoder")
    shape = {"num_decoder_layers": 2} if family == "encoder-decoder" else {}
    model = tiny.build("finery", task.head, family=family, initializer_range=0.5, **shape).eval()
    recipe = loads(RECIPE)
    stage: Any = recipe.stages[0]
    context = evaluation_context(recipe, "evaluate", {"model": model}, open_tokenizer=lambda *names: tiny.tokenizer())
    choice = BenchmarkChoice("mine", made, "model", None)
    request = EvaluationRequest(stage, choice, task, context, model, tiny.tokenizer())
    (split,) = evaluation_of(task.kind).ask(request).predicted
    return task, split


def test_its_predictions_are_scored_whole_and_in_part(predicted: tuple[LabelledTask, SplitPredictions]):
    task, predictions = predicted
    score = evaluation_of(task.kind).score(task)
    scores = score(predictions.answers, predictions.labels)
    assert set(score_names(task.metrics)) <= set(scores)
    ranges = predictions.intervals(task, score, seed=1, resamples=20)
    assert set(ranges) == set(scores)
    part = predictions.part(np.arange(10))
    if part is not None:
        assert len(part[0]) == len(part[1]) == 10
        assert score(*part).keys() <= scores.keys()
        assert predictions.intervals(task, score, 1, np.arange(10), 20).keys() <= scores.keys()


def test_its_predictions_are_explained_and_shown(predicted: tuple[LabelledTask, SplitPredictions], tmp_path: Path):
    task, predictions = predicted
    assert predictions.table().num_rows == ROWS
    columns = predictions.columns(task)
    assert next(iter(columns)) == "index"
    assert {len(cells) for cells in columns.values()} == {ROWS}
    assert "prediction" in columns
    write_table(tmp_path / "predictions.jsonl", columns)
    examples = predictions.scored_examples(task)
    if examples is not None:
        assert len(examples.gold) == len(examples.answers) == len(examples.wrong) == len(examples.badness) == ROWS
        assert len(mistakes(predictions, examples)) == examples.wrong.sum()


def test_people_fill_in_a_form_and_see_an_answer(predicted: tuple[LabelledTask, SplitPredictions], kind: str):
    task, predictions = predicted
    evaluation = evaluation_of(task.kind)
    fields = evaluation.form(task)
    assert [each.name for each in fields][: len(task.columns)] == list(task.columns)
    for example in evaluation.examples(task):
        assert len(example) == len(fields)
        lists = [each.control in ("words", "lines", "texts") for each in fields]
        assert [isinstance(value, list) for value in example] == lists
    parts = predictions.shown(task, 1)
    assert PageAnswer.model_validate(plain(PageAnswer(parts=parts))).parts == parts
    form = Form(name="predict", title="?", button="Ask", fields=fields or (field_of("text"),))
    answer = PageAnswer(parts=parts, notes=("<b>cut</b>",))
    html = drawn_answer(form, {each.name: "" for each in form.fields}, answer, [("curl", "echo '<i>'")])
    assert "&lt;b&gt;cut" in html
    assert "<i>" not in html
    assert len(html) > 200
    texts = [part.text for each in parts for part in getattr(each, "pieces", ()) if part.text.strip()]
    assert all(str(escape(text.strip())) in html for text in texts)


def test_every_benchmark_is_of_a_kind_of_the_table():
    assert {TASKS.load(name).kind for name in TASKS} <= set(TASK_KINDS)


def test_every_kind_is_checked_without_any_heavy_library():
    heavy = ("torch", "transformers", "datasets", "numpy", "pyarrow")
    code = (
        "import sys\nfrom pipelines.core.registry import TASK_KINDS\nimport pipelines.tasks.subject\n"
        f"for kind in TASK_KINDS: TASK_KINDS.load(kind)\nprint([m for m in {heavy!r} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
