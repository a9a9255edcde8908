"""Summary: the figures of a results log's answers, by method, by task and overall.

Tokens per second is the mean over questions of each question's own speed, and a speed-up is a ratio of two such means, as
Spec-Bench defines it. Tokens per pass is a micro-average: all tokens over all passes. Time per token belongs to an answer
(first to last token, over the tokens between); its percentiles are over answers. A failed answer has no speed: it is
counted, and a ratio holds the number of questions that both methods answered.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from draftwood.bench.spec.answer import DIFFERS, IDENTICAL, NEAR, UNJUDGED, Answer
from draftwood.bench.statistics import mean, mean_by_group, percentile, ratio_of_means

ALL = "overall"


def figures(answers: Sequence[Answer], methods: Sequence[str], baseline: str, *, seed: int = 0) -> dict[str, Any]:
    """{"overall" or a task: {method: its figures, with its speed-up over `baseline`}}."""
    tasks = list(dict.fromkeys(a.task for a in answers))
    found: dict[str, Any] = {}
    for task in (ALL, *tasks):
        part = [a for a in answers if task in (ALL, a.task)]
        found[task] = {
            name: {**_method([a for a in part if a.method == name]), "speed_up": ratio(part, name, baseline, seed=seed)}
            for name in methods
        }
    return found


def answer_speed(answer: Answer) -> float:
    return answer.speed


def prompt_speed(answer: Answer) -> float:
    return answer.prompt_speed


def ratio(
    answers: Sequence[Answer],
    method: str,
    other: str,
    *,
    seed: int = 0,
    speed: Callable[[Answer], float] = answer_speed,
) -> dict[str, Any] | None:
    """method's mean speed over other's, with its interval, over the questions that both answered."""
    speeds = [
        {a.question: speed(a) for a in answers if a.method == name and a.good and a.emitted} for name in (method, other)
    ]
    both = [question for question in speeds[0] if question in speeds[1]]
    made = ratio_of_means([speeds[0][q] for q in both], [speeds[1][q] for q in both], seed=seed)
    asked = {a.question for a in answers}
    return None if made is None else {**asdict(made), "left_out": len(asked) - made.pairs}


def best(found: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The fastest of these methods by mean speed over all questions."""
    speeds = {n: found[ALL][n]["tokens_per_second"] for n in names if found[ALL][n]["tokens_per_second"] is not None}
    return max(speeds, key=lambda n: speeds[n], default=None)


def _method(answers: Sequence[Answer]) -> dict[str, Any]:
    good = [a for a in answers if a.good]
    each = [t for a in good if (t := a.per_token) is not None]
    counted = [a for a in good if a.passes]
    status = Counter(a.status for a in good)
    same = [a.same_text for a in good if a.same_text is not None]
    return {
        "questions": len(answers),
        "failures": len(answers) - len(good),
        "tokens": sum(a.emitted for a in good),
        "seconds": sum(a.seconds for a in good),
        "tokens_per_second": mean([a.speed for a in good]),
        "tokens_per_second_interval": asdict(mean_by_group([a.speed for a in good], range(len(good))))
        if good
        else None,
        "decode_tokens_per_second": mean([1 / t for t in each]),
        "prompt_tokens_per_second": mean([a.prompt_speed for a in good]),
        "first_token_seconds_median": percentile([a.first_seconds for a in good], 50),
        "token_seconds_p50": percentile(each, 50),
        "token_seconds_p99": percentile(each, 99),
        "tokens_per_pass": _over(sum(a.emitted for a in counted), sum(a.passes or 0 for a in counted)),
        **_acceptance(good),
        "shares": _shares(good),
        "identical": status[IDENTICAL],
        "near_ties": status[NEAR],
        "different": status[DIFFERS],
        "not_judged": status[UNJUDGED],
        "compared": sum(a.compared for a in good),
        "exact_share": _over(status[IDENTICAL] + status[NEAR], status[IDENTICAL] + status[NEAR] + status[DIFFERS]),
        "same_text_share": _over(sum(same), len(same)),
        "rounds": _sums([a.rounds for a in good]),  # that accepted all, some, none of their draft
    }


def _acceptance(answers: Sequence[Answer]) -> dict[str, Any]:
    known = [a for a in answers if a.drafted is not None and a.accepted is not None]
    drafted, accepted = sum(a.drafted or 0 for a in known), sum(a.accepted or 0 for a in known)
    levels = [_sums([getattr(a, f"{kind}_by_position") for a in answers]) for kind in ("drafted", "accepted")]
    reached = [*levels[1], *[0] * (len(levels[0]) - len(levels[1]))]
    return {
        "drafted": drafted if known else None,
        "accepted": accepted if known else None,
        "acceptance": _over(accepted, drafted),
        "acceptance_by_position": [_over(a, d) for a, d in zip(reached, levels[0], strict=False)],
    }


def _sums(lists: Sequence[Sequence[int]]) -> list[int]:
    """Sums by position, of lists of different lengths."""
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]


def _shares(answers: Sequence[Answer]) -> dict[str, float]:
    """Share of the decoding time by part; the remainder is "other"."""
    timed = [a for a in answers if a.parts and a.decode_seconds > 0]
    whole = sum(a.decode_seconds for a in timed)
    parts = {
        name: sum(a.parts.get(name, 0.0) for a in timed) for name in dict.fromkeys(n for a in timed for n in a.parts)
    }
    if not whole:
        return {}
    known = sum(seconds for name, seconds in parts.items() if name != "draft")  # draft passes are part of propose
    return {**{name: seconds / whole for name, seconds in parts.items()}, "other": max(0.0, 1 - known / whole)}


def _over(a: float, b: float) -> float | None:
    return a / b if b else None
