"""`finery serve` and the unmodified OpenAI client: from a file to a model that transformers loads."""

import io
import json
import os
import subprocess
import sys
import tarfile
import time

import httpx
import openai
import pytest

WORDS = ("red", "green", "blue", "black", "white", "brown")


@pytest.fixture
def server(tmp_path):
    """A server in a process of its own; its URL and the admin's token."""
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "serve",
        "--home",
        str(tmp_path / "served"),
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = json.loads(process.stdout.readline())
            yield said["url"], (tmp_path / "served" / "admin.token").read_text().strip()
        finally:
            process.terminate()
            process.wait(30)


def rows():
    messages = [
        [{"role": "user", "content": f"Say {word}."}, {"role": "assistant", "content": f"It is {word}."}]
        for word in WORDS
    ]
    return b"".join(json.dumps({"messages": each}).encode() + b"\n" for each in messages) * 4


def pairs():
    """The colour that was asked for is preferred to another."""
    said = [(word, WORDS[at - 1]) for at, word in enumerate(WORDS)]
    made = [
        {
            "input": {"messages": [{"role": "user", "content": f"Say {word}."}]},
            "preferred_output": [{"role": "assistant", "content": f"It is {word}."}],
            "non_preferred_output": [{"role": "assistant", "content": f"It is {other}."}],
        }
        for word, other in said
    ]
    return b"".join(json.dumps(each).encode() + b"\n" for each in made) * 4


def ended(client, job, seconds=500):
    limit = time.monotonic() + seconds
    while (job := client.fine_tuning.jobs.retrieve(job.id)).status not in (
        "succeeded",
        "failed",
        "cancelled",
    ) and time.monotonic() < limit:
        time.sleep(0.5)
    assert job.status == "succeeded", job.error
    return job


@pytest.mark.long
def test_a_model_that_was_fine_tuned_is_improved_by_preferences_and_by_a_grader(server):
    url, token = server
    check = {
        "type": "string_check",
        "name": "polite",
        "input": "{{sample.output_text}}",
        "reference": "It is",
        "operation": "like",
    }
    asked = (
        b"".join(
            json.dumps({"messages": [{"role": "user", "content": f"Say {word}."}]}).encode() + b"\n" for word in WORDS
        )
        * 4
    )
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
        chats, preferences, prompts = (
            client.files.create(file=(f"{name}.jsonl", content), purpose="fine-tune")
            for name, content in (("chats", rows()), ("pairs", pairs()), ("prompts", asked))
        )
        first = ended(
            client,
            client.fine_tuning.jobs.create(
                model="scratch/gpt-tiny", training_file=chats.id, hyperparameters={"n_epochs": 2}
            ),
        )
        method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 1}}}
        second = ended(
            client,
            client.fine_tuning.jobs.create(
                model=first.fine_tuned_model,
                training_file=preferences.id,
                validation_file=preferences.id,
                method=method,
            ),
        )
        assert (second.method.type, second.method.dpo.hyperparameters.beta) == ("dpo", 0.2)
        events = list(client.fine_tuning.jobs.list_events(second.id, limit=100))
        assert (
            len([each for each in events if each.type == "metrics"])
            == 24 / second.method.dpo.hyperparameters.batch_size
        )
        assert "succeeded" in second.status
        assert second.fine_tuned_model in [model.id for model in client.models.list()]
        method = {"type": "reinforcement", "reinforcement": {"grader": check, "hyperparameters": {"batch_size": 4}}}
        third = ended(
            client,
            client.fine_tuning.jobs.create(model=second.fine_tuned_model, training_file=prompts.id, method=method),
        )
        assert third.method.reinforcement.grader.reference == "It is"


@pytest.mark.long
def test_a_file_becomes_a_model_by_the_openai_client_alone(server, tmp_path):
    url, token = server
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
        file = client.files.create(file=("train.jsonl", rows()), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model="scratch/gpt-tiny",
            training_file=file.id,
            validation_file=file.id,
            suffix="colours",
            hyperparameters={"n_epochs": 2},
        )
        limit = time.monotonic() + 500
        while (job := client.fine_tuning.jobs.retrieve(job.id)).status not in (
            "succeeded",
            "failed",
            "cancelled",
        ) and time.monotonic() < limit:
            time.sleep(0.5)
        assert job.status == "succeeded", job.error
        assert job.fine_tuned_model.startswith("ft:gpt-tiny:default:colours:")
        assert job.trained_tokens > 2 * len(rows().splitlines()) * 5
        losses = [
            event.data["train_loss"]
            for event in client.fine_tuning.jobs.list_events(job.id, limit=100)
            if event.type == "metrics"
        ]
        assert len(losses) == 2 * 24 / job.hyperparameters.batch_size
        assert losses[0] < losses[-1], "newest first: the loss fell"
        lines = client.files.content(job.result_files[0]).text.splitlines()
        assert float(lines[-1].split(",")[1]) == pytest.approx(losses[0])
        accuracies = [float(line.split(",")[2]) for line in lines[1:]]
        assert 0 <= accuracies[0] < accuracies[-1] <= 1, "train_accuracy: the tokens that were right"
        assert job.fine_tuned_model in [model.id for model in client.models.list()]
        began = time.monotonic()
        asked = {
            "model": job.fine_tuned_model,
            "messages": [{"role": "user", "content": "Say red."}],
            "temperature": 0,
            "seed": 1,
            "max_tokens": 12,
        }
        whole = client.chat.completions.create(**asked)
        assert time.monotonic() - began < 120, "its process starts with the first question"
        assert whole.choices[0].message.content
        assert whole.usage.completion_tokens <= 12
        with client.chat.completions.create(**asked, stream=True) as stream:
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(pieces) == whole.choices[0].message.content
        assert len(pieces) > 2
    answer = httpx.get(
        f"{url}/api/v1/models/{job.fine_tuned_model}/download", headers={"Authorization": f"Bearer {token}"}, timeout=60
    )
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        tar.extractall(
            tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {})
        )  # not before Python 3.11.4
        folder = tmp_path / tar.getnames()[0].partition("/")[0]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say red."}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert model.generate(**asked, max_new_tokens=4, do_sample=False).shape[1] > asked["input_ids"].shape[1]


