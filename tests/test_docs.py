"""What README and docs say is so: links lead somewhere, recipes are valid, commands exist and run."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.clean_process import run_script
from tests.contracts.test_layers import LAYERS
from tests.end_to_end import forked

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *(page for page in sorted(DOCS.rglob("*.md")) if DOCS / "reference" not in page.parents),
]
CHAPTERS = [
    "Two commands",
    "A recipe",
    "Your own data",
    "What it can do",
    "The service in five lines",
    "What is measured",
    "The rooms",
    "How to extend",
    "Licence",
]
LANGUAGES = {"bash", "yaml", "python", "json", "text"}
CHEAP = {"init", "validate", "plan", "run", "resume", "evaluate", "predict", "doctor", "gc", "schema"}
"""Verbs of `finery` that a block without a mark may use: the scratch folder has what they need."""
SMALL = [
    "model.architecture={preset: bert-tiny, hidden_size: 32, intermediate_size: 64}",
    "stages.verdict.arguments.num_train_epochs=1",
]
"""What `finery run` is given besides in the scratch folder, so that a page takes seconds."""


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@dataclass(frozen=True)
class Fence:
    """A fenced block, and the HTML comment on the line before it."""

    page: Path
    line: int
    language: str
    text: str
    comment: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


@cache
def fences() -> tuple[Fence, ...]:
    found = []
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").split("\n")
        start = None
        for number, line in enumerate(lines):
            if not (mark := re.fullmatch(r"( *)```(.*)", line)):
                continue
            if start is None:
                start, language, indent = number, mark[2], len(mark[1])
                continue
            before = lines[start - 1].strip() if start else ""
            comment = before[4:-3].strip() if before.startswith("<!--") and before.endswith("-->") else ""
            text = "\n".join(each[indent:] for each in lines[start + 1 : number])
            found.append(Fence(page, start + 1, language, text, comment))
            start = None
        assert start is None, f"{page}: a block is not closed"
    return tuple(found)


def written_in(language: str) -> list[Fence]:
    return [fence for fence in fences() if fence.language == language]


# README


def test_the_readme_is_short_and_in_order():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 16_384
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == CHAPTERS
    table = text.split("## What is measured")[1].split("\n## ")[0]
    assert table.count("\n|") - 2 <= 10


def test_the_readme_lists_the_rooms_in_the_order_of_their_layers():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("## The rooms")[1]
    listed = [line.split()[0] for line in text.split("```text\n")[1].split("\n```")[0].split("\n")]
    assert listed == list(reversed(LAYERS))


def test_the_readme_lists_the_rooms_of_the_service():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8").split("## The rooms")[1]
    listed = [line.split()[0] for line in text.split("```text\n")[2].split("\n```")[0].split("\n")]
    assert sorted(listed) == sorted(folder.parent.name for folder in (REPOSITORY / "service").glob("*/__init__.py"))


def test_the_readme_names_ratios_that_the_page_of_performance_has():
    page = re.findall(
        r"^\|[^|]*\|[^|]*\|[^|]*\|[^|]*\| ([\d.]+) \|", (DOCS / "performance.md").read_text(), re.MULTILINE
    )
    rows = re.findall(
        r"^\| [^|]*\(docs/performance\.md\)[^|]*\|([^|]*)\|", (REPOSITORY / "README.md").read_text(), re.MULTILINE
    )
    named = [ratio for row in rows for ratio in re.findall(r"\d+\.\d\d", row)]
    assert len(named) > 5
    assert set(named) <= set(page)


def test_pages_install_finery_from_a_clone_while_no_index_has_it():
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    if "(unreleased)" not in changes.split("\n## ")[1].split("\n")[0]:
        return
    for page in PAGES:
        if "results" not in page.parts:
            text = re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
            for options in re.findall(r"pip (?:install|download)((?: --?[\w-]+(?: \w+)?)*) finery\b(?!\[)", text):
                assert "--no-index" in options, name_of(page)


# Links


def without_code(text: str) -> str:
    """Markdown without fenced blocks and code spans, where nothing is a link."""
    text = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    seen: dict[str, int] = {}
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#{1,6} (.*)", text, re.MULTILINE):
        bare = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", bare.strip().lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        if seen[slug]:
            seen[f"{slug}-{seen[slug]}"] = 0
    return frozenset(seen)


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", [*PAGES, REPOSITORY / "CHANGELOG.md"], ids=name_of)
def test_every_relative_link_and_anchor_resolves(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        assert there.is_relative_to(REPOSITORY), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name_of(page)} links to {target}"


def test_every_page_can_be_reached_from_the_index():
    reached, waiting = set(), [DOCS / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        waiting += [
            there for target in links(page) if (there := (page.parent / target.partition("#")[0]).resolve()) in PAGES
        ]
    assert {page for page in PAGES if DOCS in page.parents} - reached == set()


def test_files_that_pages_name_exist():
    """A path of the repository in a code span: what moves takes its mentions along."""
    for page in PAGES:
        if page.parent.name == "decisions" and page.name < "0016":
            continue  # a decision is written once, and keeps the names of its time
        spans = re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for span in spans:
            for path in re.findall(
                r"(?<![\w/.-])((?:pipelines|service|configs|tests|benchmarks|docs)/[\w./-]*\w)", span
            ):
                if not path.startswith(("docs/reference", "pipelines/configs")):  # made by a build
                    assert (REPOSITORY / path).exists(), f"{name_of(page)} names {path}"


def test_pages_that_code_and_recipes_name_exist():
    for folder in ("pipelines", "service", "configs", "benchmarks"):
        for file in sorted((REPOSITORY / folder).rglob("*.*")):
            if file.suffix in {".py", ".yaml", ".service", ".jinja"}:
                for path in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text(encoding="utf-8")):
                    assert (REPOSITORY / path).is_file(), f"{file.relative_to(REPOSITORY)} names {path}"


def test_keys_that_tables_explain_are_keys_of_a_recipe():
    """A table headed `key`, `setting` or `argument` does not outlive what it explains."""
    from pipelines.core.recipe import Recipe

    known: set[str] = set()
    waiting: list[Any] = [Recipe.model_json_schema(by_alias=True)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            known.update(part["properties"] if isinstance(part.get("properties"), dict) else ())
            part = list(part.values())
        waiting += part if isinstance(part, list) else []
    for page in PAGES:
        explained = False
        for line in page.read_text(encoding="utf-8").split("\n"):
            first = line.split("|")[1].strip() if line.startswith("|") else ""
            explained = bool(first) and (explained or first.lower() in ("key", "setting", "argument"))
            for key in re.findall(r"`([^`:]+)", first.replace("`, `", "` `")) if explained else ():
                assert not re.fullmatch(r"\w+", key) or key in known, f"{name_of(page)} explains {key}"


# The reference


def test_the_reference_is_built_from_the_code(tmp_path):
    """As `make docs` does it: every name of every registry, every verb, event and route has its place."""
    from pipelines.core import events, registry

    program = [str(DOCS / "build_reference.py"), str(tmp_path / "reference")]
    code, said = run_script(program, str(tmp_path), os.environ)
    assert code == 0, said
    pages = {page.stem: page for page in (tmp_path / "reference").glob("*.md")}
    for target in links(pages["index"]):
        assert (tmp_path / "reference" / target).is_file()
    for name, table in vars(registry).items():
        if isinstance(table, registry.Registry):
            text = pages[name.lower().replace("_", "-")].read_text(encoding="utf-8")
            assert re.findall(r"^## (.*)", text, re.MULTILINE) == list(table)
    assert all(f"`{event}`" in pages["events"].read_text(encoding="utf-8") for event in events.EVENTS)
    assert "| 75 | stopped |" in pages["events"].read_text(encoding="utf-8")
    assert "## finery validate\n" in pages["command-line"].read_text(encoding="utf-8")
    assert "## POST /api/v1/jobs\n" in pages["api"].read_text(encoding="utf-8")
    assert "| `stages` | list of a block" in pages["recipe"].read_text(encoding="utf-8")
    for page in pages.values():
        for target in links(page):
            path, _, anchor = target.partition("#")
            there = page.parent / path if path else page
            assert not anchor or anchor in anchors(there), f"{page.name} links to {target}"
    assert "/docs/reference/" in (REPOSITORY / ".gitignore").read_text(encoding="utf-8").split()
    assert "docs/build_reference.py" in (REPOSITORY / "Makefile").read_text(encoding="utf-8")


# Blocks


def test_every_block_names_a_language_that_is_checked():
    assert [f"{fence}: '{fence.language}'" for fence in fences() if fence.language not in LANGUAGES] == []


def test_every_json_block_is_json_and_every_python_block_is_python():
    for fence in written_in("json"):
        json.loads(fence.text)
    for fence in written_in("python"):
        ast.parse(fence.text, str(fence))


def test_the_tuner_of_the_page_on_extending_is_a_block(tmp_path, monkeypatch):
    (page,) = [fence for fence in written_in("python") if fence.text.startswith("# pipelines/tuners/")]
    (tmp_path / "documented_tuner.py").write_text(page.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    block = import_module("documented_tuner").Norms
    assert block.model_validate({"name": "norms", "biases": False}).biases is False
    assert block.descriptions()["biases"]


# Recipes


def examples(text: str) -> list[Any]:
    """The value of a block; where a key of its first column is repeated, that of each repetition by itself."""
    yaml = YAML(typ="safe")
    keys = re.findall(r"^([a-z_]+):", text, re.MULTILINE)
    if len(set(keys)) == len(keys):
        return [yaml.load(text)]
    return [yaml.load(part) for part in re.split(r"^(?=[a-z_]+:)", text, flags=re.MULTILINE) if part.strip()]


def placed(frame: Any, value: Any) -> Any:
    """`frame` with `value` where it says HERE: as a value, or joined into the mapping or list that holds the word."""
    if frame == "HERE":
        return value
    if isinstance(frame, Mapping):
        joined = value if "HERE" in frame else {}
        return {key: placed(each, value) for key, each in frame.items() if key != "HERE"} | joined
    if isinstance(frame, list):
        whole: list[Any] = []
        for each in frame:
            joined = value if each == "HERE" and isinstance(value, list) else [placed(each, value)]
            whole += joined
        return whole
    return frame


def recipes(fence: Fence) -> list[dict[str, Any]]:
    """The whole recipes that a block stands for. `<!-- within: … HERE … -->` says what stands around a part of one."""
    whole = []
    for value in examples(fence.text):
        if fence.comment.startswith("within: "):
            value = placed(YAML(typ="safe").load(fence.comment.removeprefix("within: ")), value)
        value = {"stages": value} if isinstance(value, list) else value
        assert isinstance(value, dict), f"{fence} is a part of a recipe: say what stands around it, <!-- within: … -->"
        whole.append({"name": "documented", "model": {"architecture": {"preset": "gpt-tiny"}}} | value)
    return whole


def files_in(value: Any) -> Iterator[str]:
    """The files that a recipe names."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from files_in(each)
    elif isinstance(value, str) and re.fullmatch(r"[\w-]+\.(jsonl|csv|txt)", value):
        yield value


