"""Processes that serve models live as long as they are asked, and nothing that one does hurts the server."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.api.problems import Problem
from service.executors.isolation import MODES, NONE, Isolation, tried
from service.executors.landlock import abi
from service.executors.process_tree import start_time
from service.executors.sandbox import own_places
from service.executors.warm import environment_key
from service.serving import processes as serving_processes
from service.serving.process import ModelProcess, bare_environment
from service.serving.processes import ModelProcesses
from service.serving.questions import problem_of_answer
from service.settings import read_settings
from service.store.models import PublishedModel
from tests import writers
from tests.service.executors.worlds import until

STAND_IN = (sys.executable, str(Path(__file__).with_name("stand_in_model.py")))


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., ModelProcesses]]:
    """`serving(serve_idle=1)`: processes of a server with these settings; `limits` are those of its projects."""
    made: list[ModelProcesses] = []

    def make(limits: dict[str, int] | None = None, **settings: Any) -> ModelProcesses:
        given = {"isolation": "none", "serve_seconds": 20.0, **settings}
        most_of = (limits or {}).get
        made.append(ModelProcesses(read_settings({}, home=tmp_path / "home", **given), STAND_IN, most_of=most_of))
        return made[-1]

    yield make
    for each in made:
        each.close()


def model(tmp_path: Path, name: str, behaviour: str = "answers") -> PublishedModel:
    folder = tmp_path / "models" / name
    folder.mkdir(parents=True)
    (folder / "behaviour").write_text(behaviour)
    return PublishedModel(f"model-{name}", "acme", name, "0123abcd", "job-1", str(folder))


def starts(of: PublishedModel) -> int:
    return len((Path(of.path) / "starts").read_text())


async def asked(processes: ModelProcesses, of: PublishedModel, token: str = "t", **fields: Any) -> Any:
    async with processes.question(token, of, "complete", fields) as question:
        parts = [part async for part in question.parts(10.0)]
    return parts[-1]["end"]["answer"]


def ask(processes: ModelProcesses, of: PublishedModel, token: str = "t", **fields: Any) -> Any:
    return asyncio.run(asked(processes, of, token, **fields))


def soon(check: Callable[[], bool], seconds: float = 20.0) -> bool:
    limit = time.monotonic() + seconds
    while not check() and time.monotonic() < limit:
        time.sleep(0.02)
    return check()


def test_one_process_answers_all_questions_to_a_model(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(), model(tmp_path, "a")

    async def several() -> list[Any]:
        return await asyncio.gather(*(asked(processes, of, n=number) for number in range(8)))

    assert asyncio.run(several()) == list(range(8))
    assert ask(processes, of, n=9) == 9, "from another event loop too"
    assert starts(of) == 1


def test_a_process_that_nobody_asks_ends_and_the_next_question_starts_another(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(serve_idle=0.3), model(tmp_path, "a")
    ask(processes, of)
    (process,) = processes.living()
    pid = process.pid
    assert soon(lambda: not processes.living())
    assert start_time(pid) == 0
    assert not any((tmp_path / "home" / "serving").iterdir())
    assert ask(processes, of, n=3) == 3
    assert starts(of) == 2


def test_a_process_with_an_open_question_is_not_idle(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(serve_idle=0.2), model(tmp_path, "a", "is silent")

    async def wait() -> int:
        async with processes.question("t", of, "complete", {}):
            await asyncio.sleep(1.0)
            return len(processes.living())

    assert asyncio.run(wait()) == 1
    assert soon(lambda: not processes.living())


def test_the_process_that_was_idle_for_longest_makes_room(serving: Any, tmp_path: Path) -> None:
    processes = serving(serve_models=2)
    first, second, third = (model(tmp_path, name) for name in "abc")
    for each in (first, second, first, third):
        ask(processes, each)
    assert soon(lambda: {each.model.name for each in processes.living()} == {"a", "c"})


def test_a_process_that_is_stopped_as_it_connects_ends(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = ModelProcess._accepted

    def stopped(process: ModelProcess, listener: Any) -> Any:
        connection = accepted(process, listener)
        process.stop("the server stops")
        return connection

    monkeypatch.setattr(ModelProcess, "_accepted", stopped)
    processes = serving()
    with pytest.raises(Problem, match="the server stops"):
        ask(processes, model(tmp_path, "a"))
    assert soon(lambda: not processes.living())


def test_where_all_are_busy_a_further_model_has_to_wait(serving: Any, tmp_path: Path) -> None:
    processes = serving(serve_models=1)
    busy, other = model(tmp_path, "busy", "is silent"), model(tmp_path, "other")

    async def both() -> Problem:
        async with processes.question("t", busy, "complete", {}):
            with pytest.raises(Problem) as refused:
                await asked(processes, other)
            return refused.value

    refused = asyncio.run(both())
    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    assert "as many as this server serves at once" in refused.detail
    assert ask(processes, other, n=2) == 2, "once the other is idle it makes room"


def test_a_project_has_no_more_processes_than_it_may_have_jobs(serving: Any, tmp_path: Path) -> None:
    limits = {"acme": 1}
    processes = serving(limits, serve_models=4)
    busy, other = model(tmp_path, "busy", "is silent"), model(tmp_path, "other")
    foreign = replace(model(tmp_path, "foreign"), project="others")

    async def several() -> Problem:
        async with processes.question("t", busy, "complete", {}):
            assert await asked(processes, foreign, n=1) == 1, "another project has its own"
            with pytest.raises(Problem) as refused:
                await asked(processes, other)
            return refused.value

    refused = asyncio.run(several())
    assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "quota_exceeded", "5")
    assert "Project 'acme' may have 1 processes at once (max_running)" in refused.detail
    assert ask(processes, other, n=2) == 2, "an idle one of its own makes room"
    assert soon(lambda: {each.model.name for each in processes.living()} == {"other", "foreign"})
    limits["acme"] = 0
    for way in (
        lambda: ask(processes, busy),
        lambda: processes.begin(busy),
        lambda: asyncio.run(processes.about(busy)),
    ):
        with pytest.raises(Problem, match="may have 0 processes"):
            way()


def test_a_limit_that_was_lowered_holds_when_the_next_process_is_opened(serving: Any, tmp_path: Path) -> None:
    limits = {"acme": 3}
    processes = serving(limits, serve_models=4)
    of = [model(tmp_path, name) for name in "abcd"]
    for each in of[:3]:
        processes.begin(each)
        asyncio.run(processes.about(each))
    limits["acme"] = 2
    assert ask(processes, of[0], n=1) == 1, "what is open answers"
    assert len(processes.living()) == 3
    ask(processes, of[3])
    assert soon(lambda: {each.model.name for each in processes.living()} == {"a", "d"})


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("ends", "the model is of no use"),
        ("fails", "the weights are torn"),
        ("wrong key", "did not know its key"),
        ("hangs in its template", "chat template ran for too long"),
    ],
)
def test_a_model_that_cannot_be_opened_says_why_and_is_not_tried_at_once_again(
    serving: Any, tmp_path: Path, behaviour: str, sentence: str
) -> None:
    processes, of = serving(), model(tmp_path, "a", behaviour)
    for _ in range(3):
        with pytest.raises(Problem) as refused:
            ask(processes, of)
        assert refused.value.status == 503
        assert sentence in refused.value.detail
    assert starts(of) == 1
    assert soon(lambda: not processes.living())  # one that is ending is among them


@pytest.mark.parametrize("behaviour", ["crashes", "garbage"])
def test_a_process_that_breaks_off_is_replaced(serving: Any, tmp_path: Path, behaviour: str) -> None:
    processes, of = serving(), model(tmp_path, "a", behaviour)
    with pytest.raises(Problem) as refused:
        ask(processes, of)
    assert (refused.value.status, refused.value.code) == (503, "model_process_ended")
    assert soon(lambda: not processes.living())
    (Path(of.path) / "behaviour").write_text("answers")
    assert ask(processes, of, n=4) == 4


def test_a_process_that_takes_too_much_memory_ends_and_says_so(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(serve_memory=200 << 20), model(tmp_path, "a", "eats")
    with pytest.raises(Problem, match="ran out of memory") as refused:
        ask(processes, of)
    assert refused.value.status == 503


def test_an_answer_without_an_end_of_its_growth_ends_its_process(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(), model(tmp_path, "a", "floods")

    async def look_away() -> None:
        async with processes.question("t", of, "complete", {}) as question:
            await asyncio.to_thread(soon, lambda: not processes.living())
            assert question.waiting_bytes < 80 << 20

    asyncio.run(look_away())
    assert processes.living() == []


def test_answers_to_questions_that_nobody_asked_are_nothing(serving: Any, tmp_path: Path) -> None:
    assert ask(serving(), model(tmp_path, "a", "wrong ids")) == 1


def test_what_a_process_says_of_an_error_is_cut_to_what_an_error_is() -> None:
    problem = problem_of_answer({"message": "no " * 1000, "code": 7, "status": "x"})
    assert (problem.status, problem.code, len(problem.detail)) == (500, "7", 1000)
    assert problem_of_answer("x").status == 500
    assert problem_of_answer({"message": "a", "status": 400}).status == 400


def test_a_question_that_takes_too_long_is_cancelled(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(), model(tmp_path, "a", "is silent")

    async def impatient() -> None:
        async with processes.question("t", of, "complete", {}) as question:
            async for _ in question.parts(0.2):
                pass

    with pytest.raises(Problem, match="longer than"):
        asyncio.run(impatient())
    assert [each.open_questions for each in processes.living()] == [0]


def test_the_time_of_an_answer_runs_on_when_another_task_reads_the_rest(serving: Any, tmp_path: Path) -> None:
    """As a stream does: its first part is waited for before its status is told."""
    processes, of = serving(), model(tmp_path, "a", "breaks off")

    async def read() -> float:
        async with processes.question("t", of, "complete", {}) as question:
            parts = question.parts(1.0)
            assert "piece" in await asyncio.ensure_future(anext(parts))
            began = time.monotonic()
            with pytest.raises(Problem, match="longer than 1 s"):
                async for _ in parts:
                    pass
            return time.monotonic() - began

    assert asyncio.run(read()) < 5


def test_a_token_has_so_many_open_questions(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(serve_requests=1), model(tmp_path, "a", "is silent")

    async def two() -> None:
        async with processes.question("t", of, "complete", {}):
            with pytest.raises(Problem, match="1 open questions"):
                await asked(processes, of)
            async with processes.question("other", of, "complete", {}):
                pass

    asyncio.run(two())


def test_the_process_of_a_deleted_model_ends(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(), model(tmp_path, "a")
    ask(processes, of)
    processes.forget(of.id)
    assert soon(lambda: not processes.living())


def test_a_server_may_serve_nothing(serving: Any, tmp_path: Path) -> None:
    with pytest.raises(Problem) as refused:
        ask(serving(serve_models=0), model(tmp_path, "a"))
    assert refused.value.status == 403


@pytest.mark.parametrize(
    "isolation",
    [
        *(pytest.param(tried(mode), id=mode) for mode in MODES),
        pytest.param(Isolation("landlock", (), abi()), id="files"),
    ],
)
def test_every_isolation_lets_a_process_reach_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Isolation | str
) -> None:
    if isinstance(isolation, str) or (isolation.mode == "landlock" and not isolation.landlock_abi):
        pytest.skip(f"not on this machine: {isolation}")
    monkeypatch.setattr(serving_processes, "isolation_of", lambda wanted: isolation)
    of = model(tmp_path, "a")
    program = shutil.copy(STAND_IN[1], Path(of.path) / "program.py")
    made = ModelProcesses(read_settings({}, home=tmp_path / "home"), (sys.executable, str(program)))
    try:
        assert ask(made, of, n=5) == 5
    finally:
        made.close()
    assert not any((tmp_path / "home" / "serving").iterdir())


def test_processes_end_with_the_server_that_started_them(tmp_path: Path) -> None:
    """However it ends: the kernel does it."""
    of = model(tmp_path, "a")
    program = (
        "import asyncio, os, sys\n"
        "from service.serving.processes import ModelProcesses\n"
        "from service.settings import read_settings\n"
        "from service.store.models import PublishedModel\n"
        f"processes = ModelProcesses(read_settings({{}}, home={str(tmp_path / 'home')!r}, isolation='none'), {STAND_IN!r})\n"
        f"of = PublishedModel('model-a', 'acme', 'a', '0123abcd', 'job-1', {of.path!r})\n"
        "async def ask():\n"
        "    async with processes.question('t', of, 'complete', {}) as question:\n"
        "        [part async for part in question.parts(20)]\n"
        "asyncio.run(ask())\n"
        "print(processes.living()[0].pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    pid = int(done.stdout)
    assert done.returncode == -9
    assert soon(lambda: start_time(pid) == 0)


def counted(processes: ModelProcesses) -> dict[Any, float]:
    """Every sample that is not zero, by its name and labels."""
    families = processes.metrics.collect()
    samples = [sample for family in families for sample in family.samples if sample.value]
    samples = [sample for sample in samples if not sample.name.endswith("_created")]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_questions_are_counted_by_how_they_end_with_their_tokens_and_times(serving: Any, tmp_path: Path) -> None:
    processes = serving(serve_models=3, serve_requests=1)
    of = model(tmp_path, "a", "writes")
    ask(processes, of)
    ask(processes, of)
    found = counted(processes)
    assert found["finery_model_processes", "idle"] == 1
    assert found["finery_model_questions_total", "complete", "answered"] == 2
    assert (found["finery_model_tokens_total", "in"], found["finery_model_tokens_total", "out"]) == (6, 4)
    assert found["finery_model_first_token_seconds_count", "complete"] == 2
    assert found["finery_model_answer_seconds_count", "complete"] == 2
    assert 0 < found["finery_model_first_token_seconds_sum", "complete"] < 20
    assert found["finery_model_opening_seconds_count", "opened"] == 1
    assert not any(key[0].startswith("finery_model_refusals") for key in found)


def test_a_process_that_lies_about_tokens_is_not_believed(serving: Any, tmp_path: Path) -> None:
    processes = serving()
    ask(processes, model(tmp_path, "a", "lies"))
    found = counted(processes)
    assert found["finery_model_questions_total", "complete", "answered"] == 1
    assert not any(key[0].startswith("finery_model_tokens") for key in found)


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason"),
    [
        ("ends", "failed", "model_not_served"),
        ("crashes", "failed", "model_process_ended"),
        ("errs", "failed", "other"),  # a code of its own invention
        ("is silent", "failed", "timeout"),
    ],
)
def test_refusals_are_counted_by_reasons_that_are_words_of_the_program(
    serving: Any, tmp_path: Path, behaviour: str, outcome: str, reason: str
) -> None:
    processes, of = serving(), model(tmp_path, "a", behaviour)

    async def read() -> None:
        async with processes.question("t", of, "complete", {}) as question:
            [_ async for _ in question.parts(1.0)]

    with pytest.raises(Problem):
        asyncio.run(read())
    found = counted(processes)
    assert found["finery_model_questions_total", "complete", outcome] == 1
    assert {key[1] for key in found if key[0] == "finery_model_refusals_total"} == {reason}
    opened = "failed" if behaviour == "ends" else "opened"
    assert found["finery_model_opening_seconds_count", opened] == 1


def test_who_asks_too_much_is_counted_and_so_is_who_goes_away(serving: Any, tmp_path: Path) -> None:
    processes, of = serving(serve_requests=1), model(tmp_path, "a", "breaks off")

    async def two() -> None:
        async with processes.question("t", of, "complete", {}) as question:
            await anext(question.parts(20.0))
            assert counted(processes)["finery_model_processes", "answering"] == 1
            with pytest.raises(Problem):
                await asked(processes, of)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asked(processes, model(tmp_path, "slow", "is silent"))

    asyncio.run(two())
    found = counted(processes)
    assert found["finery_model_questions_total", "complete", "refused"] == 1
    assert found["finery_model_questions_total", "complete", "left"] == 2
    assert {key[1] for key in found if key[0] == "finery_model_refusals_total"} == {"rate_limited"}


def adapter(
    tmp_path: Path, name: str, project: str = "acme", base: bytes = b"weights", behaviour: str = "answers"
) -> PublishedModel:
    """A publication with `merge: false`."""
    made = model(tmp_path, f"{project}-{name}", behaviour)
    place = Path(made.path)
    (place / "base").mkdir()
    (place / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (place / "base/config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (place / "base/model.safetensors").write_bytes(base)
    return PublishedModel(made.id, project, name, "0123abcd", "job-1", made.path)


def test_adapters_of_one_project_on_one_base_have_one_process(serving: Any, tmp_path: Path) -> None:
    known: list[PublishedModel] = []
    processes: ModelProcesses = serving(serve_models=4)
    processes._siblings = lambda project: known
    one, two, other = adapter(tmp_path, "one"), adapter(tmp_path, "two"), adapter(tmp_path, "x", base=b"others")
    theirs = adapter(tmp_path, "one", project="theirs")  # the same base, but another project's
    known += [one, two, other, theirs]
    assert [ask(processes, each, n=number) for number, each in enumerate((one, two, other, theirs, one))] == [*range(5)]
    living = processes.living()
    assert sorted(sorted(each.models) for each in living) == sorted([sorted([one.id, two.id]), [other.id], [theirs.id]])
    assert starts(one) == 1
    assert not (Path(two.path) / "starts").exists()  # it is in the process of the first

    three = adapter(tmp_path, "three")  # published since: all of them get a new process, and the old one ends
    known.append(three)
    assert ask(processes, three, n=7) == 7
    assert ask(processes, two, n=8) == 8
    assert starts(three) == 1
    assert soon(lambda: sorted(map(len, (each.models for each in processes.living()))) == [1, 1, 3])
    processes.forget(two.id)  # which was served beside another
    assert soon(lambda: len(processes.living()) == 2)


def test_a_process_that_another_takes_the_place_of_counts_until_it_ends(serving: Any, tmp_path: Path) -> None:
    processes: ModelProcesses = serving({"acme": 1}, serve_models=4)
    one, two, three = adapter(tmp_path, "one", behaviour="is silent"), adapter(tmp_path, "two"), adapter(tmp_path, "3")
    processes._siblings = lambda project: [one, two]

    async def meanwhile() -> None:
        async with processes.question("t", one, "complete", {}):
            processes._siblings = lambda project: [three, two, one]  # the third is published now
            with pytest.raises(Problem, match="may have 1 processes"):
                await asked(processes, three)

    asyncio.run(meanwhile())
    assert ask(processes, three, n=2) == 2
    assert soon(lambda: len(processes.living()) == 1)


def test_an_adapter_that_cannot_stand_beside_the_others_is_served_alone(serving: Any, tmp_path: Path) -> None:
    processes: ModelProcesses = serving(serve_models=4)
    one, torn = adapter(tmp_path, "one"), adapter(tmp_path, "torn")
    (Path(torn.path) / "torn").touch()
    processes._siblings = lambda project: [one, torn]
    assert ask(processes, one, n=1) == 1
    assert ask(processes, torn, n=2) == 2
    assert [each.models for each in processes.living() if each.model.id == torn.id] == [{torn.id}]
    assert len(processes.living()) == 2


@pytest.mark.parametrize(("isolation", "interpreters"), [(Isolation("landlock"), 1), (NONE, 2)])
def test_isolated_models_have_one_environment_and_others_none_in_common(
    isolation: Isolation, interpreters: int, tmp_path: Path
) -> None:
    executor: Any = SimpleNamespace(isolation=isolation)
    own = own_places("/tmp") if isolation.kept else {}
    given = [bare_environment(tmp_path / name, executor) | own for name in ("one", "other")]
    assert len({environment_key(each) for each in given}) == interpreters
    assert len({each["FINERY_HOME"] for each in given}) == 2


@pytest.mark.long
def test_the_second_isolated_model_is_opened_by_a_fork_of_a_warm_interpreter(tmp_path: Path) -> None:
    isolation = tried("landlock")
    if isinstance(isolation, str) or "namespaces" not in isolation.features:
        pytest.skip(f"this machine does not isolate so: {isolation}")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:  # not below /tmp, where an isolated process has its own
        processes = ModelProcesses(read_settings({}, home=Path(place), isolation="landlock"))
        try:
            for name, warm in (("one", False), ("other", True)):
                folder = Path(place) / "models" / name
                shutil.copytree(writers.folder("gpt2"), folder)
                published = PublishedModel(f"model-{name}", "acme", name, "0123abcd", "job-1", str(folder))
                processes.begin(published)
                process = processes._processes[published.id]
                assert process.ready.result(60)["engine"]
                launcher = Path(f"/proc/{process._handle.record['launcher_pid']}/cmdline").read_bytes()  # type: ignore[union-attr]
                assert (b"service.executors.warm" in launcher) is warm
                kept = processes.executor()._warm._kept
                until(lambda kept=kept: kept and next(iter(kept.values())).ready())
                assert len(kept) == 1
        finally:
            processes.close()
