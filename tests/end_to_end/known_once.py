"""What every run imports or works out anew and no run changes, done once for all that are forked from here: imported by
the fork server.

The embedded documentation takes seconds to parse, and the hashes of this project's modules a second.
"""

from __future__ import annotations

import gc
from pkgutil import walk_packages

import pipelines
from pipelines.data import builtin
from pipelines.runs.fingerprints import code_of
from pipelines.runs.warm import import_ahead, modules_of_any_recipe

import_ahead(modules_of_any_recipe())
for name in builtin.CONFIGURATIONS:
    for split in ("train", "validation"):
        builtin.PythonDocs(name).content_hash(split)
        builtin.PythonDocs(name).load(split)
code_of(each.name for each in walk_packages(pipelines.__path__, "pipelines.") if not each.name.endswith("__main__"))
gc.collect()
gc.freeze()  # each training run collects three times, and would walk over all of torch and transformers
