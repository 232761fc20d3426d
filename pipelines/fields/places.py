"""Where the files that come with Finery lie: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path


def configs_folder() -> Path:
    """The folder with `architectures/`, `recipes/`, `smoke/` and `launch/`. Raises FileNotFoundError."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "configs", package.parent / "configs"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the folder configs/ is neither in {package} nor beside it: install Finery again")


def presets() -> dict[str, Path]:
    """Every named architecture with its file."""
    return {file.stem: file for file in sorted((configs_folder() / "architectures").glob("*.yaml"))}
