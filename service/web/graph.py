"""The stages as a drawing: columns by how far they are from the model, curves from what is read to what reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from service.web.stages import StageView

WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 184, 54, 44, 16, 4
"""Of a box, the gaps between boxes, and the space around all, in the drawing's own units."""
LETTERS = 24


@dataclass(frozen=True)
class Node:
    """A stage at its place."""

    view: StageView
    x: int
    y: int

    @property
    def bar(self) -> int:
        """Length of its progress bar."""
        return round(WIDTH * (self.view.share or 0))

    @property
    def name(self) -> str:
        return clipped(self.view.id)

    @property
    def detail(self) -> str:
        return clipped(self.view.detail or self.view.kind, LETTERS + 5)


@dataclass(frozen=True)
class Graph:
    """All nodes, the edges as SVG paths, and the size of the whole."""

    nodes: tuple[Node, ...]
    edges: tuple[str, ...]
    width: int
    height: int


def clipped(text: str, letters: int = LETTERS) -> str:
    """The text, or its start and an ellipsis."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def graph_of(views: Sequence[StageView]) -> Graph:
    """A layered drawing of a directed graph without cycles; a stage that names a later or unknown one is drawn without that edge."""
    depth: dict[str, int] = {}
    for view in views:
        depth[view.id] = 1 + max((depth[source] for source in view.reads if source in depth), default=-1)
    columns: dict[int, int] = {}
    nodes: dict[str, Node] = {}
    edges = []
    reached: dict[str, set[str]] = {}
    for view in views:
        reached[view.id] = {source for direct in view.reads for source in (direct, *reached.get(direct, ()))}
        column = depth[view.id]
        row = columns.get(column, 0)
        columns[column] = row + 1
        node = Node(view, MARGIN + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN))
        edges += [_edge(nodes[source], node) for source in _direct(view, reached) if source in nodes]
        nodes[view.id] = node
    width = (max(columns, default=0) + 1) * (WIDTH + ACROSS) - ACROSS + 2 * MARGIN
    height = max(columns.values(), default=1) * (HEIGHT + DOWN) - DOWN + 2 * MARGIN
    return Graph(tuple(nodes.values()), tuple(edges), width, height)


def _direct(view: StageView, reached: Mapping[str, set[str]]) -> list[str]:
    """What it reads, without what it reads by way of another one too: that edge would only cross the others."""
    return [source for source in view.reads if not any(source in reached.get(other, ()) for other in view.reads if other != source)]


def _edge(source: Node, target: Node) -> str:
    x1, y1 = source.x + WIDTH, source.y + HEIGHT // 2
    x2, y2 = target.x, target.y + HEIGHT // 2
    bend = max(12, (x2 - x1) // 2)
    return f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
