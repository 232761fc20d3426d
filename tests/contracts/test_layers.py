"""Imports run downwards: what each room may import, by the order of the layers."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LAYERS = (
    "architectures", "core", "data", "metrics", "tuners", "models", "objectives", "tasks", "rewards", "evaluation", "trainers",
    "feedback", "reports", "publishing", "runs", "studies", "commands", "serving", "__main__",
)  # fmt: skip
"""From the bottom to the top. A room imports itself and what stands before it."""
HEAVY = {
    "torch", "transformers", "datasets", "peft", "accelerate", "evaluate", "numpy", "scipy", "sklearn", "pyarrow", "tokenizers",
}  # fmt: skip
GENERATORS = {"pipelines/core/generate_model_types.py"}
"""Tools of the developer that read the live classes; nothing imports them."""
LIGHT_ARCHITECTURES = {
    f"pipelines.architectures.{name}"
    for name in (
        "configuration_rules", "arithmetic", "field_rules", "recurrent_rules", "recurrent_arithmetic",
        "convolutional_rules", "convolutional_arithmetic",
    )
}  # fmt: skip
"""Files of the family that load without torch: `core` may import them."""


def modules(top):
    """Dotted name -> path of every module below the folder `top`."""
    found = {}
    for path in sorted((REPOSITORY / top).rglob("*.py")):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


PIPELINES = modules("pipelines")
SERVICE = modules("service")


HOLD_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""An import is a statement: expressions need no visit."""


@cache
def imports(module, path, everywhere=True, types=True):
    """(dotted module, line) of every import; with `everywhere=False` only those that run when the module is imported.

    With `types=False` those are left out that only type checkers read.
    """
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = []

    def visit(node):
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            whole = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                name = f"{whole}.{alias.name}"
                found.append((name if name in PIPELINES or name in SERVICE else whole, node.lineno))
        elif (not everywhere and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)) or (
            not (everywhere and types) and _is_typing(node)
        ):
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, HOLD_STATEMENTS):
                visit(child)

    visit(parsed(path))
    return found


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def _is_typing(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room(module):
    return module.split(".")[1] if "." in module else None


def upward(module, path):
    """The imports of `module` that a lower or an equal layer may not have."""
    here = room(module)
    for target, line in imports(module, path):
        there = room(target) if target.startswith("pipelines.") else None
        if there is None or there == here or (here == "core" and target in LIGHT_ARCHITECTURES):
            continue
        if here == "core" or LAYERS.index(there) > LAYERS.index(here):
            yield f"{path.relative_to(REPOSITORY)}:{line} imports {target}"


def test_every_room_stands_in_a_layer():
    assert {room(module) for module in PIPELINES if room(module)} == set(LAYERS)


def test_imports_run_downwards():
    assert [each for module, path in PIPELINES.items() if room(module) for each in upward(module, path)] == []


def test_pipelines_never_import_the_service():
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {target}"
        for module, path in PIPELINES.items()
        for target, line in imports(module, path)
        if target.split(".")[0] == "service"
    ]
    assert wrong == []


def test_the_service_imports_the_core_alone():
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {target}"
        for module, path in SERVICE.items()
        for target, line in imports(module, path)
        if target.startswith("pipelines") and room(target) != "core"
    ]
    assert wrong == []


@pytest.mark.parametrize("names", [PIPELINES, SERVICE], ids=["pipelines", "service"])
def test_only_registries_name_modules_in_strings(names):
    """A string that names a module hides an import from every reader and every tool."""
    known = {*PIPELINES, *SERVICE}
    wrong = []
    for module, path in names.items():
        if module.endswith(".registry"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                bare = node.value.partition(":")[0]
                if re.fullmatch(r"\w+(\.\w+)+", bare) and bare in known:
                    wrong.append(f"{path.relative_to(REPOSITORY)}:{node.lineno} names {bare}")
    assert wrong == []


def test_the_architectures_import_nothing_of_ours():
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {target}"
        for module, path in PIPELINES.items()
        if room(module) == "architectures"
        for target, line in imports(module, path)
        if target.startswith(("pipelines.", "service")) and room(target) != "architectures"
    ]
    assert wrong == []


