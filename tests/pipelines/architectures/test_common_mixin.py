"""transformers' own model tests (`ModelTesterMixin`), over every family and every head.

They are part of transformers' source distribution, not of the package that is installed, and not of this project:
they are taken from the package index, in the version that is installed, and kept in pytest's cache folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
import transformers

CASES = Path(__file__).with_name("mixin_cases.py")

NOT_DISTRIBUTED = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
}
"""Modules that the tests import and the distribution leaves out; `test_common_generation.py` stands in for the second."""

ACCEPTED_SKIPS = (
    r"test requires (accelerator|multiple accelerators|Flash Attention|the kernels library|MPS|deepspeed)",
    r"test is slow",
    r"not( a)? composite|No subconfigs|does not support SDPA",  # models made of several models
    r"No conversion found|_keep_in_fp32_modules|grouped_mm|sparse experts|output_router_logits|axial RoPE",
    r"does not support RoPE scaling|does not have RoPE",
    r"does not support sliding window mask",  # of the kind that `use_sliding_window` turns on and off
    r"Model does not have position embeddings",  # that could be resized: one longer than all texts is designed
    r"No sequence-to-sequence language modeling head|No decoder-only language modeling head|nothing to shift",
    r"Model does not have a TP plan",
    r"does not propagate hidden states correctly or uses another name",  # encoder-decoders call theirs otherwise
)
"""Why transformers may skip a test: what a model need not have, and machines that are not here."""


@pytest.fixture(scope="session")
def transformers_tests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds transformers' tests as the package `transformers_tests`."""
    version = transformers.__version__
    kept = request.config.cache.mkdir(f"transformers-{version}")
    if (kept / "transformers_tests").is_dir():
        return kept
    folder = tmp_path_factory.mktemp("transformers")
    command = (
        f"pip download --quiet --no-deps --no-binary transformers --no-build-isolation transformers=={version} --dest"
    )
    download = subprocess.run(
        [sys.executable, "-m", *command.split(), str(folder)], capture_output=True, text=True, timeout=300, check=False
    )
    archive = folder / f"transformers-{version}.tar.gz"
    if not archive.is_file():
        reason = f"transformers {version}'s source distribution cannot be had from the package index: {download.stderr}"
        if os.environ.get("FINERY_REQUIRE_MIRROR"):
            pytest.fail(reason)
        pytest.skip(reason)
    with tarfile.open(archive) as packed:
        inside = f"transformers-{version}/tests/"
        packed.extractall(
            folder,
            [member for member in packed if member.name.startswith(inside)],
            **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}),
        )  # not before Python 3.11.4
    tests = folder / inside
    for name, source in {"__init__.py": "", **NOT_DISTRIBUTED}.items():
        (tests / name).parent.mkdir(exist_ok=True)
        (tests / name).write_text(source)
        (tests / name).with_name("__init__.py").touch()
    try:
        tests.rename(kept / "transformers_tests")
    except OSError:  # another worker was faster
        assert (kept / "transformers_tests").is_dir()
    return kept


def check(tests: Path, folder: Path, cases: list[str], at_least: int, *options: str) -> None:
    """Run them in one process: none fails, those skipped have an accepted reason, and as many pass as each should."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    report = folder / "report.xml"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(CASES.parents[3])])}
    fixed = "--noconftest -q --import-mode=importlib -p no:cacheprovider -p no:xdist -c pytest.ini"
    nodes = [f"{CASES}::{case}Test" for case in cases]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *nodes, *fixed.split(), f"--junitxml={report}", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.is_file(), run.stdout + run.stderr
    passed, skipped, failed = Counter(), {}, [] if run.returncode == 0 else [run.stdout]
    for test in ElementTree.parse(report).iter("testcase"):
        case, name = test.get("classname", "").rpartition(".")[2], test.get("name", "")
        problems = [problem.text for kind in ("failure", "error") for problem in test.findall(kind)]
        reasons = [reason.get("message", "") for reason in test.findall("skipped")]
        failed += [f"{case}.{name}\n{problem}" for problem in problems]
        if reasons:
            skipped[case, name] = "; ".join(reasons)
        elif not problems:
            passed[case] += 1
    assert not failed, "\n\n".join(failed)
    accepted = re.compile("|".join(ACCEPTED_SKIPS))
    assert not {name: why for name, why in skipped.items() if not accepted.search(why)}
    assert {case: passed[f"{case}Test"] for case in cases if passed[f"{case}Test"] < at_least} == {}


@pytest.mark.long
def test_both_stacks_pass_transformers_own_tests(transformers_tests: Path, tmp_path: Path) -> None:
    """The bare model and one head; every family and head, half precision and old names of arguments in the long tests."""
    cases = ["QuickEncoderDecoder"]
    check(
        transformers_tests, tmp_path, cases, 80, "-k", "not bc_torch_dtype and not (sdpa_inference and (fp16 or bf16))"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "case", ["Encoder", "Decoder", "EncoderDecoder", "ModernEncoder", "ModernDecoder", "T5EncoderDecoder"]
)
def test_every_head_passes_transformers_own_tests(case: str, transformers_tests: Path, tmp_path: Path) -> None:
    check(transformers_tests, tmp_path, [case], 90)
