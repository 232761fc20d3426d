"""ONNX: the model as a graph that onnxruntime computes, by torch's exporter. One file, `model.onnx`, in fp32.

Inputs are what the tokenizer gives, with any batch and length; an encoder-decoder's graph also takes
`decoder_input_ids`, and no graph keeps keys and values between calls. Outputs are the model's logits by their names.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.core.errors import ModelError
from pipelines.publishing.clean_room import LOGITS, first_token
from pipelines.publishing.exports.export import ExportedModel, Original, question, refuse_missing

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

FILE = "model.onnx"
SCORED = ("sequence_classification", "token_classification", "question_answering", "multiple_choice")
"""Heads whose scores come from single calls of the model. What writes texts, or is measured on held-out text, computes
with parts of the model that a graph has not."""
LINES = """\
import onnxruntime
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
session = onnxruntime.InferenceSession("model.onnx")
inputs = tokenizer(["Your text."], return_tensors="np")
print(session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()}))"""


class Onnx:
    """As `Export` promises."""

    name: ClassVar[str] = "onnx"
    packages: ClassVar[tuple[str, ...]] = ("onnx", "onnxruntime", "onnxscript")
    extra: ClassVar[str] = "export"
    tolerance: ClassVar[float | None] = 1e-4

    @staticmethod
    def misfit(words: Mapping[str, Any], vocabulary: str | None) -> str | None:
        """As `Export` promises: only the exporter says."""
        return None

    @staticmethod
    def write(original: Original, out: Path) -> ExportedModel:
        refuse_missing(Onnx)
        import onnxruntime

        model = original.model.eval()
        inputs = example(original)
        outputs = outputs_of(model, inputs)
        _write(model, inputs, outputs, out / FILE)
        original.tokenizer.save_pretrained(str(out))
        session = onnxruntime.InferenceSession(str(out / FILE), providers=["CPUExecutionProvider"])
        lines = LINES
        if "decoder_input_ids" in inputs:
            lines = "# inputs of the graph: " + ", ".join(inputs)
        elif original.head.kind == "multiple_choice":
            lines = "# inputs of the graph, (questions, options, length): " + ", ".join(inputs)
        facts = {"inputs": list(inputs), "outputs": outputs, "opset": _opset(out / FILE)}
        unscored = (
            ""
            if original.head.kind in SCORED
            else "a graph has not the parts of a model that write texts or measure them"
        )
        return ExportedModel(_by(session, original, outputs), lines, facts, ("onnxruntime", "transformers"), unscored)


def example(original: Original) -> dict[str, Tensor]:
    """Inputs of a few texts, as the model takes them."""
    import torch

    samples = question(original)
    texts, pairs = samples["texts"], samples.get("pairs")
    words: dict[str, Any] = {"truncation": True, "max_length": samples.get("max_length", 32), "return_tensors": "pt"}
    if original.tokenizer.pad_token is None:
        texts, pairs = texts[:1], None
    else:
        words["padding"] = True
    encoded = original.tokenizer(texts, pairs, **words) if pairs else original.tokenizer(texts, **words)
    taken = inspect.signature(type(original.model).forward).parameters
    inputs = {name: value for name, value in encoded.items() if name in taken}
    if original.head.kind == "multiple_choice":
        inputs = {name: value.reshape(-1, 2, value.shape[-1]) for name, value in inputs.items()}
    if original.head.kind == "seq2seq_lm":
        begin = torch.full((len(texts), 1), first_token(original.model))
        inputs["decoder_input_ids"] = torch.cat([begin, encoded["input_ids"]], dim=1)[:, : words["max_length"] - 1]
    return inputs


def outputs_of(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[str]:
    """The names of the logits that the model answers with."""
    import torch

    with torch.no_grad():
        answer = model(**inputs)
    return [name for name in LOGITS if answer.get(name) is not None]


def _write(model: PreTrainedModel, inputs: dict[str, Tensor], outputs: list[str], path: Path) -> None:
    import torch

    names = list(inputs)
    writes = getattr(model.config, "use_cache", None) is not None and model.can_generate()
    extra = {"use_cache": False} if writes and "use_cache" in inspect.signature(type(model).forward).parameters else {}

    class Graph(torch.nn.Module):  # type: ignore[misc]
        """The model with its inputs by position and its logits as a tuple."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
            answer = self.model(**dict(zip(names, given, strict=True)), **extra)
            return tuple(answer[name] for name in outputs)

    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(range(value.dim()), dynamic) for value in inputs.values())
    torch_log = logging.getLogger("torch.onnx")
    level = torch_log.level
    torch_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Graph().eval(),
                tuple(inputs.values()),
                str(path),
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(shapes,),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # the exporter's errors have no common base
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelError(
            f"torch cannot write {type(model).__name__} as an ONNX graph: {first[:300]}; export it to int8 or int4, "
            "which every architecture has"
        ) from error
    finally:
        torch_log.setLevel(level)


def _by(session: Any, original: Original, outputs: list[str]) -> PreTrainedModel:
    """A model of the original's class whose answers onnxruntime computes."""
    import copy

    import torch
    from transformers.utils import ModelOutput

    def forward(self: Any, **given: torch.Tensor) -> ModelOutput:
        feed = {each.name: given[each.name].cpu().numpy() for each in session.get_inputs()}
        return ModelOutput(
            {name: torch.from_numpy(value) for name, value in zip(outputs, session.run(outputs, feed), strict=True)}
        )

    model = copy.copy(original.model)
    model.forward = MethodType(forward, model)
    return model


def _opset(path: Path) -> int:
    import onnx

    return int(onnx.load(str(path), load_external_data=False).opset_import[0].version)
