"""`finery attention`: the attention of a model over a text, as one HTML page and as one PNG.

The page needs no network and no library, and its content policy lets nothing else run. The picture has layers below
each other and heads side by side, one block for each kind of attention.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.core.errors import CommandError, DiskFull, StageError
from pipelines.core.files import JSONObject
from pipelines.models.attention_maps import AttentionMaps, AttentionRequest, AttentionSection, attend

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

PAGE, PICTURE = "attention.html", "attention.png"
STEPS = 65_535
"""Weights are carried as 16-bit numbers: exact to 0.00001."""
DOTS_PER_INCH = 110
SMALL = 1.0
"""Inches of the longer side of a map in the grid."""
LARGE = 7.0
"""Inches of the longer side of a map that stands alone, with its tokens."""
LEAST = 5.4
"""Inches of the narrowest picture: titles need so much."""
MARGIN, HEADING, FOOT = 0.75, 0.62, 0.65
"""Inches left of the maps, above them for their titles, and below all of them for the scale."""
TOKENS = 1.0
"""Inches for the tokens on each axis of a map that stands alone."""
COLOURS = "cividis"
"""Grows lighter evenly, and looks alike to people who see few colours (Nuñez et al. 2018, arxiv.org/abs/1712.01662)."""


def answer(request: JSONObject) -> JSONObject:
    """Compute the maps, write the page and the picture, and say where they lie. Raises FineryError."""
    out = Path(request.get("out", "."))
    if out.exists() and not out.is_dir():
        raise CommandError(f"--out '{out}' is a file; name a folder")
    maps = attend(AttentionRequest(**{name: value for name, value in request.items() if name != "out"}))
    files = write(maps, out)
    return {
        "model": maps.model,
        "family": maps.family,
        **{kind: str(path) for kind, path in files.items()},
        "notes": list(maps.notes),
        "sections": [section.summary() for section in maps.sections],
    }


def write(maps: AttentionMaps, out: Path) -> dict[str, Path]:
    """Write page and picture, each complete or not at all. Raises StageError."""
    made: dict[Path, Path] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, make in ((PAGE, write_page), (PICTURE, write_picture)):
            temporary = out / f".{name}.tmp"
            made[temporary] = out / name
            make(maps, temporary)
        for temporary, path in made.items():
            temporary.replace(path)
    except OSError as error:
        kind = DiskFull if error.errno == errno.ENOSPC else StageError
        raise kind(f"'{out}' cannot be written: {error.strerror or error}; name another folder with --out") from None
    finally:
        for temporary in made:
            temporary.unlink(missing_ok=True)
    return {"html": out / PAGE, "png": out / PICTURE}


def write_page(maps: AttentionMaps, path: Path) -> None:
    """Write the page."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(maps))
        file.flush()
        os.fsync(file.fileno())


def page(maps: AttentionMaps) -> str:
    """The page as text. Styles and script are named in its policy by their SHA-256; nothing else may run or load."""
    from jinja2 import Environment, StrictUndefined

    folder = resources.files(__package__ or "").joinpath("templates")
    style, script, template = (
        folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("attention.css", "attention.js", "attention.html.jinja")
    )
    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    summaries = [section.summary() for section in maps.sections]
    return environment.from_string(template).render(
        model=maps.model,
        family=maps.family,
        text=maps.text,
        notes=maps.notes,
        sections=summaries,
        single=len(summaries) == 1,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_json([_data(section, summary) for section, summary in zip(maps.sections, summaries, strict=True)]),
    )


def _data(section: AttentionSection, summary: dict[str, Any]) -> JSONObject:
    """What the script draws: tokens, and the weights as base64 of little-endian 16-bit numbers, map after map."""
    import numpy as np

    steps = np.rint(np.clip(section.weights, 0.0, 1.0) * STEPS).astype("<u2")
    return summary | {"weights": base64.b64encode(steps.tobytes()).decode("ascii")}


