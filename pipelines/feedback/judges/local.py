"""A judge on this machine: a causal or encoder-decoder language model, asked for the probabilities of A and B.

Each pair is shown in both orders and the probabilities are averaged, which takes out what the model gives to a place;
they are soft labels (Lee et al. 2023, section 2.1, arxiv.org/abs/2309.00267). With `thought` the model first writes
its reasons and is asked behind them. One completion alone is rated by the mean of the numbers 1 to 10 under their
probabilities (section 2.2.2 there).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from pipelines.core.config import ConfigIssue, ConfigIssues
from pipelines.core.errors import ModelError
from pipelines.core.grader_templates import quoted
from pipelines.core.model_types import positions_for_text
from pipelines.core.recipe import START, FolderOrName
from pipelines.core.registry import nearest
from pipelines.feedback.judges import questions
from pipelines.feedback.judges.judge import Judge, JudgeBlock, Rating, Verdict, both_orders, one_order

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context
    from pipelines.core.recipe import Recipe
    from pipelines.feedback.judges.label_probabilities import LabelQuery
    from pipelines.models.generate import LanguageModel

LETTERS = ("A", "B")
NUMBERS = tuple(str(value) for value in range(questions.LOWEST, questions.HIGHEST + 1))
LEAD = "\n\nAnswer:"
"""What stands before the answer where no chat template makes the model answer, and behind written reasons."""
TOO_LONG = "longer than the judge can read"


class LocalJudgeBlock(JudgeBlock):
    """A language model that is opened here: `{name: local, from: STAGE}` or `{name: local, checkpoint: NAME}`."""

    name: Literal["local"] = "local"
    recipe_examples: ClassVar[tuple[str, ...]] = (
        "{name: local, from: text}",
        "{name: local, checkpoint: a/b, thought: true, thought_length: 9, temperature: 0.5, both_orders: false}",
    )
    source: str | None = Field(None, alias="from")
    """Id of an earlier stage that trained a language model, or `model` for the recipe's own."""
    checkpoint: FolderOrName | None = None
    """A Hub id, or a folder with a model and its tokenizer."""
    question: str | None = Field(None, min_length=1)
    """What is judged by, in words, where no constitution says. Default: a good completion is helpful, honest,
    harmless and well written."""
    thought: bool = False
    """Whether the judge writes down its reasons before it answers."""
    thought_length: int = Field(128, ge=1)
    """Tokens that the reasons may have."""
    temperature: float = Field(0.0, ge=0, le=10)
    """Of written reasons; 0 takes the likeliest words. The answer itself is never sampled."""
    both_orders: bool = True
    """Whether each pair is shown in both orders: a judge's liking for a place is then taken out."""
    batch_size: int = Field(16, ge=1)
    """Questions at a time."""

    writes: ClassVar[bool] = True
    reads_principles: ClassVar[bool] = True

    @property
    def chance(self) -> bool:
        return self.thought and self.temperature > 0

    @property
    def stages(self) -> tuple[str, ...]:
        return () if self.source is None else (self.source,)

    @model_validator(mode="after")
    def _one_of_both(self) -> LocalJudgeBlock:
        if (self.source is None) == (self.checkpoint is None):
            given = "both were given" if self.checkpoint else "neither was given"
            raise ConfigIssues(
                [
                    (
                        (),
                        "needs either 'from' (a stage of this recipe) or 'checkpoint' (a folder or a Hub "
                        f"name); {given}",
                    )
                ]
            )
        for key in ("thought_length", "temperature"):
            if key in self.model_fields_set and not self.thought:
                raise ConfigIssues([((key,), "is about written reasons; set thought: true, or leave it out")])
        return self

    def check(self, recipe: Recipe, stage_id: str) -> Iterable[ConfigIssue]:
        ids = [stage.id for stage in recipe.stages]
        before = recipe.stages[: ids.index(stage_id)] if stage_id in ids else recipe.stages
        fit = [START, *(stage.id for stage in before if stage.trains)]
        if self.source is not None and self.source not in fit:
            yield (
                ("from",),
                f"'{self.source}' is no earlier stage that trains a model.{nearest(self.source, fit)} "
                f"Allowed: {', '.join(fit)}",
            )

    def content(self) -> dict[str, str]:
        from pipelines.models.checkpoint_content import checkpoint_content

        named = {} if self.checkpoint is None else {"checkpoint": checkpoint_content(self.checkpoint)}
        return {"templates": questions.content(), **named}

    def identity(self) -> dict[str, Any]:
        return {key: value for key, value in super().identity().items() if key != "batch_size"}

    def open(self, context: Context) -> Judge:
        from pipelines.models.generate import open_writer

        return LocalJudge(self, open_writer(context, self.source, self.checkpoint), context)


