"""The picture of the curves: what is drawn, in words, and the same bytes each time."""

from __future__ import annotations

from pathlib import Path

from pipelines.core.files import write_json
from pipelines.publishing.curves import FILE, write_curves


def test_stages_that_kept_curves_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("text", "$odd_", "still")}
    for folder in (*folders.values(), tmp_path / "out", tmp_path / "again"):
        folder.mkdir()
    write_json(folders["text"] / "curves.json", {"loss": [[2, 7.5], [4, 6.25]], "held_out": {}})
    held_out = {"loss": [[2, 1.0], [4, 0.5]], "accuracy": [[2, 0.5], [4, 0.75]]}
    write_json(folders["$odd_"] / "curves.json", {"loss": [], "held_out": held_out})
    assert write_curves(tmp_path / "out", folders) == (
        "text: training loss from 7.5 to 6.25 at step 4; "
        "$odd_: held-out loss from 1 to 0.5, held-out accuracy from 0.5 to 0.75 at step 4"
    )
    picture = (tmp_path / "out" / FILE).read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(picture[20:24], "big") == 2 * 2.6 * 130  # a panel for each of the two stages
    write_curves(tmp_path / "again", folders)
    assert (tmp_path / "again" / FILE).read_bytes() == picture
    assert write_curves(tmp_path / "still", {"still": folders["still"]}) == ""
    assert not (tmp_path / "still" / FILE).exists()
