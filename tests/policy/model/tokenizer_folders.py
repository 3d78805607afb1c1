"""Small tokenizers of every make, trained on a few sentences, as model folders."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = [
    "The quick brown fox jumps over 12345 lazy dogs, doesn't it? It's 3.14 !",
    "Grüße aus Köln: 50 € für das café . naïve façade",
    "def f(x):\n    return x + 1\n\n\tindented  twice",
    "the the the there their then than that this those",
]
CONTROL = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")
BOS, EOS = "<s>", "</s>"


def byte_level(*, add_prefix_space: bool = False, digits: bool = False) -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.pre_tokenizer = level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=alphabet, special_tokens=list(CONTROL), show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, "12345 " * 9], trainer)
    if digits:  # there are tokens of several, but no text reaches them
        single = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([single, level])
    return tokenizer


def unigram(*, prepend: str = "always") -> Tokenizer:
    """As SentencePiece's own kind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=list(CONTROL), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def pieces(*, by_normalizer: bool = False) -> Tokenizer:
    """As Llama 2, Mistral and Gemma: blanks are marked, and what is unknown is written in bytes."""
    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    learned.train_from_iterator(TEXTS, trainer)
    model = json.loads(learned.to_str())["model"]
    names = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if by_normalizer:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    return tokenizer


def word_pieces() -> Tokenizer:
    """As BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=list(CONTROL), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def words() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=list(CONTROL), show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


MAKES: Mapping[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level, prefixed": lambda: byte_level(add_prefix_space=True),
    "byte level, digits apart": lambda: byte_level(digits=True),
    "unigram": unigram,
    "unigram, first prefixed": lambda: unigram(prepend="first"),
    "unigram, never prefixed": lambda: unigram(prepend="never"),
    "pieces": pieces,
    "pieces, prefixed by normalizer": lambda: pieces(by_normalizer=True),
    "word pieces": word_pieces,
    "words": words,
}


def between(tokenizer: Tokenizer, *, start: bool, end: bool) -> Any:
    """The post-processor that puts a start before a text, an end after it, or both."""
    single = " ".join([BOS] * start + ["$A"] + [EOS] * end)
    ids = [(name, tokenizer.token_to_id(name)) for name in (BOS, EOS)]
    return processors.TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=ids)


SETTINGS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "eos_token": EOS,
    "unk_token": "<unk>",
}


def write(folder: Path, tokenizer: Tokenizer, model_type: str = "llama", **settings: Any) -> Path:
    """A folder with what `AutoTokenizer` asks for; a setting of None is left out."""
    tokenizer.save(str(folder / "tokenizer.json"))
    kept = {key: value for key, value in {**SETTINGS, **settings}.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(kept))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder
