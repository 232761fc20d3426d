"""The tree in README.md is the tree on the disk: every module of ours once, with what it is for."""

import re
from collections import Counter

HEADING = "## The house"


def listed(readme):
    """(path, description) of every line of the fenced block below the heading."""
    _, found, after = readme.partition(f"\n{HEADING}\n")
    assert found, f"README.md has no heading '{HEADING}'"
    section = re.split(r"\n## ", after)[0]
    block = re.search(r"^```[a-z]*\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block, f"README.md has no fenced block below '{HEADING}'"
    lines = [line for line in block.group(1).splitlines() if line.strip()]
    pairs = [re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines]
    assert all(len(pair) == 2 for pair in pairs), [pair for pair in pairs if len(pair) != 2]
    return [(path, description) for path, description in pairs]


def modules(repository):
    found = (path.relative_to(repository) for top in ("pipelines", "service") for path in (repository / top).rglob("*.py"))
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_every_module_stands_in_the_readme_once(repository):
    counts = Counter(path for path, _ in listed((repository / "README.md").read_text(encoding="utf-8")))
    missing = sorted(modules(repository) - set(counts))
    repeated = sorted(path for path, count in counts.items() if count > 1)
    assert (missing, repeated) == ([], [])


def test_nothing_stands_in_the_readme_that_is_not_there(repository):
    paths = [path for path, _ in listed((repository / "README.md").read_text(encoding="utf-8"))]
    gone = [path for path in paths if not ((repository / path).exists() or ("*" in path and any(repository.glob(path))))]
    assert gone == []


def test_the_reader_of_the_tree_is_not_blind():
    readme = "# X\n\n## The house\n\nWords.\n\n```text\npipelines/run.py   the story\nservice/a.py  two  spaces\n```\n\n## Next\n```\nno.py  x\n```\n"
    assert listed(readme) == [("pipelines/run.py", "the story"), ("service/a.py", "two  spaces")]
