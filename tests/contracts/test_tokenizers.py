"""What every trained tokenizer must do."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines.core.errors import DataError
from pipelines.core.registry import TOKENIZERS
from pipelines.data.tokenizers.base import SPECIAL_TOKENS

TEXTS = [
    f"Document {n}: the quick brown fox jumps over {n * n} lazy dogs, isn't it? Über-naïve café “quotes” — 漢字."
    for n in range(200)
]
SIZE = 400


@pytest.fixture(params=list(TOKENIZERS), scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tokenizer(name: str) -> Any:
    return TOKENIZERS.load(name)(name=name).train(iter(TEXTS), SIZE)


def test_it_has_at_most_the_entries_asked_for_with_ids_without_gaps(tokenizer: Any):
    vocabulary = tokenizer.get_vocab()
    assert len(tokenizer) == len(vocabulary) <= SIZE
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(tokenizer.tokenize("the quick brown fox")) <= 5  # frequent words were learnt whole


def test_it_has_every_special_token_an_encoder_needs(tokenizer: Any):
    tokens = (tokenizer.pad_token, tokenizer.unk_token, tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token)
    assert tokens == SPECIAL_TOKENS
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3, 4]
    assert set(tokenizer.all_special_ids) == {0, 1, 2, 3, 4}


def test_texts_begin_and_end_with_the_tokens_that_join_them(tokenizer: Any):
    assert (tokenizer.bos_token, tokenizer.eos_token) == (tokenizer.cls_token, tokenizer.sep_token)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (2, 3)


EXTRA = tuple(f"<extra_id_{number}>" for number in range(20))


def test_extra_special_tokens_come_last_and_leave_the_ids_before_them_alone(name: str, tokenizer: Any, tmp_path: Path):
    from transformers import AutoTokenizer

    longer = TOKENIZERS.load(name)(name=name).train(iter(TEXTS), SIZE + len(EXTRA), extra=EXTRA)
    plain = tokenizer.get_vocab()
    assert longer.get_vocab() == plain | {token: len(plain) + number for number, token in enumerate(EXTRA)}
    assert len(TOKENIZERS.load(name)(name=name).train(iter(TEXTS), SIZE, extra=EXTRA)) <= SIZE
    longer.save_pretrained(tmp_path)
    for each in (longer, AutoTokenizer.from_pretrained(tmp_path)):
        assert set(each.all_special_ids) == {*range(5), *range(len(plain), len(plain) + len(EXTRA))}
        ids = each("the <extra_id_3> fox", add_special_tokens=False)["input_ids"]
        assert ids.count(len(plain) + 3) == 1
        assert [token for token in ids if token < len(plain)] == [
            *_ids(tokenizer, "the "),
            *_ids(tokenizer, " fox", first=False),
        ]
        assert each.decode([len(plain) + 3]) == "<extra_id_3>"
        assert dict(each(TEXTS[0], TEXTS[1])) == dict(tokenizer(TEXTS[0], TEXTS[1]))


def _ids(tokenizer: Any, text: str, first: bool = True) -> list[int]:
    """The ids of a text as it stands at the beginning or behind a special token."""
    ids = tokenizer(text if first else f"[SEP]{text}", add_special_tokens=False)["input_ids"]
    return ids if first else ids[1:]


@pytest.mark.parametrize("extra", [("[MASK]",), ("<a>", "<a>"), ("",), (" x",)])
def test_extra_tokens_that_cannot_be_added_are_one_sentence(name: str, extra: tuple[str, ...]):
    with pytest.raises(DataError, match=r"second time|visible tokens"):
        TOKENIZERS.load(name)(name=name).train(TEXTS, SIZE, extra=extra)


def test_extra_tokens_need_room(name: str):
    with pytest.raises(
        DataError, match=r"vocab_size is 100, must be at least \d+ for this text: .* 90 tokens that the objectives need"
    ):
        TOKENIZERS.load(name)(name=name).train(TEXTS, 100, extra=[f"<x{number}>" for number in range(90)])


def test_texts_and_pairs_are_joined_as_in_bert(tokenizer: Any):
    first, second = "the quick fox", "lazy dogs"
    a, b = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (first, second))
    single, pair = tokenizer(first), tokenizer(first, second)
    assert single["input_ids"] == [2, *a, 3]
    assert single["token_type_ids"] == [0] * (len(a) + 2)
    assert pair["input_ids"] == [2, *a, 3, *b, 3]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert pair["attention_mask"] == [1] * len(pair["input_ids"])


def test_its_texts_have_no_unknown_tokens_and_come_back(tokenizer: Any):
    for text in TEXTS[:20]:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        back = tokenizer.decode(ids, skip_special_tokens=True)
        assert _letters(back).endswith(_letters(text)) or _letters(back) == _letters(_bare(text))


def _letters(text: str) -> str:
    return "".join(text.split())


def _bare(text: str) -> str:
    """Lower case and without accents."""
    import unicodedata

    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")


def test_a_special_token_in_a_text_is_that_token(tokenizer: Any):
    ids = tokenizer("the [MASK] fox", add_special_tokens=False)["input_ids"]
    assert ids.count(tokenizer.mask_token_id) == 1


def test_it_is_saved_and_loaded_by_auto_tokenizer_unchanged(tokenizer: Any, tmp_path: Path):
    from transformers import AutoTokenizer

    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert loaded.model_max_length == 64
    assert loaded.model_input_names == tokenizer.model_input_names
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.padding_side == "right"
    for arguments in ((TEXTS[0],), (TEXTS[0], TEXTS[1])):
        assert dict(loaded(*arguments)) == dict(tokenizer(*arguments))
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert (again / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


TRAIN = """
import sys
sys.path.insert(0, {folder!r})
from pipelines.core.registry import TOKENIZERS
for name in TOKENIZERS:
    TOKENIZERS.load(name)(name=name).train({texts!r}, {size}).save_pretrained({out!r} + "/" + name)
