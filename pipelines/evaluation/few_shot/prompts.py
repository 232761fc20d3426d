"""Prompts: how a row of a task is asked as a text, with which words it is answered, and defaults for tasks.

A template holds `{column}` where the row's text stands, and nothing else is replaced: no expressions, no code. The
answer follows the text, or stands where the template says `{answer}`. Schick and Schütze 2021, "Exploiting Cloze
Questions for Few Shot Text Classification and Natural Language Inference", section 3, arxiv.org/abs/2001.07676, call
the pair of a template and its words a pattern and a verbalizer.

Default prompts: of GLUE the wording of the lm-evaluation-harness, so that scores compare
(github.com/EleutherAI/lm-evaluation-harness, v0.4, `lm_eval/tasks/glue`), STS-B ours. SQuAD and RACE: Brown et al.
2020, "Language Models are Few-Shot Learners", appendix G, arxiv.org/abs/2005.14165. TREC and AG's news: Zhao et al.
2021, "Calibrate Before Use", appendix E, arxiv.org/abs/2102.09690.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from pipelines.core.config import Block, ConfigIssue, ConfigIssues
from pipelines.core.registry import TASK_KINDS, nearest

if TYPE_CHECKING:
    from pipelines.tasks.base import PromptForm

AMONG_KNOWN: tuple[PromptForm, ...] = ("classes", "numbers", "choices")
"""Forms of questions whose answers are among some that are known."""
ANSWER = "answer"
"""The placeholder of the answer."""
OPTIONS = "options"
"""The placeholder of a question's options, one a line behind its letter."""
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.]*)\}")


class PromptTemplate(Block):
    """How a row is asked and answered."""

    text: str = Field(min_length=1)
    """The question, with `{column}` where a row's text stands: `"{sentence}\\nSentiment:"`. The answer follows it, or
    stands at `{answer}`; `{options}` are a question's options, one a line behind its letter."""
    answers: tuple[str, ...] | Literal["letters"] | None = None
    """The words that stand for the classes, in the order of their ids; for options, `letters` answers with `A`, `B`, …
    Default: the names of the classes, or the options themselves."""
    description: str = ""
    """What stands once before everything else, such as an instruction."""
    delimiter: str = " "
    """What stands between the text and the answer."""
    separator: str = Field("\n\n", min_length=1)
    """What stands between two examples."""
    answer_context: str = Field("Answer:", min_length=1)
    """What an answer follows where its likelihood without any question is asked (calibration: answer_context)."""
    stop: tuple[str, ...] = Field(("\n",), min_length=1)
    """Texts that end an answer which is written."""
    no_answer: str = "unanswerable"
    """The answer to a question that has none, in tasks where such occur."""

    @model_validator(mode="after")
    def _asks(self) -> PromptTemplate:
        names = placeholders(self.text)
        issues: list[ConfigIssue] = []
        if not [name for name in names if name != ANSWER]:
            issues.append(
                (
                    ("text",),
                    "holds no {column}, so that every row would be asked the same; write one, such as {sentence}",
                )
            )
        if names.count(ANSWER) > 1:
            issues.append((("text",), "holds {answer} more than once; an answer has one place"))
        if isinstance(self.answers, tuple):
            again = [at for at, each in enumerate(self.answers) if each in self.answers[:at]]
            issues += [
                (("answers", at), f"'{self.answers[at]}' is named twice; each class needs words of its own")
                for at in again
            ]
            issues += [(("answers", at), "is empty") for at, each in enumerate(self.answers) if not each.strip()]
            if len(self.answers) < 2:
                issues.append((("answers",), f"has {len(self.answers)} entries, must have at least 2"))
        if issues:
            raise ConfigIssues(issues)
        return self

    @property
    def parts(self) -> tuple[str, str]:
        """The template before the answer and behind it."""
        before, mark, after = self.text.partition(f"{{{ANSWER}}}")
        return (before, after) if mark else (f"{self.text}{self.delimiter}", "")

    def asked(self, fields: Mapping[str, str]) -> tuple[str, str]:
        """(the text before the answer, the text behind it) of a row."""
        before, after = self.parts
        return fill(before, fields), fill(after, fields)

    def answered(self, fields: Mapping[str, str], answer: str) -> str:
        """A row with its answer, as an example."""
        before, after = self.asked(fields)
        return f"{before}{answer}{after}"


