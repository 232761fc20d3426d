"""Fixtures: a tiny classifier and its tokenizer, and the context that an evaluate stage is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core.interfaces import Rows

SENTENCE = "a the cat dog film book good bad fine dull is was not very on in it saw read runs sleeps . , ?"
WORDS = SENTENCE.split()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A WordPiece tokenizer of whole words and letters."""
    from transformers import BertTokenizerFast

    letters = [prefix + chr(code) for code in range(97, 123) for prefix in ("", "##")]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys([*WORDS, *letters])]
    file = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    file.write_text("\n".join(vocabulary) + "\n")
    return BertTokenizerFast(vocab=str(file), model_max_length=512)


@pytest.fixture(scope="session")
def classifier(tokenizer: Any) -> Callable[..., Any]:
    """`classifier(outputs=2, names=None, positions=512)`: a BERT from scratch, the same at every call."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    def build(outputs: int = 2, names: tuple[str, ...] | None = None, positions: int = 512) -> Any:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=positions,
            initializer_range=0.5,  # far from constant answers, without training
            num_labels=outputs,
            **({"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}} if names else {}),
        )
        return BertForSequenceClassification(config).eval()

    return build


@pytest.fixture
def sentences() -> Rows:
    """41 single texts of many lengths, with labels."""
    texts = [
        " ".join(WORDS[(step * (row + 3) + row) % len(WORDS)] for step in range(1 + row * 7 % 23)) for row in range(41)
    ]
    return Rows(texts, None, [row % 2 for row in range(41)], list(range(41)))


@pytest.fixture
def evaluation_context(tmp_path: Path, tokenizer: Any) -> Callable[..., Any]:
    """`evaluation_context(recipe, stage_id, models)`: what `run` gives to a stage; `models` are classifiers by stage id."""
    from pipelines.core.events import EventLog
    from pipelines.core.interfaces import Context, World

    def build(recipe: Any, stage_id: str, models: dict[str, Any], **others: Any) -> Any:
        opened = []

        def open_model(head: Any, stage_id: str | None = None, merge: bool = True, trained_head: bool = False) -> Any:
            opened.append(SimpleNamespace(head=head, stage_id=stage_id, trained_head=trained_head))
            return models[str(stage_id)]

        folder = tmp_path / stage_id
        folder.mkdir(exist_ok=True)
        given = {
            "stage_id": stage_id,
            "folder": folder,
            "fingerprint": "0" * 32,
            "seed": 42,
            "recipe": recipe,
            "events": EventLog(tmp_path / "events.jsonl").of(stage_id),
            "world": World(),
            "precision": "no",
            "cache": tmp_path,
            "stage_folders": {},
            "open_model": open_model,
            "open_tokenizer": lambda stage_id=None: tokenizer,
        }
        made = Context(**(given | others))
        object.__setattr__(made, "opened", opened)
        return made

    return build
