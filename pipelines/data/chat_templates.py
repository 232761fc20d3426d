"""Chat templates by name, and dialogues as text with the characters that are answers.

A template is Jinja, as `tokenizer.apply_chat_template` runs it: it becomes the tokenizer's own and is saved with it,
so that a published model carries it. Ours end each answer with the token that ends texts: a model learns to stop
after each of them, and needs no further stop words. Decoders outside transformers run them too: nothing but plain
loops and conditions.

A template may be anything, so its output is taken apart from outside, in the first of three ways that holds:

- `{% generation %}` marks in the template say which characters are answers (transformers' own convention);
- by prefixes: an answer begins where the dialogue before it, with the prompt for an answer, ends, and ends where the
  dialogue up to and with it ends. Both must be prefixes of the whole, which templates that rewrite earlier turns break;
- by stand-ins: every answer is replaced by a mark that no text contains, and what stands around the marks is looked up
  in the real text.

What no way explains is refused with the template's name for it: marks in the template.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, ValidationInfo

from pipelines.core.config import files_exist, server_reference
from pipelines.core.errors import DataError
from pipelines.core.registry import nearest
from pipelines.data.chat_formats import Dialogue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ALPACA = """\
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{ message['content'] + '\\n\\n' }}
{%- elif message['role'] == 'user' -%}
{%- if loop.first -%}
{%- if message['input'] -%}
{{ 'Below is an instruction that describes a task, paired with an input that provides further context. \
Write a response that appropriately completes the request.\\n\\n' }}
{%- else -%}
{{ 'Below is an instruction that describes a task. Write a response that appropriately completes the request.\\n\\n' }}
{%- endif -%}
{%- endif -%}
{%- if message['input'] -%}
{{ '### Instruction:\\n' + message['instruction'] + '\\n\\n### Input:\\n' + message['input'] + '\\n\\n' }}
{%- else -%}
{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}
{%- endif -%}
{%- elif message['role'] == 'assistant' -%}
{{ '### Response:\\n' + message['content'] + eos_token }}
{%- if not loop.last -%}
{{ '\\n\\n' }}
{%- endif -%}
{%- else -%}
{{ raise_exception('the template alpaca knows the roles system, user and assistant, not ' + message['role']) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '### Response:\\n' }}
{%- endif -%}
"""

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}
{%- if message['role'] == 'assistant' and eos_token != '<|im_end|>' -%}
{{ eos_token }}
{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""

_SIMPLE = """\
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{ 'Assistant:\\n' + message['content'] + eos_token }}
{%- else -%}
{{ message['role'] | capitalize + ':\\n' + message['content'] }}
{%- endif -%}
{%- if not loop.last or add_generation_prompt -%}
{{ '\\n\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ 'Assistant:\\n' }}
{%- endif -%}
"""

_ZEPHYR = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>\\n' }}
{%- endif -%}
"""

TEMPLATES = {"alpaca": _ALPACA, "chatml": _CHATML, "simple": _SIMPLE, "zephyr": _ZEPHYR}
"""`alpaca` is the prompt of Taori et al. 2023, word for word; `chatml` is OpenAI's markup; `zephyr` that of Tunstall
et al. 2023, arxiv.org/abs/2310.16944; `simple` needs no token but the one that ends texts, and white space only for
the eye."""
DEFAULT = "simple"
"""What a tokenizer without a template gets when the recipe names none."""
MARKS = {"chatml": ("<|im_start|>", "<|im_end|>"), "zephyr": ("<|system|>", "<|user|>", "<|assistant|>")}
"""Tokens that a tokenizer trained for a template has beside the usual ones."""


LARGEST = 1 << 18
"""Bytes of a template in a file; the longest in use have some tens of kilobytes."""


def _known(value: str, info: ValidationInfo) -> str | None:
    """A name of the table stays, a file becomes absolute and must hold a template; where it need not be there, the
    template is the one that was saved with the tokenizer."""
    if value in TEMPLATES:
        return value
    place = (Path((info.context or {}).get("folder", Path.cwd())) / Path(value).expanduser()).absolute()
    if not os.path.isfile(place):
        if not files_exist(info):
            return None
        if (held := server_reference(value, "file")) is not None:
            raise ValueError(held)
        names = ", ".join(TEMPLATES)
        raise ValueError(
            f"'{value}' is no known template.{nearest(value, TEMPLATES)} Available: {names}; or name a Jinja "
            f"file (looked for {place})"
        )
    problem = _problem(place)
    if problem is not None:
        raise ValueError(f"'{value}' {problem}")
    return str(place)


TemplateName = Annotated[str, AfterValidator(_known)]
"""The type of a recipe's key that names a template or a file with one."""


def _problem(place: Path) -> str | None:
    """Why a file holds no template; None if it does."""
    from jinja2 import TemplateSyntaxError

    try:
        _parsed(_read(place))
    except UnicodeDecodeError:
        return "is not UTF-8 text, must be a Jinja template"
    except TemplateSyntaxError as error:
        return f"is no valid Jinja template: line {error.lineno}: {error.message}"
    except RecursionError:
        return "is nested too deeply for a Jinja template"
    except ValueError as error:
        return str(error)
    return None


def _read(place: Path) -> str:
    """The text of a template. Raises ValueError, before anything is read, for a file that is too large."""
    size = place.stat().st_size
    if size > LARGEST:
        raise ValueError(f"has {size:,} bytes, a chat template has at most {LARGEST:,}")
    with open(place, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"has more than {LARGEST:,} bytes, a chat template has at most that")
    return content.decode("utf-8")


def _parsed(text: str) -> None:
    """Parse a template as transformers does, `{% generation %}` and loop controls included. Raises
    TemplateSyntaxError."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # the extension behind `{% generation %}` lies in transformers, which is slow to import: the marks are taken out
    # first
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", text)
    ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)


def text_of(name: str) -> str:
    """The template behind a name or an absolute path."""
    return TEMPLATES[name] if name in TEMPLATES else _read(Path(name))


def content_of(name: str) -> str:
    """A hash of the template, for what must be made again when it changes."""
    return hashlib.sha256(text_of(name).encode()).hexdigest()


def marks_of(name: str | None) -> tuple[str, ...]:
    """Tokens that a tokenizer trained for the template should have."""
    return MARKS.get(name or "", ())


def adopt(tokenizer: PreTrainedTokenizerBase, name: str | None, inherited: str | None = None) -> str:
    """Give `tokenizer` the template that is asked for, else keep its own, else that of the model's training, else
    DEFAULT.

    Returns: what to call it.
    """
    if name is not None:
        tokenizer.chat_template = text_of(name)
        return name if name in TEMPLATES else Path(name).name
    own = tokenizer.chat_template or inherited
    if isinstance(own, dict):
        own = own.get("default") or next(iter(own.values()))
    tokenizer.chat_template = own or TEMPLATES[DEFAULT]
    return next((each for each, text in TEMPLATES.items() if text == tokenizer.chat_template), "the tokenizer's own")


Span = tuple[int, int]
TrainOn = Literal["completions", "all"]


@dataclass(frozen=True)
class Rendered:
    """A dialogue as the model reads it."""

    text: str
    spans: tuple[Span, ...]
    """What is learnt, in characters: (first, one past the last) of each answer, in order."""
    bare: bool
    """Whether no template made the text, so that the tokenizer adds what begins a text."""
    answered: bool
    """Whether the last of what is learnt ends the text, so that the end of a text is learnt behind it."""
    size: int
    """Bytes of what is learnt, the template's own words left out."""


def render(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, train_on: TrainOn = "completions") -> Rendered:
    """The text of a dialogue and what of it is learnt. Raises DataError where the template refuses it."""
    size = sum(
        len(str(each["content"]).encode())
        for each, wanted in zip(dialogue.messages, dialogue.learnt, strict=True)
        if wanted
    )
    if dialogue.templated:
        text, answers = answer_spans(tokenizer, dialogue.messages)
        learnt_answers = [
            wanted
            for each, wanted in zip(dialogue.messages, dialogue.learnt, strict=True)
            if each["role"] == "assistant"
        ]
        spans = [span for span, wanted in zip(answers, learnt_answers, strict=True) if wanted]
    else:
        text, spans = "", []
        for message, wanted in zip(dialogue.messages, dialogue.learnt, strict=True):
            begin, text = len(text), text + str(message["content"])
            spans += [(begin, len(text))] if wanted else []
    if train_on == "all":
        spans, size = [(0, len(text))], len(text.encode())
    return Rendered(text, tuple(spans), not dialogue.templated, bool(dialogue.learnt[-1]) or train_on == "all", size)


def prompt_of(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue) -> str:
    """What stands before the last answer when the model is asked for it."""
    before = dialogue.messages[:-1]
    if not dialogue.templated:
        return "".join(str(each["content"]) for each in before)
    return _applied(tokenizer, before, add_generation_prompt=True)


def answer_spans(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]]
) -> tuple[str, list[Span]]:
    """The text of a chat, and where each answer of the assistant lies in it, with what ends its turn. Raises
    DataError."""
    count = sum(each["role"] == "assistant" for each in messages)
    if _marks_answers(tokenizer.chat_template):
        text, spans = _by_marks(tokenizer, messages)
        if len(spans) == count and all(begin < end for begin, end in spans):
            return text, spans
        raise DataError(
            f"the chat template marks {len(spans)} answers of {count} with {{% generation %}}; put the marks "
            "around every "
            "answer of the assistant, or take them out"
        )
    text = _applied(tokenizer, messages)
    places = _by_prefixes(tokenizer, messages, text) or _by_stand_ins(tokenizer, messages, text)
    if places is None:
        raise DataError(
            "the chat template changes its words so that the answers cannot be found in its text; put {% "
            "generation %} and "
            "{% endgeneration %} around them in a template of your own, or use train_on: all"
        )
    return text, places


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The special token that the template writes behind an answer, which is at its end there; None where it writes
    none, or where there is no template."""
    if not tokenizer.chat_template:
        return None
    answer = "\ue000"  # stands in no template
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    try:
        after = _applied(tokenizer, turns).rpartition(answer)[2]
    except (DataError, RecursionError, OverflowError):
        return None
    token = _end_of_turn(tokenizer, after).lstrip()
    number = tokenizer.get_added_vocab().get(token)
    return number if number is not None and tokenizer.added_tokens_decoder[number].special else None


def _marks_answers(template: object) -> bool:
    return isinstance(template, str) and "endgeneration" in template


def _by_marks(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]]) -> tuple[str, list[Span]]:
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, spans = render_jinja_template(
        conversations=[list(messages)],
        chat_template=tokenizer.chat_template,
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    return texts[0], [(int(begin), int(end)) for begin, end in spans[0]]


def _by_prefixes(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]], text: str
) -> list[Span] | None:
    spans: list[Span] = []
    for at, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        try:
            before = _applied(tokenizer, messages[:at], add_generation_prompt=True) if at else ""
            through = _applied(tokenizer, messages[: at + 1]) if at + 1 < len(messages) else text
        except DataError:
            return None  # the template takes whole dialogues only
        if not text.startswith(before) or not text.startswith(through) or len(before) >= len(through):
            return None
        spans.append((len(before), len(through)))
    return spans


def _by_stand_ins(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]], text: str
) -> list[Span] | None:
    marks = {at: f"\ue000{at}\ue001" for at, each in enumerate(messages) if each["role"] == "assistant"}
    disguised = [each | {"content": marks[at]} if at in marks else each for at, each in enumerate(map(dict, messages))]
    whole = _applied(tokenizer, disguised)
    if any(whole.count(mark) != 1 for mark in marks.values()):
        return None
    parts: list[str] = []
    rest = whole
    for mark in marks.values():
        part, _, rest = rest.partition(mark)
        parts.append(part)
    parts.append(rest)
    if not text.startswith(parts[0]):
        return None
    spans: list[Span] = []
    place = len(parts[0])
    for (at, _), after, last in zip(marks.items(), parts[1:], [False] * (len(marks) - 1) + [True], strict=True):
        content = str(messages[at]["content"])
        answer = next((each for each in (content, content.strip()) if text.startswith(each + after, place)), None)
        end = place + len(answer) if answer is not None else len(text) - len(after) if last else text.find(after, place)
        if end < place or not text.startswith(after, end) or (last and end + len(after) != len(text)):
            return None
        tail = after if last else _end_of_turn(tokenizer, after)
        spans.append((place, end + len(tail)))
        place = end + len(after)
    return spans


def _end_of_turn(tokenizer: PreTrainedTokenizerBase, after: str) -> str:
    """What of the text behind an answer belongs to its turn: the token that ends it, if one follows at once."""
    tokens = (
        token
        for token in sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        if after.lstrip().startswith(token)
    )
    token = next(tokens, "")
    return after[: after.find(token) + len(token)] if token else ""


def _applied(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = False
) -> str:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )
    except (TemplateError, TypeError, KeyError, IndexError, ValueError) as error:
        sentence = " ".join(str(error).split())
        roles = ", ".join(str(each["role"]) for each in messages[:6])
        raise DataError(f"the chat template refuses a dialogue of {roles}: {sentence[:200]}") from error
    return text
