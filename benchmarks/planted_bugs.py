"""Which of thirty bugs the tests catch: each is planted alone in a scratch copy, and the nearest tests are run.

    python benchmarks/planted_bugs.py [--tree FOLDER] [--only N …] [--near]

A bug is a line of the code and what it is changed into. The tests that name the function around the line run first,
then those that name its module, those of its room, and all that `make test` runs; the first failure catches the bug,
if the same test passes once the line is put back. Because a bug is found by its line and not by its file, the same
bugs can be planted in two trees whose files stand elsewhere, such as two commits. Prints one line a bug and the number
that escaped, which is the exit code.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
COPIED = ("pipelines", "service", "tests", "configs", "docs", "benchmarks")


class Bug(NamedTuple):
    """A line, stripped of its indent, and what stands there instead."""

    room: str
    line: str
    instead: str


BUGS = (
    Bug(
        "architectures",
        "return nn.functional.elu(states.float()) + 1",
        "return nn.functional.elu(states.float())",
    ),
    Bug(
        "core",
        "if self.profile in SEVERAL and self.num_processes == 1:",
        "if self.profile in SEVERAL and self.num_processes == 2:",
    ),
    Bug(
        "data",
        "return [end for end in dict.fromkeys(match.end() for match in ENDS.finditer(text)) if first < end < last]",
        "return [end for end in dict.fromkeys(match.end() for match in ENDS.finditer(text)) if first < end]",
    ),
    Bug(
        "metrics",
        "smallest = min(smallest, p_values[at] * len(p_values) / rank)",
        "smallest = min(smallest, p_values[at] * len(p_values))",
    ),
    Bug(
        "tuners",
        'whole = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]',
        'whole = [".".join(parts[:end]) for end in range(1, len(parts))]',
    ),
    Bug(
        "models",
        "if (own != head and not trained_head) or own.kind != head.kind:",
        "if own.kind != head.kind:",
    ),
    Bug(
        "objectives",
        "masked = real & (rank < number[:, None])",
        "masked = real & (rank <= number[:, None])",
    ),
    Bug(
        "tasks",
        "weights = torch.where(counts > 0, counts.sum() / ((counts > 0).sum() * counts.clamp(min=1)), 1.0)",
        "weights = torch.where(counts > 0, counts.sum() / counts.clamp(min=1), 1.0) * 0 + 1.0",
    ),
    Bug(
        "rewards",
        "return max(0.0, 1.0 - abs(length - target) / target)",
        "return 1.0 - abs(length - target) / target",
    ),
    Bug(
        "evaluation",
        "stream = np.insert(documents.tokens, documents.starts[1:], end)",
        "stream = np.insert(documents.tokens, documents.starts[:-1], end)",
    ),
    Bug(
        "evaluation",
        "golden = (np.sqrt(5) - 1) / 2",
        "golden = (np.sqrt(5) - 2) / 2",
    ),
    Bug(
        "trainers",
        "return -logsigmoid(chosen) - 0.5 * logsigmoid(-chosen) - 0.5 * logsigmoid(-rejected)",
        "return -logsigmoid(chosen) - 0.5 * logsigmoid(chosen) - 0.5 * logsigmoid(-rejected)",
    ),
    Bug(
        "trainers",
        "clipped = ((held_error > free_error) & mask).sum()",
        "clipped = ((held_error < free_error) & mask).sum()",
    ),
    Bug(
        "feedback",
        "return (score - middle) / (HIGHEST - middle)",
        "return (score - middle) / HIGHEST",
    ),
    Bug(
        "reports",
        "return round(self.start + place / (self.high - self.low) * (self.end - self.start), 1)",
        "return round(self.end - place / (self.high - self.low) * (self.end - self.start), 1)",
    ),
    Bug(
        "publishing",
        "proof.tolerance = max(proof.tolerance, tolerance)",
        "proof.tolerance = min(proof.tolerance, tolerance)",
    ),
    Bug(
        "runs",
        "if not path.is_file() or path.stat().st_size != size:",
        "if not path.is_file():",
    ),
    Bug(
        "studies",
        "able = [row for row in rows if row is not None and not smaller_is_better(row.main) and row.results]",
        "able = [row for row in rows if row is not None and row.results]",
    ),
    Bug(
        "commands",
        "return across * heads, down * layers",
        "return across * layers, down * heads",
    ),
    Bug(
        "service/api",
        "states = [state for state in State if state not in TERMINAL]",
        "states = [state for state in State if state in TERMINAL]",
    ),
    Bug(
        "service/attempts",
        "silence = now - max(min(sign, now) for sign in signs)",
        "silence = now - min(min(sign, now) for sign in signs)",
    ),
    Bug(
        "service/cli",
        'return column.kind == "whole" and len(column.counts) > MOST_WHOLE_CLASSES',
        'return column.kind == "whole" and len(column.counts) < MOST_WHOLE_CLASSES',
    ),
    Bug(
        "service/executors",
        'if not any(f"{each}/".startswith(f"{real}/") for each in secret):',
        'if any(f"{each}/".startswith(f"{real}/") for each in secret):',
    ),
    Bug(
        "service/jobs",
        "return slot.memory >= self.gpu_memory and (self.gpu_kind is None or self.gpu_kind.lower() in slot.kind.lower())",
        "return slot.memory > self.gpu_memory and (self.gpu_kind is None or self.gpu_kind.lower() in slot.kind.lower())",
    ),
    Bug(
        "service/openai",
        'if not any(each["role"] == "assistant" for each in messages):',
        'if not any(each["role"] == "user" for each in messages):',
    ),
    Bug(
        "service/safety",
        'refused = "." not in host or host.endswith(INSIDE)',
        'refused = "." not in host',
    ),
    Bug(
        "service/scheduler",
        "return max(shares, default=0.0) / self.usage.get(project, Share()).weight",
        "return max(shares, default=0.0) * self.usage.get(project, Share()).weight",
    ),
    Bug(
        "service/store",
        "token = int(row.fencing) + 1",
        "token = int(row.fencing)",
    ),
    Bug(
        "service/submission",
        "most = max(resources.gpus, resources.cpus, 1) * resources.hosts",
        "most = max(resources.gpus, resources.cpus, 1)",
    ),
    Bug(
        "service/web",
        "if prefix and (token is None or not token.valid(time.time())):",
        "if prefix and token is None:",
    ),
)


def plant(tree: Path, bug: Bug) -> tuple[Path, str]:
    """Change the one line of `tree` that the bug names. Returns: its file, and the text before. Raises ValueError."""
    found = []
    for path in (*tree.glob("pipelines/**/*.py"), *tree.glob("service/**/*.py")):
        lines = path.read_text(encoding="utf-8").split("\n")
        found += [(path, lines, at) for at, line in enumerate(lines) if line.strip() == bug.line]
    if len(found) != 1:
        raise ValueError(f"{len(found)} lines are {bug.line!r}; give one that stands once")
    path, lines, at = found[0]
    whole = "\n".join(lines)
    lines[at] = lines[at].replace(bug.line, bug.instead)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path, whole


def enclosing(changed: Path, line: str) -> str:
    """The name of the function or class that the line stands in."""
    text = changed.read_text(encoding="utf-8")
    at = next(number for number, each in enumerate(text.split("\n"), 1) if each.strip() == line)
    scopes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= at <= (node.end_lineno or 0)
    ]
    named = [node.name for node in sorted(scopes, key=lambda node: -node.lineno) if not node.name.startswith("__")]
    return named[0] if named else changed.stem


def nearest_tests(tree: Path, changed: Path, line: str) -> list[list[str]]:
    """Arguments of pytest, the nearest tests first: those that name what the line stands in, those that name the
    module, those of its room."""
    module = ".".join(changed.relative_to(tree).with_suffix("").parts)
    package, _, last = module.rpartition(".")
    words = (
        re.compile(rf"\b{re.escape(enclosing(changed, line))}\b"),
        re.compile(rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{last}\b"),
    )
    tests = {path: path.read_text(encoding="utf-8") for path in sorted(tree.glob("tests/**/test_*.py"))}
    room = tree / "tests" / Path(*changed.relative_to(tree).parts[:-1])
    while not room.is_dir():
        room = room.parent
    near: list[list[str]] = []
    for word in words:
        ranked = sorted(tests, key=lambda path: (not path.is_relative_to(room), -len(word.findall(tests[path]))))
        near.append([str(path.relative_to(tree)) for path in ranked if word.search(tests[path])])
    return [each for each in (*near, [str(room.relative_to(tree)), "tests/contracts"]) if each]


def failing(tree: Path, chosen: list[str], workers: int) -> str | None:
    """The first of these tests that fails; None where all pass."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not long", *chosen]
    command += ["-p", "no:cacheprovider", "--no-header", "--tb=no", *(["-n", str(workers)] if len(chosen) != 1 else [])]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode in (0, 5):
        return None
    failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else done.stdout.strip().splitlines()[-1]