def placeholders(text: str) -> list[str]:
    """The names in braces, in their order."""
    return PLACEHOLDER.findall(text)


def fill(text: str, fields: Mapping[str, str]) -> str:
    """The text with each known name in braces replaced, once: what stands in a row is never a template itself."""
    return PLACEHOLDER.sub(lambda match: fields.get(match[1], match[0]), text)


def lettered(options: Sequence[str]) -> str:
    """The options one a line: `A. …`."""
    from pipelines.tasks.multiple_choice.task import LETTERS

    return "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))


def form_of(task: Any) -> PromptForm | None:
    """How the rows of a task are asked, as its kind says."""
    form: PromptForm | None = TASK_KINDS.load(task.kind).prompt_form
    return form


def columns_of(task: Any) -> tuple[str, ...]:
    """The names that a prompt of this task may hold."""
    form = form_of(task)
    if form == "choices":
        own = [name for name in task.columns if name not in task.option_columns]
        return (*own, OPTIONS)
    return ("prompt",) if form == "dialogues" else tuple(task.columns)


def unfit(prompt: PromptTemplate, task: Any) -> list[ConfigIssue]:
    """What is wrong with asking this task with this prompt, as far as no data need be read."""
    columns = columns_of(task)
    issues: list[ConfigIssue] = []
    for name in dict.fromkeys(placeholders(prompt.text)):
        if name != ANSWER and name not in columns:
            issues.append(
                (
                    ("text",),
                    f"holds {{{name}}}, which is no column of '{task.name}'.{nearest(name, columns)} Columns: "
                    f"{', '.join(columns)}",
                )
            )
    form = form_of(task)
    if prompt.answers is None:
        return issues
    if form not in AMONG_KNOWN:
        issues.append(
            (("answers",), f"are words for classes, but the answers of '{task.name}' are texts; leave them out")
        )
    elif (prompt.answers == "letters") != (form == "choices"):
        what = (
            "its options answer themselves, or by their letters: answers: letters"
            if form == "choices"
            else "write a word for each class"
        )
        issues.append((("answers",), f"does not fit '{task.name}': {what}"))
    elif form == "classes" and task.labels and len(prompt.answers) != len(task.labels):
        issues.append(
            (
                ("answers",),
                f"has {len(prompt.answers)} entries, but '{task.name}' has the classes {', '.join(task.labels)}",
            )
        )
    elif form == "numbers" and not all(_is_number(each) for each in prompt.answers):
        issues.append((("answers",), f'must be numbers, because those of \'{task.name}\' are: ["0", "1", …]'))
    return issues


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_TREC = (
    "Classify the questions based on whether their answer type is a Number, Location, Person, Description, "
    "Entity, or Abbreviation.\n\n"
)
_FINE = (
    "abbreviation", "expression abbreviated", "definition", "description", "manner", "reason", "animal",
    "organ of the body", "color", "creative work", "currency", "disease or medicine", "event", "food",
    "musical instrument", "language", "letter", "other entity", "plant", "product", "religion", "sport",
    "substance", "symbol", "technique", "equivalent term", "vehicle", "word", "description of a person", "group",
    "individual", "title", "city", "country", "mountain", "other location", "state", "code", "count", "date",
    "distance", "money", "order", "other number", "percentage", "period", "speed", "temperature", "size", "weight",
)  # fmt: skip

