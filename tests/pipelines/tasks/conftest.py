"""What `run` gives to a training stage, as the tests of the trainers have it, and to an evaluate stage."""

from tests.classifiers import evaluation_context, tokenizer
from tests.pipelines.trainers.conftest import context, events

__all__ = ["context", "evaluation_context", "events", "tokenizer"]
