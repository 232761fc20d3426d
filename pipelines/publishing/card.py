"""The model card: what the checkpoint is, how to load it, what it scores and how it was made.

The lines that load a publication, as its card shows them and as the clean process runs them.

What stands behind the scores of a card, in a sentence or two a benchmark: overlap with training, and calibration.

The model card: what the checkpoint is, how to load it, what it scores and how it was made.

The metadata block is made by huggingface_hub's ModelCardData, so that the Hub reads the scores from `model-index`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.core.interfaces import Head
from pipelines.core.recipe import Recipe, Stage
from pipelines.core.registry import METRICS
from pipelines.core.scores import better, is_score
from pipelines.publishing import provenance
from pipelines.publishing.assemble import USES
from pipelines.publishing.clean_room import beside
from pipelines.publishing.requirements import Scored


def load(auto_class: str, destination: Any, folder: Path, adapter: bool, own_code: bool) -> str:
    """Python that leaves `tokenizer` and `model`. `folder` holds the publication while its card is written."""
    place, trust = json.dumps(destination.load_from()), ", trust_remote_code=True" if own_code else ""
    modules = beside(str(folder)) if adapter else []
    fetched = adapter and destination.location.startswith("hub:")  # its parts are opened one by one
    lines = ["import sys\n"] if modules else []
    lines += ["from huggingface_hub import snapshot_download"] if fetched else []
    lines += ["from peft import PeftModel"] if adapter else []
    lines += [f"from transformers import {auto_class}, AutoTokenizer", ""]
    lines += [f"folder = snapshot_download({place})" if fetched else f"folder = {place}"]
    if modules:
        lines += [
            "sys.path.insert(0, folder)",
            *(f"import {module}  # teaches PEFT the method" for module in modules),
            "",
        ]
    lines += [f"tokenizer = AutoTokenizer.from_pretrained(folder{trust})"]
    if adapter:
        lines += [
            f'base = {auto_class}.from_pretrained(folder + "/base"{trust})',
            "model = PeftModel.from_pretrained(base, folder)",
        ]
    else:
        lines += [f"model = {auto_class}.from_pretrained(folder{trust})"]
    return "\n".join(lines)


def fetch(destination: Any) -> str:
    """Python that fetches the files from a URL first; nothing where they can be opened in place."""
    url = destination.location
    if "://" not in url:
        return ""
    place, folder = json.dumps(url), json.dumps(destination.load_from())
    return f"import fsspec\n\nfsspec.url_to_fs({place})[0].get({place}, {folder}, recursive=True)"


def answer(new_tokens: int) -> str:
    """Python behind the loading lines that asks a model which was taught to answer through its chat template."""
    return (
        'messages = [{"role": "user", "content": "Name three primary colours."}]\n'
        'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, return_tensors="pt")\n'
        f"written = model.eval().generate(**inputs, max_new_tokens={new_tokens})\n"
        "print(tokenizer.decode(written[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))"
    )


def evidence(scored: Scored) -> Iterator[str]:
    """One sentence a split that was checked for overlap, and one that says how sure the model may be believed to be."""
    for benchmark, about in scored.details.items():
        if not isinstance(about, Mapping):
            continue
        for split, found in (about.get("overlap") or {}).items():
            yield f"{benchmark}, {split}: {_overlap(found)}"
        for split, found in (about.get("calibration") or {}).items():
            yield f"{benchmark}, {split}: expected calibration error {found['ece']:.3f} in 15 bins, at temperature {found['temperature']:g}."


def _overlap(found: Mapping[str, Any]) -> str:
    if "unchecked" in found:
        return "overlap with the training data could not be checked."
    before = f" What {found['unknown']} was trained on before is not known." if found.get("unknown") else ""
    if not found["seen"]:
        return f"no example overlaps with the training data, as a whole or in a run of {found['run']} words.{before}"
    clean = ", ".join(f"{name} {value:.4g}" for name, value in found["clean"]["scores"].items())
    others = f"; the {found['clean']['examples']:,} others score {clean}" if clean else ""
    return (
        f"{found['seen']:,} of {found['examples']:,} examples overlap with the training data ({found['exact']:,} as a whole, "
        f"{found['partly']:,} in a run of {found['run']} words){others}.{before}"
    )


HUB_NAMES = {
    "glue": "nyu-mll/glue",
    "multi30k": "bentrevett/multi30k",
    "trec": "CogComp/trec",
    "imdb": "stanfordnlp/imdb",
    "ag_news": "fancyzhx/ag_news",
    "squad": "rajpurkar/squad",
    "squad_v2": "rajpurkar/squad_v2",
    "race": "ehovy/race",
}
"""Where the data of a benchmark's family lies on the Hub."""
SHOTS = re.compile(r"/\d+-shot$")
"""What the name of a benchmark ends with that is asked in prompts, with so many examples."""
UPLOAD = re.compile(r"file:[\w.-]+")
"""A file that was uploaded to a server."""
TRANSLATION = ("multi30k/",)
"""Benchmarks on which models translate."""


