"""A served model over a socket: what it says of itself, and its answers to questions, right and wrong."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.errors import ModelError
from pipelines.serving.protocol import Channel
from pipelines.serving.serve import ServedModel, Writer
from tests import writers
from tests.end_to_end.forked import command, server

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


class Client:
    """The server's side."""

    def __init__(self, connection: socket.socket) -> None:
        self.channel = Channel(connection)
        self._messages = self.channel.receive()

    def send(self, number: int, do: str, **fields: Any) -> None:
        self.channel.send({"id": number, "do": do, **fields})

    def until_the_last_word(self, *numbers: int) -> dict[int, list[dict[str, Any]]]:
        """Every message of these questions."""
        found: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
        left = set(numbers)
        while left:
            message = next(self._messages)
            found[message["id"]].append(message)
            if "end" in message or "error" in message:
                left.discard(message["id"])
        return found

    def ask(self, do: str, **fields: Any) -> list[dict[str, Any]]:
        self.send(1, do, **fields)
        return self.until_the_last_word(1)[1]


@contextmanager
def asking(folder: Path) -> Iterator[tuple[ServedModel, Client]]:
    """A model, opened here, that answers in the main thread while a thread asks."""
    ours, theirs = socket.socketpair()
    served = ServedModel(str(folder), Channel(theirs))
    yield served, Client(ours)
    served.close()
    ours.close()
    theirs.close()


def answers(folder: Path, *questions: tuple[str, dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The answers to questions that were asked at once; the process then ends, because the connection does."""
    with asking(folder) as (served, client):
        found: dict[int, list[dict[str, Any]]] = {}

        def talk() -> None:
            for number, (do, fields) in enumerate(questions):
                client.send(number, do, **fields)
            found.update(client.until_the_last_word(*range(len(questions))))
            client.channel.close()

        thread = threading.Thread(target=talk)
        thread.start()
        assert served.run() == len(questions)
        thread.join(20)
        return [found[number] for number in range(len(questions))]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GPT-2 of the tests with a chat template."""
    place = tmp_path_factory.mktemp("chatty") / "model"
    shutil.copytree(writers.folder("gpt2"), place)
    (place / "chat_template.jinja").write_text(TEMPLATE)
    return place


GREEDY = {"temperature": 0, "max_tokens": 5}


def text(messages: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(each["piece"]["text"] for each in messages if "piece" in each and each["piece"]["index"] == index)


def test_it_says_what_it_is(chatty: Path) -> None:
    with asking(chatty) as (served, _):
        about = {"kind": "causal", "can": ["chat", "complete"], "context": 40, "engine": "continuous", "why": ""}
        assert {key: value for key, value in served.about.items() if key != "forms"} == about


def test_a_chat_is_the_completion_of_what_its_template_makes(chatty: Path) -> None:
    chat, plain, tokens = answers(
        chatty,
        ("chat", {"messages": [{"role": "user", "content": "the cat"}], "choice": GREEDY}),
        ("complete", {"prompts": ["the cat "], "choice": GREEDY}),
        (
            "complete",
            {
                "prompts": [writers.tokenizer()("the cat", add_special_tokens=False)["input_ids"]],
                "n": 2,
                "choice": GREEDY,
            },
        ),
    )
    assert text(chat) == text(plain) == text(tokens) == text(tokens, 1) != ""
    assert chat[-1]["end"] == {"prompt_tokens": 2, "completion_tokens": 5}
    assert tokens[-1]["end"] == {"prompt_tokens": 2, "completion_tokens": 10}
    assert {"index": 0, "reason": "length"} in [each.get("finished") for each in chat]


def test_an_answer_ends_where_the_template_ends_it(tmp_path: Path) -> None:
    """Though the model's own settings name another token; the one that ends it is counted, and is none of the text."""
    folder = writers.saved(writers.saying("[MASK]"), tmp_path)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['content'] }}[MASK]{{ eos_token }}{% endfor %}"
    )
    choice = {"temperature": 0, "max_tokens": 5, "logprobs": 1}
    chat, page = answers(
        folder,
        ("chat", {"messages": [{"role": "user", "content": "the"}], "choice": choice}),
        ("try", {"form": "chat", "values": {"message": "the", "ways": "greedy,beam"}}),
    )
    assert [each for each in chat if "piece" in each] == []
    assert {"index": 0, "reason": "stop"} in [each.get("finished") for each in chat]
    assert chat[-1]["end"]["completion_tokens"] == 1
    writings = page[-1]["end"]["parts"][0]["writings"]
    assert [dict(each["facts"])["end"] for each in writings] == ["by itself"] * 2


WRONG: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("complete", {"prompts": ["the"], "choice": {"max_tokens": 40}}, "maximum context length is 40 tokens", "prompt"),
    ("complete", {"prompts": ["the " * 41], "choice": {}}, "you requested 41 tokens", "prompt"),
    ("complete", {"prompts": [""], "choice": {}}, "comes to no token", "prompt"),
    ("complete", {"prompts": [[10**6]], "choice": {}}, "the vocabulary of", "prompt"),
    ("complete", {"prompts": ["a"], "choice": {"logit_bias": {"96": 1}}}, "names token 96", "logit_bias"),
    ("embed", {"inputs": ["a"]}, "does not answer 'embed'", None),
    ("chat", {"messages": [{"role": "user", "content": ""}], "choice": {}}, "comes to no token", "messages"),
    ("chat", {"messages": []}, "at least one message", None),
]


def test_what_cannot_be_answered_is_one_sentence(chatty: Path) -> None:
    right = ("complete", {"prompts": ["the"], "choice": GREEDY})
    found = answers(chatty, *(question for do, fields, _, _ in WRONG for question in ((do, fields), right)))
    for (do, fields, sentence, param), wrong, other in zip(WRONG, found[::2], found[1::2], strict=True):
        assert sentence in wrong[0]["error"]["message"], (do, fields)
        assert wrong[0]["error"]["status"] == 400
        assert wrong[0]["error"].get("param") == param
        assert text(other), "others are answered all the same"


def test_a_question_that_is_cancelled_ends(chatty: Path) -> None:
    with asking(chatty) as (served, client):
        ended = threading.Event()

        def talk() -> None:
            client.channel.send({"cancel": 7})
            client.send(7, "complete", prompts=["the"], choice={"max_tokens": 39})
            assert "piece" not in client.until_the_last_word(7)[7][0]
            ended.set()
            client.channel.close()

        thread = threading.Thread(target=talk)
        thread.start()
        served.run()
        thread.join(20)
        assert ended.is_set()


def test_a_prompt_is_echoed_by_models_that_go_on_with_it() -> None:
    words = {"echo": True, "choice": {"temperature": 0, "max_tokens": 0, "logprobs": 1}}
    (wrong,) = answers(writers.folder("t5"), ("complete", {"prompts": ["the"], **words}))
    assert wrong[0]["error"]["message"].startswith("'echo' is for models that go on with their prompt")
    assert (wrong[0]["error"]["status"], wrong[0]["error"]["param"]) == (400, "echo")
    whole, long = answers(
        writers.folder("gpt2"),
        ("complete", {"prompts": [[5] * 40], **words}),
        ("complete", {"prompts": [[5] * 41], **words}),
    )
    assert len(whole[0]["piece"]["tokens"]) == 40, "as many as the model has positions"
    assert [each["finished"]["reason"] for each in whole if "finished" in each] == ["length"]
    assert whole[-1]["end"] == {"prompt_tokens": 40, "completion_tokens": 0}
    assert "maximum context length is 40 tokens" in long[0]["error"]["message"]


def test_a_model_without_a_bound_of_its_own_writes_so_many_tokens_and_no_more() -> None:
    wrong, right = answers(
        writers.folder("t5"),
        ("complete", {"prompts": ["the"], "choice": {"max_tokens": 1 << 20}}),
        ("complete", {"prompts": ["the"], "choice": GREEDY}),
    )
    assert "maximum context length is 4096 tokens" in wrong[0]["error"]["message"]
    assert wrong[0]["error"]["code"] == "context_length_exceeded"
    assert right[-1]["end"]["completion_tokens"] == 5
    writer = Writer("t5", writers.tokenizer(), [3], True, None, 96)
    assert (writer.limit([5], None), writer.limit([5], 4095), writer.limit([5], 9999, fit=True)) == (1024, 4095, 4095)


