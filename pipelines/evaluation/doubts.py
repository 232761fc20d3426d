"""What a reader should be told before believing a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from pipelines.evaluation.scoring import decide


def constant_prediction(benchmark: str, split: str, logits: NDArray[Any], classes: tuple[str, ...]) -> str | None:
    """A sentence where the model says the same about every example."""
    predictions = decide(logits)
    if len(predictions) < 2 or predictions.min() != predictions.max():
        return None
    what = f"the class '{classes[int(predictions[0])]}'" if classes else f"{float(predictions[0]):g}"
    return (
        f"{benchmark}: the model predicts {what} for every one of the {len(predictions)} examples of '{split}'; "
        "it has not learnt to tell them apart (try more steps, another learning rate, or a pretrained model)"
    )


def constant_text(benchmark: str, split: str, texts: NDArray[Any]) -> str | None:
    """A sentence where the model writes the same for every example."""
    if len(texts) < 2 or any(text != texts[0] for text in texts):
        return None
    return (
        f"{benchmark}: the model writes {str(texts[0])[:60]!r} for every one of the {len(texts)} examples of '{split}'; "
        "it has not learnt to read its sources (try more steps, another learning rate, or a pretrained model)"
    )


def constant_answer(benchmark: str, split: str, answers: NDArray[Any]) -> str | None:
    """A sentence where the model gives one answer to every question."""
    if len(answers) < 2 or any(answer != answers[0] for answer in answers):
        return None
    what = f"answers {str(answers[0])[:60]!r} to" if answers[0] else "finds no answer to"
    return (
        f"{benchmark}: the model {what} every one of the {len(answers)} questions of '{split}'; "
        "it has not learnt to read its texts (try more steps, another learning rate, or a pretrained model)"
    )


def constant_tag(benchmark: str, split: str, tags: NDArray[Any], names: tuple[str, ...]) -> str | None:
    """A sentence where the model gives every word of every text the same tag."""
    found = {int(tag) for row in tags for tag in row if tag >= 0}
    if len(found) != 1 or sum(len(row) for row in tags) < 2:
        return None
    return (
        f"{benchmark}: the model gives every word of '{split}' the tag '{names[found.pop()]}'; "
        "it has not learnt to tell them apart (try more steps, another learning rate, or a pretrained model)"
    )


def no_better_than_majority(
    benchmark: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    majority: Mapping[str, float],
    guess: str = "always guessing the most frequent class",
) -> str | None:
    """A sentence where a score's interval contains, or lies below, what always guessing one class scores."""
    within = [name for name in scores if name in majority and intervals[name][0] <= majority[name]]
    if not within:
        return None
    listed = ", ".join(
        f"{name} {scores[name]:.3f} [{intervals[name][0]:.3f}, {intervals[name][1]:.3f}] against {majority[name]:.3f}"
        for name in within
    )
    return f"{benchmark}: not shown to be better than {guess}: {listed}"


def no_better_than_ngrams(
    name: str,
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    peers: Mapping[str, Mapping[str, float]],
) -> str | None:
    """A sentence where the interval of bits per byte contains, or lies above, what a model of one or two tokens needs."""
    for metric in ("bits_per_byte", "hidden_bits_per_byte"):
        better = [f"{peer} {peers[peer][metric]:.3f}" for peer in peers if metric in scores and intervals[metric][1] >= peers[peer][metric]]
        if better:
            low, high = intervals[metric]
            what = metric.replace("_", " ")
            return f"{name}: not shown to be better than frequencies: {what} {scores[metric]:.3f} [{low:.3f}, {high:.3f}] against {', '.join(better)}"
    return None


def trained_on(name: str, reference: Any, chosen: Any) -> str | None:
    """A sentence where the text that should be held out is what the model was pretrained on."""
    same = [each for each in chosen.datasets if (each.path, each.name, each.split) == (reference.path, reference.name, reference.split)]
    if not same:
        return None
    return f"{name}: the split '{reference.split}' is what '{chosen.id}' was trained on, so it is not held out; name another in 'split'"
