"""A small byte-level vocabulary, as Llama 3 and Qwen have large ones."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "<|im_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", EOS]
CORPUS = [
    '{"name": "Ada Lovelace", "age": 36, "tags": ["maths", "poetry"], "active": true}',
    '{"city": "Zürich", "temperature": -3.5, "unit": "celsius", "next": null, "ok": false}',
    "The weather in Paris is lovely today, said the quick brown fox; 東京 is further away.",
    '[{"id": 1, "value": 10.25}, {"id": 2, "value": 1e-3}]\n<tool_call>\n</tool_call>',
]


def small_tokenizer(size: int = 500) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def write_tokenizer(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    small_tokenizer().save(str(path))
    return path
