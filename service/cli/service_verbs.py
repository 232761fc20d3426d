"""The verbs of `finery` that talk to a service, or are one: their options; the work is done by the modules they import.

A module is imported when its verb is called, because `finery --help` must answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.app import AsJson, Jobs, Overrides, Recipe, Server, TokenFile, app
from service.executors.registry import EXECUTORS, either


@app.command()
def submit(
    recipe: Recipe,
    overrides: Overrides = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher runs first.")] = 0,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs; none by default.")] = None,
    gpu_kind: Annotated[str | None, typer.Option("--gpu-kind", help="Part of the GPU's name, such as h200.")] = None,
    cpus: Annotated[int | None, typer.Option("--cpus", min=1, help="Processor cores.")] = None,
    after: Annotated[
        list[str] | None,
        typer.Option("--after", metavar="JOB", help="Start when this job has succeeded; any number of times."),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds", min=0, metavar="SECONDS", help="Stop it, with a checkpoint, when it has run for so long."
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl-seconds-after-finished",
            min=0,
            metavar="SECONDS",
            help="Delete it so long after its end; published models stay.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Asking twice with the same key makes one job.")] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", metavar="NAME", help="A secret of the project that the job is given; may be repeated."
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it to its end.")] = False,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Hand a recipe to a service, with the files that it names."""
    from service.cli.submit import SubmitOptions
    from service.cli.submit import submit as hand

    wanted = SubmitOptions(
        priority, gpus, gpu_kind, cpus, tuple(after or ()), key, tuple(secret or ()), follow, max_seconds, ttl
    )
    raise typer.Exit(hand(recipe, overrides or [], wanted, server, token_file, as_json))