@pytest.mark.long
def test_a_script_tunes_grades_measures_base_and_tuned_model_and_compares_them(server):
    url, token = server
    right = {
        "type": "string_check",
        "name": "right",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
        "operation": "ilike",
    }
    near = {
        "type": "text_similarity",
        "name": "near",
        "input": "{{sample.output_text}}",
        "reference": "It is {{item.answer}}.",
        "evaluation_metric": "rouge_l",
    }
    grader = {
        "type": "multi",
        "name": "both",
        "graders": {"right": right, "near": near},
        "calculate_output": "0.7 * right + 0.3 * near",
    }
    asked = [{"messages": [{"role": "user", "content": f"Say {word}."}], "answer": word} for word in WORDS] * 4
    with openai.OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0) as client:
        graders = client.fine_tuning.alpha.graders
        assert graders.validate(grader=grader).grader.name == "both"
        reward = graders.run(grader=grader, model_sample="It is red.", item={"answer": "red"}).reward
        assert reward == pytest.approx(1.0)
        chats = client.files.create(file=("chats.jsonl", rows()), purpose="fine-tune")
        prompts = client.files.create(
            file=("prompts.jsonl", b"".join(json.dumps(each).encode() + b"\n" for each in asked)), purpose="fine-tune"
        )
        base = ended(
            client,
            client.fine_tuning.jobs.create(
                model="scratch/gpt-tiny", training_file=chats.id, hyperparameters={"n_epochs": 2}
            ),
        )
        method = {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": {"batch_size": 8}}}
        tuned = ended(
            client,
            client.fine_tuning.jobs.create(model=base.fine_tuned_model, training_file=prompts.id, method=method),
        )
        header, first = client.files.content(tuned.result_files[0]).text.splitlines()[:2]
        reward = dict(zip(header.split(","), first.split(","), strict=True))["train_mean_reward"]
        assert 0 <= float(reward) <= 1
        made = client.evals.create(
            name="colours",
            data_source_config={
                "type": "custom",
                "item_schema": {"type": "object", "properties": {"answer": {"type": "string"}}},
                "include_sample_schema": True,
            },
            testing_criteria=[right, {**near, "pass_threshold": 0.5}],
        )
        runs = []
        for model in (base.fine_tuned_model, tuned.fine_tuned_model):
            source = {
                "type": "completions",
                "model": model,
                "input_messages": {
                    "type": "template",
                    "template": [{"role": "user", "content": "Say {{item.answer}}."}],
                },
                "sampling_params": {"temperature": 0, "max_completion_tokens": 12},
                "source": {"type": "file_content", "content": [{"item": {"answer": word}} for word in WORDS]},
            }
            runs.append(client.evals.runs.create(made.id, name=model, data_source=source))
        limit = time.monotonic() + 240
        while any(run.status in ("queued", "in_progress") for run in runs) and time.monotonic() < limit:
            time.sleep(0.2)
            runs = [client.evals.runs.retrieve(run.id, eval_id=made.id) for run in runs]
        assert [run.status for run in runs] == ["completed", "completed"], [run.error for run in runs]
        assert all(run.result_counts.passed + run.result_counts.failed == len(WORDS) for run in runs)
    command = [sys.executable, "-m", "service.cli", "evals", "compare", made.id, *(run.id for run in runs)]
    compared = subprocess.run(
        [*command, "--server", url, "--json"], env=os.environ | {"FINERY_TOKEN": token}, capture_output=True, text=True
    )
    assert compared.returncode == 0, compared.stderr
    document = json.loads(compared.stdout)
    assert (document["rows"], document["first_model"]) == (len(WORDS), base.fine_tuned_model)
    assert {each["verdict"] for each in document["criteria"]} <= {"first", "second", "undecided"}