def card(
    recipe: Recipe,
    stage: Stage,
    head: Head,
    folder: Path,
    destination: Any,
    scored: Scored,
    trained: Mapping[str, Mapping[str, Any]],
    proof: Mapping[str, Any] | None,
    manifest: Mapping[str, Any],
    license: str | None = None,
    require: Mapping[str, str] | None = None,
) -> str:
    """README.md of the publication in `folder`. `trained` holds the metrics of each stage that led to the model."""
    from jinja2 import Environment, StrictUndefined

    adapter = (folder / "adapter_config.json").is_file()
    config = json.loads(((folder / "base" if adapter else folder) / "config.json").read_text(encoding="utf-8"))
    own_code = bool(config.get("auto_map"))
    use = USES[head.kind]
    template = resources.files("pipelines.publishing").joinpath("templates/card.md.jinja").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    baselines = list(dict.fromkeys(name for about in scored.details.values() for name in about.get("baselines", {})))
    return environment.from_string(template).render(
        metadata=metadata(recipe, head, scored, _method(made_by(recipe, stage)) if adapter else None, own_code, license)
        .to_yaml()
        .strip(),
        name=recipe.name,
        summary=_summary(recipe, head, use.words),
        adapter=adapter,
        own_code=own_code,
        module=", ".join(f"`{name}.py`" for name in beside(str(folder))),
        baked=bool(config.get("finery_adapter")),
        fetch=fetch(destination),
        load=load(use.auto_class, destination, folder, adapter, own_code),
        use=_use(head, recipe, stage, config, (folder / "chat_template.jinja").is_file()),
        labels=head.labels,
        scores=list(_rows(scored, baselines)),
        baselines=[name.replace("_", " ") for name in baselines],
        behind=", ".join(_behind(scored)),
        evidence=list(evidence(scored)),
        examples=", ".join(_examples(scored)),
        signatures=list(_signatures(scored)),
        text_scores=_text_scores(scored),
        verified=_verified(proof),
        origin=_origin(recipe),
        steps=[_step(each, trained.get(each.id, {})) for each in made_by(recipe, stage)],
        seed=recipe.seed,
        version=_version(),
        hardware=_hardware(manifest),
        local_data=", ".join(_local_data(recipe)),
        chosen=", ".join(f"`{path} {comparison}`" for path, comparison in (require or {}).items()),
    )


def metadata(
    recipe: Recipe, head: Head, scored: Scored, method: str | None, own_code: bool, license: str | None
) -> Any:
    """The YAML block as a ModelCardData. `method` is the tuner's name, where an adapter is published."""
    from huggingface_hub import ModelCardData

    results = list(_results(recipe.name, head, scored))
    checkpoint = recipe.model.checkpoint
    return ModelCardData(
        license=license,
        library_name="peft" if method else "transformers",
        pipeline_tag=_task_of(head, scored),
        base_model=checkpoint if checkpoint and provenance.is_hub_id(checkpoint) else None,
        datasets=sorted({each.dataset_type for each in results if each.dataset_type in HUB_NAMES.values()}) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        tags=["finery", *(["custom_code"] if own_code else []), *([method] if method else [])],
        model_name=recipe.name if results else None,
        eval_results=results or None,
    )