def test_the_architectures_stand_alone_so_that_a_checkpoint_can_carry_them():
    """Relative imports of flat files, torch, transformers, and the standard library: transformers copies no more."""
    allowed = {*sys.stdlib_module_names, "torch", "transformers"}
    folder = REPOSITORY / "pipelines/architectures"
    for path in sorted(folder.rglob("*.py")):
        assert path.parent == folder
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, f"{path.name}:{node.lineno} reaches outside its folder"
                assert (folder / f"{node.module}.py").is_file(), f"{path.name}:{node.lineno}"
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
                assert {name.split(".")[0] for name in names} <= allowed, f"{path.name}:{node.lineno} imports {names}"


def test_the_core_imports_the_standard_library_and_light_libraries():
    """And inside functions, because they are slow to import: pyarrow, which reads Parquet files, and what compares two
    texts."""
    allowed = {*sys.stdlib_module_names, "pydantic", "pydantic_core", "ruamel", "jinja2", "pipelines"}
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {target}"
        for module, path in PIPELINES.items()
        if room(module) == "core" and str(path.relative_to(REPOSITORY)) not in GENERATORS
        for everywhere, more in ((True, {"pyarrow", "sacrebleu", "nltk"}), (False, set()))
        for target, line in imports(module, path, everywhere, types=False)
        if target.split(".")[0] not in allowed | more
    ]
    assert wrong == []


def test_nothing_imports_the_generators():
    names = {path.removesuffix(".py").replace("/", ".") for path in GENERATORS}
    for module, path in {**PIPELINES, **SERVICE}.items():
        assert not names & {target for target, _ in imports(module, path)}, path


def test_the_service_starts_without_waiting_for_libraries():
    """rich and pyarrow cost more than a whole `validate`: they are imported where they are used, others not at all."""
    for module, path in SERVICE.items():
        late = [
            target
            for target, _ in imports(module, path, everywhere=False)
            if target.split(".")[0] in ("rich", "pyarrow")
        ]
        heavy = [target for target, _ in imports(module, path) if target.split(".")[0] in HEAVY - {"pyarrow"}]
        assert late + heavy == [], path


def test_the_rules_see_relative_late_and_typing_imports(tmp_path):
    """The rules prove nothing if `imports` is blind."""
    path = tmp_path / "x.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nfrom pipelines.core import recipe\nfrom ..data import tables\nfrom . import ppo\n"
        "if TYPE_CHECKING:\n    import torch\ndef late():\n    from pipelines.metrics.f1 import F1\n"
    )
    every = [target for target, _ in imports("pipelines.trainers.x", path)]
    assert every == [
        "typing.TYPE_CHECKING".partition(".")[0],
        "pipelines.core.recipe",
        "pipelines.data.tables",
        "pipelines.trainers.ppo",
        "torch",
        "pipelines.metrics.f1",
    ]
    top = [target for target, _ in imports("pipelines.trainers.x", path, everywhere=False)]
    assert top == every[:4]


def test_a_recipe_is_checked_without_a_heavy_library():
    """What `finery validate` loads: the core, and the block of every name that a recipe uses."""
    program = (
        "import sys\n"
        "from pipelines.core import registry\n"
        "import pipelines.core.recipe\n"
        "tables = [each for each in vars(registry).values() if isinstance(each, registry.Registry)]\n"
        "for table in tables:\n"
        "    if table.kind in ('stage', 'objective', 'tuner', 'reward', 'judge', 'destination', 'task kind', 'tokenizer', 'metric'):\n"
        "        for name in table:\n"
        "            table.load(name)\n"
        f"heavy = {sorted(HEAVY | {'pandas'})!r}\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
