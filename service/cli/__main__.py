"""The command `finery`: its verbs, and how each answer becomes an exit code.

The command `finery`: its verbs, and how each answer becomes an exit code.

Every verb is a thin function here and a module of its own; a module is imported when its verb is called, because
`finery --help` and `finery validate` must answer at once.

Exit codes: 0 done, 1 failed, 2 the recipe or the command is wrong, 75 stopped early and resumable.

`python -m service.cli` is the command `finery`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipelines.core.errors import EXIT_DONE, EXIT_FAILED, FineryError, RecipeError

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
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A CSV, TSV, JSONL, JSON or Parquet file.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the recipe is written.")] = Path("recipe.yaml"),
    text: Annotated[
        list[str] | None, typer.Option("--text", help="Column with the text; give it twice for pairs.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="Column with what is to be learnt.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="classification or regression, if the guess is wrong.")
    ] = None,
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
            help="What this machine reaches, such as 1e12; guessed by default.",
        ),
    ] = None,
) -> None:
    """Say what a recipe will cost, before anything loads: parameters, computation, memory."""
    from service.cli.recipes import plan as estimate

    raise typer.Exit(estimate(recipe, overrides or [], as_json, rate))


@app.command()
def attention(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The sentence that the model reads.", show_default=False)],
    pair: Annotated[
        str | None, typer.Option("--pair", metavar="TEXT", help="A second text, read together with the first.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="TEXT", help="What an encoder-decoder's decoder reads; its own answer by default."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where attention.html and attention.png are written.")
    ] = Path("."),
    layer: Annotated[
        int | None, typer.Option("--layer", min=1, metavar="N", help="Only this layer, counted from 1.")
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", min=1, metavar="M", help="Only this head, counted from 1.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=2, max=512, metavar="TOKENS", help="Longer texts are cut.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Draw what every head looks at in a sentence: attention.html and attention.png."""
    from service.cli.generate import QuestionAttention
    from service.cli.generate import attention as draw

    raise typer.Exit(draw(QuestionAttention(model, text, pair, target, str(out), layer, head, limit), as_json))


