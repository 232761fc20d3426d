"""Chat templates by name, for tokenizers that bring none, and templates in files of one's own.

A template is Jinja, as `tokenizer.apply_chat_template` runs it: it becomes the tokenizer's own and is saved with it, so that
a published model carries it. Ours end each answer with the token that ends texts: a model learns to stop after each of
them, and needs no further stop words. Decoders outside transformers run them too: nothing but plain loops and conditions.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationInfo

from pipelines.registry import nearest

_ALPACA = """\
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{{ message['content'] + '\\n\\n' }}
{%- elif message['role'] == 'user' -%}
{%- if loop.first -%}
{%- if message['input'] -%}
{{ 'Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request.\\n\\n' }}
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
"""`alpaca` is the prompt of Taori et al. 2023, word for word; `chatml` is OpenAI's markup; `zephyr` that of Tunstall et al.
2023, arxiv.org/abs/2310.16944; `simple` needs no token but the one that ends texts, and white space only for the eye."""
DEFAULT = "simple"
"""What a tokenizer without a template gets when the recipe names none."""
MARKS = {"chatml": ("<|im_start|>", "<|im_end|>"), "zephyr": ("<|system|>", "<|user|>", "<|assistant|>")}
"""Tokens that a tokenizer trained for a template has beside the usual ones."""


LARGEST = 1 << 18
"""Bytes of a template in a file; the longest in use have some tens of kilobytes."""


def _known(value: str, info: ValidationInfo) -> str:
    """A name of the table stays, a file becomes absolute and must hold a template."""
    if value in TEMPLATES:
        return value
    place = (Path((info.context or {}).get("folder", Path.cwd())) / Path(value).expanduser()).absolute()
    if not place.is_file():
        known = ", ".join(TEMPLATES)
        raise ValueError(f"'{value}' is no known template.{nearest(value, TEMPLATES)} Available: {known}; or name a Jinja file (looked for {place})")
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
    """Parse a template as transformers does, `{% generation %}` and loop controls included. Raises TemplateSyntaxError."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # the extension behind `{% generation %}` lies in transformers, which is slow to import: the marks are taken out first
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


def adopt(tokenizer: Any, name: str | None, inherited: str | None = None) -> str:
    """Give `tokenizer` the template that is asked for, else keep its own, else that of the model's training, else DEFAULT.

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