@app.command()
def jobs(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only jobs in this state; any number of times.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only jobs of this name.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 20,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List a service's jobs, newest first."""
    from service.cli.jobs import jobs as show_jobs

    raise typer.Exit(show_jobs(state or [], name, limit, server, token_file, as_json))


@app.command()
def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, job-….", show_default=False)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, with a live display.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="With --follow: the console log as it grows, no display.")] = False,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job printed, or follow what it does. With --json: its events, one a line."""
    from service.cli.jobs import logs as read

    raise typer.Exit(read(job, follow, raw, server, token_file, as_json))


@app.command()
def pause(jobs: Jobs, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Let jobs save a checkpoint and give their place away; `finery resume JOB` continues them."""
    from service.cli.jobs import steer

    raise typer.Exit(steer("pause", jobs, server, token_file, as_json))


@app.command()
def cancel(jobs: Jobs, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Stop jobs for good."""
    from service.cli.jobs import steer

    raise typer.Exit(steer("cancel", jobs, server, token_file, as_json))


@app.command()
def retry(jobs: Jobs, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Put failed or cancelled jobs back into the queue; what they finished is kept."""
    from service.cli.jobs import steer

    raise typer.Exit(steer("retry", jobs, server, token_file, as_json))


@app.command()
def delete(jobs: Jobs, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Delete jobs that have ended, with their logs and results; models that they published stay."""
    from service.cli.jobs import delete as forget

    raise typer.Exit(forget(jobs, server, token_file, as_json))


@app.command()
def hosts(server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List the machines that run a service's jobs."""
    from service.cli.jobs import hosts as list_hosts

    raise typer.Exit(list_hosts(server, token_file, as_json))


@app.command()
def audit(
    action: Annotated[
        str | None, typer.Option("--action", help="Only this, such as job.submit or login.failed.")
    ] = None,
    actor: Annotated[
        str | None,
        typer.Option("--actor", metavar="TOKEN_ID", help="Only what this token did; finery is the server itself."),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only things of this project.")] = None,
    thing: Annotated[
        str | None,
        typer.Option("--thing", metavar="ID", help="Only what was done to this job, file, model, token or secret."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="AGE", help="Only what is newer: 30m, 12h, 7d, 2w, or a time.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List who did what on a service, newest first. For admins."""
    from service.cli.administration import audit as show_trail

    raise typer.Exit(show_trail(action, actor, project, thing, since, limit, server, token_file, as_json))


models_app = typer.Typer(
    no_args_is_help=True,
    help="The models that a service has published: their versions, files, aliases, comparison, promotion, deletion.",
    rich_markup_mode="rich",
)
app.add_typer(models_app, name="models")
Version = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="NAME for the newest version, NAME@3, NAME@production, or an id.", show_default=False
    ),
]
Versions = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="Such as NAME@3; NAME is the newest version.", show_default=False),
]


@models_app.command("list")
def list_models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only versions of this name.", show_default=False)
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that were deleted and can be restored.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 50,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the versions of models, newest first."""
    from service.cli.models import listed

    raise typer.Exit(listed(name, deleted, limit, server, token_file, as_json))


@models_app.command()
def show(model: Version, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Show a version: its scores, where it comes from, and the aliases of its name."""
    from service.cli.models import show as show_model

    raise typer.Exit(show_model(model, server, token_file, as_json))


@models_app.command()
def download(
    model: Version,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Default: registry/NAME-VERSION.", show_default=False),
    ] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Bring the files of a version here, held against its checksums; a broken download goes on."""
    from service.cli.download import download as bring

    raise typer.Exit(bring(model, to, server, token_file, as_json))


@models_app.command()
def compare(
    model: Version,
    against: Annotated[
        str, typer.Argument(metavar="OTHER", help="Another version: a number, or a reference.", show_default=False)
    ],
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Hold two versions against each other on the same examples, by paired tests."""
    from service.cli.models import compare as hold

    raise typer.Exit(hold(model, against, server, token_file, as_json))


@models_app.command()
def promote(
    model: Version,
    to: Annotated[str, typer.Option("--to", metavar="ALIAS", help="The alias that is to name it.")] = "production",
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="SCORE", help="The score that is tested, such as glue/mrpc.f1.", show_default=False
        ),
    ] = None,
    force: Annotated[
        str | None,
        typer.Option(
            "--force", metavar="REASON", help="Whatever the test says; the audit trail keeps why.", show_default=False
        ),
    ] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Have an alias name this version, if it is better beyond noise than the one that it names."""
    from service.cli.models import promote as move

    raise typer.Exit(move(model, to, on, force, server, token_file, as_json))


@models_app.command()
def alias(
    model: Version,
    name: Annotated[
        str | None, typer.Argument(metavar="ALIAS", help="Without one, all are listed.", show_default=False)
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Have it name nothing.")] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="SCORE", help="Name the score that best goes by.", show_default=False),
    ] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the aliases of a model, set one of your own, or remove one."""
    from service.cli.models import alias as set_one

    raise typer.Exit(set_one(model, name, remove, on, server, token_file, as_json))


@models_app.command("delete")
def delete_models(
    models: Versions, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Delete versions of models; for some days they can be restored."""
    from service.cli.models import delete as remove

    raise typer.Exit(remove(models, server, token_file, as_json))


@models_app.command("restore")
def restore_models(
    models: Versions, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Bring deleted versions back."""
    from service.cli.models import restore as bring

    raise typer.Exit(bring(models, server, token_file, as_json))


@models_app.command()
def lineage(model: Version, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Show what a version was made from: data, tokenizer, stages, parents."""
    from service.cli.models import lineage as trace

    raise typer.Exit(trace(model, server, token_file, as_json))


token_app = typer.Typer(
    no_args_is_help=True, help="Make, list and take back the tokens that a service lets in.", rich_markup_mode="rich"
)
app.add_typer(token_app, name="token")


@token_app.command()
def create(
    role: Annotated[str, typer.Option("--role", help="viewer, submitter or admin.")] = "submitter",
    project: Annotated[
        str | None, typer.Option("--project", help="Its project; by default that of your own token.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="What you will know it by.")] = "",
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once."""
    from service.cli.administration import create as make

    raise typer.Exit(make(role, project, name, server, token_file, as_json))


@token_app.command("list")
def list_tokens(server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List tokens, without what makes them tokens."""
    from service.cli.administration import listed

    raise typer.Exit(listed(server, token_file, as_json))


@token_app.command()
def revoke(
    identifier: Annotated[
        str, typer.Argument(metavar="TOKEN_ID", help="As `finery token list` shows it.", show_default=False)
    ],
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Take a token back; it stops working at once."""
    from service.cli.administration import revoke as take

    raise typer.Exit(take(identifier, server, token_file, as_json))


project_app = typer.Typer(
    no_args_is_help=True,
    help="Show what projects keep on the disk, and set what they may use.",
    rich_markup_mode="rich",
)
app.add_typer(project_app, name="project")


@project_app.command("show")
def show_project(
    name: Annotated[
        str | None, typer.Argument(metavar="PROJECT", help="By default that of your token.", show_default=False)
    ] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a project keeps on the disk, what it may keep, and what takes the most."""
    from service.cli.administration import show_project as show

    raise typer.Exit(show(name, server, token_file, as_json))


@project_app.command("list")
def list_projects(server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List all projects with their limits. For admins."""
    from service.cli.administration import list_projects as listing

    raise typer.Exit(listing(server, token_file, as_json))


@project_app.command("set")
def set_project(
    name: Annotated[str, typer.Argument(metavar="PROJECT", help="Made when it is not there.", show_default=False)],
    max_bytes: Annotated[
        str | None,
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            help="What it may keep on the disk, such as 50GB, or none: files, jobs, models, evals, stages, downloads.",
        ),
    ] = None,
    max_gpus: Annotated[
        str | None, typer.Option("--max-gpus", metavar="N", help="GPUs that its jobs may hold at once, or none.")
    ] = None,
    max_running: Annotated[
        str | None, typer.Option("--max-running", metavar="N", help="Jobs that may run at once, or none.")
    ] = None,
    max_queued: Annotated[
        str | None, typer.Option("--max-queued", metavar="N", help="Jobs that may wait at once, or none.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Its share of the hosts beside other projects that wait.")
    ] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Set limits of a project; those that are not named stay. For admins."""
    from service.cli.administration import set_project as change

    counts = {"max_gpus": max_gpus, "max_running": max_running, "max_queued": max_queued}
    raise typer.Exit(change(name, counts, weight, max_bytes, server, token_file, as_json))


evals_app = typer.Typer(no_args_is_help=True, help="Look at a service's evals.", rich_markup_mode="rich")
app.add_typer(evals_app, name="evals")


@evals_app.command("compare")
def compare_runs(
    eval_id: Annotated[str, typer.Argument(metavar="EVAL", help="The eval's id, eval-….", show_default=False)],
    first: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, evalrun-….", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another run of the same rows.", show_default=False)],
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs of an eval row by row: differences, intervals, corrected p-values."""
    from service.cli.evals import compare as compare_two

    raise typer.Exit(compare_two(eval_id, first, second, server, token_file, as_json))


@app.command()
def serve(
    host: Annotated[
        str | None,
        typer.Option("--host", help="Address to listen on; 127.0.0.1 by default, 0.0.0.0 for every network."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Port to listen on; 8321 by default, 0 takes a free one.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option("--home", metavar="DIR", help="Where jobs, files and models are kept.")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", metavar="URL", help="postgresql://…; by default an SQLite file in the home."),
    ] = None,
    executor: Annotated[str | None, typer.Option("--executor", help=f"{either(EXECUTORS)}.")] = None,
    allow_remote_code: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-remote-code",
            metavar="OWNER/NAME@COMMIT",
            help="A repository whose code recipes may run; may be repeated.",
        ),
    ] = None,
    isolation: Annotated[
        str | None,
        typer.Option(
            "--isolation",
            help="What keeps jobs apart from the server: auto, bubblewrap, landlock, or none for no protection.",
        ),
    ] = None,
    trusted_proxies: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="A proxy, or a network of proxies, whose X-Forwarded-For counts; may be repeated.",
        ),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host", metavar="NAME", help="A name that requests may be sent to, `*` for any; may be repeated."
        ),
    ] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help="text or json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the API and the web pages, and run what is submitted."""
    from service.cli.serve import serve as begin

    raise typer.Exit(
        begin(
            host,
            port,
            home,
            database_url,
            executor,
            as_json,
            allow_remote_code or (),
            isolation=isolation,
            trusted_proxies=tuple(trusted_proxies or ()) or None,
            allowed_hosts=tuple(allowed_hosts or ()) or None,
            log_format=log_format,
        )
    )


@app.command()
def backup(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The archive to write, .tar or .tar.gz, or a folder for it.", show_default=False
        ),
    ],
    home: Annotated[Path | None, typer.Option("--home", metavar="DIR", help="The service's folder.")] = None,
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", metavar="URL", help="postgresql://…; by default the SQLite file in the home."),
    ] = None,
    runs: Annotated[
        bool,
        typer.Option(
            "--runs/--no-runs", help="With run folders and checkpoints; without them, unfinished jobs begin anew."
        ),
    ] = True,
    stages: Annotated[
        bool, typer.Option("--stages/--no-stages", help="With finished stages that later jobs can reuse.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write one archive of a service, database and files, right while it runs."""
    from service.cli.backup import backup as keep

    raise typer.Exit(keep(target, home, database_url, runs, stages, as_json))


@app.command()
def restore(
    archive: Annotated[Path, typer.Argument(metavar="FILE", help="What `finery backup` wrote.", show_default=False)],
    home: Annotated[
        Path | None, typer.Option("--home", metavar="DIR", help="An empty folder, or one that is not there yet.")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url", metavar="URL", help="An empty postgresql://…; by default an SQLite file in the home."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a service of an archive again; `finery serve` then goes on with it."""
    from service.cli.restore import restore as bring_back

    raise typer.Exit(bring_back(archive, home, database_url, as_json))