def test_every_recipe_is_valid(tmp_path):
    named, texts = [], YAML(typ="safe")
    for fence in written_in("yaml"):
        if fence.comment.startswith("file: "):  # that other blocks name
            (tmp_path / fence.comment.removeprefix("file: ")).write_text(fence.text, encoding="utf-8")
            continue
        for number, whole in enumerate([] if fence.comment.startswith("not run: ") else recipes(fence)):
            for name in files_in(whole):
                (tmp_path / name).write_text('{"text": "a"}\n')
            named.append(f"{name_of(fence.page).replace('/', '_')}_{fence.line}_{number}.yaml")
            with (tmp_path / named[-1]).open("w", encoding="utf-8") as stream:
                texts.dump(whole, stream)
    command = [sys.executable, "-m", "service.cli", "validate", *named]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


# Commands


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a block, without what stands before it (`NAME=value`) and behind it (`> file`)."""
    joined = re.sub(r"\\\n *", "", text).replace("<mirror>", "mirror")
    for line in joined.split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|"):
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words[: words.index(">")] if ">" in words else words
                words = []
            else:
                words.append(word)


@cache
def verbs() -> Any:
    import typer.main

    from service.cli.__main__ import app

    return typer.main.get_command(app)


def parsed(words: list[str]) -> None:
    """Parse the words behind `finery` as the command does, without doing anything. Raises a usage error."""
    command, context = verbs(), verbs().make_context("finery", [], resilient_parsing=True)
    while hasattr(command, "commands"):
        assert words, "no verb"
        assert words[0] in command.commands, f"there is no verb '{words[0]}'"
        command, words = command.commands[words[0]], words[1:]
        if not hasattr(command, "commands"):
            command.make_context("verb", list(words), parent=context)


@pytest.mark.parametrize("fence", written_in("bash"), ids=str)
def test_every_command_can_be_given(fence):
    """Also those that no test runs: the verb is there and takes these options, the file exists and knows its own."""
    for words in commands(fence.text):
        if words[0] == "finery":
            parsed(words[1:])
        if words[0] == "make":
            assert f"\n{words[1]}:" in (REPOSITORY / "Makefile").read_text(), fence
        for word in words:
            if re.match(r"(configs|benchmarks)/", word):
                assert list(REPOSITORY.glob(word)), f"{fence} names {word}"
        if words[:1] == ["python"] and words[1].startswith("benchmarks/"):
            program = (REPOSITORY / words[1]).read_text(encoding="utf-8")
            assert [word for word in words if word.startswith("--") and f'"{word}"' not in program] == [], fence


def test_commands_in_sentences_can_be_given():
    for page in PAGES:
        for span in re.findall(r"`finery ([^`\n]+)`", page.read_text(encoding="utf-8")):
            words = shlex.split(span.replace("…", ""))
            command = verbs()
            while hasattr(command, "commands") and words and words[0] in command.commands:
                command, words = command.commands[words[0]], words[1:]
            where = f"{name_of(page)}: finery {span}"
            assert command is not verbs() or words[0].startswith("-") or words[0].isupper(), where
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            given = {re.split(r"[=|]", word)[0] for word in words if word.startswith("-")}
            assert given - known - {"-h", "--help"} == set(), where
            for word in words:
                assert not word.startswith("configs/") or (REPOSITORY / word).exists(), where


FINERY = """#!/bin/sh
test {short} && grep -qxF "$*" {given} && exit 0
echo "$*" >> {given}
case "$1" in
  init) exec {call} "$@" --force ;;
  run) test {short} && {{ test -e {first} || printf '%s\\n' "$@" > {first}; shift; exec {call} plan "$@" {small}; }}
    exec {call} "$@" {small} ;;
  resume|evaluate|predict|doctor) test {short} && exit 0 ;;