def test_vectors_are_means_of_the_last_states_with_length_one() -> None:
    place = writers.folder("bert")
    (messages,) = answers(place, ("embed", {"inputs": ["the cat", "a good book saw the cat", [5, 6, 7]]}))
    model, tokenizer = writers.model("bert"), writers.tokenizer()
    for vector, ids in zip(
        messages[0]["end"]["vectors"],
        [*(tokenizer(each)["input_ids"] for each in ("the cat", "a good book saw the cat")), [5, 6, 7]],
        strict=True,
    ):
        with torch.no_grad():
            states = model.bert(torch.tensor([ids])).last_hidden_state[0].mean(0)
        assert torch.allclose(torch.tensor(vector), states / states.norm(), atol=1e-5)
    assert messages[0]["end"]["prompt_tokens"] == 4 + 8 + 3


def test_a_text_beyond_the_positions_has_no_vector() -> None:
    (messages,) = answers(writers.folder("bert"), ("embed", {"inputs": ["cat " * 50]}))
    assert "input 0 has 52 tokens, but the model reads at most 40" in messages[0]["error"]["message"]


def test_a_classifier_tells_classes_and_probabilities() -> None:
    right, wrong = answers(
        writers.folder("bert-classifier"),
        ("predict", {"inputs": ["the cat", {"text": "a good book"}]}),
        ("predict", {"inputs": [["the", "cat"]]}),
    )
    model, tokenizer = writers.model("bert-classifier"), writers.tokenizer()
    for answer, words in zip(right[0]["end"]["predictions"], ("the cat", "a good book"), strict=True):
        with torch.no_grad():
            chances = model(**tokenizer(words, return_tensors="pt")).logits[0].softmax(-1)
        assert answer["prediction"] == f"LABEL_{int(chances.argmax())}"
        assert answer["probability"] == pytest.approx(float(chances.max()), abs=1e-5)
    assert wrong[0]["error"]["message"] == "input 0 must be a text, or an object with 'text'"


def test_pairs_are_read_where_the_model_does_not_know_its_columns() -> None:
    right, wrong = answers(
        writers.folder("bert-classifier"),
        ("predict", {"inputs": [{"text": "the cat", "text_pair": "a book"}]}),
        ("predict", {"inputs": [{"text": "the cat", "text_pair": "a book"}, "the"]}),
    )
    with torch.no_grad():
        logits = writers.model("bert-classifier")(
            **writers.tokenizer()("the cat", "a book", return_tensors="pt")
        ).logits[0]
    assert right[0]["end"]["predictions"][0]["probability"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
    assert "ask for them apart" in wrong[0]["error"]["message"]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model that can be served"):
        ServedModel(str(tmp_path), Channel(socket.socketpair()[0]))


def test_the_process_knows_its_key_says_it_is_ready_and_ends_with_the_connection(tmp_path: Path, chatty: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "SERVE_KEY").write_text("open")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        words = ["serve-model", json.dumps({"model": str(chatty), "socket": "s"})]
        secrets = {"FINERY_SECRETS": str(tmp_path / "secrets")}
        # tests/service/cli/test_trying.py has one that starts anew
        process = server().Process(target=command, args=(words, str(tmp_path), str(tmp_path / "said"), None, secrets))
        process.start()
        listener.settimeout(60)
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            assert json.loads(lines.readline()) == {"key": "open"}
            assert json.loads(lines.readline())["ready"]["engine"] == "continuous"
            connection.shutdown(socket.SHUT_RDWR)
        process.join(60)
        assert process.exitcode == 0
        assert (tmp_path / "said").read_text().splitlines()[-1] == '{"answered": 0}'
