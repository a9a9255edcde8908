"""Short word problems made by rule: names, things and numbers drawn, several steps of arithmetic each."""

import random
from collections.abc import Callable

NAMES = (
    "Anna Ben Carla David Elena Farid Grace Hugo Ines Jamal Kira Liam Maya Noah Olga Pablo Quinn Rosa Sam Tara Umar "
    "Vera Will Xenia Yusuf Zoe Aisha Bruno Chen Diego Emma Fatima George Hana Ivan Julia Kofi Lena Marco Nadia Oscar "
    "Priya Ruth Tom"
).split()
THINGS = (
    "apples marbles stickers books pencils cookies stamps tickets roses eggs candles bottles postcards buttons shells "
    "notebooks oranges balloons cards bricks muffins badges coins peaches keys chairs cups tulips jars pens"
).split()
PLACES = (
    "bakery library farm school garden museum bazaar market workshop café bookstore hotel factory zoo gym theatre"
).split()
JOBS = (
    "painting fences,walking dogs,tutoring,washing cars,babysitting,mowing lawns,repairing bikes,cleaning windows"
).split(",")

ENDINGS = (
    "", "", "", "", " Show your steps.", " Explain how you get the answer.", " Think step by step.",
    " Give the final number at the end.", " Please show the calculation.", " Work it out step by step.",
)  # fmt: skip