esac
exec {call} "$@"
"""
"""This repository's command on a tiny model. In short, a `run` is planned, and the words of the first are noted for the
test to run, the same words are not given twice, and verbs with tests of their own that take seconds are passed over."""


@pytest.mark.early
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.long)], ids=["short", "long"])
def test_the_commands_that_pages_show_run_in_their_order(short, tmp_path):
    """A block that is not run says why: `<!-- not run: needs Docker -->`."""
    folder = tmp_path / "my-data"
    folder.mkdir()
    lines = ["review,verdict"]
    for number in range(60):
        word, verdict = (("great", "good"), ("dull", "bad"))[number % 2]
        lines.append(f"The plot was {word} in number {number},{verdict}")
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    program = tmp_path / "bin" / "finery"
    program.parent.mkdir()
    given, first_run = tmp_path / "given", tmp_path / "first-run"
    given.touch()
    blanks = {
        "call": f'"{sys.executable}" -m service.cli',
        "small": shlex.join(SMALL),
        "given": shlex.quote(str(given)),
        "first": shlex.quote(str(first_run)),
    }
    program.write_text(FINERY.format(**blanks, short="yes" if short else "''"))
    program.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "FINERY_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    for fence in written_in("bash"):
        if fence.comment.startswith("not run: "):
            continue
        for words in commands(fence.text):
            assert words[0] == "finery", f"{fence} is not run: {words[0]}"
            assert words[1] in CHEAP, f"{fence} is not run: finery {words[1]}"
        call = ["bash", "-e", "-c", fence.text]
        done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{fence}: {done.stdout}{done.stderr}"
    if short:
        words, said = [*first_run.read_text().splitlines(), *SMALL], tmp_path / "said"
        home = {"FINERY_HOME": str(tmp_path / "home")}
        code = forked.fork(forked.command_with_forked_proofs, words, str(folder), str(said), home)
        assert code == 0, said.read_text()
    assert (folder / "registry/my-data/README.md").is_file()
