"""What classifiers, taggers, readers of contexts and choosers of options say, as `finery predict` says it.

The rows of a question become the user's own file of that verb, the model stays open between questions.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.commands.predict import OWN, PredictRequest, ask, chosen, foreign_task, named_task, own_task
from pipelines.commands.trained_models import Opener, TrainedModel, find
from pipelines.core.errors import CommandError, DataError, ModelError
from pipelines.core.presentation import Form, PageAnswer, field_of
from pipelines.core.registry import TASK_KINDS
from pipelines.models.checkpoint import config_of
from pipelines.tasks.evaluation import evaluation_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.interfaces import Head
    from pipelines.tasks.base import TaskKind

Result = TypeVar("Result")
PAIR = "text_pair"
"""The second column of a pair, where the model does not say what its columns are called."""


class KeptOpener(Opener):
    """Opens a model once, and gives the same one again."""

    def __init__(self, models: Sequence[TrainedModel]) -> None:
        super().__init__(models)
        self._models: dict[object, PreTrainedModel] = {}
        self._tokenizers: dict[object, PreTrainedTokenizerBase] = {}

    def open_model(
        self,
        head: Head | None,
        stage_id: str | None = None,
        merge: bool = True,
        trained_head: bool = False,
        keep_base: Path | None = None,
        checkpoint: str | None = None,
    ) -> PreTrainedModel:
        """As `ModelOpener` promises."""
        key = (head, stage_id, merge, trained_head, checkpoint)
        if key not in self._models:
            self._models[key] = super().open_model(head, stage_id, merge, trained_head, keep_base, checkpoint)
        return self._models[key]

    def open_tokenizer(self, stage_id: str | None = None, checkpoint: str | None = None) -> PreTrainedTokenizerBase:
        """As `TokenizerOpener` promises."""
        key = (stage_id, checkpoint)
        if key not in self._tokenizers:
            self._tokenizers[key] = super().open_tokenizer(stage_id, checkpoint)
        return self._tokenizers[key]

    @property
    def models(self) -> Collection[PreTrainedModel]:
        """The models that are open."""
        return self._models.values()


class Predictor:
    """A published model that predicts."""

    def __init__(self, folder: str) -> None:
        self._model = chosen(find(folder), PredictRequest(folder, "answers.jsonl"))
        self._opener = KeptOpener([self._model])
        request = PredictRequest(folder, "answers.jsonl")
        task = named_task(self._model, request) or foreign_task(self._model)
        self._task = task
        self.kind: str = task.kind
        self._about: type[TaskKind] = TASK_KINDS.load(task.kind)
        self.known = self._model.subject is not None
        """Whether the model says what it was trained on, and so what its columns are called."""
        self._ways = evaluation_of(task.kind).ways(task)
        """The columns of an input, in each way in which one can be written."""
        self.columns: tuple[str, ...] = tuple(self._ways[0])
        self._controls = {each.name: each.control for each in evaluation_of(task.kind).form(task)}
        """How each column of an input is filled in."""

    def warm(self) -> None:
        """Open the model with a first question, so that the next ones do not wait."""
        if len(self._ways) > 1:
            self.predict(
                [dict(zip(self.columns, next(iter(evaluation_of(self.kind).examples(self._task))), strict=True))]
            )
            return
        lists = {"words": ["a"], "lines": ["a", "b"]}
        try:
            self.predict([{name: lists.get(self._controls.get(name, ""), "a") for name in self.columns}])
        except CommandError:  # what such a row lacks, a real one has
            return

    def form(self) -> Form:
        """What a person fills in for one input."""
        evaluation, task = evaluation_of(self.kind), self._task
        fields = evaluation.form(task)
        examples = [dict(zip([each.name for each in fields], row, strict=True)) for row in evaluation.examples(task)]
        if self._may_be_paired:
            fields = (*fields, field_of(PAIR, "A second text, where the model compares two.", needed=False))
        title, button = "What does the model say?", "Predict"
        return Form(name="predict", title=title, button=button, fields=fields, examples=tuple(examples))

    def shown(self, given: Mapping[str, object]) -> PageAnswer:
        """What the model says of one input, as people are shown it. Raises FineryError."""
        parts, warnings = self._ask([self._row(0, given)], lambda predicted, task: predicted.shown(task))
        return PageAnswer(parts=parts, notes=tuple(each[:1000] for each in warnings))

    def open_model(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model and the tokenizer that answer. Raises ModelError where none was opened yet."""
        self.warm()
        for model in self._opener.models:
            return model, self._opener.open_tokenizer()
        raise ModelError("the model is not open yet; ask it for a prediction first")

    def config(self) -> PretrainedConfig:
        """What the model's files say of it."""
        return config_of(self._model.checkpoint)

    def predict(
        self, inputs: Sequence[object], max_length: int | None = None, batch_size: int = 32
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """(what the model says of each input, with what it read left out; warnings). Raises FineryError."""
        rows = [self._row(number, each) for number, each in enumerate(inputs)]
        columns, warnings = self._ask(
            rows, lambda found, task: found if isinstance(found, dict) else found.columns(task), max_length, batch_size
        )
        names = list(columns)
        answers = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        answers.sort(key=lambda each: int(each["index"]))
        if [each["index"] for each in answers] != list(range(len(rows))):
            raise CommandError(f"{len(answers)} of {len(rows)} inputs could be read; leave out those that are empty")
        read = ("text", PAIR, "id", *(name for way in self._ways for name in way))
        return [{key: value for key, value in each.items() if key not in read} for each in answers], warnings

    def _ask(
        self,
        rows: Sequence[Mapping[str, object]],
        read: Callable[[Any, Any], Result],
        max_length: int | None = None,
        batch_size: int = 32,
    ) -> tuple[Result, list[str]]:
        """(what `read` makes of the predictions for these rows and their task, warnings). Raises FineryError."""
        texts = self._texts(rows)
        if len(self._ways) > 1 and len({frozenset(row) for row in rows}) > 1:
            raise CommandError("some inputs have other keys than others; ask for them apart")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.jsonl"
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
            request = PredictRequest(
                self._model.id,
                "answers.jsonl",
                data=str(path),
                text=texts,
                max_length=max_length,
                batch_size=batch_size,
            )
            warnings: list[str] = []
            task = own_task(self._model, request)
            try:
                return read(ask(self._model, task, OWN, request, warnings, self._opener), task), warnings
            except DataError as error:
                raise DataError(str(error).replace(str(path), "the list of inputs")) from None

    @property
    def _may_be_paired(self) -> bool:
        """Whether a second text may be given, because nothing says what the model was trained on."""
        return not self.known and self._about.labels_texts

    @property
    def _of_words(self) -> bool:
        """Whether an input is words, and not a text."""
        return "words" in self._controls.values()

    def _row(self, number: int, given: object) -> Mapping[str, object]:
        if isinstance(given, Mapping):
            pairs = {*self.columns, PAIR} if self._may_be_paired else set()
            columns = next((way for way in self._ways if set(way) <= set(given)), self.columns)
            if missing := [name for name in columns if name not in given]:
                raise CommandError(f"input {number} has no '{missing[0]}'; {self._needed()}")
            if unknown := [name for name in given if name not in pairs | set(columns)]:
                raise CommandError(f"input {number} has an unknown key '{unknown[0]}'; {self._needed()}")
            return given
        words = isinstance(given, list) and all(isinstance(word, str) for word in given)
        if len(self.columns) != 1 or not (words if self._of_words else isinstance(given, str)):
            raise CommandError(f"input {number} must be {self._needed()}")
        return {self.columns[0]: given}

    def _needed(self) -> str:
        ways = (" and ".join(f"'{name}'" for name in way) for way in self._ways)
        keys = f"an object with {', or with '.join(ways)}"
        if len(self.columns) != 1:
            return keys
        return f"{'a list of words' if self._of_words else 'a text'}, or {keys}"

    def _texts(self, rows: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
        """The columns to read, where the model does not know them."""
        if self.known:
            return ()
        paired = [PAIR in row for row in rows]
        if any(paired) and not all(paired):
            raise CommandError(f"some inputs have a '{PAIR}' and others none; ask for them apart")
        columns = self.columns if self._about.unnamed_columns is None else self._about.unnamed_columns
        return (*columns, *([PAIR] if any(paired) else []))
