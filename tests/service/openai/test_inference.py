"""The unmodified `openai` client talks to published models: real processes, real isolation, tiny weights."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import openai
import pydantic
import pytest

from service.api.problems import Problem
from service.executors.process_tree import descendants
from service.serving.questions import Question
from service.settings import read_settings
from service.store.projects import parts
from service.store.store import Store
from tests import writers
from tests.service.served import Served
from tests.service.serving.interpreter import share_interpreter
from tests.service.serving.published import publish, publish_adapter, publish_byte_pairs

CHAT = "ft:gpt-tiny:acme::1"
MESSAGES: Any = [{"role": "user", "content": "the cat saw"}]
GREEDY: Any = {"model": CHAT, "messages": MESSAGES, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def served(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An application with a model of each kind."""
    home = tmp_path_factory.mktemp("serving")
    shutil.copy(migrated_sqlite, home / "finery.db")
    settings = read_settings({}, home=home, serve_models=2, serve_requests=4)
    store = Store(settings.url)
    made = Served(settings, store)
    share_interpreter(made)
    publish(made, "gpt2", CHAT, chats=True)
    publish(made, "bert", "encoder")
    publish(made, "bert-classifier", "classifier")
    yield made
    made.service.served.close()
    store.close()


def process_of(served: Served, name: str) -> Any:
    return next((each for each in served.service.served.living() if each.model.name == name), None)


def soon(check: Any, seconds: float = 20.0) -> bool:
    limit = time.monotonic() + seconds
    while not check() and time.monotonic() < limit:
        time.sleep(0.02)
    return bool(check())


def test_a_chat_is_answered_whole_and_streamed_with_the_same_text(client: Any) -> None:
    whole = client.chat.completions.create(**GREEDY)
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 12, 15)
    assert whole.model == CHAT
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 8, "it comes in pieces"
    assert len({each.id for each in chunks}) == 1


def test_without_being_asked_a_stream_tells_no_usage(client: Any) -> None:
    chunks = list(client.chat.completions.create(**GREEDY, stream=True))
    assert all(each.choices and each.usage is None for each in chunks)


