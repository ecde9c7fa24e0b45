"""The texts of every base that a gateway serves, and what reads requests by them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Self

from gateway.config import Settings
from gateway.fleet.fleet import Fleet
from gateway.inference.base_text import BaseText
from gateway.inference.grammars import GrammarCheck
from gateway.inference.intake import Intake, Names
from gateway.inference.intakes import Intakes
from gateway.inference.tokenization import Tokenization
from gateway.inference.tokenizer import Tokenizer

TOKENISING_THREADS = LOOKING_THREADS = 2


class BaseTexts:
    """Belongs to one event loop; its threads and grammars end with the stack it was loaded in."""

    def __init__(
        self, settings: Settings, texts: Mapping[str, BaseText], grammars: GrammarCheck
    ) -> None:
        """``texts``: by served name, the first base first."""
        self._settings, self._texts, self._grammars = settings, texts, grammars
        self.first = next(iter(texts.values()))

    @classmethod
    async def load(cls, settings: Settings, stack: AsyncExitStack) -> Self:
        """Raises TokenizerInvalid or ConfigError."""
        tokenising = ThreadPoolExecutor(TOKENISING_THREADS, thread_name_prefix="tokenise")
        looking = ThreadPoolExecutor(LOOKING_THREADS, thread_name_prefix="look")
        stack.enter_context(tokenising)
        stack.enter_context(looking)
        folders = {settings.served_model_name: settings.model_dir}
        folders |= {base.name: base.model_dir for base in settings.other_bases}
        texts = {
            name: await BaseText.load(
                folder,
                tokenising=tokenising,
                looking=looking,
                call_style=settings.tool_call_parser,
                public=settings.public_system_prompts,
                recommended=settings.generation_config == "auto",
            )
            for name, folder in folders.items()
        }
        grammars = GrammarCheck()
        stack.callback(grammars.close)
        return cls(settings, texts, grammars)

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        return {name: text.tokenizer for name, text in self._texts.items()}

    def text_of(self, base: str, tokens: Sequence[int]) -> str:
        return self._texts.get(base, self.first).tokenizer.text(tokens)

    def intakes(self, names: Names, fleet: Fleet) -> Intakes:
        return Intakes(
            names, {name: self._intake(text, names, fleet) for name, text in self._texts.items()}
        )

    def tokenization(self, names: Names, fleet: Fleet) -> Tokenization:
        others = {
            name: Tokenization(names, text.prompts, fleet, text.sight)
            for name, text in self._texts.items()
            if text is not self.first
        }
        return Tokenization(names, self.first.prompts, fleet, self.first.sight, others=others)

    def _intake(self, text: BaseText, names: Names, fleet: Fleet) -> Intake:
        return Intake(
            names,
            text.prompts,
            fleet,
            grammars=self._grammars,
            calls=text.calls,
            deadline_ms=int(self._settings.request_timeout_s * 1000),
            priority_tier=self._settings.priority_tier,
            public=text.public,
            sight=text.sight,
            unsaid=text.unsaid,
        )
