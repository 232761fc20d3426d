"""What every run works out anew and no run changes, made once for all that are forked from here: imported by the fork server.

The embedded documentation takes seconds to parse, and the hashes of this project's modules a second.
"""

from __future__ import annotations

import gc
from pkgutil import walk_packages

import pipelines
from pipelines.data import builtin
from pipelines.runs.fingerprints import code_of

for name in builtin.CONFIGURATIONS:
    for split in ("train", "validation"):
        builtin.PythonDocs(name).content_hash(split)
        builtin.PythonDocs(name).load(split)
code_of(each.name for each in walk_packages(pipelines.__path__, "pipelines.") if not each.name.endswith("__main__"))
gc.collect()
gc.freeze()  # each training run collects three times, and would walk over all of torch and transformers