class Draw:
    """What one problem draws: two different people, two things, numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.a, self.b, self.c = rng.sample(NAMES, 3)
        self.x, self.y = rng.sample(THINGS, 2)
        self.place, self.job = rng.choice(PLACES), rng.choice(JOBS)

    def n(self, low: int, high: int, step: int = 1) -> int:
        return self.rng.randrange(low, high + 1, step)


def _give(d: Draw) -> str:
    n = d.n(20, 90)
    return (
        f"{d.a} has {n} {d.x}. {d.a} gives {d.n(3, n // 3)} of them to {d.b} and {d.n(2, n // 3)} to {d.c}, and then "
        f"buys {d.n(5, 30)} more. How many {d.x} does {d.a} have now?"
    )


def _shop(d: Draw) -> str:
    p, q, m, k = d.n(2, 12), d.n(2, 9), d.n(2, 8), d.n(2, 6)
    paid = (p * m + q * k) // 20 * 20 + 20
    return (
        f"At the {d.place}, {d.x} cost ${p} each and {d.y} cost ${q} each. {d.a} buys {m} {d.x} and {k} {d.y} and "
        f"pays with ${paid}. How much change does {d.a} get?"
    )


def _share(d: Draw) -> str:
    k = d.n(3, 9)
    return (
        f"{d.a} bakes {d.n(3, 8)} trays with {d.n(8, 24)} {d.x} each, eats {d.n(1, 9)} and divides the rest equally "
        f"among {k} friends. How many {d.x} does each friend get, and how many are left over?"
    )


def _twice(d: Draw) -> str:
    times = d.rng.choice(["twice", "three times", "four times", "half"])
    return (
        f"{d.a} has {d.n(6, 40, 2)} {d.x}. {d.b} has {times} as many as {d.a}, and {d.c} has {d.n(2, 15)} more than "
        f"{d.b}. How many {d.x} do they have altogether?"
    )


def _train(d: Draw) -> str:
    return (
        f"A {d.rng.choice(['train', 'bus', 'truck', 'cyclist', 'boat'])} travels at {d.n(12, 120, 4)} km per hour for "
        f"{d.n(2, 5)} hours, rests for {d.n(10, 50, 5)} minutes and then covers another {d.n(20, 180, 10)} km at "
        f"{d.n(10, 90, 10)} km per hour. How long does the whole trip take?"
    )


def _wage(d: Draw) -> str:
    return (
        f"{d.a} earns ${d.n(9, 30)} per hour by {d.job}. Last week {d.a} worked {d.n(2, 6)} hours a day for "
        f"{d.n(3, 6)} days, and spent ${d.n(20, 90, 5)} on food. How much money is left?"
    )


def _save(d: Draw) -> str:
    return (
        f"{d.a} wants to buy a {d.rng.choice(['bicycle', 'guitar', 'camera', 'tent', 'phone'])} for "
        f"${d.n(180, 600, 20)}. {d.a} has ${d.n(30, 150, 10)} and saves ${d.n(10, 40, 5)} every week. How many weeks "
        "will it take?"
    )


def _percent(d: Draw) -> str:
    return (
        f"The {d.place} sells a {d.rng.choice(['jacket', 'lamp', 'table', 'radio', 'backpack', 'watch'])} for "
        f"${d.n(40, 400, 20)}. On Monday the price falls by {d.n(10, 40, 5)}%, and members get another ${d.n(2, 15)} "
        f"off. What does a member pay for {d.n(2, 4)} of them?"
    )


def _area(d: Draw) -> str:
    return (
        f"A rectangular {d.rng.choice(['garden', 'field', 'room', 'yard'])} is {d.n(6, 40)} meters long and "
        f"{d.n(4, 25)} meters wide. A fence costs ${d.n(4, 20)} per meter and grass seed ${d.n(1, 5)} per square "
        "meter. What do fence and seed cost together?"
    )


def _ages(d: Draw) -> str:
    return (
        f"{d.a} is {d.n(3, 15)} years older than {d.b}. {d.b} is {d.rng.choice(['twice', 'three times'])} as old as "
        f"{d.c}, who is {d.n(4, 14)}. How old will {d.a} be in {d.n(2, 12)} years?"
    )


def _boxes(d: Draw) -> str:
    return (
        f"A {d.place} packs {d.x} into boxes of {d.n(6, 24)}. It has {d.n(200, 900)} {d.x}, of which {d.n(5, 40)} are "
        f"broken. Each full box is sold for ${d.n(5, 30)}. How much money do the full boxes bring in?"
    )


def _rows(d: Draw) -> str:
    return (
        f"There are {d.n(8, 24)} rows of {d.n(10, 30)} seats in a theatre. On Friday {d.n(20, 90)} seats stayed "
        f"empty, on Saturday every seat was sold. A ticket costs ${d.n(6, 25)}. How much was earned on both evenings?"
    )


def _recipe(d: Draw) -> str:
    k = d.n(2, 6)
    return (
        f"A recipe for {k} people needs {d.n(100, 600, 50)} grams of flour and {k * d.n(1, 3)} eggs. {d.a} cooks for "
        f"{k * d.n(2, 5)} people and already has {d.n(50, 300, 50)} grams of flour. How much more flour does {d.a} "
        "need?"
    )


def _tank(d: Draw) -> str:
    return (
        f"A tank holds {d.n(200, 900, 20)} liters. One pipe fills it with {d.n(10, 30, 2)} liters per minute while a "
        f"leak loses {d.n(1, 6)} liters per minute. The tank already contains {d.n(20, 120, 10)} liters. When is it "
        "full?"
    )


def _pages(d: Draw) -> str:
    return (
        f"{d.a} reads {d.n(10, 40)} pages of a {d.n(250, 600, 10)}-page book every day from Monday to Friday, and "
        "twice as many on Saturday and on Sunday. How many pages are left after one week?"
    )


def _mean(d: Draw) -> str:
    scores = ", ".join(str(d.n(50, 99)) for _ in range(d.n(3, 5)))
    return (
        f"{d.a}'s scores in the last tests were {scores}. What is the average, and what score in the next test would "
        f"raise it to {d.n(82, 92)}?"
    )


def _fraction(d: Draw) -> str:
    n = d.n(4, 20) * 12
    return (
        f"Of the {n} {d.x} in a box, one {d.rng.choice(['third', 'quarter', 'sixth'])} are red, one half of the rest "
        f"are blue and all others are green. If {d.b} takes {d.n(2, 12)} green ones, how many green {d.x} remain?"
    )


def _plain(d: Draw) -> str:
    a, b, c, e = d.n(3, 99), d.n(3, 99), d.n(2, 12), d.n(1, 60)
    form = d.rng.choice(
        ["({a} + {b}) * {c} - {e}", "{a} * {c} + {b} - {e}", "{a} + {b} * {c}", "({a} - {e}) * {c} + {b}"]
    )
    ask = d.rng.choice(
        ["What is {}?", "Calculate {}.", "Compute {} and explain each step.", "Evaluate the expression {}."]
    )
    return ask.format(form.format(a=a, b=b, c=c, e=e))


def _equation(d: Draw) -> str:
    a, x, b, k = d.n(2, 12), d.n(2, 20), d.n(1, 40), d.n(2, 6)
    return d.rng.choice(
        [
            f"Solve for x: {a}x + {b} = {a * x + b}.",
            f"If {a}x - {b} = {a * x - b}, what is {k}x + {b}?",
            f"The sum of {k} consecutive numbers is {k * x + k * (k - 1) // 2}. What is the smallest of them?",
        ]
    )


def _clock(d: Draw) -> str:
    return (
        f"{d.a} leaves home at {d.n(6, 11)}:{d.n(10, 55, 5)}, walks {d.n(10, 40)} minutes to the {d.place}, stays "
        f"there for {d.n(2, 4)} hours and {d.n(5, 50, 5)} minutes and needs {d.n(10, 50)} minutes to come back. At "
        f"what time is {d.a} home?"
    )


def _farm(d: Draw) -> str:
    return (
        f"A farm has {d.n(10, 60)} hens, and each lays {d.n(3, 6)} eggs a week. The farmer keeps {d.n(6, 20)} eggs "
        f"and sells the rest by the dozen for ${d.n(2, 7)}. How much does the farmer earn in {d.n(2, 8)} weeks?"
    )


def _groups(d: Draw) -> str:
    return (
        f"{d.n(4, 12)} classes with {d.n(18, 30)} pupils each and {d.n(6, 20)} teachers go to the {d.place}. A bus "
        f"has {d.n(30, 60, 5)} seats and costs ${d.n(100, 400, 20)}. How many buses do they need, and what do all "
        "buses cost?"
    )


PROBLEMS: tuple[Callable[[Draw], str], ...] = (
    _give, _shop, _share, _twice, _train, _wage, _save, _percent, _area, _ages, _boxes, _rows, _recipe, _tank, _pages, _mean,
    _fraction, _plain, _equation, _clock, _farm, _groups,
)  # fmt: skip


def problem(rng: random.Random) -> str:
    """One problem, with or without a word on how to answer it."""
    return rng.choice(PROBLEMS)(Draw(rng)) + rng.choice(ENDINGS)
