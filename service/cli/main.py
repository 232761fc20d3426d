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
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A published folder, a stage's or run's folder, or a Hub id.", show_default=False)]
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
def study(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe with a matrix, or the folder of a study to continue.", show_default=False)],
    overrides: Overrides = None,
    parallel: Annotated[int | None, typer.Option("--parallel", min=1, metavar="N", help="Runs at once: on a CPU 1 by default, else one a GPU.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run every cell of a recipe's matrix, and hold the methods against each other over their seeds."""
    from service.cli.study import study as start

    raise typer.Exit(start(recipe, overrides or [], parallel, as_json, quiet))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_FOLDER...", help="Finished runs; the others are held against the first.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Hold finished runs against the first of them, on the same examples."""
    from service.cli.study import compare as hold

    raise typer.Exit(hold(runs, as_json))


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
def attention(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The sentence that the model reads.", show_default=False)],
    pair: Annotated[str | None, typer.Option("--pair", metavar="TEXT", help="A second text, read together with the first.")] = None,
    target: Annotated[str | None, typer.Option("--target", metavar="TEXT", help="What an encoder-decoder's decoder reads; its own answer by default.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where attention.html and attention.png are written.")] = Path("."),
    layer: Annotated[int | None, typer.Option("--layer", min=1, metavar="N", help="Only this layer, counted from 1.")] = None,
    head: Annotated[int | None, typer.Option("--head", min=1, metavar="M", help="Only this head, counted from 1.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=2, max=512, metavar="TOKENS", help="Longer texts are cut.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Draw what every head looks at in a sentence: attention.html and attention.png."""
    from service.cli.attention import Question
    from service.cli.attention import attention as draw

    raise typer.Exit(draw(Question(model, text, pair, target, str(out), layer, head, limit), as_json))


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What is continued; for encoders, with their mask token in it.", show_default=False)] = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", metavar="FILE", help="A file with one prompt a line, or .jsonl with a key 'prompt'.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens added at most.")] = 64,
    num_beams: Annotated[int, typer.Option("--num-beams", min=1, max=64, help="Beams of the beam search; 1 leaves it out.")] = 4,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the samples: below 1 bolder in what is likely, above 1 wilder.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", min=0, help="Samples are drawn from so many likeliest words; 0 from all.")] = 50,
    top_p: Annotated[float, typer.Option("--top-p", help="Samples are drawn from the likeliest words that hold this probability.")] = 0.95,
    samples: Annotated[int, typer.Option("--samples", min=0, max=64, help="How many samples.")] = 3,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 65, help="Of the first sample; the others count up.")] = 42,
    penalty_alpha: Annotated[float | None, typer.Option("--penalty-alpha", hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text: greedy, beam search and samples side by side. Encoders fill in their masks."""
    from service.cli.generate import Question
    from service.cli.generate import generate as write

    question = Question(
        model, prompt, None if prompts is None else str(prompts), max_new_tokens, num_beams, temperature, top_k, top_p, samples, seed
    )
    raise typer.Exit(write(question, penalty_alpha, as_json))


data_app = typer.Typer(no_args_is_help=True, help="Look at the data that a recipe learns from.", rich_markup_mode="rich")
app.add_typer(data_app, name="data")


@data_app.callback()
def data() -> None:
    """Look at the data that a recipe learns from."""


@data_app.command()
def show(
    recipe: Recipe,
    overrides: Overrides = None,
    stage: Annotated[str | None, typer.Option("--stage", metavar="ID", help="The stage; by default the first that learns a task.")] = None,
    rows: Annotated[int, typer.Option("--rows", min=1, max=100, metavar="N", help="Examples shown of each task.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Show what a stage reads and what of it is learnt: template, loss mask, lengths, warnings. Nothing is trained."""
    from service.cli.data import Question, show_data

    raise typer.Exit(show_data(Question(str(recipe), tuple(overrides or ()), stage, rows), as_json))


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
