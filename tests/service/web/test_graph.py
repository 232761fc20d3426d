from service.web.stages import HEIGHT, WIDTH, StageView, clipped, graph_of


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
