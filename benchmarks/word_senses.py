"""Does a word's vector know what the word means here? Cosines of one word in two contexts, by layer.

Made-up sentences, our own: each word has two senses and two sentences for each. By a table of vectors the word is the
same everywhere, so all cosines are 1. By a layer of an encoder, two sentences of one sense should be nearer than two
of different senses: `within` and `between` are mean cosines, `told apart` is the share of the sentences whose nearest
other one has their sense, of which chance gets a third. The word is the mean of its pieces' states.

    python benchmarks/word_senses.py sentence-transformers/all-MiniLM-L6-v2 [another checkpoint …]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.models.predict import device

Floats = NDArray[np.float32]

SENSES: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "bank": (
        ("She paid the cheque into her bank before noon.", "The bank refused to lend the farmer any money."),
        ("They sat on the grassy bank and watched the river.", "The boat ran aground on the muddy bank of the stream."),
    ),
    "bat": (
        ("A small bat flew out of the cave at dusk.", "The bat hung upside down and folded its wings."),
        ("He swung the bat and missed the ball.", "The player leaned on his wooden bat before the match."),
    ),
    "spring": (
        ("The cherry trees bloom every spring.", "After a long winter, spring came with warm rain."),
        ("A broken spring poked through the old mattress.", "The clock stopped because its spring had lost tension."),
    ),
    "match": (
        ("Our team lost the match by two goals.", "The tennis match lasted almost four hours."),
        ("He struck a match and lit the candle.", "One damp match would not start the fire."),
    ),
    "seal": (
        ("The seal dived under the ice for fish.", "A young seal slept on the wet rocks."),
        ("The king pressed his seal into the red wax.", "The letter was closed with the seal of the duke."),
    ),
    "crane": (
        ("A white crane waded through the marsh.", "The crane spread its wings and left the nest."),
        ("The crane lifted steel beams onto the roof.", "A tall crane stood over the building site."),
    ),
    "palm": (
        ("She held the coin in her open palm.", "He wiped the sweat from his palm with a cloth."),
        ("A single palm grew beside the desert well.", "Coconuts fell from the palm in the storm."),
    ),
    "pitcher": (
        ("She filled the pitcher with cold lemonade.", "Water dripped from the cracked clay pitcher."),
        ("The pitcher threw a fast ball at the batter.", "Their best pitcher hurt his arm in the last game."),
    ),
    "organ": (
        ("The church organ played during the wedding.", "He practised a fugue on the old organ."),
        ("The liver is the largest organ inside the body.", "The surgeon removed the damaged organ at once."),
    ),
    "bark": (
        ("The bark of the oak was rough and grey.", "Beetles had eaten tunnels under the bark of the tree."),
        ("The dog gave a loud bark at the stranger.", "We heard a sharp bark from behind the gate."),
    ),
    "mouse": (
        ("The cat chased a grey mouse across the kitchen.", "A mouse had nibbled the cheese in the trap."),
        ("Click the left button of the mouse to open the file.", "My wireless mouse needs a new battery."),
    ),
    "pen": (
        ("She signed the contract with a blue pen.", "The ink of my pen has dried up."),
        ("The sheep were driven back into their pen.", "A pig broke out of the muddy pen at night."),
    ),
}
"""word: (two sentences of one sense), (two of the other)."""


def spans(word: str, sentence: str) -> tuple[int, int]:
    """Where the word stands, in letters."""
    start = sentence.lower().index(word)
    return start, start + len(word)


def vectors_of(checkpoint: str) -> tuple[list[str], Floats]:
    """The layers' names, and (words, senses, sentences, layers, width) of every word."""
    from transformers import AutoModel, AutoTokenizer

    from pipelines.architectures.registration import register

    register()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).to(device()).eval()
    table = model.get_input_embeddings()
    found = []
    for word, senses in SENSES.items():
        for sentence in (each for sense in senses for each in sense):
            encoded = tokenizer(sentence, return_tensors="pt", return_offsets_mapping=True)
            start, end = spans(word, sentence)
            offsets = encoded.pop("offset_mapping")[0].tolist()
            pieces = [at for at, (low, high) in enumerate(offsets) if low < end and high > start and high > low]
            encoded.pop("token_type_ids", None)
            with torch.inference_mode():
                ids = encoded["input_ids"].to(model.device)
                hidden = model(ids, output_hidden_states=True).hidden_states
                static = table(ids)
            width = hidden[-1].shape[-1]
            layers = [static, *hidden[1:]]
            states = [torch.cat([each] * (width // each.shape[-1]), -1)[0, pieces].mean(0) for each in layers]
            found.append(torch.stack(states).float().cpu().numpy())
    names = ["word embeddings", *(f"layer {number}" for number in range(1, len(found[0])))]
    return names, np.stack(found).reshape(len(SENSES), 2, 2, *found[0].shape)


def measured(vectors: Floats) -> tuple[Floats, Floats, float]:
    """Of one layer's vectors (words, senses, sentences, width): mean cosines within and between senses (words,), and
    the share of sentences whose nearest other one has their sense; where several are equally near, their share."""
    normed = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    flat = normed.reshape(len(vectors), 4, -1)
    cosines = flat @ flat.transpose(0, 2, 1)  # (words, 4, 4)
    within = (cosines[:, 0, 1] + cosines[:, 2, 3]) / 2
    between = cosines[:, :2, 2:].mean(axis=(1, 2))
    right = []
    for word in cosines:
        for at in range(4):
            others = [other for other in range(4) if other != at]
            best = max(word[at, other] for other in others)
            nearest = [other for other in others if word[at, other] > best - 1e-6]
            right.append(sum(other // 2 == at // 2 for other in nearest) / len(nearest))
    return within, between, float(np.mean(right))


def interval(values: Floats) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean over the words (words,)."""
    drawn = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def table_of(checkpoint: str) -> list[str]:
    """The lines of a checkpoint's table."""
    names, vectors = vectors_of(checkpoint)
    lines = [f"{checkpoint}: {len(SENSES)} words in 2 senses, 2 sentences each"]
    lines.append(
        f"  {'layer':18s}{'within':>8s}{'between':>9s}{'difference':>12s}{'95 % interval':>19s}{'told apart':>12s}"
    )
    for number, name in enumerate(names):
        within, between, right = measured(vectors[..., number, :])
        low, high = interval(within - between)
        lines.append(
            f"  {name:18s}{within.mean():8.3f}{between.mean():9.3f}{(within - between).mean():12.3f}"
            f"{f'{low:.3f} to {high:.3f}':>19s}{right:12.3f}"
        )
    within, between, _ = measured(vectors[..., -1, :])
    lines.append(f"  {'word, last layer':18s}{'within':>8s}{'between':>9s}{'difference':>12s}")
    for word, one, other in zip(SENSES, within, between, strict=True):
        lines.append(f"  {word:18s}{one:8.3f}{other:9.3f}{one - other:12.3f}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table for each checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", help="folders or Hub names of encoders")
    for checkpoint in parser.parse_args(arguments).checkpoints:
        print("\n".join(table_of(checkpoint)), flush=True)


if __name__ == "__main__":
    main()
