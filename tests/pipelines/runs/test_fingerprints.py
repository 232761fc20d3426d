"""A fingerprint changes with what changes results, and with nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.runs import fingerprints
from tests.covering import LONG


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules below `pipelines.sandbox` that a test may write."""
    import pipelines

    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text('"""A."""\nfrom pipelines.sandbox import b\n\nx = 1\n')
    (folder / "b.py").write_text("def f():\n    from pipelines.sandbox.c import y\n    return y\n")
    (folder / "c.py").write_text("y = 1\n")
    (folder / "d.py").write_text("z = 1\n")
    return folder


def code(*modules: str) -> str:
    for remembered in (fingerprints._origin, fingerprints._parsed, fingerprints._exists, fingerprints._whole):
        remembered.cache_clear()
    for name in [name for name in sys.modules if name.startswith("pipelines.sandbox")]:
        del sys.modules[name]
    return fingerprints.code_of(modules)


def test_code_counts_through_every_import_even_one_inside_a_function(package: Path) -> None:
    before = code("pipelines.sandbox.a")
    (package / "c.py").write_text("y = 2\n")
    assert code("pipelines.sandbox.a") != before


@pytest.mark.parametrize(
    "line",
    [
        "from pipelines.core.registry import METRICS\nMETRICS.load(name)",
        'from pipelines import registry\nfrom pipelines.core.registry import OBJECTIVES\nOBJECTIVES.load("seq2seq")',
    ],
)
def test_code_counts_through_the_registries_that_names_are_looked_up_in(
    package: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry, name in (("metrics", "f1"), ("objectives", "seq2seq")):
        monkeypatch.setitem(fingerprints.REGISTRIES[registry]._table, name, "pipelines.sandbox.c:y")
    (package / "b.py").write_text(f"name = ''\n{line}\n")
    before = code("pipelines.sandbox.a")
    (package / "c.py").write_text("y = 22\n")
    assert code("pipelines.sandbox.a") != before


def test_types_do_not_count(package: Path) -> None:
    (package / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pipelines.sandbox import c\n"
    )
    before = code("pipelines.sandbox.a")
    (package / "c.py").write_text("y = 22\n")
    assert code("pipelines.sandbox.a") == before


def test_a_package_in_a_registry_stands_for_every_module_in_it(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fingerprints.REGISTRIES["metrics"]._table, "f1", "pipelines.sandbox")
    (package / "b.py").write_text("from pipelines.core.registry import METRICS\n")
    before = code("pipelines.sandbox.b")
    (package / "d.py").write_text("z = 22\n")
    assert code("pipelines.sandbox.b") != before


def test_a_template_of_a_package_counts_with_the_package(package: Path) -> None:
    (package / "templates").mkdir()
    (package / "templates" / "question.txt.jinja").write_text("Which?")
    (package / "__init__.py").write_text("")
    before = code("pipelines.sandbox.a")
    (package / "templates" / "question.txt.jinja").write_text("Which one?")
    assert code("pipelines.sandbox.a") != before


@pytest.fixture
def kept(package: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where hashes of code are kept, empty."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FINERY_HOME", str(home))
    return home / "code"


def test_code_is_parsed_once_for_all_processes(kept: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, parse = code("pipelines.sandbox.a"), fingerprints.ast.parse
    monkeypatch.setattr(fingerprints.ast, "parse", lambda source: pytest.fail("it was parsed again"))
    assert code("pipelines.sandbox.a") == first
    (package / "b.py").write_text("f = 2\n")  # any file of ours may change what others use
    monkeypatch.setattr(fingerprints.ast, "parse", parse)
    assert code("pipelines.sandbox.a") != first
    assert len(list(kept.iterdir())) == 2


@pytest.mark.parametrize("damage", ["", "{", '{"code": 3}', "[]"])
def test_a_damaged_hash_is_made_anew(kept: Path, damage: str) -> None:
    first = code("pipelines.sandbox.a")
    (file,) = kept.iterdir()
    file.write_text(damage)
    assert code("pipelines.sandbox.a") == first
    assert first in file.read_text()


def test_a_folder_that_may_not_be_written_to_costs_time_alone(kept: Path) -> None:
    first = code("pipelines.sandbox.a")
    shutil.rmtree(kept)
    kept.write_text("no folder")
    assert code("pipelines.sandbox.a") == first


def test_code_that_changes_while_it_is_read_is_not_kept(
    kept: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fingerprints._read

    def read(module: str) -> tuple[str, tuple[str, ...]]:
        (package / "d.py").write_text(f"z = '{module}'\n")
        return plain(module)

    monkeypatch.setattr(fingerprints, "_read", read)
    code("pipelines.sandbox.a")
    assert not kept.exists()


CHANGE_EACH = """
import json, os, sys
from pathlib import Path
from pipelines.core.load import load
from pipelines.models import stage_models
from pipelines.runs import fingerprints
assert Path(fingerprints.__file__).is_relative_to(sys.argv[1]), fingerprints.__file__
unseen, tried, step = {}, set(), int(sys.argv[2])
for path in sys.argv[3:]:
    recipe = load(path)
    for stage in recipe.stages:
        code = fingerprints.modules_of(stage) | stage.modules(recipe) | {stage_models.__name__}
        before = fingerprints.code_of(code)
        assert before == fingerprints.code_of(code)
        # each once, in the first stage that uses it
        new = sorted(set(fingerprints.used_by(code)) - tried)
        tried.update(new)
        for module in new[::step]:
            file, _ = fingerprints._origin(module)
            text, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
            file.write_bytes(text + b"\\nCHANGED = True\\n")
            if fingerprints.code_of(code) == before:
                unseen.setdefault(stage.id, []).append(module)
            file.write_bytes(text)
            os.utime(file, ns=times)  # it is the file that was read before
assert not {"torch", "transformers"} & set(sys.modules), "code is read for its fingerprint, not imported"
print(json.dumps(unseen))
"""


@pytest.mark.wider
def test_a_change_of_any_module_of_a_stages_code_changes_its_fingerprint(tmp_path: Path, repository: Path) -> None:
    """In a scratch copy; of every third module in a usual run. That every module which a stage executes is among them:
    tests/end_to_end/test_smoke.py."""
    for folder in ("pipelines", "configs"):
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    recipes = [str(repository / "configs" / "smoke" / f"{name}.yaml") for name in ("ppo", "feedback", "text-to-text")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHANGE_EACH, str(tmp_path), "1" if os.environ.get(LONG) else "3", *recipes],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{}"


def test_code_that_is_not_used_comments_and_docstrings_do_not_count(package: Path) -> None:
    before = code("pipelines.sandbox.a")
    (package / "d.py").write_text("z = 2\n")
    (package / "a.py").write_text('"""Another word."""\n# why\nfrom pipelines.sandbox import b\n\nx = 1\n')
    assert code("pipelines.sandbox.a") == before


def test_the_contract_does_not_count() -> None:
    assert code("pipelines.core.errors", "pipelines.core.training_arguments") == code()


def test_the_loop_counts_for_the_stages_that_train() -> None:
    seen: set[str] = set()
    waiting = ["pipelines.trainers.pretrain"]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += fingerprints._read(module)[1]
    assert {
        "pipelines.trainers.trainer",
        "pipelines.models.log_probabilities",
        "pipelines.data.sentences",
        "pipelines.data.packing",
    } <= seen
    assert not any(name.startswith(("pipelines.evaluation", "pipelines.publishing")) for name in seen)


def test_a_digest_ignores_the_order_of_keys() -> None:
    assert fingerprints.digest({"a": 1, "b": [2]}) == fingerprints.digest({"b": [2], "a": 1})
    assert fingerprints.digest({"a": 1}) != fingerprints.digest({"a": 1.5})
