"""Whether a drafting checkpoint means by its tokens what the base means by them."""

import json
from pathlib import Path

from engine.errors import CheckpointInvalid
from engine.models.spec import ModelSpec


def require_same_tokens(draft: Path, drafts: ModelSpec, base: Path, spec: ModelSpec) -> None:
    """Raises CheckpointInvalid, which names the first difference.

    Models of one family pad their vocabularies differently: sizes may differ where both
    tokenizers are there and agree.
    """
    ours, theirs = _tokens(draft), _tokens(base)
    if ours is not None and theirs is not None:
        for token, number in sorted(theirs.items(), key=lambda item: item[1]):
            if ours.get(token) != number:
                found = f"numbers it {ours[token]}" if token in ours else "lacks it"
                raise CheckpointInvalid(
                    f"{draft}: token {token!r} is {number} in {base}, but its tokenizer {found}; a "
                    "draft model needs the vocabulary of the base"
                )
        extra = sorted(ours.keys() - theirs.keys(), key=ours.__getitem__)
        if extra:
            raise CheckpointInvalid(
                f"{draft}: its tokenizer has {extra[0]!r}, which {base} lacks; a draft model needs "
                "the vocabulary of the base"
            )
        return
    if drafts.vocab_size != spec.vocab_size:
        raise CheckpointInvalid(
            f"{draft}: vocab_size={drafts.vocab_size}; expected {spec.vocab_size}, as {base} has: "
            "a draft model needs the vocabulary of the base"
        )


def _tokens(checkpoint: Path) -> dict[str, int] | None:
    """None where nobody says what the tokens spell."""
    file = checkpoint / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = found["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: pieces and scores
            vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
        added = {token["content"]: token["id"] for token in found.get("added_tokens", ())}
        return {str(token): int(number) for token, number in (vocabulary | added).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointInvalid(f"{file}: not a readable tokenizer ({error})") from error
