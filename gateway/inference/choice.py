"""One choice of an answer, from the engine's tokens to text that may be shown.

Tokens past a stop string are neither shown nor billed. The token in which a stop string ends is
the last one billed. Stop strings are not looked for in the first ``min_tokens`` tokens.
"""

from collections.abc import Sequence

import msgspec

from engine.protocol import Finish, Output, TokenLogprobs, Usage
from gateway.inference.call_reader import CallDelta, CallReader
from gateway.inference.detokenize import Detokenizer
from gateway.inference.logprobs import TokenChance, finite
from gateway.inference.stop import StopSearch, StopStrings
from gateway.inference.tokenizer import Tokenizer

REASONS = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.GRANT: "length"}


class Delta(msgspec.Struct):
    """What one choice gained. Empty text and no reason: nothing to send."""

    text: str = ""
    chances: Sequence[TokenChance] = ()
    finish: str | None = None
    why: dict[str, str] | None = None  # more about the reason
    calls: tuple[CallDelta, ...] = ()
    tokens: Sequence[int] = ()  # where they are wanted as numbers
    embedding: bytes = b""  # float32, where the prompt is wanted as a vector
    prompt: Sequence[TokenLogprobs] | None = None  # of the prompt's tokens but the first
    plain: bool = False  # text, and nothing else


class Choice:
    """Belongs to one request. Feed it every Output of its index, in order."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        *,
        stops: StopStrings | None = None,
        shows_stop: bool = False,
        shows_special: bool = False,
        shows_tokens: bool = False,
        min_tokens: int = 0,
        offset: int = 0,
        reader: CallReader | None = None,
        spelled: Sequence[str] = (),
    ) -> None:
        """``offset``: characters shown before the first token, where a prompt is echoed.
        ``shows_stop``: what stops the text, a string or a token of its own, is part of it.
        ``shows_special``: so are control tokens.
        ``shows_tokens``: its deltas have the tokens too, the one that stops it included.
        ``reader``: takes calls out of the text; None: there are none.
        ``spelled``: control tokens that show in any case, for the reader."""
        self.index = index
        self._detokenizer = Detokenizer(tokenizer, special=shows_special, spelled=spelled)
        self._search = StopSearch(stops, shown=shows_stop) if stops else None
        self._shows_stop = shows_stop
        self._shows_tokens = shows_tokens
        self._tokens: list[int] = []  # received and not yet shown
        self._reader = reader
        self._min_tokens = min_tokens
        self._decoded = self._shown = offset  # characters
        self._chances: list[TokenChance] = []  # of tokens not yet shown
        self._received = 0  # tokens, up to and with the one that completed a stop string
        self._logprob = 0.0  # of all tokens received
        self._usage: Usage | None = None
        self.finish: str | None = None

    @property
    def completion_tokens(self) -> int:
        """What is billed: the engine's count unless a stop string cut the text."""
        if self._usage is None or (self._search and self._search.found):
            return self._received
        return self._usage.completion_tokens

    @property
    def mean_logprob(self) -> float:
        """Per token, where log-probabilities were asked for: how likely the choice was."""
        return self._logprob / max(self._received, 1)

    @property
    def usage(self) -> Usage | None:
        return self._usage

    def feed(self, output: Output) -> Delta:
        """An output that ends in no reason of OpenAI's (an error, say) leaves ``finish`` None."""
        if output.usage is not None:
            self._usage = output.usage
        if self.finish is not None:
            return Delta()  # past a stop string
        if self._search is None and output.logprobs is None:
            text = self._detokenizer.feed(output.tokens)
            self._tokens += output.tokens if self._shows_tokens else ()
            self._received += len(output.tokens)
            self._decoded += len(text)
        else:
            text = self._feed_each(output.tokens, output.logprobs)
        if self._search and self._search.found:
            self.finish = "stop"
        elif output.finish is not None:
            self.finish = REASONS.get(output.finish)
            text += self._flush(output.stop_token)
            if self._shows_tokens and output.stop_token is not None:
                self._tokens.append(output.stop_token)
            if self._search and self._search.found:
                self.finish = "stop"
        return self._delta(text)

    def gain(self, tokens: Sequence[int]) -> str:
        """Feed tokens of which text is wanted and nothing is looked for in it."""
        text = self._detokenizer.feed(tokens)
        self._received += len(tokens)
        self._decoded += len(text)
        self._shown += len(text)
        return text

    def cut(self, why: dict[str, str]) -> Delta:
        """It ends here, although it could go on: nothing pays for more."""
        self.finish = "length"
        delta = self._delta(self._flush())
        delta.why = why
        return delta

    def _feed_each(self, tokens: list[int], logprobs: list[TokenLogprobs] | None) -> str:
        shown = ""
        for position, token in enumerate(tokens):
            text = self._detokenizer.feed((token,))
            if self._shows_tokens:
                self._tokens.append(token)
            if logprobs is not None:
                self._chances.append(TokenChance(token, self._decoded, logprobs[position]))
                self._logprob += finite(logprobs[position].logprob)
            self._received += 1
            self._decoded += len(text)
            if self._search is None or self._received <= self._min_tokens:
                shown += text
                continue
            shown += self._search.feed(text)
            if self._search.found:
                break
        return shown

    def _flush(self, stop_token: int | None = None) -> str:
        text = ""
        if self._shows_stop and stop_token is not None:
            text = self._detokenizer.feed((stop_token,))
        text += self._detokenizer.flush()
        self._decoded += len(text)
        if self._search is None:
            return text
        shown = self._search.feed(text)
        return shown if self._search.found else shown + self._search.flush()

    def _delta(self, text: str) -> Delta:
        """Log-probabilities go with the text of their token, so a stop string cuts both."""
        self._shown += len(text)
        delta = Delta(text, self._due() if self._chances else (), self.finish)
        if self._tokens and (text or self.finish):
            delta.tokens, self._tokens = self._tokens, []
        return delta if self._reader is None else self._read(delta, self._reader)

    def _read(self, delta: Delta, reader: CallReader) -> Delta:
        parts = [reader.feed(delta.text)]
        if self.finish is not None:
            parts.append(reader.flush())
            if self.finish == "stop" and reader.called:
                self.finish = delta.finish = "tool_calls"
        delta.text = "".join(part.text for part in parts)
        delta.calls = tuple(call for part in parts for call in part.calls)
        return delta

    def _due(self) -> list[TokenChance]:
        """Log-probabilities whose tokens' text is out."""
        cut = self._search is not None and self._search.found
        ended = self.finish is not None and not cut
        due = [c for c in self._chances if ended or c.offset < self._shown]
        self._chances = [] if self.finish else self._chances[len(due) :]
        return due