def _task_of(head: Head, scored: Scored) -> str:
    """The Hub's word for what the model does: one that was scored on translation translates."""
    if any(benchmark.startswith(TRANSLATION) for benchmark in scored.metrics):
        return "translation"
    return USES[head.kind].pipeline_tag


def _results(name: str, head: Head, scored: Scored) -> Iterable[Any]:
    from huggingface_hub import EvalResult

    for benchmark, metrics in scored.metrics.items():
        if (
            "policy" in scored.details[benchmark]
        ):  # scores by a reward of the recipe's own, which the Hub has no leaderboard for
            continue
        family, _, config = SHOTS.sub("", benchmark).partition("/")
        for metric, value in metrics.items():
            if not is_score(metric) or not math.isfinite(value):
                continue  # the Hub takes numbers only; the table below says it in words
            kind = _kind(metric)
            yield EvalResult(
                task_type=_task_of(head, scored),
                dataset_type=HUB_NAMES.get(family, benchmark),
                dataset_name=benchmark,
                dataset_config=(config or None) if family in HUB_NAMES else None,
                dataset_split=_split(scored.details[benchmark], metric.removeprefix(kind)),
                metric_type=kind,
                metric_name=metric,
                metric_value=value,
            )


def _kind(metric: str) -> str:
    """`accuracy_mm` is an accuracy."""
    return next((known for known in METRICS if metric == known or metric.startswith(f"{known}_")), metric)


def _split(about: Mapping[str, Any], suffix: str) -> str | None:
    splits = about.get("splits")
    return splits.get(suffix) if isinstance(splits, Mapping) else None


def _rows(scored: Scored, baselines: Iterable[str]) -> Iterable[dict[str, Any]]:
    baselines = list(baselines)
    for benchmark, metrics in scored.metrics.items():
        about = scored.details[benchmark]
        for metric, value in metrics.items():
            if not is_score(metric):
                continue
            ends = about.get("intervals", {}).get(metric)
            guesses = [about.get("baselines", {}).get(name, {}).get(metric) for name in baselines]
            yield {
                "benchmark": benchmark,
                "metric": metric,
                "value": _number(value, metric, about),
                "interval": f"{_number(ends[0], metric, about)} … {_number(ends[1], metric, about)}" if ends else "–",
                "baselines": ["–" if guess is None else _number(guess, metric, about) for guess in guesses],
            }


LARGE = ("bleu", "chrf", "perplexity")
"""Metrics that are no fractions: two decimals say enough."""


def _number(value: float, metric: str, about: Mapping[str, Any]) -> str:
    if not math.isfinite(value):
        return "undefined"
    large = _kind(metric) in LARGE or _kind(metric) in about.get("percent", ())
    return f"{value:,.2f}" if large else f"{value:.4f}"


def _behind(scored: Scored) -> Iterable[str]:
    """Where a guesser is at least as good: said aloud, in the card too."""
    for benchmark, metrics in scored.metrics.items():
        about = scored.details[benchmark]
        guessers = about.get("baselines", {})
        for metric, value in metrics.items():
            ahead = [
                f"{name.replace('_', ' ')} {_number(guesses[metric], metric, about)}"
                for name, guesses in guessers.items()
                if metric in guesses and not better(metric, value, guesses[metric])
            ]
            if ahead:
                yield f"{benchmark} {metric} ({_number(value, metric, about)}, {', '.join(ahead)})"


def _examples(scored: Scored) -> Iterable[str]:
    for benchmark, about in scored.details.items():
        counts = about.get("examples")
        if isinstance(counts, Mapping):
            yield f"{benchmark} " + ", ".join(
                f"{count:,} ({split})" if split else f"{count:,}" for split, count in counts.items()
            )
        elif isinstance(counts, int):
            yield f"{benchmark} {counts:,}"


