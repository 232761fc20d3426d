"""What a published model can be asked, by the files of its folder: read without torch, and without its weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipelines.core.interfaces import HeadKind

Ability = Literal["chat", "complete", "embed", "predict"]
HEADS: tuple[tuple[str, HeadKind], ...] = (
    ("ForSequenceClassification", "sequence_classification"),
    ("ForTokenClassification", "token_classification"),
    ("ForQuestionAnswering", "question_answering"),
    ("ForMultipleChoice", "multiple_choice"),
    ("ForReward", "reward"),
    ("ForConditionalGeneration", "seq2seq_lm"),
    ("MTModel", "seq2seq_lm"),
    ("ForCausalLM", "causal_lm"),
    ("ForCausalLMWithValueHead", "causal_lm"),
    ("LMHeadModel", "causal_lm"),
)
"""How the names of classes end, and the kinds of their heads; all others give vectors."""
HEAD_KINDS = {
    "sequence_classification": "classification",
    "question_answering": "qa",
    "seq2seq_lm": "seq2seq",
    "causal_lm": "causal",
    "masked_lm": "encoder",
    "pretraining": "encoder",
    "bidirectional_lm": "encoder",
}
"""What models with a kind of head do, where that is not its name."""
DESCRIPTIONS = {
    "classification": "classifies texts",
    "token_classification": "tags words",
    "qa": "finds answers in a context",
    "multiple_choice": "chooses among options",
    "reward": "scores answers to prompts",
    "seq2seq": "writes one text from another",
    "causal": "continues texts",
    "encoder": "turns texts into vectors",
}
ROUTES: dict[Ability, str] = {
    "chat": "/v1/chat/completions",
    "complete": "/v1/completions",
    "embed": "/v1/embeddings",
    "predict": "/api/v1/models/ID/predict",
}
REWARD = "reward.json"
"""Beside the weights of a model that scores answers, whose class is that of classifiers of one output."""
LARGEST = 16 << 20
"""Bytes of a file that is read."""


@dataclass(frozen=True)
class Abilities:
    """What a model is, and which questions it answers."""

    kind: str
    """A word of DESCRIPTIONS."""
    can: tuple[Ability, ...]

    def refusal(self, name: str, asked: Ability) -> str:
        """The sentence for a question that it does not answer."""
        if asked == "chat" and "complete" in self.can:
            return f"The model '{name}' has no chat template; ask it at {ROUTES['complete']}."
        does = " and ".join(ROUTES[each].replace("ID", name) for each in self.can) or "none of the routes served here"
        return (
            f"The model '{name}' {DESCRIPTIONS[self.kind]}: it answers {does}, not {ROUTES[asked].replace('ID', name)}."
        )


def abilities_of(folder: Path) -> Abilities | None:
    """The abilities of a model's folder; None where its files do not say what it is."""
    config = _read(folder / "config.json") or _read(folder / "base" / "config.json")
    head = _read(folder / "head.json").get("kind")
    names = [str(each) for each in config.get("architectures") or ()]
    if head is None and (folder / REWARD).is_file():
        head = "reward"
    if not isinstance(head, str):
        if not names:
            return None
        head = head_of(names[:1]) or "masked_lm"
    kind = HEAD_KINDS.get(head, head)
    if kind not in DESCRIPTIONS:
        return None
    can: tuple[Ability, ...]
    if kind in ("causal", "seq2seq"):
        at_once = bool(config.get("bidirectional_decoder"))
        can = () if at_once else ("chat", "complete") if _has_template(folder) else ("complete",)
    else:
        can = ("embed",) if kind == "encoder" else ("predict",)
    return Abilities(kind, can)


def head_of(names: Sequence[str]) -> HeadKind | None:
    """The kind of head that the names of a model's classes tell; None for one that gives vectors."""
    return next((kind for end, kind in HEADS for name in names if name.endswith(end)), None)


def _has_template(folder: Path) -> bool:
    return any(
        (place / "chat_template.jinja").is_file() or bool(_read(place / "tokenizer_config.json").get("chat_template"))
        for place in (folder, folder / "base")
    )


def _read(path: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one where there is none."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