"""


def test_the_same_texts_give_the_same_file_byte_for_byte_in_every_process(tmp_path: Path, repository: Path):
    """Trained here, and in a process with another seed of hashes and two threads (of the library, and of numpy's)."""
    code = TRAIN.format(folder=str(repository), texts=TEXTS, size=SIZE, out=str(tmp_path / "there"))
    environment = os.environ | {
        "TOKENIZERS_PARALLELISM": "true",  # here it is off, and numpy has one thread in a worker
        "PYTHONHASHSEED": "1",
        "RAYON_NUM_THREADS": "2",
        "OMP_NUM_THREADS": "2",
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    for name in TOKENIZERS:
        TOKENIZERS.load(name)(name=name).train(TEXTS, SIZE).save_pretrained(tmp_path / name)
        here, there = (folder / name / "tokenizer.json" for folder in (tmp_path, tmp_path / "there"))
        assert here.read_bytes() == there.read_bytes(), name


@pytest.mark.long
def test_real_text_gives_the_same_file_byte_for_byte_in_every_process(
    name: str, tmp_path: Path, repository: Path, mirror: Path
):
    code = (
        "import sys; sys.path.insert(0, {folder!r})\n"
        "from pipelines.core.registry import TOKENIZERS\nfrom pipelines.data.references import DatasetReference\n"
        "texts = DatasetReference.model_validate({{'path': 'english_novels'}}).rows()[::20]\n"
        "TOKENIZERS.load({name!r})(name={name!r}).train(texts, 8192).save_pretrained({out!r})\n"
    )
    hashes = set()
    for run in range(3):
        out = tmp_path / str(run)
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "true", "FINERY_DATA": str(mirror)}
        filled = code.format(folder=str(repository), name=name, out=str(out))
        subprocess.run([sys.executable, "-c", filled], env=environment, check=True, cwd=tmp_path)
        hashes.add(hashlib.sha256((out / "tokenizer.json").read_bytes()).hexdigest())
    assert len(hashes) == 1


def test_every_key_is_explained(name: str):
    assert {*TOKENIZERS.load(name).model_fields} - {*TOKENIZERS.load(name).descriptions()} <= {"name"}