@app.command()
def generate(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="What is continued; for encoders, with their mask token in it.", show_default=False
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="A file with one prompt a line, or .jsonl with a key 'prompt'."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens added at most.")] = 64,
    num_beams: Annotated[
        int, typer.Option("--num-beams", min=1, max=64, help="Beams of the beam search; 1 leaves it out.")
    ] = 4,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of the samples: below 1 bolder in what is likely, above 1 wilder.")
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option("--top-k", min=0, help="Samples are drawn from so many likeliest words; 0 from all.")
    ] = 50,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Samples are drawn from the likeliest words that hold this probability.")
    ] = 0.95,
    samples: Annotated[int, typer.Option("--samples", min=0, max=64, help="How many samples.")] = 3,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**32 - 65, help="Of the first sample; the others count up.")
    ] = 42,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Continue the prompt as it stands, where a model with a chat template would answer it."
        ),
    ] = False,
    penalty_alpha: Annotated[float | None, typer.Option("--penalty-alpha", hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Continue a text: greedy, beam search and samples side by side. Encoders fill in their masks."""
    from service.cli.generate import Question
    from service.cli.generate import generate as write

    question = Question(
        model,
        prompt,
        None if prompts is None else str(prompts),
        max_new_tokens,
        num_beams,
        temperature,
        top_k,
        top_p,
        samples,
        seed,
        plain,
    )
    raise typer.Exit(write(question, penalty_alpha, as_json))


@app.command()
def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Published folders, stages' or runs' folders, or Hub ids.", show_default=False
        ),
    ],
    benchmarks: Annotated[
        list[str] | None,
        typer.Option(
            "--benchmarks",
            metavar="NAMES",
            help="Tasks such as glue/mrpc,squad; repeatable. Default: what the models were trained on.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Keep metrics.json, details.json, predictions.parquet and official files here."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N rows of each split.")
    ] = None,
    submission: Annotated[
        Path | None,
        typer.Option(
            "--submission", metavar="FILE.zip", help="Write the eleven files of a GLUE submission from the test splits."
        ),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out of the submission what has no model or no test split.")
    ] = False,
    baselines: Annotated[
        list[str] | None,
        typer.Option("--baselines", metavar="NAMES", help="Guessers to hold the scores against: majority,naive_bayes."),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=4, metavar="N", help="Tokens a text. Default: as the model was trained."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, metavar="N", help="Texts a batch.")] = None,
    mixed_precision: Annotated[
        str | None,
        typer.Option(
            "--mixed-precision",
            metavar="KIND",
            help="no (the default) or bf16: faster where the hardware has it, scores a little rounder.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on benchmarks as an evaluate stage does, or write a GLUE submission."""
    from service.cli.evaluate import Question, separated
    from service.cli.evaluate import evaluate as measure

    given = {
        "max_eval_samples": limit,
        "baselines": separated(baselines) or None,
        "max_length": max_length,
        "per_device_eval_batch_size": batch_size,
        "mixed_precision": mixed_precision,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(measure(Question(models, separated(benchmarks), out, submission, partial, settings), as_json))


@app.command()
def score(
    benchmark: Annotated[
        str, typer.Argument(metavar="BENCHMARK", help="squad, squad_v2, race, or glue/<task>.", show_default=False)
    ],
    predictions: Annotated[
        Path,
        typer.Option(
            "--predictions",
            metavar="FILE",
            help="SQuAD: the official JSON; GLUE: a TSV with index and prediction; RACE: JSON.",
            show_default=False,
        ),
    ],
    references: Annotated[
        Path,
        typer.Option(
            "--references",
            metavar="FILE",
            help="SQuAD: the official JSON; GLUE: Parquet or TSV with label; RACE: Parquet or JSONL.",
            show_default=False,
        ),
    ],
    na_prob_file: Annotated[
        Path | None,
        typer.Option("--na-prob-file", metavar="FILE", help="squad_v2: how likely each question has no answer."),
    ] = None,
    na_prob_thresh: Annotated[
        float,
        typer.Option("--na-prob-thresh", metavar="P", help="squad_v2: above this a question counts as not answered."),
    ] = 1.0,
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            metavar="refuse|zero",
            help="squad: what a question without a prediction is: refused, or 0 as the official script has it.",
        ),
    ] = "refuse",
    as_json: AsJson = False,
) -> None:
    """Score anybody's prediction file by the official rules. Prints one JSON object."""
    from service.cli.evaluate import QuestionScore
    from service.cli.evaluate import score as measure

    odds = None if na_prob_file is None else str(na_prob_file)
    raise typer.Exit(
        measure(QuestionScore(benchmark, str(predictions), str(references), odds, na_prob_thresh, missing), as_json)
    )


@app.command()
def predict(
    model: Model,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where predictions are written: .parquet, .jsonl, .csv or .tsv.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            "--task", metavar="NAME", help="A task such as glue/mrpc. Default: what the model was trained on."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Your own rows: CSV, TSV, JSONL, JSON, Parquet or text."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text", metavar="COLUMN", help="Column with the text; twice for pairs. Default: as the model was trained."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Which part of the task's data. Default: test.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N rows.")] = None,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=4, metavar="N", help="Tokens a text. Default: as the model was trained."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Texts a batch.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Write what a model predicts for your own file, or for a split of a task, with probabilities."""
    from service.cli.evaluate import QuestionPredict
    from service.cli.evaluate import predict as write

    rows = None if data is None else str(data)
    raise typer.Exit(
        write(QuestionPredict(model, task, rows, text or [], split, str(out), limit, max_length, batch_size), as_json)
    )


@app.command()
def publish(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_STAGE", help="A finished run's folder, or that of one of its stages.", show_default=False
        ),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="DEST", help="A folder, an fsspec URL, or hub:owner/name.", show_default=False),
    ],
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require", metavar='KEY=">= N"', help='What it must score, such as glue/mrpc.f1=">= 0.8"; repeatable.'
        ),
    ] = None,
    merge: Annotated[
        bool | None,
        typer.Option(
            "--merge/--no-merge", help="An adapter merged into its base, or beside it. Default: merged where it can be."
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="On the Hub: a repository that everybody sees.")] = False,
    license: Annotated[
        str | None, typer.Option("--license", metavar="ID", help="The model's licence, such as apache-2.0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a finished model with its card, scores and checksums, proven to load and to score as measured."""
    from service.cli.publish import Question, requirements
    from service.cli.publish import publish as put

    given = {"merge": merge, "private": False if public else None, "license": license}
    settings = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(put(Question(source, to, requirements(require or []), settings), as_json))


@app.command()
def harness(
    model: Model,
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="T1,T2", help="Names of tasks; * stands for anything.", show_default=False)
    ],
    num_fewshot: Annotated[
        int | None,
        typer.Option(
            "--num-fewshot", min=0, metavar="K", help="Examples before a question; by default what the task says."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N questions of each task.")
    ] = None,
    include_path: Annotated[
        Path | None,
        typer.Option(
            "--include-path", metavar="DIR", help="A folder with tasks of your own; their Python functions are run."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Contexts at a time.")] = 32,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws the examples.")] = 1234,
    as_json: AsJson = False,
) -> None:
    """Ask any task of the lm-evaluation-harness, which must be installed: pip install lm_eval."""
    from service.cli.evaluate import QuestionHarness, names_of
    from service.cli.evaluate import harness as ask

    place = None if include_path is None else str(include_path)
    raise typer.Exit(ask(QuestionHarness(model, names_of(tasks), num_fewshot, limit, place, batch_size, seed), as_json))


data_app = typer.Typer(
    no_args_is_help=True, help="Look at the data that a recipe learns from.", rich_markup_mode="rich"
)
app.add_typer(data_app, name="data")


@data_app.callback()
def data() -> None:
    """Look at the data that a recipe learns from."""


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
    from service.cli.recipes import Question, show_data

    raise typer.Exit(show_data(Question(str(recipe), tuple(overrides or ()), stage, rows), as_json))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a recipe, for editors and forms."""
    from pipelines.core.recipe import schema as described

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
    older_than: Annotated[
        float | None,
        typer.Option("--older-than", min=0, metavar="DAYS", help="Only what was not used for so many days."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Free complete stages and prepared data that no run uses any more."""
    from service.cli.publish import gc as collect

    raise typer.Exit(collect(dry_run, older_than, as_json))


@app.command()
def submit(
    recipe: Recipe,
    overrides: Overrides = None,
    priority: Annotated[int, typer.Option("--priority", help="Higher runs first.")] = 0,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=0, help="GPUs; by default what the recipe's launch says.")
    ] = None,
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
    from service.cli.jobs import Wanted
    from service.cli.jobs import submit as hand

    wanted = Wanted(
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
    executor: Annotated[str | None, typer.Option("--executor", help="local, docker or ray.")] = None,
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


if __name__ == "__main__":
    sys.exit(main())


if __name__ == "__main__":
    sys.exit(main())
