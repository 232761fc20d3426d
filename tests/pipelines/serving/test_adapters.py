"""Adapters on one base answer as each of them does alone, whatever is asked between; and there is one copy of the base."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.serving.adapters import AdaptersOnOneBase
from pipelines.serving.protocol import Channel
from pipelines.serving.serve import ServedModel
from tests import writers
from tests.pipelines.serving.test_serve import Client, text

NAMES = ("one", "two", "three")
QUESTION: dict[str, Any] = {"prompts": ["the cat saw"], "choice": {"temperature": 0, "max_tokens": 6, "logprobs": 1}}


def method_of(kind: str, seed: int) -> Any:
    """The settings of an adapter: of different ranks, which PEFT keeps apart."""
    from peft import LoraConfig

    if kind == "bottleneck":
        from pipelines.tuners import bottleneck
        from pipelines.tuners.adapter import Adapter

        bottleneck.register()
        return Adapter(name="adapter", reduction_factor=4)
    return LoraConfig(r=2 + seed, lora_alpha=8, target_modules=["q", "v"] if kind == "t5" else ["c_attn"])


@pytest.fixture(scope="module")
def publications(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Three publications with `merge: false` whose bases are equal, by the kind of model; made once."""
    made: dict[str, dict[str, Path]] = {}

    def make(kind: str) -> dict[str, Path]:
        if kind in made:
            return made[kind]
        made[kind] = {}
        model_kind = "gpt2" if kind == "bottleneck" else kind
        for seed, name in enumerate(NAMES):
            place = tmp_path_factory.mktemp(f"{kind}-{name}") / "model"
            shutil.copytree(writers.folder(model_kind), place / "base")
            for file in (place / "base").glob("*token*"):
                shutil.copy(file, place / file.name)
            base = type(writers.model(model_kind)).from_pretrained(place / "base")
            settings = method_of(kind, seed)
            if kind == "bottleneck":
                base.name_or_path = str(place / "base")
                tuned = settings.apply(base)
            else:
                from peft import get_peft_model

                tuned = get_peft_model(base, settings)
            torch.manual_seed(seed)
            with torch.no_grad():
                for weight_name, weight in tuned.named_parameters():
                    if weight.requires_grad:
                        weight.add_(torch.randn_like(weight) * (0.3 if "lora" in weight_name else 0.1))
            tuned.save_pretrained(place)
            made[kind][name] = place
        return made[kind]

    return make


def answers(first: tuple[str, Path], beside: dict[str, Path], *models: str | None) -> list[list[dict[str, Any]]]:
    """The question to these models, all at once."""
    ours, theirs = socket.socketpair()
    served = ServedModel(str(first[1]), Channel(theirs), first[0], {name: str(each) for name, each in beside.items()})
    client = Client(ours)
    found: dict[int, list[dict[str, Any]]] = {}

    def talk() -> None:
        for number, name in enumerate(models):
            client.send(number, "complete", **QUESTION, **({} if name is None else {"model": name}))
        found.update(client.until_the_last_word(*range(len(models))))
        client.channel.close()

    thread = threading.Thread(target=talk)
    thread.start()
    served.run()
    thread.join(20)
    served.close()
    ours.close()
    theirs.close()
    return [found[number] for number in range(len(models))]


@pytest.mark.parametrize("kind", ["gpt2", pytest.param("t5", marks=pytest.mark.long), "bottleneck"])
def test_each_answers_as_it_does_alone_however_they_are_asked(kind: str, publications: Any) -> None:
    folders = publications(kind)
    alone = {name: answers((name, folder), {}, None)[0] for name, folder in folders.items()}
    assert len({text(each) for each in alone.values()}) > 1  # else there is nothing to mix up
    asked = ["one", "two", "one", "three", "three", "two", "one"]
    first, *others = folders
    together = answers((first, folders[first]), {name: folders[name] for name in others}, *asked)
    for name, answer in zip(asked, together, strict=True):
        assert text(answer) == text(alone[name])
        assert answer[-1]["end"] == alone[name][-1]["end"]
        assert logprobs(answer) == pytest.approx(logprobs(alone[name]), abs=1e-4)


def logprobs(answer: list[dict[str, Any]]) -> list[float]:
    return [token["logprob"] for each in answer if "piece" in each for token in each["piece"]["tokens"]]


def test_there_is_one_copy_of_the_base(publications: Any) -> None:
    from pipelines.core.interfaces import Head

    folders = publications("gpt2")
    shared = AdaptersOnOneBase(folders, Head("causal_lm"))
    assert shared.names == [*NAMES]
    weights = {each.data_ptr(): each.numel() for each in shared.model.parameters()}
    base = sum({each.data_ptr(): each.numel() for each in writers.model("gpt2").parameters()}.values())
    # c_attn reads 16 and gives 48, in 3 layers; adapters of ranks 2, 3 and 4
    assert sum(weights.values()) == base + (2 + 3 + 4) * (16 + 48) * 3


def test_one_that_stands_on_another_base_is_left_out_and_not_asked(publications: Any, tmp_path: Path) -> None:
    folders = publications("gpt2")
    other = Path(shutil.copytree(folders["two"], tmp_path / "other"))
    writers.model("gpt2", seed=5).save_pretrained(other / "base")
    first, _, third = answers(("one", folders["one"]), {"other": other}, "one", "one", "other")
    assert "end" in first[-1]
    assert third[-1]["error"]["message"] == "the model 'other' is not open here"
    torn = Path(shutil.copytree(folders["two"], tmp_path / "torn"))
    (torn / "adapter_model.safetensors").write_bytes(b"torn")
    assert AdaptersOnOneBase({"one": folders["one"], "torn": torn}, head()).names == ["one"]


def head() -> Any:
    from pipelines.core.interfaces import Head

    return Head("causal_lm")
