"""What every run imports or works out anew and no run changes, done once for all that are forked from here: imported by
the fork server.

The embedded documentation takes seconds to parse, and the hashes of this project's modules a second.
"""

from __future__ import annotations

import gc

gc.disable()  # what is imported stays, and walking over it takes a second

from pkgutil import walk_packages  # noqa: E402

import peft  # noqa: E402, F401

import pipelines  # noqa: E402
import pipelines.models.predict  # noqa: E402
import pipelines.reports.run_page  # noqa: E402
import pipelines.runs.planning.plan  # noqa: E402
import pipelines.runs.run  # noqa: E402
from pipelines.data import builtin  # noqa: E402
from pipelines.runs.fingerprints import code_of  # noqa: E402
from pipelines.runs.warm import import_ahead, modules_of_any_recipe  # noqa: E402

import_ahead(modules_of_any_recipe())
for name in builtin.CONFIGURATIONS:
    for split in ("train", "validation"):
        builtin.PythonDocs(name).content_hash(split)
        builtin.PythonDocs(name).load(split)
code_of(each.name for each in walk_packages(pipelines.__path__, "pipelines.") if not each.name.endswith("__main__"))
gc.collect()
gc.freeze()  # each training run collects three times, and would walk over all of torch and transformers
gc.enable()
