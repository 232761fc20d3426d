"""With mapped weights ours write what the published models write: greedy and beam search, with a cache."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from tests.covering import by_turns

from .references import REFERENCES, VOCAB
from .test_parity_with_references import stirred, with_weights_of

WRITERS = ("gpt", "gpt2", "llama", "qwen3", "mistral", "bloom", "t5", "t5-1.1", "bart", "marian")
UNPADDED = ("gpt",)
"""GPT has no cache in transformers and counts the places of padding."""


@pytest.mark.parametrize(("name", "num_beams"), by_turns(WRITERS, (1, 3)))
@torch.no_grad()
def test_it_writes_what_the_reference_writes(name: str, num_beams: int) -> None:
    reference = REFERENCES[name]
    torch.manual_seed(0)
    theirs = stirred(reference.build())
    ours = with_weights_of(theirs, reference, "sdpa")
    decoder = reference.fields["family"] == "decoder"

    tokens = torch.randint(5, VOCAB, (3, 6), generator=torch.Generator().manual_seed(11))
    mask = torch.ones_like(tokens)
    if name not in UNPADDED:
        mask[1, :2] = 0
        mask[2, :4] = 0
        if not decoder:
            mask = mask.flip(1)
    pad = reference.fields["pad_token_id"] or 0
    settings = GenerationConfig(
        max_new_tokens=9,
        num_beams=num_beams,
        do_sample=False,
        pad_token_id=pad,
        bos_token_id=None,
        eos_token_id=4,
        decoder_start_token_id=reference.fields.get("decoder_start_token_id"),
        output_scores=True,
        return_dict_in_generate=True,
        no_repeat_ngram_size=1,  # small random models would say the same word again and again
    )
    prompt = {"input_ids": tokens.masked_fill(mask == 0, pad), "attention_mask": mask}
    expected, found = (
        model.generate(**prompt, generation_config=settings, use_cache=use_cache)
        for model, use_cache in ((theirs, name not in UNPADDED), (ours, True))
    )
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert len(found.scores) == len(expected.scores)
    for ours_here, theirs_here in zip(found.scores, expected.scores, strict=True):
        torch.testing.assert_close(ours_here, theirs_here, rtol=0, atol=1e-4)
    written = expected.sequences[:, -9:]
    assert len(written.unique()) >= 9