def _signatures(scored: Scored) -> Iterable[str]:
    """How metrics of texts were computed, as publications state it."""
    every = [about.get("signatures", {}) for about in scored.details.values()]
    for metric in dict.fromkeys(metric for signatures in every for metric in signatures):
        for signature in dict.fromkeys(signatures[metric] for signatures in every if metric in signatures):
            yield f"{metric} `{signature}`"


EXPLAINED = {
    "bits_per_byte": "`bits_per_byte` is the negative log-likelihood of the predicted text in bits, over its bytes: smaller "
    "is better, whatever the vocabulary",
    "hidden_bits_per_byte": "`hidden_bits_per_byte` judges each hidden token by itself and is no likelihood of the text: "
    "smaller is better; `accuracy` is the share of these tokens that are named exactly",
    "perplexity": "`perplexity` is per token: smaller is better, and only models with the same vocabulary compare",
    "pair_accuracy": "`pair_accuracy` is the share of pairs judged rightly, of which a coin gets half",
    "reward": "`reward` is the mean score of the model's own completions by the reward of the recipe, which is no scale of its own",
    "win_rate": "`win_rate` is the share of prompts whose completion scores higher than that of the model in `against`, ties counted half",
    "kl": "`kl` and `kl_k3` estimate the KL divergence from that model in nats a completion: smaller is nearer",
}
"""Scores of held-out text and of completions that are easily misread."""


def _text_scores(scored: Scored) -> str:
    """What the scores of held-out text mean."""
    named = dict.fromkeys(metric for metrics in scored.metrics.values() for metric in metrics)
    return " ".join(f"{EXPLAINED[metric]}." for metric in named if metric in EXPLAINED)


def _verified(proof: Mapping[str, Any] | None) -> str:
    if proof is None:
        return ""
    if not proof["rows"]:
        asked = f"{proof['texts']} evaluated texts" if proof.get("written") else "fixed sentences"
        return (
            f"Before publication these files were loaded in a process without Finery; its logits on {asked} "
            f"differ from the trained model's by at most {proof['largest_difference_to_this_process']:.1e}."
        )
    flips = proof["flips"]
    changed = (
        "no prediction changed" if not flips else f"{flips} predictions changed, because the evaluation rounded more"
    )
    return (
        f"Before publication these files were loaded in a process without Finery, which computed {proof['rows']:,} of "
        f"{proof['of']:,} predictions again: {changed}, "
        f"the largest difference of a logit is {proof['largest_difference']:.1e}."
    )


def _summary(recipe: Recipe, head: Head, words: str) -> str:
    architecture = recipe.model.architecture or {}
    shape = architecture.get("preset") or architecture.get("model_type")
    body = (
        f"the shape `{shape}`, trained from scratch"
        if recipe.model.architecture
        else provenance.told(recipe.model.checkpoint or "")
    )
    if head.kind == "sequence_classification" and not head.labels:
        words = "a model that gives each text a number"
    return f"{words[0].upper()}{words[1:]}, made from {body}."