def _json(data: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def write_picture(maps: AttentionMaps, path: Path) -> None:
    """Draw every section below the one before it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = [_inches(section) for section in maps.sections]
    edges = [TOKENS if _alone(section) else 0.0 for section in maps.sections]
    width = max(LEAST, *(MARGIN + edge + across + 0.3 for (across, _), edge in zip(sizes, edges, strict=True)))
    caption = _caption(maps, width)
    top = 0.45 + 0.2 * len(caption)
    height = top + sum(HEADING + down + edge + 0.15 for (_, down), edge in zip(sizes, edges, strict=True)) + FOOT
    figure = Figure(figsize=(width, height), dpi=min(DOTS_PER_INCH, 30_000 / max(width, height)))
    FigureCanvasAgg(figure)
    figure.text(
        0.15 / width, 1 - 0.3 / height, f"Attention of {_plain(maps.model)}", size=12, weight="bold", parse_math=False
    )
    for number, line in enumerate(caption):
        figure.text(0.15 / width, 1 - (0.52 + 0.2 * number) / height, line, size=8.5, color="0.3", parse_math=False)
    at = height - top
    image: AxesImage | None = None
    for section, (across, down), edge in zip(maps.sections, sizes, edges, strict=True):
        figure.text(0.15 / width, (at - 0.28) / height, section.title, size=10, weight="bold", parse_math=False)
        at -= HEADING + down
        axes = figure.add_axes(((MARGIN + edge * 0.5) / width, at / height, across / width, down / height))
        image = _draw_one(axes, section) if _alone(section) else _draw_grid(axes, section)
        at -= edge + 0.15
    assert image is not None
    _draw_scale(figure, image, width, height)
    _save(figure, path)


def _draw_grid(axes: Axes, section: AttentionSection) -> AxesImage:
    """All maps as one mosaic of (layers * rows, heads * columns) points."""
    import numpy as np

    layers, heads, rows, columns = section.weights.shape
    gap = max(1, round(max(rows, columns) * 0.06))
    mosaic = np.full((layers * (rows + gap) - gap, heads * (columns + gap) - gap), np.nan)
    for layer in range(layers):
        for head in range(heads):
            top, left = layer * (rows + gap), head * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = _shares(section.weights[layer, head])
    image = axes.imshow(mosaic, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    axes.set_xticks(
        [head * (columns + gap) + (columns - 1) / 2 for head in range(heads)],
        [f"head {each}" for each in section.heads],
        size=8,
    )
    axes.set_yticks(
        [layer * (rows + gap) + (rows - 1) / 2 for layer in range(layers)],
        [f"layer {each}" for each in section.layers],
        size=8,
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_frame_on(False)
    return image


def _draw_one(axes: Axes, section: AttentionSection) -> AxesImage:
    """One map with its tokens."""
    weights = section.weights[0, 0]
    image = axes.imshow(_shares(weights), cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    size = max(4.0, min(9.0, 320 / max(weights.shape)))
    axes.set_xticks(
        range(len(section.keys)), [_label(each) for each in section.keys], size=size, rotation=90, parse_math=False
    )
    axes.set_yticks(
        range(len(section.queries)), [_label(each) for each in section.queries], size=size, parse_math=False
    )
    axes.set_title(
        f"layer {section.layers[0]}, head {section.heads[0]}: largest weight {weights.max():.3f}", size=8.5, color="0.3"
    )
    return image


def _shares(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each weight as a share of the largest of its row: else a causal decoder's first token, which sees one,
    outshines all."""
    import numpy as np

    shares: NDArray[np.float32] = weights / np.maximum(weights.max(axis=-1, keepdims=True), 1e-12)
    return shares


def _draw_scale(figure: Figure, image: AxesImage, width: float, height: float) -> None:
    axes = figure.add_axes((0.15 / width, 0.3 / height, 1.6 / width, 0.1 / height))
    bar = figure.colorbar(image, cax=axes, orientation="horizontal")
    bar.set_ticks([0, 1], labels=["0", "largest"], size=7)
    bar.outline.set_visible(False)
    figure.text(
        1.95 / width,
        0.31 / height,
        "weight, of its row's largest; rows look, columns are looked at",
        size=7.5,
        color="0.3",
    )


def _save(figure: Figure, path: Path) -> None:
    import warnings

    with warnings.catch_warnings(), open(path, "wb") as file:
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a letter without a glyph is drawn as a box
        figure.savefig(file, format="png", metadata={"Software": "finery"})


def _alone(section: AttentionSection) -> bool:
    return bool(section.weights.shape[0] * section.weights.shape[1] == 1)


def _inches(section: AttentionSection) -> tuple[float, float]:
    """Width and height of a section's maps, in the proportions of their tokens."""
    layers, heads, rows, columns = section.weights.shape
    side = (LARGE if _alone(section) else SMALL) / max(rows, columns)
    across, down = max(side * columns, 0.45), max(side * rows, 0.3)
    if _alone(section):
        across, down = max(across, 2.0), max(down, 1.5)
    return across * heads, down * layers


def _caption(maps: AttentionMaps, width: float) -> list[str]:
    """The text, cut at three lines, and the notes."""
    import textwrap

    letters = int(width * 14.5)
    text = textwrap.wrap(_plain(maps.text), letters, max_lines=3, placeholder=" …")
    return [*text, *(line for note in maps.notes for line in textwrap.wrap(note, letters))]


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _label(token: str) -> str:
    return _plain(token) if len(token) <= 16 else f"{_plain(token[:15])}…"