PROMPTS: dict[str, PromptTemplate] = {
    name: PromptTemplate.model_validate(words)
    for name, words in {
        "glue/cola": {
            "text": "{sentence}\nQuestion: Does this sentence make sense?\nAnswer:",
            "answers": ("no", "yes"),
        },
        "glue/sst2": {
            "text": "{sentence}\nQuestion: Is this sentence positive or negative?\nAnswer:",
            "answers": ("negative", "positive"),
        },
        "glue/mrpc": {
            "text": (
                "Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: Do both sentences mean the same "
                "thing?\nAnswer:"
            ),
            "answers": ("no", "yes"),
        },
        "glue/stsb": {
            "text": (
                "Sentence 1: {sentence1}\nSentence 2: {sentence2}\nQuestion: How similar are both sentences, "
                "from 0 to 5?\nAnswer:"
            ),
            "answers": ("0", "1", "2", "3", "4", "5"),
        },
        "glue/qqp": {
            "text": (
                "Question 1: {question1}\nQuestion 2: {question2}\nQuestion: Do both questions ask the same "
                "thing?\nAnswer:"
            ),
            "answers": ("no", "yes"),
        },
        "glue/mnli": {
            "text": "{premise}\nQuestion: {hypothesis} True, False or Neither?\nAnswer:",
            "answers": ("True", "Neither", "False"),
        },
        "glue/qnli": {
            "text": "{question}\n{sentence}\nQuestion: Does this response answer the question?\nAnswer:",
            "answers": ("yes", "no"),
        },
        "glue/rte": {
            "text": "{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:",
            "answers": ("True", "False"),
        },
        "glue/wnli": {
            "text": "{sentence1}\nQuestion: {sentence2} True or False?\nAnswer:",
            "answers": ("False", "True"),
        },
        "squad": {"text": "Background: {context}\n\nQuestion: {question}\n\nAnswer:"},
        "squad_v2": {"text": "Background: {context}\n\nQuestion: {question}\n\nAnswer:"},
        **{
            name: {"text": "Article: {article}\n\nQuestion: {question}\n\nAnswer:"}
            for name in ("race/middle", "race/high", "race/all")
        },
        "trec/coarse": {
            "description": _TREC,
            "text": "Question: {text}\nAnswer Type:",
            "answer_context": "Answer Type:",
            "answers": ("Abbreviation", "Entity", "Description", "Person", "Location", "Number"),
        },
        "trec/fine": {"text": "Question: {text}\nAnswer Type:", "answers": _FINE, "answer_context": "Answer Type:"},
        "imdb": {
            "text": "Review: {text}\nSentiment:",
            "answers": ("Negative", "Positive"),
            "answer_context": "Sentiment:",
        },
        "ag_news": {
            "description": (
                "Classify the news articles into the categories of World, Sports, Business, and Technology.\n\n"
            ),
            "text": "Article: {text}\nAnswer:",
            "answers": ("World", "Sports", "Business", "Technology"),
        },
        "multi30k/en-de": {"text": "English: {en}\nGerman:"},
        "multi30k/en-fr": {"text": "English: {en}\nFrench:"},
        "multi30k/en-cs": {"text": "English: {en}\nCzech:"},
        **{
            name: {"text": "Instruction: {prompt}\nResponse:", "stop": ("\nInstruction:",)}
            for name in ("alpaca", "self_instruct_seed")
        },
        "gsm8k": {"text": "Question: {prompt}\nAnswer:", "stop": ("\nQuestion:", "\n\n")},
        "builtin/python-docs": {
            "text": "{text}\nQuestion: Are the words of this sentence in order?\nAnswer:",
            "answers": ("no", "yes"),
        },
    }.items()
}
"""By task."""


def prompt_for(task: Any) -> PromptTemplate:
    """The task's prompt of the table; for other tasks one that names each column and asks for the label."""
    if task.name in PROMPTS:
        return PROMPTS[task.name]

    lines = [f"{name}: {{{name}}}" for name in columns_of(task) if name != OPTIONS]
    asks = task.label if form_of(task) in ("classes", "numbers", "texts") else "answer"
    return PromptTemplate(text="\n".join([*lines, f"{asks}:"]))
