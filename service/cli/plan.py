"""`finery plan`: what a recipe will cost. The recipe is checked here, the sums are done by a child process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import EXIT_DONE, EXIT_FAILED
from service.cli.child import call


def plan(recipe: Path, overrides: Sequence[str], as_json: bool, rate: float | None = None) -> int:
    """Pass on what `python -m pipelines plan` says. Returns its exit code."""
    from pipelines.recipe import load

    load(recipe, overrides)
    options = (*(("--json",) if as_json else ()), *(("--flops-per-second", str(rate)) if rate is not None else ()))
    code, out, err = call(("plan", str(recipe), *overrides, *options))
    sys.stdout.write(out)
    if code != EXIT_DONE:
        sys.stderr.write(err or f"The plan could not be made (exit code {code}).\n")
    return code if code >= 0 else EXIT_FAILED
