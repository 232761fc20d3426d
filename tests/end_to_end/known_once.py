"""What every run imports or works out anew and no run changes, done once for all that are forked from here: imported by
the fork server.

The embedded documentation takes seconds to parse, and the hashes of this project's modules a second.
"""

from __future__ import annotations

import gc

gc.disable()  # what is made here stays, and walking over it takes seconds

from importlib import import_module  # noqa: E402
from pkgutil import walk_packages  # noqa: E402

import pipelines  # noqa: E402
from pipelines.data import builtin  # noqa: E402
from pipelines.runs.fingerprints import code_of  # noqa: E402
from pipelines.runs.warm import import_ahead, modules_of_any_recipe  # noqa: E402

for name in (
    "pipelines.runs.run",
    "pipelines.models.opening",
    "pipelines.trainers.trainer",
    "pipelines.evaluation.evaluate",
    "pipelines.models.predict",
    "pipelines.reports.run_page",
    "pipelines.runs.planning.plan",
    "peft",
):
    import_module(name)
import_ahead(modules_of_any_recipe())
for name in builtin.CONFIGURATIONS:
    for split in ("train", "validation"):
        builtin.PythonDocs(name).content_hash(split)
        builtin.PythonDocs(name).load(split)
code_of(each.name for each in walk_packages(pipelines.__path__, "pipelines.") if not each.name.endswith("__main__"))
gc.collect()
gc.freeze()  # each training run collects three times, and would walk over all of torch and transformers
gc.set_threshold(50_000)  # as `python -m pipelines` does
gc.enable()
