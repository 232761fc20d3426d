"""Messages are answered in pieces that make the text `generate` writes, and the dialogue is what the template shows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands.chat import ChatRequest, Speaker, TextStreamer, chat
from pipelines.core.errors import CommandError
from pipelines.data.chat_prompts import prompt_text
from tests import writers

TEMPLATE = "{% for m in messages %}{{ m['role'][:1] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}a{% endif %}"


@pytest.fixture
def talker(tmp_path: Path) -> Path:
    """A decoder with a chat template."""
    import copy

    folder = writers.saved(writers.model("gpt2", seed=4), tmp_path / "talker")
    tokenizer = copy.deepcopy(writers.tokenizer())
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def told(request: dict[str, Any], *messages: Any) -> list[dict[str, Any]]:
    """What is said about each message, JSON line by JSON line."""
    write = io.StringIO()
    lines = [each if isinstance(each, str) else json.dumps({"message": each[0]}) for each in messages]
    assert chat(request, io.StringIO("\n".join(lines) + "\n"), write) == 0
    return [json.loads(line) for line in write.getvalue().splitlines()]


def test_the_pieces_make_the_greedy_text(talker):
    import torch

    ready, *pieces, end = told({"model": str(talker), "temperature": 0, "max_new_tokens": 6}, ("the cat",))
    assert ready == {"ready": str(talker), "template": True, "family": "decoder"}
    speaker = Speaker(ChatRequest(str(talker)))
    tokenizer, model = speaker.writer.tokenizer, speaker.writer.model
    ids = tokenizer("u the cat a", add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        for _ in range(6):
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
            if ids[0, -1] == speaker.writer.tokens["eos_token_id"]:
                break
    assert end["end"]["tokens"] == ids.shape[1] - end["end"]["read"]
    assert "".join(each["piece"] for each in pieces) == tokenizer.decode(
        ids[0, end["end"]["read"] :], skip_special_tokens=True
    )


@pytest.mark.parametrize("temperature", [1e-300, 1e-40])
def test_at_a_temperature_next_to_none_the_text_is_the_greedy_one(talker, temperature):
    greedy, cold = (
        told({"model": str(talker), "temperature": each, "max_new_tokens": 6}, ("the cat",))
        for each in (0, temperature)
    )
    assert [each.get("piece") for each in cold] == [each.get("piece") for each in greedy]


def test_a_seed_gives_the_same_dialogue_again_and_another_seed_another(talker):
    def texts(seed: int) -> list[dict[str, Any]]:
        request = {"model": str(talker), "temperature": 5.0, "top_p": 1.0, "seed": seed, "max_new_tokens": 8}
        return [each for each in told(request, ("the cat",), ("a book",)) if "piece" in each]

    assert texts(1) == texts(1)
    assert texts(1) != texts(2)


def test_the_model_reads_the_dialogue_so_far_and_forgets_its_oldest_turns(talker):
    request = {"model": str(talker), "temperature": 0, "max_new_tokens": 4, "system": "good"}
    ends = [each["end"] for each in told(request, *[("the cat saw a good book",)] * 5) if "end" in each]
    assert ends[1]["read"] > ends[0]["read"] + 6
    assert ends[0]["turns_left_out"] == 0
    assert ends[-1]["turns_left_out"] >= 2
    assert all(end["read"] + 4 <= 40 for end in ends)


def test_a_long_dialogue_is_not_fitted_from_its_beginning_again(talker, monkeypatch):
    shown: list[int] = []

    def counted(tokenizer: Any, messages: Any) -> str:
        shown.append(len(messages))
        return prompt_text(tokenizer, messages)

    monkeypatch.setattr("pipelines.commands.chat.prompt_text", counted)
    request = {"model": str(talker), "temperature": 0, "max_new_tokens": 4}
    messages = [("the cat saw a good book",)] * 12
    ends = [each["end"] for each in told(request, *messages, ("the cat " * 60,), *messages) if "end" in each]
    assert ends[-1]["turns_left_out"] >= 40
    assert max(shown[-6:]) <= 8
    assert len(shown) <= 3 * 25


def test_what_cannot_be_answered_is_a_sentence_and_the_next_message_is_answered(talker):
    answers = told(
        {"model": str(talker), "temperature": 0, "max_new_tokens": 2},
        ("the cat " * 60,),
        "nonsense",
        ("  ",),
        ("the cat",),
    )
    errors = [each["error"] for each in answers if "error" in each]
    assert "and the model reads 40; shorten it" in errors[0]
    assert errors[1] == 'a line must be an object such as {"message": "Hello"}'
    assert errors[2] == "the message is empty; write a text"
    assert "end" in answers[-1]


def ended_by_mask(place: Path) -> Path:
    """A decoder that writes nothing but [MASK], whose template ends answers with it."""
    folder = writers.saved(writers.saying("[MASK]"), place)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'] }}[MASK]{{ eos_token }}{% endfor %}"
    )
    return folder


def test_an_answer_ends_where_the_template_ends_it(tmp_path):
    *pieces, end = told({"model": str(ended_by_mask(tmp_path)), "temperature": 0, "max_new_tokens": 6}, ("the cat",))[
        1:
    ]
    assert (pieces, end["end"]["tokens"]) == ([], 1)


def test_a_template_that_takes_too_much_is_stopped(talker):
    (talker / "chat_template.jinja").write_text("{{ 'x' * 1100000 }}")
    (error,) = told({"model": str(talker)}, ("the cat",))[1:]
    assert error["error"].startswith("the chat template wrote 1100000 characters")


def test_an_encoder_decoder_writes_one_text_for_each_message():
    ready, *_, end = told({"model": str(writers.folder("t5")), "temperature": 0, "max_new_tokens": 5}, ("the cat",))
    assert (ready["family"], ready["template"]) == ("encoder-decoder", False)
    assert 1 <= end["end"]["tokens"] <= 5


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        ({"model": "bert"}, "is an encoder, which writes no text; talk with a decoder"),
        ({"model": "gpt2", "system": "Be brief."}, "--system stands in a chat template, and .* has none"),
        ({"model": "gpt2", "temperature": -1.0}, "--temperature is -1, must be a number from 0"),
        ({"model": "gpt2", "top_p": 0.0}, "--top-p is 0, must be above 0"),
    ],
)
def test_what_cannot_be_talked_with_is_one_sentence(request_, sentence):
    with pytest.raises(CommandError, match=sentence):
        Speaker(ChatRequest(**{**request_, "model": str(writers.folder(request_["model"]))}))


def test_letters_of_several_tokens_and_unfinished_words_wait():
    class Bytes:
        def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
            return bytes(ids).decode(errors="replace")

    import torch

    said: list[str] = []
    writer: Any = type("Writer", (), {"tokenizer": Bytes()})
    pieces = TextStreamer(writer, said.append)
    pieces.put(torch.tensor([[1, 2, 3]]))  # what it was given
    for byte in "a café au".encode():
        pieces.put(torch.tensor([byte]))
    assert said == ["a ", "café "]
    pieces.end()
    assert "".join(said) == "a café au"
