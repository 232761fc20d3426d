"""The Python on a model card: lines that load a publication, as the proof runs them, and lines that show its use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.files import JSONObject
from pipelines.core.interfaces import Head
from pipelines.core.recipe import Recipe, Stage
from pipelines.publishing.clean_room import beside
from pipelines.publishing.destinations.destination import Destination

if TYPE_CHECKING:
    from pipelines.data.reward_inputs import RewardInputFormat

PAIR_CLASSES = {
    "next_sentence": "  # the second text follows the first, or it does not",
    "sentence_order": "  # the texts are in their order, or swapped",
}
"""What the two classes of pairs mean, by objective."""


def load(auto_class: str, destination: Destination, folder: Path, adapter: bool, own_code: bool) -> str:
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
            # A cache beside the module would be a file that nobody published. `verify` refuses every one, since Python
            # runs a planted one in place of the module that was checked: so none may come from the card.
            "sys.dont_write_bytecode = True  # the folder stays as it was published",
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


def fetch(destination: Destination) -> str:
    """Python that fetches the files from a URL first; nothing where they can be opened in place."""
    url = destination.location
    if "://" not in url:
        return ""
    place, folder = json.dumps(url), json.dumps(destination.load_from())
    return f"import fsspec\n\nfsspec.url_to_fs({place})[0].get({place}, {folder}, recursive=True)"


def lines_of_use(
    head: Head,
    recipe: Recipe,
    stage: Stage,
    config: JSONObject,
    answers: bool = False,
    reading: RewardInputFormat | None = None,
) -> str:
    """Lines that run behind those of `load`, and show what the model is for. `reading` is how a reward model reads."""
    taught = _objective(recipe, stage)
    if reading is not None:
        return _compare(reading)
    if head.kind == "causal_lm":
        return _answer(_new_tokens(config)) if answers else _continue(recipe, taught, config)
    if head.kind == "seq2seq_lm":
        return _write(taught, config)
    if head.kind in ("masked_lm", "pretraining"):
        return _fill_in(head, taught, config)
    if head.kind == "bidirectional_lm":
        return (
            'inputs = tokenizer("The bank of the river.", return_tensors="pt")\n'
            "states = model.eval()(**inputs, output_hidden_states=True).hidden_states  # the words, then each layer\n"
            "print([tuple(layer.shape) for layer in states])"
        )
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
            "logits = model.eval()(**{name: value[None] for name, value in inputs.items()}).logits  # one "
            "question, its options\n"
            "print(options[logits.argmax(-1).item()])"
        )
    answer_ = "logits.argmax(-1).item()" if head.labels else "logits.item()"
    shown = f"model.config.id2label[{answer_}]" if head.labels else answer_
    return (
        'inputs = tokenizer("Your text.", return_tensors="pt")  # a pair of texts: tokenizer("One.", "Other.", …)\n'
        "logits = model.eval()(**inputs).logits\n"
        f"print({shown})"
    )


def _compare(reading: RewardInputFormat) -> str:
    """Python that scores two answers to one prompt, read as in training where nothing has to be cut."""
    lines = ['prompt, answers = "How long do I boil an egg?", ["Seven minutes.", "Eggs are eggs."]', "scores = []"]
    given = "prompt, answer"
    if reading.reads == "text":
        given = "text, add_special_tokens=False"
        lines += ["end = tokenizer.eos_token or tokenizer.sep_token  # only an answer that is complete is scored"]
    if reading.reads == "text" and not reading.templated:
        lines += ['begin = tokenizer.bos_token if tokenizer("").input_ids == [tokenizer.bos_token_id] else ""']
    lines += ["for answer in answers:"]
    if reading.reads == "text" and reading.templated:
        lines += [
            '    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]',
            "    text = tokenizer.apply_chat_template(messages, tokenize=False).rstrip()",
            '    text += "" if text.endswith(end) else end',
        ]
    elif reading.reads == "text":
        lines += ["    text = begin + prompt + answer + end"]
    lines += [
        f'    inputs = tokenizer({given}, return_tensors="pt")',
        "    scores.append(model.eval()(**inputs).logits.item())",
        "print(scores)  # the answer with the larger one is preferred",
    ]
    return "\n".join(lines)


def _answer(new_tokens: int) -> str:
    """Python behind the loading lines that asks a model which was taught to answer through its chat template."""
    return (
        'messages = [{"role": "user", "content": "Name three primary colours."}]\n'
        "inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, "
        'return_tensors="pt")\n'
        f"written = model.eval().generate(**inputs, max_new_tokens={new_tokens})\n"
        "print(tokenizer.decode(written[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))"
    )


def _continue(recipe: Recipe, taught: str | None, config: JSONObject) -> str:
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


def _write(taught: str | None, config: JSONObject) -> str:
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
    output = "written[0], skip_special_tokens=True"
    if taught == "span_corruption":
        output = "written[0, 1:]"  # its answers stand behind the sentinels
    return (
        f'inputs = tokenizer({text}, return_tensors="pt")\n'
        f"written = model.eval().{decode}\n"
        f"print(tokenizer.decode({output}))"
    )


def _fill_in(head: Head, taught: str | None, config: JSONObject) -> str:
    both = head.kind == "pretraining"
    pair, output = (', "It is short."', "prediction_logits") if both else ("", "logits")
    lines = [
        f'inputs = tokenizer(f"The answer is {{tokenizer.mask_token}}."{pair}, return_tensors="pt")',
        "outputs = model.eval()(**inputs)",
        "position = inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)",
        f"print(tokenizer.decode(outputs.{output}[0, position].argmax()))",
    ]
    if both:
        meaning = PAIR_CLASSES.get(taught or "", "")
        pairs = "sop_logits" if config.get("model_type") == "albert" else "seq_relationship_logits"
        lines.append(f"print(outputs.{pairs}.softmax(-1).tolist()){meaning}")
    return "\n".join(lines)


def _new_tokens(config: JSONObject) -> int:
    """Tokens that surely fit behind a short prompt."""
    limit = next((config[key] for key in ("max_position_embeddings", "n_positions") if config.get(key)), None)
    return 30 if limit is None else max(1, min(30, int(limit) // 2))


def _objective(recipe: Recipe, stage: Stage) -> str | None:
    """The name of the objective that the published model was last trained with, if it had one."""
    trained: Any = next((each for each in recipe.lineage(stage) if each.trains), None)
    return getattr(getattr(trained, "objective", None), "name", None)
