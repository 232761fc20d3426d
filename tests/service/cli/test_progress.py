from datetime import UTC, datetime, timedelta

import pytest

from service.cli.progress import Progress, duration

START = datetime(2026, 11, 21, 10, tzinfo=UTC)


def event(at, kind, stage=None, /, **fields):
    record = {"id": 1, "time": (START + timedelta(seconds=at)).isoformat(), "event": kind}
    return record | ({"stage": stage} if stage else {}) | fields


def after(*events, stages=(("pretrain", "pretrain"), ("mrpc", "supervised"))):
    progress = Progress(stages)
    for each in events:
        progress.apply(each)
    return progress


def test_stages_wait_until_they_start():
    assert [stage.status for stage in after().stages.values()] == ["queued", "queued"]


def test_speed_and_time_left_come_from_the_times_of_the_events():
    # 10 steps at second 1, 40 at second 7: 30 steps in 6 s = 5 a second; 60 are left, which takes 12 s
    stage = after(
        event(0, "started", "mrpc"),
        event(1, "progress", "mrpc", step=10, total=100),
        event(7, "progress", "mrpc", step=40, total=100),
    ).stages["mrpc"]
    assert (stage.status, stage.step, stage.total) == ("running", 40, 100)
    assert stage.speed == pytest.approx(5.0)
    assert stage.remaining == pytest.approx(12.0)
    assert stage.fraction == pytest.approx(0.4)


def test_steps_done_before_a_resume_do_not_count_as_speed():
    stage = after(
        event(0, "started", "mrpc"),
        event(1, "progress", "mrpc", step=500, total=600, what="resumed"),
        event(2, "progress", "mrpc", step=501, total=600),
        event(4, "progress", "mrpc", step=505, total=600),
    ).stages["mrpc"]
    assert stage.speed == pytest.approx(2.0)  # 4 steps in 2 s, not 505 in 4


def test_another_thing_that_is_counted_starts_a_new_speed_and_total():
    stage = after(
        event(0, "progress", "evaluate", step=0, total=1000, what="glue/mrpc validation"),
        event(1, "progress", "evaluate", step=900, total=1000, what="glue/mrpc validation"),
        event(2, "progress", "evaluate", step=10, total=50, what="glue/rte validation"),
    ).stages["evaluate"]
    assert stage.speed is None
    assert (stage.step, stage.total, stage.what) == (10, 50, "glue/rte validation")


def test_what_is_being_done_is_told_while_nothing_is_counted():
    stage = after(event(0, "started", "pretrain"), event(1, "progress", "pretrain", what="packing text")).stages[
        "pretrain"
    ]
    assert (stage.what, stage.step, stage.fraction) == ("packing text", None, None)


def test_a_metric_tells_the_position_only_where_no_progress_does():
    alone = after(event(0, "started", "mrpc"), event(1, "metric", "mrpc", step=20, metrics={"loss": 0.5})).stages[
        "mrpc"
    ]
    assert (alone.step, alone.loss) == (20, 0.5)
    both = after(
        event(0, "progress", "mrpc", step=30, total=60), event(1, "metric", "mrpc", step=20, metrics={"loss": 0.5})
    ).stages["mrpc"]
    assert (both.step, both.total, both.loss) == (30, 60, 0.5)


def test_a_loss_that_is_no_number_is_shown_as_such():
    stage = after(event(0, "metric", "mrpc", step=1, metrics={"loss": "nan"})).stages["mrpc"]
    assert stage.loss != stage.loss


def test_finished_and_reused_stages_are_told_apart():
    progress = after(
        event(0, "stage_finished", "pretrain", seconds=0.01, reused=True),
        event(1, "started", "mrpc"),
        event(9, "stage_finished", "mrpc", seconds=8.0, reused=False),
        event(9, "finished", seconds=9.0),
    )
    assert [(stage.status, stage.seconds) for stage in progress.stages.values()] == [("reused", 0.01), ("done", 8.0)]
    assert (progress.outcome, progress.seconds, progress.current) == ("finished", 9.0, None)


@pytest.mark.parametrize("kind", ["failed", "stopped"])
def test_an_end_that_is_no_success_marks_the_running_stage(kind):
    progress = after(event(0, "started", "pretrain"), event(3, kind, message="the disk is full", reason="disk_full"))
    assert progress.stages["pretrain"].status == kind
    assert progress.stages["pretrain"].seconds == pytest.approx(3.0)
    assert progress.stages["mrpc"].status == "queued"
    assert (progress.outcome, progress.message, progress.reason) == (kind, "the disk is full", "disk_full")
    assert progress.failed_stage == ("pretrain" if kind == "failed" else None)


def test_a_run_that_ends_without_a_word_does_not_look_as_if_it_went_on():
    progress = after(event(0, "started", "mrpc"))
    progress.break_off("failed")
    assert (progress.stages["mrpc"].status, progress.current, progress.failed_stage) == ("failed", None, "mrpc")


def test_a_stage_that_the_recipe_does_not_list_stands_where_it_happens():
    progress = after(event(0, "started", "tokenizer"))
    assert list(progress.stages) == ["tokenizer", "pretrain", "mrpc"]


def test_work_of_no_stage_is_shown_until_a_stage_starts():
    progress = after(event(0, "started", name="x"), event(1, "progress", what="looking", step=1, total=2))
    assert progress.preparing is not None
    assert progress.preparing.what == "looking"
    progress.apply(event(2, "started", "pretrain"))
    assert progress.preparing is None


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"event": "unheard_of"},
        {"event": "progress"},
        {"event": "metric", "stage": "mrpc", "time": "noon"},
        {"event": "metric", "stage": "mrpc", "metrics": [1]},
        {"event": "stage_finished"},
        {"event": "checkpoint", "stage": 3},
    ],
)
def test_events_of_a_newer_version_do_no_harm(strange):
    assert [stage.status for stage in after(strange).stages.values()] == ["queued", "queued"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1:00"), (187, "3:07"), (7509, "2:05:09")],
)
def test_durations_read_as_on_a_clock(seconds, text):
    assert duration(seconds) == text
