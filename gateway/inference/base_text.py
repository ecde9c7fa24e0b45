"""What one base's files say about text: its tokenizer, its chat template, how it sees images, how
its tokens are chosen where nobody says."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gateway.inference.calling import CallSupport
from gateway.inference.prompt import Prompts
from gateway.inference.public import PublicBeginnings
from gateway.inference.recommended import Recommended, read_recommended
from gateway.inference.sampling import UNSAID
from gateway.inference.sight import Sight
from gateway.inference.template import ChatTemplate
from gateway.inference.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseText:
    tokenizer: Tokenizer
    prompts: Prompts
    calls: CallSupport
    public: PublicBeginnings
    sight: Sight | None
    unsaid: Recommended

    @classmethod
    async def load(
        cls,
        model_dir: Path,
        *,
        tokenising: Executor,
        looking: Executor,
        call_style: str,
        public: Sequence[str],
        recommended: bool,
    ) -> Self:
        """``public``: system prompts whose KV all projects share; ``recommended``: whether the
        checkpoint says how tokens are chosen. Raises TokenizerInvalid or ConfigError.
        """
        tokenizer = Tokenizer.load(model_dir)
        template = ChatTemplate.load(model_dir, tokenizer.named_tokens)
        sight = Sight.of(model_dir, looking)
        placeholder = None if sight is None else sight.seeing.token
        prompts = Prompts(tokenizer, template, tokenising, placeholder=placeholder)
        return cls(
            tokenizer=tokenizer,
            prompts=prompts,
            calls=CallSupport(template, call_style),
            public=await PublicBeginnings.of_system(public, prompts),
            sight=sight,
            unsaid=read_recommended(model_dir) if recommended else UNSAID,
        )
