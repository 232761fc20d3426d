"""What `run` gives to a training stage, as the tests of the trainers have it."""

from tests.pipelines.trainers.conftest import context, events

__all__ = ["context", "events"]
