"""The verbs of `finery` that take a model: their options; the work is done by the modules they import.

A module is imported when its verb is called, because `finery --help` must answer at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipelines.core.errors import CommandError
from service.cli.app import AsJson, Model, app


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
    from service.cli.generate import AttentionOptions
    from service.cli.generate import attention as draw

    raise typer.Exit(draw(AttentionOptions(model, text, pair, target, str(out), layer, head, limit), as_json))


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
    from service.cli.generate import GenerateOptions
    from service.cli.generate import generate as write

    options = GenerateOptions(
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
    raise typer.Exit(write(options, penalty_alpha, as_json))


@app.command()
def chat(
    model: Model,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, help="Of the samples: 0 always takes the likeliest word.")
    ] = 0.7,
    top_p: Annotated[
        float, typer.Option("--top-p", help="Samples are drawn from the likeliest words that hold this probability.")
    ] = 0.95,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Tokens of an answer at most.")] = 256,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Of the first answer.")] = 42,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What stands before the dialogue, in its template.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Talk with a model: each line is a message, answers appear word by word. Works on a pipe too."""
    from service.cli.chat import ChatOptions
    from service.cli.chat import chat as talk

    raise typer.Exit(talk(ChatOptions(model, temperature, top_p, max_new_tokens, seed, system), as_json))


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
    from service.cli.evaluate import EvaluateOptions, separated
    from service.cli.evaluate import evaluate as measure

    given = {
        "max_eval_samples": limit,
        "baselines": separated(baselines) or None,
        "max_length": max_length,
        "per_device_eval_batch_size": batch_size,
        "mixed_precision": mixed_precision,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    raise typer.Exit(
        measure(EvaluateOptions(models, separated(benchmarks), out, submission, partial, settings), as_json)
    )


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
    from service.cli.evaluate import ScoreOptions
    from service.cli.evaluate import score as measure

    odds = None if na_prob_file is None else str(na_prob_file)
    raise typer.Exit(
        measure(ScoreOptions(benchmark, str(predictions), str(references), odds, na_prob_thresh, missing), as_json)
    )


@app.command()
def predict(
    model: Model,
    rows: Annotated[
        str | None,
        typer.Argument(
            metavar="[-]", help="- reads texts, one a line, or JSONL from standard input.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where predictions are written: .parquet, .jsonl, .csv or .tsv. With -, standard output as JSONL.",
            show_default=False,
        ),
    ] = None,
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
    from service.cli.evaluate import PredictOptions, predict_from_input
    from service.cli.evaluate import predict as write

    file = None if data is None else str(data)
    options = PredictOptions(
        model, task, file, text or [], split, "" if out is None else str(out), limit, max_length, batch_size
    )
    if rows == "-":
        raise typer.Exit(predict_from_input(options, as_json))
    if rows is not None:
        raise CommandError(f"'{rows}' is no option of predict: - reads standard input, --data {rows} reads a file")
    if out is None:
        raise CommandError("--out is missing: name the file for the predictions, such as --out predictions.jsonl")
    raise typer.Exit(write(options, as_json))


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
    export: Annotated[
        str | None,
        typer.Option("--export", metavar="FORMS", help="Write these forms too, scored again: onnx,gguf,int8,int4."),
    ] = None,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign", metavar="KEY", help="Sign it with this secret key of minisign; else FINERY_SIGNING_KEY."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a finished model with its card, scores and checksums, proven to load and to score as measured."""
    from service.cli.publish import PublishOptions, requirements
    from service.cli.publish import publish as put

    forms = None if export is None else [each.strip() for each in export.split(",")]
    given = {"merge": merge, "private": False if public else None, "license": license, "export": forms}
    settings = {name: value for name, value in given.items() if value is not None}
    if sign is not None:
        os.environ["FINERY_SIGNING_KEY"] = str(sign)  # for the child; a key is no part of a request
    raise typer.Exit(put(PublishOptions(source, to, requirements(require or []), settings), as_json))


Published = Annotated[
    str, typer.Argument(metavar="FOLDER", help="A published folder, such as registry/NAME.", show_default=False)
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where the files lie that its recipe reads; sought by path, then by SHA-256. Default: the working folder.",
    ),
]


@app.command("try")
def try_model(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="A published folder, such as registry/NAME, or a stage's.", show_default=False
        ),
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="P", help="0 takes a free one.")] = 8322,
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="LIST", help="GPUs that the model may use, such as 0; none by default.")
    ] = "",
    isolation: Annotated[
        str, typer.Option("--isolation", metavar="HOW", help="auto, bubblewrap, landlock or none.")
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Try a model on a page at 127.0.0.1: predictions, texts side by side, gaps, attention, card. Ctrl-C ends it."""
    from service.cli.trying import try_folder

    raise typer.Exit(try_folder(folder, port, gpus, isolation, as_json))


@app.command()
def verify(
    folder: Published,
    data: DataFolder = None,
    public_key: Annotated[
        str | None,
        typer.Option(
            "--public-key", metavar="KEY", help="It must be signed by this key: a minisign.pub, or its line RW…."
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python of the folder, for models that open with it alone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a published folder: checksums, signature, and its scores once more. Exit code 1 where one differs."""
    from service.cli.verify import VerifyOptions
    from service.cli.verify import verify as check

    place = None if data is None else str(data)
    raise typer.Exit(check(VerifyOptions(folder, place, public_key, trust_remote_code), as_json))


@app.command()
def reproduce(
    folder: Published,
    data: DataFolder = None,
    environment: Annotated[
        bool,
        typer.Option("--environment", help="Run in a virtual environment with the versions of the manifest, by pip."),
    ] = False,
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code", help="Run Python of the checkpoint that it starts from, if its recipe does."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a published model again, in runs/reproduce-NAME, and compare score by score. Exit code 1 where one is
    off."""
    from service.cli.verify import ReproduceOptions
    from service.cli.verify import reproduce as again

    place = None if data is None else str(data)
    raise typer.Exit(again(ReproduceOptions(folder, place, environment, trust_remote_code), as_json))


@app.command()
def export(
    folder: Published,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A folder for the export.", show_default=False)],
    to: Annotated[str, typer.Option("--to", metavar="FORM", help="onnx, gguf, int8 or int4.", show_default=False)],
    data: DataFolder = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", metavar="FILE", help="Held-out text: bits per byte before and after, of language models."
        ),
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python of the folder, for models that open with it alone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a published model as ONNX, GGUF, or with 8 or 4 bits a weight, compared and scored once more."""
    from service.cli.export import ExportOptions
    from service.cli.export import export as write

    place = None if data is None else str(data)
    held_out = None if text is None else str(text)
    raise typer.Exit(write(ExportOptions(folder, to, str(out), place, held_out, trust_remote_code), as_json))


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
    from service.cli.evaluate import HarnessOptions, names_of
    from service.cli.evaluate import harness as ask

    place = None if include_path is None else str(include_path)
    raise typer.Exit(ask(HarnessOptions(model, names_of(tasks), num_fewshot, limit, place, batch_size, seed), as_json))
