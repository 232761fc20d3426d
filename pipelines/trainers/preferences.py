"""Which preferences a stage learns from, and how they become the examples of its loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from pipelines.architectures.arithmetic import WORD_HEADS
from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.costs import Example
from pipelines.core.errors import DataError
from pipelines.core.recipe import Stage
from pipelines.core.registry import nearest
from pipelines.data import chat_templates
from pipelines.data.chat_templates import TemplateName
from pipelines.tasks.base import TaskField, resolve
from pipelines.tasks.known import reference_rows, task_rows, whole_rows
from pipelines.tasks.preference.rows import LabelledRows, PreferenceRows, joined, split_in_two, told
from pipelines.tasks.preference.task import PreferenceReference

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.costs import Planning, StagePlan
    from pipelines.core.interfaces import Context, Head
    from pipelines.core.recipe import Recipe
    from pipelines.data.chat_formats import Dialogue
    from pipelines.tasks.preference.pairs import PreferenceCollator, PreferencePairs
    from pipelines.tasks.preference.task import PreferenceTask


KIND = "preference"
"""The kind of tasks that these stages learn."""


class PreferenceSubject(Stage):
    """The keys that say which preferences are learnt."""

    task: TaskField = Field(None, validate_default=False)
    """A task of the kind `preference`: a named one such as `alpaca_eval_preferences`, or an inline one that
    describes your own files."""
    datasets: tuple[PreferenceReference, ...] | None = Field(None, min_length=1)
    """Instead of `task`: files, data sets, or what earlier feedback stages have written (`{from: feedback}`), one
    after another."""
    max_length: int = Field(512, ge=4, le=131072)
    """Tokens of the prompt and one answer together, after which the answer is cut; for encoder-decoders of the
    answer alone."""
    max_prompt_length: int | None = Field(None, ge=1, le=131072)
    """Tokens of the prompt, whose beginning is cut. Default: what the answers leave of `max_length`, but at least
    half of it; for encoder-decoders `max_length`."""
    max_train_samples: int | None = Field(None, ge=1)
    """Only the first pairs."""
    max_eval_samples: int | None = Field(None, ge=1)
    """Only the first of the pairs set aside for model selection."""
    chat_template: TemplateName | None = None
    """What joins prompts and answers: `alpaca`, `chatml`, `simple`, `zephyr`, or a Jinja file, saved with the
    tokenizer. Default: plain texts are joined as they are, messages by the tokenizer's own template, else `simple`."""
    skip_bad_rows: bool = False
    """Leave rows out that cannot be read, and say which, instead of stopping at the first."""

    @model_validator(mode="after")
    def _one_of_both(self) -> PreferenceSubject:
        if (self.task is None) == (self.datasets is None):
            given = "both were given" if self.datasets else "neither was given"
            raise ConfigIssues(
                [
                    (
                        (),
                        "needs either 'task' (of the kind preference) or 'datasets' (files, or what a stage "
                        f"has written); {given}",
                    )
                ]
            )
        return self

    def resolved(self, name: str) -> PreferenceTask:
        """The task itself; one that is described in place goes by `name`."""
        task: Any = resolve(self.task, name)
        resolved: PreferenceTask = (
            replace(task, skip_bad_rows=True) if self.skip_bad_rows and hasattr(task, "skip_bad_rows") else task
        )
        return resolved

    def preference_mistakes(self, name: str, recipe: Recipe) -> Iterable[ConfigIssue]:
        """What is wrong with these keys in the recipe, places relative to the stage."""
        if self.task is not None and (kind := resolve(self.task, name).kind) != KIND:
            yield (
                ("task",),
                f"is of the kind {kind}, but this stage learns from pairs of answers: a task of the kind "
                f"{KIND}, such as alpaca_eval_preferences",
            )
        stages = list(recipe.stages)
        here = next((at for at, each in enumerate(stages) if each.id == name), len(stages))
        earlier = {each.id: each for each in stages[:here]}
        writers = [each.id for each in earlier.values() if each.writes_preferences]
        for position, reference in enumerate(self.datasets or ()):
            if reference.source is None or reference.source in writers:
                continue
            wrong = "writes no preferences" if reference.source in earlier else "is no earlier stage"
            remedy = (
                f"Those that do: {', '.join(writers)}"
                if writers
                else "No earlier stage does: add {stage: feedback, …} before this one"
            )
            yield (
                ("datasets", position, "from"),
                f"'{reference.source}' {wrong}.{nearest(reference.source, writers)} {remedy}",
            )
        for key in ("max_length", "max_prompt_length"):
            if (why := recipe.model.too_long(self, key)) is not None:
                yield (key,), why

    def preference_reads(self) -> tuple[str, ...]:
        """Ids of the stages that wrote what is learnt."""
        return tuple(
            dict.fromkeys(reference.source for reference in self.datasets or () if reference.source is not None)
        )

    def preference_content(self, name: str) -> dict[str, str]:
        """Content hash of the training rows, by how they are read."""
        template = {"chat_template": chat_templates.content_of(self.chat_template)} if self.chat_template else {}
        if self.task is not None:
            task = self.resolved(name)
            read = (
                task.format or "told by the columns",
                *(f"{role}={column}" for role, column in sorted(task.names.items())),
            )
            return {f"train.{'+'.join(read)}": task.content()["train"]} | template
        hashes = ((f"datasets[{at}]", reference.content()) for at, reference in enumerate(self.datasets or ()))
        return {role: value for role, value in hashes if value is not None} | template

    def needed_tokens(self) -> tuple[str, ...]:
        """Tokens that a tokenizer trained for the subject has beside the usual ones."""
        return chat_templates.marks_of(self.chat_template)

    def preference_texts(self, name: str) -> Iterator[str]:
        """The texts of the training rows, for a tokenizer; those that a stage has yet to write are not among them."""
        references = None if self.datasets is None else tuple(each for each in self.datasets if each.source is None)
        rows = self.read(name, {}) if references is None else self._of_datasets(references, {}) if references else None
        sides = (
            ()
            if rows is None
            else (rows.chosen, rows.rejected)
            if isinstance(rows, PreferenceRows)
            else (rows.dialogues,)
        )
        for number, side in enumerate(sides):
            for each in side:  # the prompts are the same on both sides
                yield from (
                    str(message["content"]) for message in (each.messages if number == 0 else each.messages[-1:])
                )

    def read(self, name: str, folders: Mapping[str, Path]) -> PreferenceRows | LabelledRows:
        """The training rows as they are written; `folders` are those of the complete stages. Raises DataError."""
        if self.datasets is None:
            return self.resolved(name).read("train", self.max_train_samples)
        return self._of_datasets(self.datasets, folders)

    def _of_datasets(
        self, references: tuple[PreferenceReference, ...], folders: Mapping[str, Path]
    ) -> PreferenceRows | LabelledRows:
        parts: list[PreferenceRows | LabelledRows] = []
        left = self.max_train_samples
        for reference in references:
            if left == 0:
                break
            parts.append(reference.rows(folders, self.skip_bad_rows, left))
            left = None if left is None else left - len(parts[-1])
        pairs = [each for each in parts if isinstance(each, PreferenceRows)]
        if len(pairs) == len(parts):
            return joined(pairs)
        if len(parts) == 1:
            return parts[0]
        raise DataError(
            "'datasets' has single answers (prompt, completion, label) beside other rows; put them into one file"
        )

    def known_rows(self) -> int | None:
        """Rows that the stage learns from, where that can be told without reading them."""
        if self.task is not None:
            task = self.resolved(self.id)
            rows = task_rows(task, "train")
            if rows is not None and task.share is not None and task.name and len(task.places) == 1:
                rows = whole_rows(task)
                rows = None if rows is None else rows - round(rows * task.share)
        else:
            counts = [reference_rows(each) for each in self.datasets or ()]
            rows = None if None in counts else sum(count for count in counts if count is not None)
        if self.max_train_samples is None:
            return rows
        return self.max_train_samples if rows is None else min(rows, self.max_train_samples)

    def preference_cost(
        self,
        planning: Planning,
        head: Head,
        rows: int | None,
        sequences: int = 2,
        forwards: int = 0,
        copies: bool = False,
        note: str = "",
    ) -> StagePlan:
        """The plan of a stage that learns from `rows`, of `sequences` answers each."""
        notes = [*planning.notes, *filter(None, [note])]
        rows = planning.rows_to_learn(self, rows, notes)
        notes.append(f"at most: every answer is counted with max_length {self.max_length}")
        source = self.max_prompt_length if head.kind == "seq2seq_lm" and self.max_prompt_length else self.max_length
        predicted = self.max_length if head.kind in WORD_HEADS else 0
        example = Example(
            source,
            self.max_length,
            predicted,
            sequences,
            forwards,
            copies,
            whole=False,
            reads=forwards,
            dropout=not self.arguments.disable_dropout,
        )
        return planning.training(self, head, example, rows, notes)

    def preference_rows(self, context: Context, tokenizer: PreTrainedTokenizerBase) -> PreferenceRows:
        """The training pairs, ready for `tokenizer`, which is given its chat template where they need one. Raises
        DataError."""
        rows = self.read(context.stage_id, context.stage_folders)
        if isinstance(rows, LabelledRows):
            raise DataError(
                "the rows are single answers (prompt, completion, label), and pairs are needed (prompt, "
                "chosen, rejected)"
            )
        self._make_ready(rows, rows.chosen, context, tokenizer)
        return rows if self.chat_template is None else rows.in_turns()

    def labelled_rows(self, context: Context, tokenizer: PreTrainedTokenizerBase) -> LabelledRows:
        """The training rows as single answers, ready for `tokenizer`: pairs are split in two. Raises DataError."""
        rows = self.read(context.stage_id, context.stage_folders)
        single = rows if isinstance(rows, LabelledRows) else split_in_two(rows)
        self._make_ready(single, single.dialogues, context, tokenizer)
        return single if self.chat_template is None else single.in_turns()

    def _make_ready(
        self,
        rows: PreferenceRows | LabelledRows,
        dialogues: Iterable[Dialogue],
        context: Context,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        """Say what is left out, and give `tokenizer` the chat template that the rows need. Raises DataError
        without rows."""
        from pipelines.tasks.causal.training import inherited_template

        if len(rows) == 0:
            raise DataError(f"stage '{context.stage_id}' has no pairs to learn from")
        if rows.skipped and context.world.is_main:
            context.events.emit("warning", message=told(rows.skipped, len(rows.skipped) + len(rows)))
        if self.chat_template is not None or any(each.templated for each in dialogues):
            chat_templates.adopt(tokenizer, self.chat_template, inherited_template(context))


def pairs_for(
    subject: PreferenceSubject,
    context: Context,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    longest: int | None,
) -> tuple[PreferencePairs, PreferenceCollator]:
    """(the pairs, their collator) for a model that names tokens; no row is longer than `longest` tokens. Raises
    DataError."""
    from pipelines.data.completions import padding_token, stops_of
    from pipelines.data.encoding import few_lengths
    from pipelines.data.ragged import made_once
    from pipelines.models.checkpoint import start_token
    from pipelines.tasks.first_batch import tell_pairs
    from pipelines.tasks.preference.pairs import PreferenceCollator, encode_preferences

    both, limit, prompt = limits(subject, model, longest)

    def read() -> tuple[PreferencePairs, Any]:
        rows = subject.preference_rows(context, tokenizer)
        examples = encode_preferences(tokenizer, rows, limit, prompt, both, stops_of(model))
        tell_pairs(context, tokenizer, examples, rows, limit)
        return examples, tokenizer.chat_template

    examples, tokenizer.chat_template = made_once(context, "pairs", read)
    pad = padding_token(tokenizer)
    if both:
        return examples, PreferenceCollator(pad, start_token(model, tokenizer))
    return examples, PreferenceCollator(pad, **few_lengths(limit))


def held_out_for(
    subject: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, longest: int | None, most: int
) -> tuple[PreferencePairs | None, list[tuple[int, int]]]:
    """(the first `most` held-out pairs of the stage's task, encoded as those for training; the characters of their
    two answers, uncut). None where there is no task. `tokenizer` has its chat template already: see `pairs_for`.
    Raises DataError.
    """
    from pipelines.data.completions import stops_of
    from pipelines.tasks.preference.pairs import encode_preferences

    if subject.task is None:
        return None, []
    task = subject.resolved(subject.id)
    rows = task.rows(next(iter(task.evaluation_splits.values())), most)
    if len(rows) == 0:
        return None, []
    both, limit, prompt = limits(subject, model, longest)
    turned = rows.in_turns() if subject.chat_template is not None else rows
    examples = encode_preferences(tokenizer, turned, limit, prompt, both, stops_of(model))
    sizes = {
        number: (len(chosen.completion), len(rejected.completion))
        for number, chosen, rejected in zip(rows.index, rows.chosen, rows.rejected, strict=True)
    }
    return examples, [sizes[number] for number in examples.index]


def limits(subject: PreferenceSubject, model: PreTrainedModel, longest: int | None) -> tuple[bool, int, int | None]:
    """(whether the model is an encoder-decoder, tokens of a row or an answer, tokens of a prompt)."""
    both = bool(getattr(model.config, "is_encoder_decoder", False))
    prompt = subject.max_prompt_length
    limit = subject.max_length if longest is None else min(subject.max_length, longest)
    return both, limit, prompt if prompt is None or longest is None else min(prompt, longest)
