import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from service.cli.progress import PlainLines, RunOnTerminal, RunProgress, duration, number, render

START = datetime(2026, 11, 21, 10, tzinfo=UTC)


def event(at, kind, stage=None, /, **fields):
    record = {"id": 1, "time": (START + timedelta(seconds=at)).isoformat(), "event": kind}
    return record | ({"stage": stage} if stage else {}) | fields


def after(*events, stages=(("pretrain", "pretrain"), ("mrpc", "supervised"))):
    progress = RunProgress(stages)
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


STAGES = [("pretrain", "pretrain"), ("mrpc", "supervised"), ("evaluate", "evaluate"), ("publish", "publish")]
HALFWAY = [
    event(0, "started", "pretrain"),
    event(0, "metric", "pretrain", step=100, metrics={"loss": 4.2051}),
    event(72, "stage_finished", "pretrain", seconds=72.4, reused=False),
    event(72, "started", "mrpc"),
    event(73, "metric", "mrpc", step=300, metrics={"loss": 0.51234}),
    event(73, "progress", "mrpc", step=300, total=690),
    event(83, "progress", "mrpc", step=320, total=690),
]


def progress_of(events):
    progress = RunProgress(STAGES)
    for each in events:
        progress.apply(each)
    return progress


def drawn(progress, width=100, unicode=True):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(progress, unicode))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_one_line_a_stage_says_how_far_it_is():
    lines = drawn(progress_of(HALFWAY))
    assert lines[0].split() == ["✓", "pretrain", "done", "in", "1:12", "loss", "4.21"]
    # 20 steps in 10 s: 2 a second; 370 are left, 185 s
    assert lines[1].startswith(" ●  mrpc")
    assert lines[1].endswith("320/690  loss 0.512  2 steps/s  3:05 left")
    assert [line.split() for line in lines[2:]] == [["·", "evaluate", "queued"], ["·", "publish", "queued"]]


def test_a_narrow_terminal_still_gets_one_line_a_stage():
    lines = drawn(progress_of(HALFWAY), width=50)
    assert len(lines) == 4
    assert all(len(line) <= 50 for line in lines)
    assert "320/690" in lines[1]


def test_a_terminal_without_unicode_gets_plain_signs():
    assert all(line.isascii() for line in drawn(progress_of([HALFWAY[0], HALFWAY[2]]), unicode=False))


def test_between_two_stages_the_next_one_is_starting():
    lines = drawn(progress_of(HALFWAY[:3]))
    assert lines[1].split() == ["●", "mrpc", "starting"]
    assert lines[2].split() == ["·", "evaluate", "queued"]


def test_an_evaluation_ends_with_its_scores_and_a_publication_without_its_checks():
    lines = drawn(
        progress_of(
            [
                event(
                    0, "metric", "evaluate", step=408, metrics={"glue/mrpc.accuracy": 0.8456, "glue/mrpc.f1": 0.8931}
                ),
                event(1, "stage_finished", "evaluate", seconds=1.0, reused=False),
                event(2, "metric", "publish", step=408, metrics={"verification.rows": 408}),
                event(3, "stage_finished", "publish", seconds=2.0, reused=False),
            ]
        )
    )
    assert lines[2].endswith("glue/mrpc accuracy 0.846 f1 0.893")
    assert lines[3].split() == ["✓", "publish", "done", "in", "2.0", "s"]


def test_a_stopped_stage_says_from_where_it_will_go_on():
    events = [
        *HALFWAY,
        event(90, "checkpoint", "mrpc", step=331),
        event(90, "stopped", "mrpc", message="stopped"),
    ]
    assert drawn(progress_of(events))[1].split(maxsplit=2)[2] == "stopped, saved at step 331"


def test_names_of_stages_are_not_read_as_markup():
    progress = RunProgress([("[bold]x[/bold]", "pretrain")])
    assert "[bold]x[/bold]" in drawn(progress)[0]


def test_plain_lines_come_once_for_a_start_and_an_end_and_every_ten_seconds_between():
    out, now = io.StringIO(), 0.0
    plain = PlainLines(out, clock=lambda: now)
    progress = RunProgress(STAGES)
    for each in HALFWAY[:3]:
        progress.apply(each)
        plain.update(progress)
        plain.update(progress)
    for each in HALFWAY[3:]:
        progress.apply(each)
        plain.update(progress)
    now = 9.9
    plain.update(progress)
    assert out.getvalue().splitlines() == ["pretrain: started", "pretrain: done in 1:12, loss 4.21", "mrpc: started"]
    now = 10.0
    plain.update(progress)
    plain.update(progress)
    assert out.getvalue().splitlines()[3:] == ["mrpc: 320/690, loss 0.512, 2 steps/s, 3:05 left"]


def test_warnings_are_said_once():
    out = io.StringIO()
    plain = PlainLines(out)
    progress = progress_of([{"event": "warning", "message": "mind the gap"}])
    plain.update(progress)
    plain.update(progress)
    assert out.getvalue() == "warning: mind the gap\n"


def test_the_live_display_leaves_its_last_state_and_the_warnings_on_the_screen():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with RunOnTerminal(console) as display:
        display.update(progress_of([*HALFWAY, {"event": "warning", "message": "rows are cut [sic]"}]))
    shown = console.file.getvalue()
    assert "warning: rows are cut [sic]" in shown
    assert "320/690" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.84561, "0.846"),
        (4.2051, "4.21"),
        (87.25, "87.2"),
        (1234.5, "1,234.5"),
        (-0.02, "-0.020"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_show_three_digits(value, text):
    assert number(value) == text
