"""What a served model offers to a page: forms, texts side by side, gaps, vectors and maps, each as other verbs give it."""

from __future__ import annotations

import base64
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipelines.commands import generate
from pipelines.core.errors import CommandError, ModelError
from pipelines.core.presentation import Form, PageAnswer
from pipelines.models.attention_maps import AttentionRequest, OpenedModel, attend
from pipelines.serving import trying
from pipelines.serving.protocol import Channel
from pipelines.serving.serve import ServedModel
from tests import writers

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
WAYS = {"ways": ["greedy", "beam", "sample"], "max_tokens": "8", "num_beams": "3", "temperature": "0.9", "seed": "5"}


class Talk:
    """A served model in this process, whose main thread answers while a thread asks."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        self.served = ServedModel(str(folder), Channel(theirs))
        self.forms = {each["name"]: Form.model_validate(each) for each in self.served.about["forms"]}

    def ask(self, *questions: tuple[str, dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """All that was said of each question, one after another; the model then ends."""
        found: list[list[dict[str, Any]]] = []

        def talk() -> None:
            received = self.channel.receive()
            for number, (do, fields) in enumerate(questions):
                self.channel.send({"id": number, "do": do, **fields})
                found.append([])
                for message in received:
                    found[-1].append(message)
                    if "end" in message or "error" in message:
                        break
            self.channel.close()

        thread = threading.Thread(target=talk)
        thread.start()
        self.served.run()
        thread.join(20)
        self.served.close()
        return found


def filled(form: str, **values: Any) -> tuple[str, dict[str, Any]]:
    return "try", {"form": form, "values": values}


def answer(messages: list[dict[str, Any]]) -> PageAnswer:
    return PageAnswer.model_validate(messages[-1]["end"])


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(writers.folder("gpt2"), place)
    (place / "chat_template.jinja").write_text(TEMPLATE)
    return place


@pytest.fixture(scope="module")
def opened(chatty: Path) -> Iterator[ServedModel]:
    ours, theirs = socket.socketpair()
    served = ServedModel(str(chatty), Channel(theirs))
    yield served
    served.close()
    ours.close()


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_texts_side_by_side_are_those_of_the_routes_and_of_the_command(kind: str) -> None:
    place = writers.folder(kind)
    sampled = {"temperature": 0.9, "top_p": 0.95, "seed": 5, "max_tokens": 8}
    (page, greedy, sample) = Talk(place).ask(
        filled("complete", text="the cat", **WAYS),
        ("complete", {"prompts": ["the cat"], "choice": {"temperature": 0, "max_tokens": 8}}),
        ("complete", {"prompts": ["the cat"], "choice": sampled}),
    )
    texts = {each.title.partition(",")[0]: each for each in answer(page).parts[0].writings}  # type: ignore[union-attr]
    for messages, title, index in ((greedy, "Greedy", 0), (sample, "Sample", 2)):
        whole = "".join(each["piece"]["text"] for each in messages if "piece" in each)
        assert texts[title].text == whole
        assert "".join(each["piece"]["text"] for each in page if each.get("piece", {}).get("index") == index) == whole
    asked = {"model": str(place), "prompt": "the cat", "max_new_tokens": 8, "num_beams": 3, "samples": 0}
    beam = generate.answer(asked)["prompts"][0]["continuations"][1]
    assert texts["Beam search"].text.split() == beam["text"].split() != []
    grown = [each["replace"]["text"] for each in page if "replace" in each]
    assert grown[-1] == texts["Beam search"].text, "what was told last is what stands there"
    if not beam["ended"]:
        facts = dict(texts["Beam search"].facts)
        assert float(facts["log p per token"]) == pytest.approx(beam["log_probability_per_token"], abs=0.006)


def test_a_dialogue_goes_through_the_template_with_its_turns(chatty: Path) -> None:
    talk = Talk(chatty)
    assert list(talk.forms) == ["chat", "attention"]
    said = {"message": "a book", "dialogue": ["the cat", "saw"], "system": "good", "ways": ["greedy"]}
    messages = [{"role": "system", "content": "good"}, {"role": "user", "content": "the cat"}]
    messages += [{"role": "assistant", "content": "saw"}, {"role": "user", "content": "a book"}]
    page, route = talk.ask(
        filled("chat", **said, max_tokens="6"),
        ("chat", {"messages": messages, "choice": {"temperature": 0, "max_tokens": 6}}),
    )
    whole = "".join(each["piece"]["text"] for each in route if "piece" in each)
    assert [each.text for each in answer(page).parts[0].writings] == [whole]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("form", "values", "sentence"),
    [
        ("chat", {"message": " "}, "'message' is empty"),
        ("chat", {"message": "a", "temperature": "warm"}, "must be a number from 0.01 to 5"),
        ("chat", {"message": "a", "seed": "1.5"}, "must be a whole number"),
        ("chat", {"message": "a", "max_tokens": "9999"}, "must be a whole number from 1 to 512"),
        ("chat", {"message": "a", "ways": ["magic"]}, "at least one of greedy, beam, sample"),
        ("chat", {"message": "the " * 50}, "maximum context length is 40 tokens"),
        ("chat", {"message": "a", "dialogue": ["b"]}, "must end with an answer"),
        ("attention", {"text": "the cat", "head": "decoder:9.1"}, "3 layers with 2 heads"),
        ("attention", {"text": "the cat", "head": "x"}, "must name attention, layer and head"),
        ("magic", {}, "has no form 'magic'; it has chat, attention"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(opened: ServedModel, form: str, values: Any, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        opened._try(1, {"form": form, "values": values})


def test_what_is_cancelled_ends_beams_and_all() -> None:
    talk = Talk(writers.folder("gpt2"))
    talk.channel.send({"cancel": 0})
    (messages,) = talk.ask(filled("complete", text="the cat", max_tokens="30"))
    facts = [dict(each.facts) for each in answer(messages).parts[0].writings]  # type: ignore[union-attr]
    assert [each["end"] for each in facts] == ["cancelled"] * 3
    assert not any("piece" in each for each in messages)


def test_gaps_are_filled_as_the_command_fills_masks_and_vectors_are_compared() -> None:
    place = writers.folder("bert")
    talk = Talk(place)
    assert list(talk.forms) == ["fill_mask", "similarity", "attention"]
    gaps, same, none = talk.ask(
        filled("fill_mask", text="the ___ saw a [MASK]"),
        filled("similarity", text="the cat", other="the cat"),
        filled("fill_mask", text="the cat"),
    )
    command = generate.answer({"model": str(place), "prompt": "the [MASK] saw a [MASK]"})["prompts"][0]
    marked, *columns = answer(gaps).parts
    assert [(bar.label, bar.share) for bar in columns[1].bars] == [  # type: ignore[union-attr]
        (each["token"], each["probability"]) for each in command["masks"][1]["candidates"]
    ]
    assert [piece.text.strip() for piece in marked.pieces if piece.mark] == [  # type: ignore[union-attr]
        each["candidates"][0]["token"] for each in command["masks"]
    ]
    assert answer(same).parts[0].value == pytest.approx(1.0, abs=1e-5)  # type: ignore[union-attr]
    assert "the text has no gap; write ___ or [MASK]" in none[0]["error"]["message"]


def test_an_encoder_without_its_masked_model_fills_no_gaps(tmp_path: Path) -> None:
    talk = Talk(writers.saved(writers.model("bert").bert, tmp_path))
    assert list(talk.forms) == ["similarity", "attention"]


@pytest.mark.parametrize(("kind", "name"), [("t5", "cross"), ("bert-classifier", "encoder"), ("gpt2", "decoder")])
def test_maps_are_those_of_the_command_and_head_0_is_the_mean_of_a_layer(kind: str, name: str) -> None:
    talk = Talk(writers.folder(kind))
    target = {"target": "a book"} if kind == "t5" else {}
    mean, second = talk.ask(
        filled("attention", text="the cat saw", **target),
        filled("attention", text="the cat saw", head=f"{name}:1.2", **target),
    )
    maps = attend(AttentionRequest(str(writers.folder(kind)), "the cat saw", **target))
    (section,) = (each for each in maps.sections if each.name == name)
    (view,) = (each for each in answer(second).parts[0].views if each.weights)  # type: ignore[union-attr]
    assert (view.name, view.layer, view.head, view.keys) == (name, 1, 2, section.keys)
    assert np.allclose(view.weights, section.weights[0, 1], atol=2e-5)
    (last,) = (each for each in answer(mean).parts[0].views if each.weights)  # type: ignore[union-attr]
    assert (last.name, last.layer, last.head) == (name, len(section.layers), 0)
    assert np.allclose(last.weights, section.weights[-1].mean(0), atol=2e-5)
    (small,) = (each for each in last.heads if (each.layer, each.head) == (1, 2))
    shares = np.frombuffer(base64.b64decode(small.picture), np.uint8).reshape(section.weights.shape[2:]) / 255
    assert np.allclose(shares, section.weights[0, 1] / section.weights[0, 1].max(-1, keepdims=True), atol=0.003)


def test_a_model_that_forms_no_map_says_so() -> None:
    model = writers.finery("causal_lm", attention_pattern="linear")
    opened = OpenedModel(trying.twin(model), writers.tokenizer(), False)
    with pytest.raises(ModelError, match="gives no attention weights"):
        trying.attention_shown(opened, {"text": "the cat saw a book"})


def test_a_twin_shares_the_weights_and_not_the_settings() -> None:
    model = writers.model("gpt2")
    kernel = model.config._attn_implementation
    other = trying.twin(model)
    other.set_attn_implementation("eager")
    assert model.config._attn_implementation == kernel != "eager"
    for one, same in zip(model.parameters(), other.parameters(), strict=True):
        assert one.data_ptr() == same.data_ptr()
    assert isinstance(other, type(model))
    assert other is not model
    assert torch.equal(model(torch.tensor([[5, 6]])).logits, other(torch.tensor([[5, 6]])).logits) or torch.allclose(
        model(torch.tensor([[5, 6]])).logits, other(torch.tensor([[5, 6]])).logits, atol=1e-5
    )