def test_the_same_seed_gives_the_same_text_and_another_another(client: Any) -> None:
    def drawn(seed: int) -> str:
        made = client.chat.completions.create(model=CHAT, messages=MESSAGES, seed=seed, max_tokens=12, temperature=2)
        return str(made.choices[0].message.content)

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_itself(client: Any, stream: bool) -> None:
    text = client.chat.completions.create(**GREEDY).choices[0].message.content
    word = text.split()[2]
    given = {**GREEDY, "stop": ["never said", word], "stream": stream}
    if stream:
        chunks = list(client.chat.completions.create(**given))
        stopped = "".join(each.choices[0].delta.content or "" for each in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = client.chat.completions.create(**given).choices[0]
        stopped, reason = choice.message.content, choice.finish_reason
    assert (stopped, reason) == (text[: text.find(word)], "stop")


def test_log_probabilities_are_told_with_the_likeliest_tokens_and_their_bytes(client: Any) -> None:
    choice = client.chat.completions.create(**GREEDY, logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    assert len(content) == 12
    for token in content:
        likeliest = [each.logprob for each in token.top_logprobs]
        assert likeliest == sorted(likeliest, reverse=True)
        assert token.logprob == pytest.approx(likeliest[0])
        assert bytes(token.bytes).decode() == token.token
    assert client.chat.completions.create(**GREEDY).choices[0].logprobs is None


def test_several_answers_of_several_prompts_stand_in_order(client: Any) -> None:
    made = client.completions.create(
        model=CHAT, prompt=["the cat", "a book"], n=2, max_tokens=4, temperature=0, logprobs=1
    )
    texts = [each.text for each in made.choices]
    assert [each.index for each in made.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert made.usage.completion_tokens == 16
    assert made.choices[0].logprobs.tokens[0] in made.choices[0].logprobs.top_logprobs[0]
    drawn = client.completions.create(model=CHAT, prompt="the cat", n=3, max_tokens=8, temperature=2, seed=1)
    assert len({each.text for each in drawn.choices}) > 1


def test_an_echoed_prompt_is_told_with_its_log_probabilities_and_places(client: Any) -> None:
    asked: Any = {"model": CHAT, "prompt": "the cat saw", "temperature": 0, "logprobs": 2}
    alone = client.completions.create(**asked, max_tokens=0, echo=True)
    choice = alone.choices[0]
    assert (choice.text, choice.finish_reason) == ("the cat saw", "length")
    assert (alone.usage.prompt_tokens, alone.usage.completion_tokens) == (3, 0)
    told = choice.logprobs
    assert (told.tokens, told.text_offset) == (["the", "cat", "saw"], [0, 4, 8])
    assert told.token_logprobs[0] is None
    assert told.top_logprobs[0] is None
    assert all(value < 0 for value in told.token_logprobs[1:])
    assert [len(top) for top in told.top_logprobs[1:]] == [2, 2]
    written = client.completions.create(**asked, max_tokens=4)
    both = client.completions.create(**asked, max_tokens=4, echo=True)
    chunks = list(client.completions.create(**asked, max_tokens=4, echo=True, stream=True))
    assert both.choices[0].text == "the cat saw" + written.choices[0].text
    assert "".join(each.choices[0].text for each in chunks) == both.choices[0].text
    whole = both.choices[0].logprobs
    assert whole.tokens == told.tokens + written.choices[0].logprobs.tokens
    assert whole.token_logprobs[1:3] == pytest.approx(told.token_logprobs[1:], abs=1e-5)
    places = [place for each in chunks if each.choices[0].logprobs for place in each.choices[0].logprobs.text_offset]
    assert places == whole.text_offset
    assert places == sorted(places)
    assert places[3] == len("the cat saw")


def test_what_is_read_of_a_prompt_is_what_is_written_behind_its_beginning(client: Any) -> None:
    """The log-probability of a token is the same whether the model wrote it or reads it."""
    asked: Any = {"model": CHAT, "temperature": 0, "logprobs": 1}
    written = client.completions.create(**asked, prompt=[5, 6, 7], max_tokens=6)
    alone = client.completions.create(**asked, prompt=[[5, 6, 7]], max_tokens=0, echo=True).choices[0].logprobs.tokens
    pieces = written.choices[0].logprobs.tokens
    assert "".join(pieces) == written.choices[0].text
    words = [each[1:] if each.startswith(" ") else f"##{each}" for each in pieces]
    ids = writers.tokenizer().convert_tokens_to_ids(words)
    read = client.completions.create(**asked, prompt=[[5, 6, 7, *ids], [5, 6]], max_tokens=1, echo=True)
    first = read.choices[0].logprobs
    assert first.tokens[:3] == alone
    assert first.token_logprobs[3:9] == pytest.approx(written.choices[0].logprobs.token_logprobs, abs=1e-4)
    assert len(read.choices[1].logprobs.tokens) == 3


def test_the_harness_finds_continuations_as_likely_as_our_own_few_shot_evaluation_does(
    url: str, client: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-evaluation-harness asks over HTTP with `echo` and one token; ours asks the model."""
    for package in ("lm_eval", "tenacity", "aiohttp"):
        pytest.importorskip(package)
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from pipelines.evaluation.few_shot.decoders import DecoderReader
    from pipelines.evaluation.few_shot.likelihood import Continuation

    pairs = [
        ("the cat saw", " a good book"),
        ("a good book", " saw the cat"),
        ("the", " cat saw the book a good"),
        ("the cat saw the good book a", " book"),
    ]
    folder = next((served.settings.models / "acme" / CHAT).iterdir())
    monkeypatch.setenv("OPENAI_API_KEY", client.api_key)
    theirs = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions",
        model=CHAT,
        tokenizer=str(folder),
        tokenizer_backend="huggingface",
        max_length=40,
        batch_size=2,
        max_retries=1,
    )
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    found = theirs.loglikelihood(requests, disable_tqdm=True)
    reader = DecoderReader(writers.model("gpt2"), writers.tokenizer())
    expected = reader.likelihoods([reader.encode(Continuation(*pair)) for pair in pairs])
    assert [value for value, _ in found] == pytest.approx([each.nats for each in expected], abs=1e-3)
    assert [greedy for _, greedy in found] == [each.greedy for each in expected]


def test_of_the_likeliest_token_alone_nothing_else_is_drawn(client: Any) -> None:
    greedy = client.chat.completions.create(**GREEDY).choices[0].message.content
    hot: Any = {"model": CHAT, "messages": MESSAGES, "temperature": 2, "max_tokens": 12, "seed": 3}
    drawn = client.chat.completions.create(**hot, extra_body={"top_k": 1}).choices[0].message.content
    assert drawn == greedy
    assert client.chat.completions.create(**hot, extra_body={"top_k": -1}).choices[0].message.content != greedy


def test_content_may_come_in_parts_and_the_developer_is_the_system(client: Any) -> None:
    parts: Any = [
        {"role": "developer", "content": "the"},
        {"role": "user", "content": [{"type": "text", "text": "cat "}, {"type": "text", "text": "saw"}]},
    ]
    assert (
        client.chat.completions.create(**{**GREEDY, "messages": parts}).choices[0].message.content
        == client.chat.completions.create(**GREEDY).choices[0].message.content
    )


@pytest.mark.long
def test_vectors_come_as_numbers_and_as_bytes(client: Any) -> None:
    made = client.embeddings.create(model="encoder", input=["the cat", "a good book"])  # in base64, as the client does
    plain = client.embeddings.create(model="encoder", input=["the cat", "a good book"], encoding_format="float")
    for one, other in zip(made.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(each * each for each in one.embedding) == pytest.approx(1.0, abs=1e-5)
    assert made.usage.prompt_tokens == 4 + 5
    raw = client.embeddings.with_raw_response.create(model="encoder", input="the cat", encoding_format="base64")
    content = base64.b64decode(json.loads(raw.content)["data"][0]["embedding"])
    assert struct.unpack(f"<{len(content) // 4}f", content) == pytest.approx(made.data[0].embedding)
    with pytest.raises(openai.BadRequestError, match="16 dimensions"):
        client.embeddings.create(model="encoder", input="the", dimensions=3)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda client: client.embeddings.create(model=CHAT, input="x"), "answers /v1/chat/completions"),
        (
            lambda client: client.chat.completions.create(**{**GREEDY, "model": "classifier"}),
            "classifies texts: it answers /api/v1/models/classifier/predict",
        ),
        (lambda client: client.completions.create(model="encoder", prompt="x"), "turns texts into vectors"),
        (lambda client: client.embeddings.create(model="encoder", input=["the", "the " * 99]), "Input 1 has"),
        (
            lambda client: client.chat.completions.create(**{**GREEDY, "model": "scratch/gpt-tiny"}),
            "has learnt nothing yet",
        ),
        (
            lambda client: client.chat.completions.create(**{**GREEDY, "max_tokens": 99}),
            "maximum context length is 40 tokens",
        ),
        (
            lambda client: client.chat.completions.create(**GREEDY, tools=[{"type": "function"}]),
            "'tools' is not offered",
        ),
        (lambda client: client.chat.completions.create(**GREEDY, extra_body={"temprature": 1}), "'temprature'; known:"),
        (
            lambda client: client.chat.completions.create(**GREEDY, response_format={"type": "json_object"}),
            "its tokens are no pieces of text",
        ),
        (
            lambda client: client.chat.completions.create(**GREEDY, response_format={"type": "json_schema"}),
            "'json_schema'",
        ),
        (lambda client: client.chat.completions.create(**GREEDY, response_format={"type": "yaml"}), "response_format"),
        (lambda client: client.chat.completions.create(**GREEDY, top_logprobs=2), "needs logprobs: true"),
        (lambda client: client.completions.create(model=CHAT, prompt="x", max_tokens=0), "give echo: true too"),
        (lambda client: client.chat.completions.create(**GREEDY, logit_bias={"999999": 5}), "names token 999999"),
        (
            lambda client: client.completions.create(model=CHAT, prompt=[5] * 40, max_tokens=1, echo=True),
            "maximum context length is 40 tokens",
        ),
        (lambda client: client.chat.completions.create(**GREEDY, extra_body={"top_k": -2}), "greater than or equal to"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_with_status_400(client: Any, ask: Any, sentence: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client)
    assert sentence in refused.value.message
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param


def test_a_stream_that_cannot_begin_has_a_status_too(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{**GREEDY, "max_tokens": 99}, stream=True)
    assert refused.value.code == "context_length_exceeded"


def test_models_of_other_projects_are_as_unknown_as_those_that_are_not_there(
    served: Served, url: str, client: Any
) -> None:
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("submitter", "others"), max_retries=0)
    errors = []
    for asking, name in ((stranger, CHAT), (client, "ft:gpt-tiny:acme::2")):
        with pytest.raises(openai.NotFoundError) as unknown:
            asking.chat.completions.create(**{**GREEDY, "model": name})
        errors.append(unknown.value.body)
    assert errors[0] == {
        "message": f"The model '{CHAT}' does not exist or you do not have access to it.",
        "type": "invalid_request_error", "param": "model", "code": "model_not_found",
    }  # fmt: skip
    assert errors[1]["code"] == "model_not_found"


def test_a_viewer_may_not_ask_and_nobody_is_told_to_send_a_token(served: Served, url: str) -> None:
    viewer = openai.OpenAI(base_url=f"{url}/v1", api_key=served.token("viewer"), max_retries=0)
    with pytest.raises(openai.PermissionDeniedError) as refused:
        viewer.chat.completions.create(**GREEDY)
    assert refused.value.type == "permission_error"
    answer = httpx.post(f"{url}/v1/chat/completions", json=GREEDY)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    nobody = openai.OpenAI(base_url=f"{url}/v1", api_key="fin_nope", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        nobody.embeddings.create(model="encoder", input="x")


def test_where_nothing_isolates_only_admins_ask(served: Served, client: Any) -> None:
    served.service.isolated = False
    try:
        with pytest.raises(openai.PermissionDeniedError, match="cannot isolate"):
            client.chat.completions.create(**GREEDY)
    finally:
        served.service.isolated = True


def test_a_project_that_may_run_nothing_asks_nothing(served: Served, client: Any) -> None:
    for process in served.service.served.living():
        served.service.served.forget(process.model.id)
    served.store.set_project("acme", max_running=0)
    try:
        with pytest.raises(openai.RateLimitError, match="may have 0 processes at once"):
            client.chat.completions.create(**GREEDY)
    finally:
        served.store.set_project("acme", max_running=None)


def test_no_folder_of_the_server_is_told_in_a_stream(served: Served, client: Any, monkeypatch: Any) -> None:
    """A model's process says what went wrong in its own words, paths among them."""
    real = Question.parts

    async def parts(self: Question, seconds: float) -> Any:
        async for part in real(self, seconds):
            yield part
            raise Problem(500, f"no weights in {served.settings.home}/models/acme", "internal")

    monkeypatch.setattr(Question, "parts", parts)
    with pytest.raises(openai.APIError) as told:
        list(client.chat.completions.create(**{**GREEDY, "max_tokens": 8}, stream=True))
    assert "no weights in" in str(told.value)
    assert str(served.settings.home) not in str(told.value)


def test_a_client_that_goes_away_is_not_written_for(served: Served, client: Any) -> None:
    stream = client.chat.completions.create(**{**GREEDY, "max_tokens": 37}, stream=True)
    next(iter(stream))
    stream.close()
    assert soon(lambda: process_of(served, CHAT).open_questions == 0)
    assert client.chat.completions.create(**GREEDY).choices[0].message.content


def test_a_token_has_so_many_open_questions_and_no_more(served: Served, client: Any) -> None:
    token = served.store.token_by_prefix(parts(client.api_key)[0]).id  # type: ignore[index,union-attr]
    served.service.served._asking[token] = 4
    try:
        with pytest.raises(openai.RateLimitError, match="4 open questions"):
            client.chat.completions.create(**GREEDY)
    finally:
        del served.service.served._asking[token]
    assert client.chat.completions.create(**GREEDY).choices[0].message.content


@pytest.mark.long
def test_a_process_that_is_killed_is_replaced_and_its_questions_are_told(served: Served, client: Any) -> None:
    client.chat.completions.create(**GREEDY)
    first = process_of(served, CHAT)
    served.service.served._executor.kill(first._handle)  # type: ignore[union-attr]
    assert soon(lambda: first not in served.service.served.living())
    assert client.chat.completions.create(**GREEDY).choices[0].message.content
    assert process_of(served, CHAT).pid != first.pid


def test_a_process_sees_its_model_and_nothing_else_of_the_home(served: Served, client: Any) -> None:
    client.chat.completions.create(**GREEDY)
    process = process_of(served, CHAT)
    root = f"/proc/{(process.pid, *descendants(process.pid))[-1]}/root"  # the first may be bwrap
    if served.service.served._executor.isolation.mode not in ("bubblewrap", "landlock"):  # type: ignore[union-attr]
        pytest.skip("nothing isolates processes here")
    home = served.settings.home
    assert Path(f"{root}{process.model.path}/config.json").is_file()
    assert not Path(f"{root}{home}/finery.db").exists()
    assert not Path(f"{root}{home}/models/acme/encoder").exists()


def test_predictions_come_with_probabilities_and_wrong_inputs_with_a_sentence(served: Served) -> None:
    answer = served.submitter.post(
        "/api/v1/models/classifier/predict", json={"inputs": ["the cat", {"text": "a book"}]}
    )
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document["model"], document["fingerprint"]) == ("classifier", "0123abcd")
    for index, row in enumerate(document["predictions"]):
        assert row["index"] == index
        chances = {key: value for key, value in row.items() if key.startswith("probability_")}
        assert sum(chances.values()) == pytest.approx(1.0, abs=1e-5)
        assert row["probability"] == max(chances.values())
        assert chances[f"probability_{row['prediction']}"] == row["probability"]
    wrong = served.submitter.post("/api/v1/models/classifier/predict", json={"inputs": [["the", "cat"]]})
    assert wrong.status_code == 400
    assert wrong.json()["detail"] == "Input 0 must be a text, or an object with 'text'"
    for client, name, status in (
        (served.stranger, "classifier", 404),
        (served.viewer, "classifier", 403),
        (served.nobody, "classifier", 401),
        (served.submitter, "unknown", 404),
        (served.submitter, CHAT, 400),
    ):
        answer = client.post(f"/api/v1/models/{name}/predict", json={"inputs": ["x"]})
        assert answer.status_code == status, answer.text
    assert served.submitter.post("/api/v1/models/classifier/predict", json={"inputs": []}).status_code == 422


def test_a_classifier_of_pairs_refuses_half_a_pair_though_its_rows_are_gone(served: Served) -> None:
    folder = publish(served, "bert-classifier", "pairs")
    task = {"kind": "classification", "columns": ["q1", "q2"], "label": "same", "train": "file:file-0123abcd"}
    stages = [{"stage": "supervised", "id": "mine", "task": task}, {"stage": "publish", "to": "pairs"}]
    recipe = {"name": "pairs", "model": {"architecture": {}}, "stages": stages}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    (folder / "publication.json").write_text('{"to": "pairs"}')
    at = "/api/v1/models/pairs/predict"
    assert served.submitter.post(at, json={"inputs": [{"q1": "a cat", "q2": "a book"}]}).json()["warnings"] == []
    for half, sentence in (
        ("a cat", "Input 0 must be an object with 'q1' and 'q2'"),
        ({"q1": "a cat"}, "Input 0 has no 'q2'; an object with 'q1' and 'q2'"),
    ):
        refused = served.submitter.post(at, json={"inputs": [half]})
        assert (refused.status_code, refused.json()["detail"]) == (400, sentence)
    unknown = served.submitter.post(f"{at}?fingerprint=nope", json={"inputs": ["a"]})
    assert unknown.status_code == 404
    assert "no version of 'pairs' with the fingerprint 'nope'; its versions have 0123abcd" in unknown.text


@pytest.fixture(scope="module")
def json_model(served: Served) -> str:
    publish_byte_pairs(served, "json-model")
    return "json-model"


class Book(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    title: Annotated[str, pydantic.Field(max_length=10)]
    pages: Annotated[int, pydantic.Field(ge=0, le=999)]
    kind: Literal["novel", "play"]


@pytest.mark.parametrize("stop", [None, "within", "between"])
def test_the_tokens_of_a_completion_joined_are_its_text_whole_and_streamed(
    client: Any, json_model: str, stop: str | None
) -> None:
    """A stop string may begin within a token, and a token be half of a character."""
    asked: Any = {"model": json_model, "prompt": "the", "temperature": 2, "seed": 8, "max_tokens": 30, "logprobs": 1}
    choice = client.completions.create(**asked).choices[0]
    long = next(place for place, each in enumerate(choice.logprobs.tokens) if len(each) > 2 and place > 3)
    begin = choice.logprobs.text_offset[long] + (stop == "within")
    given = {} if stop is None else {"stop": [choice.text[begin : begin + len(choice.logprobs.tokens[long]) + 1]]}
    expected = choice.text if stop is None else choice.text[: choice.text.find(given["stop"][0])]
    whole = client.completions.create(**asked, **given).choices[0]
    chunks = [each.choices[0] for each in client.completions.create(**asked, **given, stream=True)]
    parts = [each.logprobs for each in chunks if each.logprobs is not None]
    for text, tokens, offsets in (
        (whole.text, whole.logprobs.tokens, whole.logprobs.text_offset),
        (
            "".join(each.text for each in chunks),
            [token for each in parts for token in each.tokens],
            [offset for each in parts for offset in each.text_offset],
        ),
    ):
        assert text == expected
        assert "".join(tokens) == text
        assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_of_a_schema_is_what_the_client_parses(client: Any, json_model: str, temperature: float) -> None:
    """By the `parse` of OpenAI's client, which sends the schema of a pydantic model."""
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    asked: Any = {"model": json_model, "messages": MESSAGES, "temperature": temperature, "seed": 5, "max_tokens": 500}
    made = client.chat.completions.parse(**asked, response_format=Book, logprobs=True)
    choice = made.choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Book)
    assert len(choice.logprobs.content) == made.usage.completion_tokens, "none is left out behind the last brace"
    schema = {"type": "json_schema", "json_schema": {"name": "book", "schema": Book.model_json_schema()}}
    chunks = list(client.chat.completions.create(**asked, response_format=schema, stream=True))
    streamed = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert Book.model_validate_json(streamed).kind in ("novel", "play")
    listed = client.chat.completions.create(**asked, n=2, response_format={"type": "json_object"}).choices
    for each in listed:
        if each.finish_reason == "stop":
            assert isinstance(json.loads(each.message.content), dict)
        else:
            assert each.message.content.startswith("{")


def test_a_schema_that_nobody_can_follow_is_one_sentence(client: Any, json_model: str) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    for schema, sentence in (
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"enum": ["x" * 70_000]}, "more than 65,536"),
    ):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=json_model, messages=MESSAGES, response_format=form)
        assert sentence in refused.value.message


