"""Requirements on the command line are a key and a comparison."""

from __future__ import annotations

import pytest

from pipelines.core.errors import CommandError
from service.cli.publish import requirements


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("glue/mrpc.f1=>= 0.8", ">= 0.8"),  # what a shell makes of glue/mrpc.f1=">= 0.8"
        ('glue/mrpc.f1=">= 0.8"', ">= 0.8"),
        ("glue/mrpc.f1>=0.8", ">=0.8"),
        ("glue/mrpc.f1 < 0.8", "< 0.8"),
        ("glue/mrpc.f1==1", "==1"),
        ("glue/mrpc.f1=== 1", "== 1"),
        ("glue/mrpc.f1=<= 1", "<= 1"),
        ("glue/mrpc.f1=0.8", "0.8"),  # refused later, with an example
    ],
)
def test_each_form_is_read(given, expected):
    assert requirements([given]) == {"glue/mrpc.f1": expected}


@pytest.mark.parametrize("given", ["glue/mrpc.f1", ">= 0.8", "", "glue/mrpc.f1="])
def test_what_is_no_requirement_is_one_sentence(given):
    with pytest.raises(CommandError, match="is no requirement"):
        requirements([given])
