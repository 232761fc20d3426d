"""Chat templates run with bounds, and say in a sentence what is wrong."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path

import pytest

from pipelines.core.errors import CommandError
from pipelines.data import chat_prompts
from pipelines.data.chat_prompts import LONGEST, OverLimit, bounded_end_of_turn, limited, prompt_text
from tests import tiny
from tests.end_to_end.forked import fork

PLAIN = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def asked(template: str, seconds: float = 2.0, content: str = "hello") -> str:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    return prompt_text(tokenizer, [{"role": "user", "content": content}], seconds)


def test_a_template_makes_the_prompt_up_to_where_the_answer_begins() -> None:
    assert asked(PLAIN) == "<user>hello<a>"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro again() %}{% for i in range(9999) %}{{ again() }}{% endfor %}{% endmacro %}{{ again() }}",
    ],
    ids=["loops", "recursion"],
)
def test_a_template_without_an_end_is_stopped(template: str) -> None:
    began = time.monotonic()
    with pytest.raises(CommandError):
        asked(template, seconds=0.3)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(
    "template",
    [
        "{{ 10 ** (10 ** 9) }}",
        "{% set n = namespace(a=[0], b=[0]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}"
        "{% endfor %}{{ n.a == n.b }}",
    ],
    ids=["power", "comparison"],
)
def test_a_template_that_no_signal_interrupts_ends_with_its_process(template: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    assert fork(asked_impatiently, template, str(said)) == 1
    assert "Timeout (" in said.read_text()


def asked_impatiently(template: str, said: str) -> None:
    """In a forked process, whose errors go to the file `said`."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), chat_prompts.STDERR)
    chat_prompts.GRACE = 0.2
    asked(template, seconds=0.1)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 4000000000 }}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    ],
    ids=["product", "doubling"],
)
def test_a_template_that_fills_the_memory_is_stopped_and_the_bound_is_taken_back(template: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(OverLimit, match="more than 256 MB"):
        asked(template)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert asked(PLAIN) == "<user>hello<a>"


def test_a_template_that_writes_too_much_is_refused() -> None:
    with pytest.raises(OverLimit, match=f"more than {LONGEST}"):
        asked("{{ messages[0]['content'] }}" * 2, content="x" * (LONGEST // 2 + 1))


def test_the_end_of_a_turn_is_looked_for_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = "{{ messages[1]['content'] }}[SEP]"
    assert bounded_end_of_turn(tokenizer) == tokenizer.sep_token_id
    monkeypatch.setattr(chat_prompts, "SECONDS", 0.2)
    tokenizer.chat_template = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}[SEP]"
    assert bounded_end_of_turn(tokenizer) is None


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[9]['content'] }}", "refuses these messages"),
        ("{% for %}", "refuses these messages"),
    ],
)
def test_what_a_template_refuses_or_may_not_do_is_a_sentence(template: str, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        asked(template)


def test_templates_run_in_the_main_thread_alone() -> None:
    errors = []

    def run() -> None:
        try:
            with limited(1.0, 1 << 20):
                pass
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == ["templates run in the main thread"]