def test_a_reward_model_scores_answers_to_prompts_over_http(served: Served, tmp_path: Path) -> None:
    """As transformers scores the pair of prompt and answer."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from pipelines.data.reward_inputs import RewardInputFormat, RewardSettings

    folder = publish(served, "bert-classifier", "scorer")
    writers.model("bert-classifier", seed=4, num_labels=1).save_pretrained(folder)
    RewardSettings(RewardInputFormat("pair", 40)).write(folder, {})
    asked = {"prompt": "the cat saw", "completions": ["a book", "the good cat"]}
    answer = served.submitter.post("/api/v1/models/scorer/predict", json={"inputs": [asked]})
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["predictions"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    read = tokenizer([asked["prompt"]] * 2, asked["completions"], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = AutoModelForSequenceClassification.from_pretrained(folder)(**read).logits[:, 0].tolist()
    assert row["scores"] == pytest.approx(expected, abs=1e-5)
    wrong = served.submitter.post("/api/v1/models/scorer/predict", json={"inputs": ["the cat"]})
    assert wrong.status_code == 400
    assert "prompt" in wrong.json()["detail"]
    chat = served.submitter.post("/v1/chat/completions", json={**GREEDY, "model": "scorer"})
    assert "scores answers to prompts" in chat.json()["error"]["message"]


@pytest.mark.long
def test_adapters_on_one_base_answer_from_one_process_as_each_does_merged(served: Served, client: Any) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from pipelines.models.checkpoint import text_ids

    expected = {}
    for seed, name in enumerate(("first-adapter", "second-adapter")):
        folder = publish_adapter(served, name, seed)
        merged = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(folder / "base"), folder
        ).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = torch.tensor([text_ids(tokenizer, "the cat saw", stays_open=True)])
        written = merged.generate(input_ids=ids, do_sample=False, max_new_tokens=8)
        expected[name] = (
            tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True).strip().removeprefix("##")
        )
    assert len(set(expected.values())) == 2
    for name in ("first-adapter", "second-adapter", "first-adapter"):
        answer = client.completions.create(model=name, prompt="the cat saw", temperature=0, max_tokens=8)
        assert (answer.model, answer.choices[0].text.strip()) == (name, expected[name])
    both = [each for each in served.service.served.living() if len(each.models) == 2]
    assert len(both) == 1
    assert process_of(served, "second-adapter") is None
    assert both[0].ready.result()["why"] == "2 adapters on one base take turns"