def caught_by(tree: Path, bug: Bug, workers: int, near: bool) -> str | None:
    """The first test that fails with the bug and passes without it; None where no test does."""
    changed, whole = plant(tree, bug)
    for chosen in (*nearest_tests(tree, changed, bug.instead), *([] if near else [["tests"]])):
        if (test := failing(tree, chosen, workers)) is None:
            continue
        broken = changed.read_text(encoding="utf-8")
        changed.write_text(whole, encoding="utf-8")
        fails_anyway = failing(tree, [test], 1)
        changed.write_text(broken, encoding="utf-8")
        if fails_anyway is None:
            return test
        print(f"   {test} fails without the bug too", flush=True)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="the checkout to plant in; a copy is changed")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of bugs, from 1")
    parser.add_argument("--near", action="store_true", help="only the tests nearest to a bug and those of its room")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    escaped = 0
    for number, bug in enumerate(BUGS, 1):
        if given.only and number not in given.only:
            continue
        with tempfile.TemporaryDirectory(dir=given.tree.resolve().parent) as folder:  # isolation hides /tmp
            tree = Path(folder)
            for name in COPIED:
                if (given.tree / name).is_dir():
                    shutil.copytree(given.tree / name, tree / name, symlinks=True)
            for path in given.tree.iterdir():
                if path.is_file():
                    shutil.copy2(path, tree)
            begun = time.monotonic()
            test = caught_by(tree, bug, given.workers, given.near)
        escaped += test is None
        seconds = time.monotonic() - begun
        print(f"{number:2} {bug.room:20} {'ESCAPED' if test is None else test}  ({seconds:.0f} s)", flush=True)
    print(f"{escaped} escaped")
    return escaped


if __name__ == "__main__":
    sys.exit(main())