class LocalJudge(Judge):
    """The opened model."""

    def __init__(self, block: LocalJudgeBlock, writer: LanguageModel, context: Context) -> None:
        super().__init__()
        self.block, self.writer, self.context = block, writer, context
        tokenizer = writer.tokenizer
        self.specials = tuple(dict.fromkeys([*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()]))

    def compare(
        self,
        prompts: Sequence[str],
        first: Sequence[str],
        second: Sequence[str],
        principles: Sequence[str | None] | None = None,
        draw: int = 0,
    ) -> list[Verdict]:
        count = len(prompts)
        rules = [each or self.block.question for each in principles or [None] * count]
        queries = [
            questions.comparison(*texts, self.block.thought, self.specials)
            for texts in zip(prompts, first, second, rules, strict=True)
        ]
        if self.block.both_orders:
            queries += [
                questions.comparison(*texts, self.block.thought, self.specials)
                for texts in zip(prompts, second, first, rules, strict=True)
            ]
        shares, reasons = self._shares(queries, LETTERS, draw)
        verdicts = []
        for at in range(count):
            one = None if shares[at] is None else shares[at][0]
            if self.block.both_orders:
                other = shares[at + count]
                verdicts.append(both_orders(one, None if other is None else other[1], reasons[at]))
            else:
                verdicts.append(one_order(one, reasons[at]))
        return verdicts

    def rate(self, prompts: Sequence[str], completions: Sequence[str]) -> list[Rating]:
        block = self.block
        queries = [
            questions.rating(*texts, block.question, block.thought, self.specials)
            for texts in zip(prompts, completions, strict=True)
        ]
        shares, reasons = self._shares(queries, NUMBERS, 0)
        means = [
            None if share is None else sum(value * each for value, each in enumerate(share, questions.LOWEST))
            for share in shares
        ]
        return [
            Rating(None if mean is None else questions.scaled(mean), reason)
            for mean, reason in zip(means, reasons, strict=True)
        ]

    def write(self, conversations: Sequence[Sequence[Mapping[str, str]]], length: int, draw: int = 0) -> list[str]:
        ids = [
            self._ids([{**each, "content": quoted(each["content"], self.specials)} for each in messages])
            for messages in conversations
        ]
        return [text.strip() for text in self._written(ids, length, draw)]

    def _shares(self, texts: Sequence[str], labels: Sequence[str], draw: int) -> tuple[list[Any], list[str]]:
        """(of each question the probabilities of the labels, None where it is too long; the reasons that were
        written)."""
        from pipelines.feedback.judges.label_probabilities import label_probabilities, ways_of

        tokenizer, block = self.writer.tokenizer, self.block
        ways = ways_of(tokenizer, labels)
        ids = [
            self._ids(
                [{"role": "user", "content": text}], lead="" if block.thought or tokenizer.chat_template else LEAD
            )
            for text in texts
        ]
        room = self._room(max(len(way) for label in ways for way in label))
        fits = [at for at, each in enumerate(ids) if room is None or len(each) <= room]
        if ids and not fits:
            raise ModelError(
                f"the judge reads {room} tokens beside its answer, and every question is longer (the shortest "
                f"has {min(map(len, ids))}); "
                "choose another model as the judge, or let prompts and completions be shorter"
            )
        reasons = [""] * len(texts)
        if block.thought:
            for at, reason in zip(
                fits, self._written([ids[at] for at in fits], block.thought_length, draw), strict=True
            ):
                reasons[at] = reason.strip()
        rows = [self._row(ids[at], reasons[at] if block.thought else None) for at in fits]
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
        start = self.writer.model.config.decoder_start_token_id if self.writer.encoder_decoder else None
        shares, mass = label_probabilities(
            self.writer.model, rows, ways, pad, start, block.batch_size, self.context.precision
        )
        self.spent.questions += len(texts)
        self.spent.prompt_tokens += sum(row.length for row in rows)
        probabilities: list[Any] = [None] * len(texts)
        for at, share, whole in zip(fits, shares.tolist(), mass.tolist(), strict=True):
            probabilities[at] = share if whole > 0 else None
        return probabilities, [
            reason or ("" if probabilities[at] is not None else TOO_LONG) for at, reason in enumerate(reasons)
        ]

    def _row(self, ids: Sequence[int], reason: str | None) -> LabelQuery:
        from pipelines.feedback.judges.label_probabilities import LabelQuery

        if reason is None:
            return LabelQuery(ids)
        cut = reason.partition("Answer:")[0].rstrip()  # what it concluded by itself is asked again, as probabilities
        return LabelQuery(
            ids,
            self.writer.tokenizer(quoted(cut, self.specials) + LEAD, add_special_tokens=False)["input_ids"],
        )

    def _room(self, answer: int) -> int | None:
        """Tokens that a question may have; None where there is no bound."""
        positions = positions_for_text(self.writer.model)
        if positions is None:
            return None
        reasons = 0 if self.writer.encoder_decoder or not self.block.thought else self.block.thought_length + 8
        return positions if self.writer.encoder_decoder else positions - answer - reasons

    def _ids(self, messages: Sequence[Mapping[str, str]], lead: str = "") -> list[int]:
        tokenizer = self.writer.tokenizer
        if tokenizer.chat_template:
            text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
            ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return ids
        text = "\n\n".join(each["content"] for each in messages) + lead
        if self.writer.encoder_decoder:
            return list(tokenizer(text, verbose=False)["input_ids"])
        opening = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        return [*opening, *tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]

    def _written(self, ids: Sequence[Sequence[int]], length: int, draw: int) -> list[str]:
        """What the model writes behind each of the token sequences."""
        if not ids:
            return []
        from pipelines.models.sampling import complete

        done = complete(
            self.writer.model,
            self.writer.tokenizer,
            ids,
            seed=self.context.seed,
            max_new_tokens=length,
            temperature=self.block.temperature,
            batch_size=self.block.batch_size,
            draws=[draw] * len(ids),
        )
        self.spent.prompt_tokens += sum(map(len, ids))
        self.spent.completion_tokens += int(done.mask.sum())
        return list(done.texts)