def _use(head: Head, recipe: Recipe, stage: Stage, config: Mapping[str, Any], answers: bool = False) -> str:
    """Lines that run behind those of `_load`, and show what the model is for."""
    taught = _objective(recipe, stage)
    if head.kind == "causal_lm":
        return answer(_new_tokens(config)) if answers else _continue(recipe, taught, config)
    if head.kind == "seq2seq_lm":
        return _write(taught, config)
    if head.kind in ("masked_lm", "pretraining"):
        return _fill_in(head, taught)
    if head.kind == "token_classification":
        return (
            'inputs = tokenizer("The answer is short.", return_tensors="pt")\n'
            "answers = model.eval()(**inputs).logits[0].argmax(-1).tolist()\n"
            "print([(token, model.config.id2label[answer]) for token, answer in zip(inputs.tokens(), answers)])"
        )
    if head.kind == "question_answering":
        return (
            'question, context = "Who wrote the letter?", "Ada wrote the letter in the morning."\n'
            'inputs = tokenizer(question, context, return_tensors="pt")\n'
            "outputs = model.eval()(**inputs)\n"
            "start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()\n"
            "print(tokenizer.decode(inputs.input_ids[0, start : end + 1]))"
        )
    if head.kind == "multiple_choice":
        return (
            'options = ["It rained.", "It was dry."]\n'
            'inputs = tokenizer(["The street is wet."] * 2, options, padding=True, return_tensors="pt")\n'
            "logits = model.eval()(**{name: value[None] for name, value in inputs.items()}).logits  # one question, its options\n"
            "print(options[logits.argmax(-1).item()])"
        )
    answer_ = "logits.argmax(-1).item()" if head.labels else "logits.item()"
    shown = f"model.config.id2label[{answer_}]" if head.labels else answer_
    return (
        'inputs = tokenizer("Your text.", return_tensors="pt")  # a pair of texts: tokenizer("One.", "Other.", …)\n'
        "logits = model.eval()(**inputs).logits\n"
        f"print({shown})"
    )


def _continue(recipe: Recipe, taught: str | None, config: Mapping[str, Any]) -> str:
    """A model from scratch saw no special tokens in its text; the prompt of a prefix LM is read in both directions."""
    plain = ", add_special_tokens=False" if recipe.model.architecture else ""
    given = "**inputs"
    if config.get("model_type") == "xlnet":  # it lengthens the prompt by a token, but neither its mask nor its segments
        given = "inputs.input_ids"
    elif taught == "prefix_lm" and config.get("model_type") == "finery":
        given = "**inputs, prefix_length=inputs.attention_mask.sum(-1)"
    return (
        f'inputs = tokenizer("The answer is"{plain}, return_tensors="pt")\n'
        f"written = model.eval().generate({given}, max_new_tokens={_new_tokens(config)})\n"
        "print(tokenizer.decode(written[0], skip_special_tokens=True))"
    )


def _write(taught: str | None, config: Mapping[str, Any]) -> str:
    text = {
        "span_corruption": '"The <extra_id_0> is short."',
        "denoising": 'f"The {tokenizer.mask_token} is short."',
    }.get(taught or "", '"Your text."')
    decode = f"generate(**inputs, max_new_tokens={_new_tokens(config)})"
    if config.get("bidirectional_decoder"):
        decode = (
            "mask_predict(\n    **inputs, mask_token_id=tokenizer.mask_token_id, "
            "excluded=tuple(tokenizer.all_special_ids)\n)"
        )
    said = "written[0], skip_special_tokens=True"
    if taught == "span_corruption":
        said = "written[0, 1:]"  # its answers stand behind the sentinels
    return (
        f'inputs = tokenizer({text}, return_tensors="pt")\n'
        f"written = model.eval().{decode}\n"
        f"print(tokenizer.decode({said}))"
    )


def _fill_in(head: Head, taught: str | None) -> str:
    both = head.kind == "pretraining"
    pair, output = (', "It is short."', "prediction_logits") if both else ("", "logits")
    lines = [
        f'inputs = tokenizer(f"The answer is {{tokenizer.mask_token}}."{pair}, return_tensors="pt")',
        "outputs = model.eval()(**inputs)",
        "position = inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)",
        f"print(tokenizer.decode(outputs.{output}[0, position].argmax()))",
    ]
    if both:
        meaning = PAIRS.get(taught or "", "")
        lines.append(f"print(outputs.seq_relationship_logits.softmax(-1).tolist()){meaning}")
    return "\n".join(lines)


PAIRS = {
    "next_sentence": "  # the second text follows the first, or it does not",
    "sentence_order": "  # the texts are in their order, or swapped",
}
"""What the two classes of pairs mean, by objective."""


