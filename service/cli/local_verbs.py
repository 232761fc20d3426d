"""The verbs of `finery` that take a recipe, a run or this machine: their options; the work is done elsewhere.

A module is imported when its verb is called, because `finery --help` and `finery validate` must answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipelines.core.errors import CommandError
from service.cli.app import AsJson, Overrides, Quiet, Recipe, Server, TokenFile, app


@app.command()
def init(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A CSV, TSV, JSONL, JSON, Parquet or text file.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the recipe is written.")] = Path("recipe.yaml"),
    text: Annotated[
        list[str] | None, typer.Option("--text", help="Column with the text; give it twice for pairs.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column with what is to be learnt.")] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="Kind of the task, such as regression or seq2seq, if the guess is wrong."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; the file's name by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the recipe if it exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a recipe from the columns of your own file."""
    from service.cli.init import init as write

    raise typer.Exit(write(data, output, text or [], label, kind, name, force, as_json))


@app.command()
def run(
    recipe: Recipe,
    overrides: Overrides = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Watch a few steps of each training stage: profile.html and traces.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Do what a recipe describes, with a progress bar and the scores at the end."""
    from service.cli.run import run as start

    raise typer.Exit(start(recipe, overrides or [], as_json, quiet, profile))


@app.command()
def resume(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_FOLDER|JOB", help="The folder runs/<name>, or a job's id, job-….", show_default=False
        ),
    ],
    as_json: AsJson = False,
    quiet: Quiet = False,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Continue a run that was stopped or killed, or a job that was paused, from its last checkpoint."""
    if str(folder).startswith("job-") and not folder.exists():
        from service.cli.jobs import steer

        raise typer.Exit(steer("resume", [str(folder)], server, token_file, as_json))
    from service.cli.run import resume as start

    raise typer.Exit(start(folder, as_json, quiet))


@app.command()
def study(
    recipe: Annotated[
        Path,
        typer.Argument(
            metavar="RECIPE", help="A recipe with a matrix, or the folder of a study to continue.", show_default=False
        ),
    ],
    overrides: Overrides = None,
    parallel: Annotated[
        int | None,
        typer.Option("--parallel", min=1, metavar="N", help="Runs at once: on a CPU 1 by default, else one a GPU."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of a recipe's matrix, and hold the methods against each other over their seeds."""
    from service.cli.study import study as start

    raise typer.Exit(start(recipe, overrides or [], parallel, as_json, quiet))


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_FOLDER...", help="Finished runs; the others are held against the first.", show_default=False
        ),
    ],
    test: Annotated[
        str,
        typer.Option(
            "--test", metavar="TEST", help="bootstrap, randomisation, mcnemar, or all, of which the first decides."
        ),
    ] = "all",
    correction: Annotated[
        str,
        typer.Option(
            "--correction",
            metavar="HOW",
            help="Of the p-values, for all comparisons: holm, bh (Benjamini-Hochberg) or none.",
        ),
    ] = "holm",
    as_json: AsJson = False,
) -> None:
    """Hold finished runs against the first of them, on the same examples."""
    from service.cli.study import compare as hold

    raise typer.Exit(hold(runs, as_json, test, correction))


@app.command()
def validate(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... KEY=VALUE", help="Recipes, and values to change in all of them.", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Check recipes and show every mistake at once, without loading anything."""
    from service.cli.recipes import validate as check

    raise typer.Exit(check(recipes, as_json))


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    as_json: AsJson = False,
    rate: Annotated[
        float | None,
        typer.Option(
            "--flops-per-second",
            min=1,
            metavar="N",
            help="What this machine (or one GPU of --gpus) reaches, such as 1e12; guessed by default.",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="NxGPU", help="Plan for GPUs that are not here, such as 64xH100.")
    ] = None,
    hosts: Annotated[
        int | None, typer.Option("--hosts", min=1, metavar="N", help="Hosts of these GPUs; 8 GPUs each by default.")
    ] = None,
    network_gbps: Annotated[
        float | None,
        typer.Option("--network-gbps", min=0.001, metavar="N", help="Gigabits a second between hosts, for each GPU."),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, metavar="N", help="What a GPU costs for an hour.")
    ] = None,
) -> None:
    """Say what a recipe will cost, before anything loads: parameters, computation, memory."""
    from service.cli.plan import plan as estimate

    raise typer.Exit(estimate(recipe, overrides or [], as_json, rate, gpus, hosts, network_gbps, price))


data_app = typer.Typer(
    no_args_is_help=True, help="Look at the data that a recipe learns from.", rich_markup_mode="rich"
)
app.add_typer(data_app, name="data")


@data_app.command()
def show(
    recipe: Recipe,
    overrides: Overrides = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="ID", help="The stage; by default the first that learns a task.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, max=100, metavar="N", help="Examples shown of each task.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Show what a stage reads and what of it is learnt: template, loss mask, lengths, warnings. Nothing is trained."""
    from service.cli.recipes import DataOptions, show_data

    raise typer.Exit(show_data(DataOptions(str(recipe), tuple(overrides or ()), stage, rows), as_json))


import_app = typer.Typer(
    no_args_is_help=True, help="Bring what was trained elsewhere, as recipes.", rich_markup_mode="rich"
)
app.add_typer(import_app, name="import")


@import_app.command()
def openai(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Exported files, and jobs as JSON.", show_default=False),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="NAME", help="What learns in place of OpenAI's models: a Hub name, a folder, scratch/…."
        ),
    ],
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="NAME", help="What grades in place of OpenAI's models.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where recipes and data are written.")] = Path(
        "imported"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written, and what not.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite recipes that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn fine-tuning jobs and their files, as OpenAI's API returns them, into recipes."""
    from service.cli.import_openai import import_openai

    raise typer.Exit(import_openai(folder, model, judge, output, dry_run, force, as_json))


@app.command()
def schema(
    as_json: Annotated[bool, typer.Option("--json", help="The schema is JSON with or without it.")] = False,
) -> None:
    """Print the JSON Schema of a recipe, for editors and forms."""
    from service.cli.schema import schema as described

    print(described())


@app.command()
def doctor(
    network: Annotated[bool, typer.Option("--network", help="Also ask whether the Hub can be reached.")] = False,
    hosts: Annotated[
        bool,
        typer.Option(
            "--hosts",
            help="Also measure the network between ranks, for plans; with FINERY_HOST, run it on every host.",
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=2, help="With --hosts: ranks in all; by default one a GPU, or two a host."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what this machine has, what it lacks, and what to do about it."""
    from service.cli.doctor import doctor as examine

    if processes is not None and not hosts:
        raise CommandError("--processes says how many ranks --hosts measures: give both")
    raise typer.Exit(examine(network, as_json, hosts, processes))


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be freed.")] = False,
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, metavar="DAYS", help="Only what was not used for so many days."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Free complete stages and prepared data that no run uses any more."""
    from service.cli.publish import gc as collect

    raise typer.Exit(collect(dry_run, older_than, as_json))
