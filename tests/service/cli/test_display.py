import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from service.cli.progress import OnTerminal, Plain, Progress, number, render

START = datetime(2026, 11, 21, 10, tzinfo=UTC)
STAGES = [("pretrain", "pretrain"), ("mrpc", "supervised"), ("evaluate", "evaluate"), ("publish", "publish")]


def event(at, kind, stage, /, **fields):
    return {"time": (START + timedelta(seconds=at)).isoformat(), "event": kind, "stage": stage} | fields


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
    progress = Progress(STAGES)
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
    events = [*HALFWAY, event(90, "checkpoint", "mrpc", step=331), event(90, "stopped", "mrpc", message="stopped")]
    assert drawn(progress_of(events))[1].split(maxsplit=2)[2] == "stopped, saved at step 331"


def test_names_of_stages_are_not_read_as_markup():
    progress = Progress([("[bold]x[/bold]", "pretrain")])
    assert "[bold]x[/bold]" in drawn(progress)[0]


def test_plain_lines_come_once_for_a_start_and_an_end_and_every_ten_seconds_between():
    out, now = io.StringIO(), 0.0
    plain = Plain(out, clock=lambda: now)
    progress = Progress(STAGES)
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
    plain = Plain(out)
    progress = progress_of([{"event": "warning", "message": "mind the gap"}])
    plain.update(progress)
    plain.update(progress)
    assert out.getvalue() == "warning: mind the gap\n"


def test_the_live_display_leaves_its_last_state_and_the_warnings_on_the_screen():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with OnTerminal(console) as display:
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
