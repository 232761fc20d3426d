"""The command `finery`: its verbs, and how each answer becomes an exit code.

Every verb is a thin function here and a module of its own; a module is imported when its verb is called, because
`finery --help` and `finery validate` must answer at once.

Exit codes: 0 done, 1 failed, 2 the recipe or the command is wrong, 75 stopped early and resumable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipelines.errors import EXIT_DONE, EXIT_FAILED, FineryError, RecipeError

app = typer.Typer(
    name="finery", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode="rich",
    epilog="Start with your own file: [bold]finery init train.csv[/bold], then [bold]finery run recipe.yaml[/bold].",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only what comes out.")]
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="The YAML recipe.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Values to change, such as stages.mrpc.seed=1.", show_default=False),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code; usage errors end the process with 2 as typer does."""
    if sys.platform == "win32":
        print("Finery does not run on Windows; use Linux, for instance through WSL 2.", file=sys.stderr)
        return EXIT_FAILED
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="finery")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else EXIT_FAILED
    except FineryError as error:
        if "--json" in given:
            print(json.dumps(_refusal(error), ensure_ascii=False))
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        sys.stderr.close()
        return EXIT_DONE
    return EXIT_DONE


def _refusal(error: FineryError) -> dict[str, object]:
    answer: dict[str, object] = {"status": "refused", "exit_code": error.exit_code}
    answer["error"] = {"message": str(error), "reason": error.reason, "stage": None}
    if isinstance(error, RecipeError):
        answer["mistakes"] = [
            {"file": each.file, "line": each.line, "key": each.key, "message": each.message} for each in error.mistakes
        ]
    return answer


def _version(asked: bool) -> None:
    if asked:
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


@app.command()
def init(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV, TSV, JSONL, JSON or Parquet file.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the recipe is written.")] = Path("recipe.yaml"),
    text: Annotated[list[str] | None, typer.Option("--text", help="Column with the text; give it twice for pairs.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column with what is to be learnt.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="classification or regression, if the guess is wrong.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; the file's name by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the recipe if it exists.")] = False,
) -> None:
    """Write a recipe from the columns of your own file."""
    from service.cli.init import init as write

    raise typer.Exit(write(data, output, text or [], label, kind, name, force))


@app.command()
def run(recipe: Recipe, overrides: Overrides = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Do what a recipe describes, with a progress bar and the scores at the end."""
    from service.cli.run import run as start

    raise typer.Exit(start(recipe, overrides or [], as_json, quiet))


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="The folder runs/<name>.", show_default=False)],
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped or killed, from its last checkpoint."""
    from service.cli.run import resume as start

    raise typer.Exit(start(folder, as_json, quiet))


@app.command()
def validate(
    recipes: Annotated[
        list[str], typer.Argument(metavar="RECIPE... KEY=VALUE", help="Recipes, and values to change in all of them.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Check recipes and show every mistake at once, without loading anything."""
    from service.cli.validate import validate as check

    raise typer.Exit(check(recipes, as_json))


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: AsJson = False,
    rate: Annotated[float | None, typer.Option("--flops-per-second", min=1, metavar="N", help="What this machine reaches, such as 1e12; guessed by default.")] = None,
) -> None:
    """Say what a recipe will cost, before anything loads: parameters, computation, memory."""
    from service.cli.plan import plan as estimate

    raise typer.Exit(estimate(recipe, overrides or [], as_json, rate))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a recipe, for editors and forms."""
    from pipelines.recipe import schema as described

    print(json.dumps(described(), indent=2, ensure_ascii=False))


@app.command()
def doctor(
    network: Annotated[bool, typer.Option("--network", help="Also ask whether the Hub can be reached.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what this machine has, what it lacks, and what to do about it."""
    from service.cli.doctor import doctor as examine

    raise typer.Exit(examine(network, as_json))


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False,
    older_than: Annotated[float | None, typer.Option("--older-than", min=0, metavar="DAYS", help="Only what was not used for so many days.")] = None,
    as_json: AsJson = False,
) -> None:
    """Free complete stages and prepared data that no run uses any more."""
    from service.cli.gc import gc as collect

    raise typer.Exit(collect(dry_run, older_than, as_json))


if __name__ == "__main__":
    sys.exit(main())
