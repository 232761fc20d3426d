from service.jobs.job import Event, Job, JobRequest
from service.jobs.states import State
from service.store.results import StageResult
from service.web.stages import HEIGHT, WIDTH, StageView, clipped, graph_of, planned, stages_of
from tests.service.web.seeding import RECIPE

TEXT = RECIPE.format(name="mrpc", rank=8)


def job(state=State.RUNNING, recipe=TEXT, progress=None):
    return Job("job-1", JobRequest(recipe, "team"), state, 0.0, 0.0, progress=progress or {})


def event(number, kind, stage=None, **fields):
    return Event("job-1", number, 0.0, kind, stage, None, fields)


def states(found):
    return {view.id: view.state for view in found}


def test_the_plan_says_what_reads_what_and_on_what_each_stage_works():
    found = {view.id: view for view in planned(TEXT)}
    assert list(found) == ["model", "pretrain", "full", "lora", "evaluate-full", "evaluate-lora", "publish"]
    assert found["model"].detail == "bert-mini"
    assert found["lora"].reads == ("pretrain",)
    assert found["evaluate-lora"].reads[0] == "lora"
    assert found["lora"].detail == "glue/mrpc · lora"


def test_a_recipe_that_names_uploads_and_other_jobs_can_be_planned_without_them():
    text = (
        "name: x\nmodel: {checkpoint: 'job:earlier'}\nstages: [{stage: pretrain, datasets: [{path: 'file:file-1'}]}]\n"
    )
    assert [view.id for view in planned(text)] == ["model", "pretrain"]


def test_a_recipe_that_cannot_be_read_has_no_plan():
    assert planned("{") == ()
    assert planned("- 1") == ()


def test_stages_follow_their_events():
    events = [
        event(1, "started", "tokenizer"),
        event(2, "stage_finished", "tokenizer", seconds=7.5, reused=True),
        event(3, "started", "pretrain"),
    ]
    found = stages_of(job(progress={"stage": "pretrain", "step": 30, "total": 120, "what": "training"}), events, [])
    assert states(found)["tokenizer"] == "reused"
    pretrain = next(view for view in found if view.id == "pretrain")
    assert (pretrain.state, pretrain.share, pretrain.what) == ("running", 0.25, "training")
    assert states(found)["full"] == "waiting"


def test_the_stage_that_ran_when_the_job_ended_is_told_by_how_it_ended():
    events = [event(1, "started", "pretrain")]
    assert states(stages_of(job(State.FAILED), events, []))["pretrain"] == "failed"
    assert states(stages_of(job(State.CANCELLED), events, []))["pretrain"] == "stopped"
    assert states(stages_of(job(State.QUEUED), events, []))["pretrain"] == "waiting"


def test_a_kept_result_outlives_its_events():
    result = StageResult("job-1", "full", "attempt-1", "ff", 12.0, False, {"train_loss": 0.3}, 0.0)
    found = next(view for view in stages_of(job(), [], [result]) if view.id == "full")
    assert (found.state, found.seconds, found.metrics) == ("done", 12.0, {"train_loss": 0.3})


def view(name, *reads, **more):
    return StageView(name, "supervised", reads, **more)


def test_a_stage_stands_right_of_everything_it_reads_and_no_two_overlap():
    graph = graph_of(
        [
            view("model"),
            view("pretrain", "model"),
            view("full", "pretrain"),
            view("lora", "pretrain"),
            view("evaluate", "full"),
            view("other", "model"),
        ]
    )
    at = {node.view.id: node for node in graph.nodes}
    for node in graph.nodes:
        assert all(at[source].x + WIDTH < node.x for source in node.view.reads)
        assert node.x + WIDTH <= graph.width
        assert node.y + HEIGHT <= graph.height
    assert len({(node.x, node.y) for node in graph.nodes}) == 6
    assert len(graph.edges) == 5


def test_what_is_read_by_way_of_another_stage_has_no_edge_of_its_own():
    graph = graph_of(
        [view("model"), view("lora", "model"), view("evaluate", "lora"), view("publish", "lora", "evaluate")]
    )
    assert len(graph.edges) == 3


def test_an_unknown_source_is_left_out_and_nothing_at_all_is_fine():
    assert graph_of([view("full", "never")]).edges == ()
    assert graph_of([]).nodes == ()


def test_the_bar_is_as_long_as_the_share_that_is_done():
    node = graph_of([view("full", state="running", step=25, total=100)]).nodes[0]
    assert node.bar == WIDTH // 4


def test_long_names_end_in_an_ellipsis():
    assert clipped("x" * 30, 10) == "xxxxxxxxx…"
