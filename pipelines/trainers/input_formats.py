"""GPT's task-aware inputs: learnt tokens before, between and behind the texts of a task, so that one decoder serves
all.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.3 and figure 1:

    a text            <|start|> text <|extract|>
    a pair            <|start|> first <|delimiter|> second <|extract|>
    both orders       the pair, and the pair the other way round:
                      what the model makes of each is added before the linear head
    an option         <|start|> context <|delimiter|> question option <|extract|>, each option on its own

The head reads the representation of the last token. The tokens are entries of the vocabulary like others, and the
tokenizer that is saved with the model puts them around texts by itself: whoever calls it with a text, or a pair, gets
the format.
"""

from __future__ import annotations

from collections.abc import Iterable
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from pipelines.core.config import ConfigIssue
from pipelines.core.errors import ModelError
from pipelines.core.model_types import model_types, sees_ahead
from pipelines.core.registry import TASK_KINDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pipelines.core.recipe import Recipe

START, DELIMITER, EXTRACT = TOKENS = ("<|start|>", "<|delimiter|>", "<|extract|>")
InputFormat = Literal["gpt", "gpt_both_orders"]
"""The values of the key `input_format`."""


def tokens_of(wanted: InputFormat | None) -> tuple[str, ...]:
    """Tokens that a tokenizer trained for the format has beside the usual ones."""
    return () if wanted is None else TOKENS


def mistakes(stage: Any, recipe: Recipe) -> Iterable[ConfigIssue]:
    """What is wrong with the stage's `input_format`, as far as the recipe tells."""
    wanted, task, words = stage.input_format, stage.resolved(stage.id), recipe.model.words()
    if wanted is None:
        return
    place, block = ("input_format",), TASK_KINDS.load(task.kind)
    if not block.takes_input_format:
        served = ", ".join(TASK_KINDS.where(lambda kind: kind.takes_input_format))
        yield place, f"is for tasks of the kind {served}, but this task's kind is {task.kind}; leave it out"
    elif wanted == "gpt_both_orders" and (not block.labels_texts or len(task.columns) != 2):
        yield (
            place,
            "is gpt_both_orders, which is for pairs of texts without an order of their own, and this task "
            "has no such; write gpt",
        )
    if not stage.tuner.trains_all:
        yield (
            place,
            f"adds {len(TOKENS)} tokens whose embeddings must learn, and the tuner {stage.tuner.name} freezes "
            "them; use the tuner full",
        )
    if words is not None and (why := misfit(wanted, words)) is not None:
        yield place, why


def misfit(wanted: InputFormat, words: Any) -> str | None:
    """Why a model of this resolved architecture cannot read the format, as a sentence without its subject."""
    if why := sees_ahead(words):
        return why
    model_type = words.get("model_type", "finery")
    facts = model_types().get(model_type)
    if facts is not None and ("causal_lm" not in facts.heads or "seq2seq_lm" in facts.heads):
        return f"needs a decoder, which {model_type} is not; use one such as gpt2, or leave it out"
    if wanted == "gpt_both_orders" and model_type != "finery":
        return (
            f"is gpt_both_orders, which transformers' own class for {model_type} cannot read; write gpt, or use "
            "our family's decoder"
        )
    return None


def adopt(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let `tokenizer` put the tokens around texts; those that it lacks get the ids after its last.

    Raises ModelError for a tokenizer that would have lost the format when it is opened again, or that has nothing to
    fill a batch with.
    """
    from tokenizers import AddedToken, processors

    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in TOKENS], special_tokens=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {EXTRACT}",
        pair=f"{START} $A {DELIMITER} $B:1 {EXTRACT}:1",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in TOKENS],
    )
    if (
        tokenizer.pad_token_id is None
    ):  # GPT-2 has none; every text ends in a token of its own, so that its end of text can fill
        if tokenizer.eos_token is None:
            raise ModelError(
                "the tokenizer has neither a padding nor an eos token, which batches of unequal length need; "
                "set pad_token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    _check_it_lasts(tokenizer)


def _check_it_lasts(tokenizer: PreTrainedTokenizerBase) -> None:
    from transformers import AutoTokenizer

    with TemporaryDirectory() as place:
        tokenizer.save_pretrained(place)
        try:
            again = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        except ValueError as error:  # a class of its own, see `pipelines.models.remote_code`
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} is none of transformers' own, so no input format "
                "is put into it; leave input_format out"
            ) from error
    for texts in (("a b",), ("a b", "b c d")):
        if again(*texts)["input_ids"] != tokenizer(*texts)["input_ids"]:
            raise ModelError(
                f"the tokenizer {type(tokenizer).__name__} loses the input format when it is opened again: it "
                "puts its own tokens around "
                "texts; leave input_format out, or train a tokenizer"
            )


def prepare(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, wanted: InputFormat | None, seed: int) -> None:
    """Let model and tokenizer read the format. Raises ModelError.

    Tokens that the model has no embeddings for get some, drawn as the others were at their start; rows that a
    checkpoint has beyond its tokenizer's last token are taken first.
    """
    import torch

    if getattr(model.config, "both_orders", None):  # an earlier stage's, which this one need not share
        model.config.both_orders = None
    if wanted is None:
        return
    adopt(tokenizer)
    words = {"model_type": model.config.model_type, **model.config.to_dict()}
    if (why := misfit(wanted, words)) is not None:
        raise ModelError(f"input_format {why}")
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        weight = model.get_input_embeddings().weight
        generator = torch.Generator().manual_seed(seed)
        spread = getattr(model.config, "initializer_range", None) or 0.02
        with torch.no_grad():
            weight[rows:] = spread * torch.randn(weight[rows:].shape, generator=generator)
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    if wanted == "gpt_both_orders":
        model.config.both_orders = [tokenizer.convert_tokens_to_ids(token) for token in TOKENS]
