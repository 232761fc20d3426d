"""Word2vec by gensim: vectors with which a word foretells its neighbours, or they foretell it.

Mikolov et al. 2013, "Efficient Estimation of Word Representations in Vector Space", arxiv.org/abs/1301.3781 (the two
ways), and "Distributed Representations of Words and Phrases", arxiv.org/abs/1310.4546 (negative samples, and leaving
out frequent words). One worker and a seed give the same vectors every time.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from pipelines.evaluation.features.word_vectors import CorpusFile, StaticVectors, WordVectors, pause

if TYPE_CHECKING:
    from pipelines.core.interfaces import Context

PACKAGE = "gensim"


class Word2Vec(StaticVectors):
    """The mean of word2vec vectors, trained here or read from a file."""

    name: Literal["word2vec"] = "word2vec"
    algorithm: Literal["skip_gram", "cbow"] = "skip_gram"
    """`skip_gram`: a word foretells each neighbour. `cbow`: the mean of its neighbours foretells it."""
    negative: int = Field(5, ge=1, le=1000)
    """Random words that each true neighbour is told apart from."""
    sample: float = Field(1e-3, ge=0, lt=1)
    """Words of a larger share of the text are left out at random; 0 leaves none out."""
    learning_rate: float = Field(0.025, gt=0)
    """At the start; it falls to a 250th."""

    def content(self) -> dict[str, str]:
        from importlib.metadata import PackageNotFoundError, version

        if self.vectors is not None:
            return super().content()
        try:
            return {**super().content(), PACKAGE: version(PACKAGE)}
        except PackageNotFoundError:
            return super().content()

    def unavailable_reason(self) -> str | None:
        if self.vectors is None and find_spec(PACKAGE) is None:
            return "need the package gensim to be trained; install it: pip install 'finery[features]'"
        return None

    def train(self, corpus: CorpusFile, context: Context) -> WordVectors:
        """Skip-gram or CBOW with negative samples."""
        from gensim.models import Word2Vec as Trainer
        from gensim.models.callbacks import CallbackAny2Vec

        class Epochs(CallbackAny2Vec):  # type: ignore[misc]
            """Progress, and a place to stop at."""

            done = 0

            def on_epoch_end(self, model: Any) -> None:
                self.done += 1
                context.events.emit("progress", step=self.done, total=model.epochs, what="word2vec")
                pause(context)

        model = Trainer(
            vector_size=self.size,
            window=self.window,
            sg=int(self.algorithm == "skip_gram"),
            negative=self.negative,
            sample=self.sample,
            alpha=self.learning_rate,
            min_alpha=self.learning_rate / 250,
            min_count=1,  # the corpus's own counts decide
            seed=context.seed,
            workers=1,
        )
        model.build_vocab_from_freq(dict(corpus.counts), corpus_count=sum(1 for _ in corpus.sequences()))
        model.train(
            corpus_file=str(corpus.path),
            total_words=corpus.words,
            total_examples=model.corpus_count,
            epochs=self.epochs,
            callbacks=[Epochs()],
        )
        return WordVectors(list(model.wv.index_to_key), model.wv.vectors, {"size": self.size, "words": corpus.words})
