"""`finery schema`: the JSON Schema of a recipe, made once for this code and kept in FINERY_HOME.

Making it imports every block of every registry and reads the docstring below each of their fields, which takes the
better part of a second; editors ask for it whenever they start. What is kept is named for the code that it describes:
paths, sizes and times of all files of `pipelines`, and those of pydantic, which writes schemas.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pipelines.core import files
from pipelines.core.files import home, whole_file


def schema() -> str:
    """The schema as JSON text. It is made anew where it cannot be kept or is not there."""
    folder = home() / "schema"
    kept = folder / f"{code()}.json"
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    from pipelines.core.recipe import schema as described

    text = json.dumps(described(), indent=2, ensure_ascii=False)
    with suppress(OSError):  # a home that may not be written, a full disk: it is printed all the same
        folder.mkdir(parents=True, exist_ok=True)
        for older in folder.glob("*.json"):
            older.unlink()
        with whole_file(kept) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return text


def code() -> str:
    """A name for the code that a schema describes."""
    digest = hashlib.sha256(sys.version.encode())
    pydantic = find_spec("pydantic")
    for root in (Path(files.__file__).parents[1], Path(str(pydantic and pydantic.origin)).parent):
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(each for each in folders if each != "__pycache__")
            for file in sorted(names):
                path = os.path.join(folder, file)
                status = os.stat(path)
                digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:32]
