"""`finery plan`: what a recipe will cost, said by a child process.

The child reads the recipe, and here nothing is loaded that reads one: it is read here only to say what is wrong with
it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.core.errors import EXIT_DONE, EXIT_USAGE
from service.cli.child import call, refuse_call


def plan(
    recipe: Path,
    overrides: Sequence[str],
    as_json: bool,
    rate: float | None = None,
    gpus: str | None = None,
    hosts: int | None = None,
    network_gbps: float | None = None,
    price: float | None = None,
) -> int:
    """Pass on what `python -m pipelines plan` says. Returns its exit code. Raises RecipeError with every mistake."""
    given = {
        "--flops-per-second": rate,
        "--gpus": gpus,
        "--hosts": hosts,
        "--network-gbps": network_gbps,
        "--price": price,
    }
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    options += ["--json"] if as_json else []
    code, out, err = call(("plan", str(recipe), *overrides, *options))
    if code == EXIT_USAGE:
        from pipelines.core.load import load

        load(recipe, overrides)
    if code != EXIT_DONE:
        return refuse_call(code, err, "The plan could not be made", as_json)
    sys.stdout.write(out)
    return code
