"""Texts are compared token by token, whatever holds them."""

import random

from draftwood.core.common_prefix import common_prefix


def test_it_is_the_number_of_equal_tokens_before_the_first_difference() -> None:
    rng = random.Random(2)
    for _ in range(300):
        a = [rng.randrange(2) for _ in range(rng.randrange(60))]
        b = [*a[: rng.randrange(len(a) + 1)], *(rng.randrange(2) for _ in range(rng.randrange(30)))]
        right = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        for one in (a, tuple(a)):
            for other in (b, tuple(b)):
                assert common_prefix(one, other) == right
