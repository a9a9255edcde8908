"""Service: what a request has taken of the engine, how well its drafts are accepted, and what it will still take.

Service is the seconds of the rounds in which it ran. While the share of accepted draft tokens still drifts between windows,
nothing is said of the future. Once it is stable, the remaining service is perceptible:

    remaining tokens * service so far / tokens so far
"""

from dataclasses import dataclass, field

from draftwood.core.request import Request

ROUNDS = 8  # of a window
WINDOWS = 3  # that must agree
STABLE = 0.08  # distance of each from their mean, at most; beyond twice as much the future is unknown again
NOISE = 2.0  # standard errors of a window's share that are no drift


@dataclass(slots=True, eq=False)
class Service:
    """Of one request. `order`: of arrival; `since`: when it last ran, or came, on the scheduler's clock."""

    request: Request
    order: int
    since: float
    length: float  # tokens that were expected when it came
    attained: float = 0.0  # seconds
    rounds: int = 0  # in which it decoded
    tokens: int = 0  # that it got from them
    shares: list[float] = field(default_factory=list[float])  # of the last windows
    judged: int = 0  # draft tokens of this window, and accepted ones
    accepted: int = 0
    decoded: int = 0  # rounds of this window
    perceptible: bool = False
    perceived: float | None = None  # service that was expected in all when the future was first known
    lifts: int = 0  # promotions because it waited
    lifted_until: float = 0.0  # attained service up to which they stay

    def decode(self, seconds: float, tokens: int, judged: int, accepted: int) -> None:
        """A round in which it got tokens."""
        self.attained += seconds
        self.rounds += 1
        self.tokens += tokens
        self.judged += judged
        self.accepted += accepted
        self.decoded += 1
        if self.decoded == ROUNDS:
            self._end_window()

    def _end_window(self) -> None:
        share = self.accepted / self.judged if self.judged else 0.0
        self.shares = [*self.shares, share][-WINDOWS:]
        mean = sum(self.shares) / len(self.shares)
        # A window of few draft tokens differs from the mean by chance.
        noise = NOISE * (mean * (1 - mean) / max(self.judged, 1)) ** 0.5
        drift = max(abs(each - mean) for each in self.shares) - noise
        self.judged = self.accepted = self.decoded = 0
        if self.perceptible:
            self.perceptible = drift <= 2 * STABLE
        else:
            self.perceptible = len(self.shares) == WINDOWS and drift <= STABLE

    @property
    def per_token(self) -> float | None:
        """Seconds of service for a token; None before any."""
        return self.attained / self.tokens if self.tokens else None
