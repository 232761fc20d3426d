"""What may import what. A room that reaches into another one can no longer be changed alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CONTRACT = {"recipe", "matrix", "cells", "registry", "blocks", "marks", "errors", "events", "protocols", "fields", "outgoing", "secrets"}
CONTRACT_LIBRARIES = {"pydantic", "pydantic_core", "ruamel"}
ROOMS: dict[str, set[str]] = {
    "data": set(),
    "objectives": set(),
    "tuners": set(),
    "trainers": {"data", "objectives"},
    "evaluation": {"data"},
    "rewards": {"data"},
    "feedback": {"data"},
    "publishing": set(),
}
"""Room -> the other rooms that it may use, beside the contract."""
HEAVY = {"torch", "transformers", "datasets", "peft", "accelerate", "evaluate", "numpy", "scipy", "sklearn", "pyarrow", "tokenizers"}
SERVICE = {"service", "pipelines", "typer", "rich", "pyarrow"}
TABLES = "pipelines.data.tables"
"""How files of rows are read within bounds: the service shows them with the code that training reads them with."""
GENERATORS = {"pipelines/fields/generate.py"}
"""Tools of the developer that read the live classes; nothing imports them."""


def sources(folder):
    return sorted(path for path in (REPOSITORY / folder).rglob("*.py"))


def name_of(path):
    return str(path.relative_to(REPOSITORY))


def imports(path, everywhere=True):
    """(dotted module, line) of every import; with `everywhere=False` only those that run when the module is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = path.relative_to(REPOSITORY).with_suffix("").parts
    package = package[:-1]
    found = []

    def visit(node):
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from pipelines import launch` imports pipelines.launch
            found.extend(
                (f"{module}.{alias.name}" if module == "pipelines" else module, node.lineno) for alias in node.names
            )
        elif not everywhere and (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def is_type_checking(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def ours(path, everywhere=True):
    """(room or module below `pipelines`, line) of every import of ours."""
    return [
        (module.split(".")[1], line)
        for module, line in imports(path, everywhere)
        if module.startswith("pipelines.")
    ]


def told(path, found):
    return [f"{name_of(path)}:{line} imports {module}" for module, line in found]


@pytest.mark.parametrize("path", sources("pipelines"), ids=name_of)
def test_pipelines_never_import_the_service(path):
    assert told(path, [each for each in imports(path) if each[0].split(".")[0] == "service"]) == []


@pytest.mark.parametrize("path", sources("service"), ids=name_of)
def test_the_service_imports_the_contract_only(path):
    lines = {line for module, line in imports(path) if module == TABLES}
    assert told(path, [each for each in ours(path) if each[0] not in CONTRACT and each[1] not in lines]) == []
    assert told(path, [each for each in imports(path) if each[0].split(".")[0] in HEAVY - SERVICE]) == []


def test_reading_tables_loads_no_heavy_library():
    code = f"import sys, {TABLES}; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("path", sources("service"), ids=name_of)
def test_the_service_starts_without_waiting_for_libraries(path):
    """rich and pyarrow cost more than a whole `validate`: they are imported where they are used."""
    late = {"rich", "pyarrow"}
    assert told(path, [each for each in imports(path, everywhere=False) if each[0].split(".")[0] in late]) == []


@pytest.mark.parametrize(
    "path",
    [
        path for path in sources("pipelines")
        if path.relative_to(REPOSITORY / "pipelines").parts[0].removesuffix(".py") in CONTRACT and name_of(path) not in GENERATORS
    ],
    ids=name_of,
)
def test_the_contract_imports_nothing_but_itself_and_two_libraries(path):
    allowed = set(sys.stdlib_module_names) | CONTRACT_LIBRARIES | {"pipelines"}
    assert told(path, [each for each in imports(path) if each[0].split(".")[0] not in allowed]) == []
    assert told(path, [each for each in ours(path) if each[0] not in CONTRACT]) == []


def test_nothing_imports_the_generators():
    modules = {name.removesuffix(".py").replace("/", ".") for name in GENERATORS}
    for path in [*sources("pipelines"), *sources("service")]:
        assert not modules & {module for module, _ in imports(path)}, name_of(path)


@pytest.mark.parametrize("path", sources("pipelines/architectures"), ids=name_of)
def test_architectures_stand_alone_so_that_a_checkpoint_can_carry_them(path):
    allowed = set(sys.stdlib_module_names) | {"torch", "transformers"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{name_of(path)}:{node.lineno} reaches outside its folder"
            if node.level == 1:
                assert "." not in (node.module or "."), f"{name_of(path)}:{node.lineno} is not flat"
                assert (path.parent / f"{node.module}.py").is_file()
                continue
            assert node.module.split(".")[0] in allowed, f"{name_of(path)}:{node.lineno} imports {node.module}"
        elif isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in allowed for alias in node.names), f"{name_of(path)}:{node.lineno}"


def test_the_folder_of_architectures_is_flat():
    assert {path.parent for path in sources("pipelines/architectures")} == {REPOSITORY / "pipelines/architectures"}


@pytest.mark.parametrize(
    ("room", "path"), [(room, path) for room in ROOMS for path in sources(f"pipelines/{room}")],
    ids=lambda value: name_of(value) if isinstance(value, Path) else value,
)  # fmt: skip
def test_rooms_use_the_contract_and_what_stands_beside_them_here(room, path):
    allowed = CONTRACT | {room} | ROOMS[room]
    assert told(path, [each for each in ours(path) if each[0] not in allowed]) == []


def test_every_folder_of_pipelines_has_a_rule():
    folders = {path.parent.relative_to(REPOSITORY / "pipelines").parts[0] for path in sources("pipelines") if path.parent.name != "pipelines"}
    # templates hold no Python of ours
    assert folders == {*ROOMS, "architectures", "fields"}


def test_the_probe_sees_relative_late_and_typing_imports(tmp_path, monkeypatch):
    """The rules above prove nothing if `imports` is blind."""
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    path = tmp_path / "pipelines" / "trainers" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from typing import TYPE_CHECKING\nfrom pipelines import launch\nfrom ..data import tasks\nfrom . import y\n"
        "if TYPE_CHECKING:\n    import torch\ndef late():\n    from pipelines.evaluation.f1 import F1\n"
    )
    assert [each for each, _ in ours(path)] == ["launch", "data", "trainers", "evaluation"]
    assert "torch" in [each for each, _ in imports(path)]
    assert [each for each, _ in imports(path, everywhere=False)] == ["typing", "pipelines.launch", "pipelines.data", "pipelines.trainers"]
