"""Asking where the answer to a question stands in a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipelines.blocks import Found
from pipelines.data.window_sizes import SHORTEST, widest_stride
from pipelines.evaluation.asking import Asked, Examiner

if TYPE_CHECKING:
    from pipelines.evaluation.answers import Answers
    from pipelines.evaluation.choice import Choice
    from pipelines.evaluation.evaluate import Evaluate
    from pipelines.protocols import Score, Task
    from pipelines.recipe import Recipe


class Spans(Examiner):
    """The best span of all windows of each context, or "no answer" where a task allows for that."""

    def mistakes(self, stage: Evaluate, choice: Choice, recipe: Recipe) -> Iterable[Found]:
        length = stage.max_length or choice.trained_length(recipe)
        stride = stage.spans.doc_stride
        if length is not None and length < SHORTEST:
            yield ("max_length",), f"is {length}, must be at least {SHORTEST} for a question and a part of its context"
        elif length is not None and stride is not None and stride > widest_stride(length):
            yield ("spans", "doc_stride"), f"is {stride}, must be at most {widest_stride(length)} with windows of {length} tokens"

    def ask(self, asked: Asked) -> Answers:
        from functools import partial

        from pipelines.data.context_windows import collate_questions, encode_questions, questions_in
        from pipelines.data.window_sizes import stride_of
        from pipelines.errors import ModelError
        from pipelines.evaluation.answers import Answers
        from pipelines.evaluation.predict import forward
        from pipelines.evaluation.spanned import Spanned
        from pipelines.evaluation.spans import Window, best_spans, grouped
        from pipelines.fields.directions import looks_back_only

        settings, length, name = asked.stage.spans, asked.length(), asked.choice.name
        if length < SHORTEST:
            raise ModelError(f"the model '{asked.choice.model}' reads {length} tokens at once, too few for a question and its context")
        stride = stride_of(length, asked.choice.trained_stride(asked.context.recipe) if settings.doc_stride is None else settings.doc_stride)
        config = asked.model.config
        back = looks_back_only({"model_type": config.model_type, **config.to_dict()})
        task: Any = asked.task

        def find(rows: Any, split: str) -> list[Any]:
            """The best spans of each question."""
            windows = encode_questions(asked.tokenizer, rows, length, stride, last_blank=back, keep_contexts=True)
            logits = forward(asked.model, windows, partial(collate_questions, asked.tokenizer), _both_ends, **asked.running(split))
            parts = zip(logits, windows.contexts or (), windows.blanks.tolist(), strict=True)
            by_row = grouped(windows.rows, [Window(*part) for part in parts])
            return [best_spans(each, text, settings) for each, text in zip(by_row, rows.pairs, strict=True)]

        threshold, chosen = settings.null_score_diff_threshold, {}
        if threshold is None:
            aside = set_aside(asked) if task.version_2 else None
            threshold = 0.0 if aside is None else best_of(find(aside, "train, set aside"), aside)
            chosen = {} if aside is None else {"threshold_chosen_on": {"split": "train", "set_aside": len(aside)}}
        said = []
        for suffix, split, given in asked.splits():
            rows: Any = given
            found = find(rows, split)
            questions = questions_in(asked.tokenizer, rows.texts, length)
            said.append(Spanned(name, split, suffix, rows, found, questions, task.version_2, threshold))
        details = {"spans": settings.model_dump() | {"doc_stride": stride, "null_score_diff_threshold": threshold} | chosen} | _facts(said)
        return Answers(said, length, details=details)

    def score(self, task: Task) -> Score:
        from pipelines.evaluation.scoring import score_texts

        return score_texts(task)


def set_aside(asked: Asked) -> Any:
    """The training rows that the model was not trained on; None where there are none, or all of them have an answer."""
    from dataclasses import replace

    from pipelines.data.selection import drawn

    recipe, subject = asked.context.recipe, asked.choice.subject
    stage: Any = next((each for each in recipe.stages if each.id == asked.choice.model), None)
    words = getattr(stage, "arguments", {})
    if subject is None or words.get("eval_strategy", words.get("evaluation_strategy", "no")) == "no" or subject.task != asked.choice.task:
        return None
    rows: Any = asked.task.rows("train", subject.max_train_samples)
    if len(rows) < 2 or all(rows.labels):
        return None
    places = drawn(len(rows), recipe.seed_of(stage))[1][: subject.max_eval_samples].tolist()
    part = {name: [getattr(rows, name)[at] for at in places] for name in ("texts", "pairs", "labels", "index", "starts", "ids")}
    return None if all(part["labels"]) else replace(rows, **part)


def best_of(found: list[Any], rows: Any) -> float:
    """The threshold that gives the best F1 on these rows: nothing is answered above it."""
    from pipelines.evaluation.squad_v2 import best_threshold

    differences = [each.difference for each in found]
    best = best_threshold([each.answer for each in found], differences, rows.labels)
    unanswered = sum(not each for each in rows.labels)
    if best["best_f1"] <= 100.0 * unanswered / len(rows):  # answering none is as good as anything
        return float(min(differences)) - 1.0
    return float(best["best_f1_thresh"])


def _facts(said: list[Any]) -> dict[str, Any]:
    """Official figures beside the scores, where there are some."""
    found = {f"{key}{each.suffix}": value for each in said for key, value in each.facts().items()}
    return {"official": found} if found else {}


def _both_ends(outputs: Any, inputs: Any) -> list[Any]:
    """For each window (2, tokens) without padding. Raises ModelError for a model without both, or whose training diverged."""
    import torch

    from pipelines.errors import ModelError

    if outputs.get("start_logits") is None or outputs.get("end_logits") is None:
        raise ModelError("the model gives no start and end of an answer; evaluate a model with a question answering head")
    both = torch.stack([outputs.start_logits, outputs.end_logits], dim=1).float().cpu().numpy()
    real = inputs["attention_mask"].numpy().astype(bool)
    found = [logits[:, mask] for logits, mask in zip(both, real, strict=True)]
    if not all(bool(torch.isfinite(torch.from_numpy(logits)).all()) for logits in found):
        raise ModelError("the model gives NaN or infinity for a window: its training diverged, so lower its learning rate")
    return found