def _new_tokens(config: Mapping[str, Any]) -> int:
    """Tokens that surely fit behind a short prompt."""
    limit = next((config[key] for key in ("max_position_embeddings", "n_positions") if config.get(key)), None)
    return 30 if limit is None else max(1, min(30, int(limit) // 2))


def _objective(recipe: Recipe, stage: Stage) -> str | None:
    """The name of the objective that the published model was last trained with, if it had one."""
    trained: Any = next((each for each in recipe.lineage(stage) if each.trains), None)
    return getattr(getattr(trained, "objective", None), "name", None)


def _origin(recipe: Recipe) -> str:
    if recipe.model.checkpoint:
        revision = f" at revision `{recipe.model.revision}`" if recipe.model.revision else ""
        return f"It starts from {provenance.told(recipe.model.checkpoint)}{revision}. The complete recipe is in `recipe.yaml`."
    shape = ", ".join(f"{key} {value}" for key, value in (recipe.model.architecture or {}).items())
    return f"It starts from random weights ({shape}). The complete recipe is in `recipe.yaml`."


def made_by(recipe: Recipe, stage: Stage) -> list[Stage]:
    """The stages that led to the model of `stage`, the first first; those whose adapters it builds on stand before
    it."""
    found: dict[str, Stage] = {}
    for each in reversed([*recipe.lineage(stage)]):
        members = getattr(getattr(each, "tuner", None), "stages", ())
        found |= {name: recipe.stage(name) for name in members} | {each.id: each}
    return [*found.values()]


def _method(stages: list[Stage]) -> str:
    """The name of the tuner that made the adapter."""
    return str(getattr(getattr(stages[-1], "tuner", None), "name", "adapter"))


def _step(stage: Stage, metrics: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        key: value for key, value in provenance.public(stage.plain()).items() if key not in ("stage", "id", "from")
    }
    facts = [f"{key}: `{_short(value)}`" for key, value in plain.items()]
    words = {
        "train_runtime": "training took {:,.1f} s",
        "trainable_parameters": "{:,.0f} weights learnt",
        "all_parameters": "{:,.0f} weights in all",
    }
    facts += [text.format(metrics[key]) for key, text in words.items() if isinstance(metrics.get(key), int | float)]
    if isinstance(metrics.get("peak_memory_bytes"), int | float):
        facts.append(f"peak memory {_size(metrics['peak_memory_bytes'])}")
    return {"id": stage.id, "kind": stage.stage, "facts": facts}


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.replace("`", "'").replace("\n", " ")
    return text if len(text) <= 300 else text[:297] + "..."


def _hardware(manifest: Mapping[str, Any]) -> str:
    """Processor, memory and devices; the system's own version stays in the run's folder."""
    hardware = manifest.get("hardware")
    if not isinstance(hardware, Mapping):
        return ""
    facts = []
    for key, value in hardware.items():
        if key == "platform" or value in (None, "", [], {}):
            continue
        if key.endswith("_bytes"):
            facts.append(f"{key.removesuffix('_bytes').replace('_', ' ')} {_size(value)}")
        elif key == "gpus":
            facts += [f"GPU {gpu.get('name')} ({_size(gpu.get('memory_bytes', 0))})" for gpu in value]
        else:
            facts.append(f"{key.replace('_', ' ')} {_short(value)}")
    return ", ".join(facts)


def _local_data(recipe: Recipe) -> Iterable[str]:
    """Files that the recipe names: strings that end like a data file, and uploads by their ids."""
    ends = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")

    def walk(value: Any) -> Iterable[str]:
        if isinstance(value, str) and (value.lower().endswith(ends) or UPLOAD.fullmatch(value)):
            yield f"`{value}`"
        elif isinstance(value, Mapping):
            for entry in value.values():
                yield from walk(entry)
        elif isinstance(value, list | tuple):
            for entry in value:
                yield from walk(entry)

    return dict.fromkeys(
        walk([provenance.public(stage.plain()) for stage in recipe.stages if stage.stage != "publish"])
    )


def _version() -> str:
    try:
        return version("finery")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "from source"
