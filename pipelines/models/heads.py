"""Heads: the class that each kind is opened with, the head that a model was trained with, and the one that writes.

A kind of task names the head that answers it (`head_kind`); this table says which class of transformers that is, and
what the head is to readers of a model card.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipelines.core import architecture_fields
from pipelines.core.errors import ModelError
from pipelines.core.interfaces import Head, HeadKind
from pipelines.core.model_types import looks_back_only
from pipelines.core.recipe import START
from pipelines.core.shared_bases import base_of
from pipelines.models import remote_code

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from pipelines.core.recipe import Model, Recipe


@dataclass(frozen=True)
class HeadClass:
    """What a kind of head is to transformers and to the Hub."""

    auto_class: str
    pipeline_tag: str
    """The Hub's word for its task."""
    description: str


HEAD_CLASSES: dict[HeadKind, HeadClass] = {
    "masked_lm": HeadClass("AutoModelForMaskedLM", "fill-mask", "a masked language model"),
    "pretraining": HeadClass(
        "AutoModelForPreTraining", "fill-mask", "a masked language model that also judges pairs of texts"
    ),
    "bidirectional_lm": HeadClass(
        "AutoModelForPreTraining", "feature-extraction", "two language models, one from each end of a text"
    ),
    "causal_lm": HeadClass("AutoModelForCausalLM", "text-generation", "a language model that continues texts"),
    "seq2seq_lm": HeadClass("AutoModelForSeq2SeqLM", "text-generation", "a model that writes one text from another"),
    "sequence_classification": HeadClass(
        "AutoModelForSequenceClassification", "text-classification", "a classifier of texts"
    ),
    "token_classification": HeadClass(
        "AutoModelForTokenClassification", "token-classification", "a classifier of the tokens of a text"
    ),
    "question_answering": HeadClass(
        "AutoModelForQuestionAnswering", "question-answering", "a model that finds the answer to a question in a text"
    ),
    "multiple_choice": HeadClass(
        "AutoModelForMultipleChoice", "multiple-choice", "a model that chooses the best of several options"
    ),
    "reward": HeadClass(
        "AutoModelForSequenceClassification", "text-classification", "a reward model, which gives an answer one number"
    ),
}
"""By kind of head: everything that a stage can train and transformers can open."""


def auto_class(head: Head) -> type[PreTrainedModel]:
    """The transformers Auto class for a head, our own family registered with it."""
    import transformers

    from pipelines.architectures.registration import register

    register()
    if head.kind == "reward":
        return RewardHead
    named: type[PreTrainedModel] = getattr(transformers, HEAD_CLASSES[head.kind].auto_class)
    return named


def head_settings(head: Head) -> dict[str, Any]:
    """Config entries that a head needs."""
    names = {
        "id2label": dict(enumerate(head.labels)),
        "label2id": {label: position for position, label in enumerate(head.labels)},
    }
    if head.kind == "token_classification":
        return names
    if head.kind == "reward":
        return {"num_labels": 1, "problem_type": "regression"}
    if head.kind != "sequence_classification":
        return {}
    if not head.labels:
        return {"num_labels": 1, "problem_type": "regression"}
    return {**names, "problem_type": "single_label_classification"}


class RewardHead:
    """Opens a head of one number as the class that TRL and others use for rewards: the classifier. Finery's own family
    had a class for it, whose weights have another name."""

    @staticmethod
    def from_config(config: PreTrainedConfig, **keywords: Any) -> PreTrainedModel:
        """A model with random weights."""
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_config(config, **keywords)

    @staticmethod
    def from_pretrained(source: str, **keywords: Any) -> PreTrainedModel:
        """The model in a folder or on the Hub."""
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.from_pretrained(source, **{key: keywords[key] for key in WHERE if key in keywords})
        if getattr(config, "architectures", None) == ["FineryForReward"]:
            keywords |= {"key_mapping": {r"^score\.": "classifier."}, **head_settings(Head("reward"))}
        return AutoModelForSequenceClassification.from_pretrained(source, **keywords)


WHERE = ("revision", "trust_remote_code", "code_revision")
"""What Auto classes are told about where a checkpoint and its code lie."""


def saved_head(folder: Path) -> Head | None:
    """The head that a stage's model was trained with, as it wrote it down beside the weights."""
    path = folder / "head.json"
    if not path.is_file():
        return None
    written = json.loads(path.read_text())
    return Head(written["kind"], tuple(written["labels"]))


# ---- heads that write ----------------------------------------------------------------------------------------------

Family = Literal["encoder", "decoder", "encoder-decoder"]
FAMILY_HEADS: dict[Family, Head] = {
    "encoder": Head("masked_lm"),
    "decoder": Head("causal_lm"),
    "encoder-decoder": Head("seq2seq_lm"),
}
"""The language-modelling head of each family."""


