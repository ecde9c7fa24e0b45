"""The money of one running request: paid for in blocks, ahead of need, never beyond a budget.

The engine may generate so many tokens as were paid for; before they end it asks for more. When no
more money is to be had the answer ends where its money does, and says why.
"""

from collections.abc import Sequence

from engine.protocol import Output
from gateway.errors import GatewayError
from gateway.limits.lease import Demand, Lease, Limiter, More, Price

FIRST_BLOCK = 128  # output tokens of each choice that are paid for at admission
STEP = 256  # output tokens that are paid for at a time from then on


class Purse:
    """What was paid for each prompt's choices together, and what came of it. Of one request."""

    def __init__(self, limiter: Limiter, lease: Lease, demand: Demand, *, prompts: int) -> None:
        assert demand.price is not None, "admission refuses what has no price"
        self._limiter, self._lease = limiter, lease
        self._price: Price = demand.price
        self._demand = demand
        self._held = lease.money
        self._most = demand.most // prompts  # of one prompt
        paid = min(self._paid_tokens(), demand.most)
        share, rest = divmod(paid, prompts)
        self._granted = [share + (position < rest) for position in range(prompts)]
        self._spent = [0] * prompts
        self._wanted = [0] * prompts  # as engines asked last
        self._refused = [False] * prompts  # the engine knows that no more comes
        self.why: More | None = None  # once an answer had to end

    def granted(self, position: int) -> int:
        """Output tokens that this prompt's choices may generate so far."""
        return self._granted[position]

    def wants(self, position: int, outputs: Sequence[Output]) -> bool:
        """Call with all that arrives. True: ``pay``, for more is needed soon."""
        wanted, spent = 0, self._spent[position]
        for output in outputs:
            spent += len(output.tokens) + (output.stop_token is not None)
            if output.wants is not None:
                wanted = max(wanted, output.wants)
        self._spent[position], self._wanted[position] = spent, wanted
        granted = self._granted[position]
        if granted >= self._most:
            return False
        return spent >= granted or (wanted > granted and not self._refused[position])

    def counts(self, position: int, outputs: Sequence[Output]) -> bool:
        """As ``wants``, of outputs that ask for nothing and after which nothing has to be paid for
        yet. False: they were not counted."""
        spent = self._spent[position]
        for output in outputs:
            spent += len(output.tokens)
        if spent >= self._granted[position] < self._most:
            return False
        self._spent[position] = spent
        return True

    def covers(self, position: int) -> bool:
        """All that this prompt's choices could ever generate."""
        return self._granted[position] >= self._most

    async def pay(self, position: int) -> int | None:
        """Returns the new total to grant, if there is one.

        ``ended`` is true from then on where no more can be paid for.
        """
        granted = self._granted[position]
        dry = self._spent[position] >= granted
        total = min(self._most, max(self._wanted[position], granted + STEP))
        return await self._pay(position, total - granted, dry=dry)

    def ended(self, position: int) -> bool:
        """Everything that was paid for is used, and there is no more money."""
        granted = self._granted[position]
        return self._refused[position] and granted < self._most and self._spent[position] >= granted

    async def _pay(self, position: int, tokens: int, *, dry: bool) -> int | None:
        want = self._cost_of(tokens)
        if want == 0:  # output is free, or paid for by rounding
            self._granted[position] += tokens
            return self._granted[position]
        try:
            more = await self._limiter.extend(
                self._lease, held=self._held, want=want, least=max(1, self._cost_of(1))
            )
        except GatewayError as error:
            more = More(0, error.detail_code or "", error.message)
        if more.nano == 0:
            self._refused[position] = True
            if dry:
                self.why = more
            return None
        self._refused[position] = False
        before = self._paid_tokens()
        self._held += more.nano
        self._granted[position] += min(tokens, self._paid_tokens() - before)
        return self._granted[position]

    def _cost_of(self, tokens: int) -> int:
        """What so many tokens cost beyond those that are paid for."""
        paid = self._paid_tokens() if self._price.output else 0
        demand = self._demand
        return max(0, self._price.worst(demand.prompt, paid + tokens + demand.slack) - self._held)

    def _paid_tokens(self) -> int:
        """Output tokens that what is held pays for, whatever the prompt cost."""
        if self._price.output == 0:
            return self._demand.most
        left = self._held * 1000 - self._price.worst(self._demand.prompt, 0) * 1000
        return max(0, left // self._price.output - self._demand.slack)
