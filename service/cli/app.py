"""The Typer application of `finery`, the options that several verbs share, and the form of a failure as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.core.errors import EXIT_STOPPED, EXIT_USAGE

app = typer.Typer(
    name="finery",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog="Start with your own file: [bold]finery init train.csv[/bold], then [bold]finery run recipe.yaml[/bold].",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only what comes out.")]
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="The YAML recipe.", show_default=False)]
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A published folder, a stage's or run's folder, or a Hub id.", show_default=False
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="The service; else FINERY_URL or ~/.config/finery/config.toml.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="A file with the token; else FINERY_TOKEN or the config.",
        show_default=False,
    ),
]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs, job-….", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Values to change, such as stages.mrpc.seed=1.", show_default=False),
]


def failure(code: int, message: str, reason: str | None) -> dict[str, object]:
    """What `--json` prints where there is no answer: the same keys for every verb."""
    status = {EXIT_USAGE: "refused", EXIT_STOPPED: "stopped"}.get(code, "failed")
    return {"status": status, "exit_code": code, "error": {"message": message, "reason": reason, "stage": None}}


def _version(given: bool) -> None:
    if given:
        from importlib import metadata

        try:
            print(f"finery {metadata.version('finery')}")
        except metadata.PackageNotFoundError:
            print("finery (not installed: run from its source folder)")
        raise typer.Exit


@app.callback()
def finery(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Fine-tune transformers from one YAML recipe: design, pretrain, tune, evaluate, publish."""