def family_of(config: PreTrainedConfig) -> Family:
    """Encoder, decoder or encoder-decoder: by the config's own word, by its head, by what transformers opens it as."""
    from transformers.models.auto import modeling_auto

    masked = config.model_type in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kinds = ("masked_lm",) * masked + ("causal_lm",) * causal
    return _family(lambda word: getattr(config, word, None), kinds)


def _family(word: Callable[[str], Any], kinds: Collection[str]) -> Family:
    """As `family_of`; `word` gives a word of the config, and `kinds` are those that transformers opens it as."""
    for own in FAMILY_HEADS:
        if own in (word("family"), word("stack")):  # those of our own families
            return own
    if word("is_encoder_decoder"):
        return "encoder-decoder"
    classes = word("architectures") or []
    if word("is_decoder") or any("CausalLM" in name or "LMHead" in name for name in classes):
        return "decoder"
    return "decoder" if "causal_lm" in kinds and "masked_lm" not in kinds else "encoder"


WRITERS: tuple[HeadKind, ...] = ("causal_lm", "seq2seq_lm")


def writing_head_of(architecture: Mapping[str, Any]) -> Head | None:
    """The head with which an architecture of a recipe writes token by token; None where it cannot."""
    words, heads = architecture_fields.resolve(architecture), architecture_fields.heads(architecture)
    if looks_back_only(words) and "causal_lm" in heads:
        return Head("causal_lm")
    if "seq2seq_lm" in heads and not words.get("bidirectional_decoder"):
        return Head("seq2seq_lm")
    return None


def writing_kinds(model: Model) -> tuple[HeadKind, ...]:
    """The kinds of head with which the recipe's model may write token by token, as far as the recipe tells: both where
    nobody knows, none where it cannot. Of a checkpoint it is what `of_checkpoint` will say."""
    if model.architecture is not None:
        head = writing_head_of(model.architecture)
        return () if head is None else (head.kind,)
    words, heads = model.words(), model.heads()
    if words is None or heads is None:
        return WRITERS
    both = words.get("is_encoder_decoder", "seq2seq_lm" in heads)
    head = WRITING_HEADS.get(_family({**words, "is_encoder_decoder": both}.get, heads))
    return () if head is None or words.get("bidirectional_decoder") else (head.kind,)


WRITING_HEADS: dict[Family, Head] = {family: head for family, head in FAMILY_HEADS.items() if family != "encoder"}


def read_by(recipe: Recipe, source: str, folders: Mapping[str, Path]) -> Head:
    """That of the model which `source` names: a stage, whose folder is among `folders`, or `model`. Raises
    ModelError."""
    own = recipe.model
    if source != START:
        return of_stage(folders[source] / "model", source, own)
    if own.checkpoint is not None:
        return of_checkpoint(own.checkpoint, own.revision, own)
    return of_architecture(own.architecture or {})


def of_stage(folder: Path, stage_id: str, start: Model | None = None) -> Head:
    """That of the model which a stage left in `folder`. Raises ModelError where it writes no texts."""
    head = saved_head(folder)
    if head is None:
        return of_checkpoint(str(folder), start=start)
    if head not in WRITING_HEADS.values():
        raise ModelError(
            f"the model of '{stage_id}' writes no texts, its head is for {head.kind.replace('_', ' ')}; "
            "name a stage that leaves a language model"
        )
    return head


def of_checkpoint(source: str, revision: str | None = None, start: Model | None = None) -> Head:
    """That of a folder or a Hub name; of an adapter, its base's. Raises ModelError."""
    from transformers import AutoConfig

    from pipelines.architectures.registration import register

    register()
    folder = Path(source)
    try:
        if (base := base_of(folder)) is not None:
            settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
            return of_checkpoint(base, settings.get("revision"), start)
        config = AutoConfig.from_pretrained(source, **remote_code.opening(source, revision, start))
    except (OSError, ValueError, KeyError) as error:
        sentence = " ".join(str(error).split())
        raise ModelError(
            remote_code.refusal(source, error) or f"'{source}' has no readable config: {sentence[:300]}"
        ) from error
    head = WRITING_HEADS.get(family_of(config))
    if head is None:
        raise ModelError(f"'{source}' is an encoder, which writes no texts; name a decoder or an encoder-decoder")
    if getattr(config, "bidirectional_decoder", False):
        raise ModelError(
            f"'{source}' writes all words at once (mask_predict), not one after another; name another model"
        )
    return head


def of_architecture(architecture: Mapping[str, object]) -> Head:
    """That of a model from scratch. `architecture` is as it stands in the recipe. Raises ModelError."""
    kinds = architecture_fields.heads(architecture)
    head = next((head for head in WRITING_HEADS.values() if head.kind in kinds), None)
    if head is None:
        raise ModelError(
            f"model.architecture writes no texts (it has heads for {', '.join(kinds)}); "
            "choose a decoder or an encoder-decoder"
        )
    return head
