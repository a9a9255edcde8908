"""bench quality: the error of a backend against float32 of the same weights, on texts of no data set.

User turns are built-in questions and turns that the float32 model samples; it answers them, half greedily, half by
sampling. Then both models read the same texts and predict every token of the answers from the tokens before it. Texts of
the backend itself are not used: after one different token two texts cannot be compared.
"""

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.bench.micro.target_pass import chain, flat
from draftwood.bench.statistics import Ratio, ratio_of_means
from draftwood.core.config import EngineConfig
from draftwood.core.protocols import Runner
from draftwood.core.sampling.params import SamplingParams
from draftwood.errors import EngineError
from draftwood.llm import LLM
from draftwood.models.loading.load import Loaded
from draftwood.runners.open import runner_of
from draftwood.train.data.chat_turns import shared_prefix

GREEDY, SAMPLED, OVERALL = "greedy", "sampled", "overall"
SLOTS = 8  # texts that are generated together
TURN_TOKENS = 48
PART = 64  # positions whose distributions are in memory at once

TURNS: tuple[str, ...] = tuple(
    tomllib.loads(files("draftwood.bench.study").joinpath("turns.toml").read_text("utf-8"))["turns"]
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt by the chat template and an answer of the float32 model."""

    kind: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """One text under both models: sums over the positions of its answer."""

    kind: str
    positions: int
    reference: float  # -log p(answer) under float32
    backend: float
    agree: int  # positions where the most probable token is the same
    divergence: float  # sum of KL(float32 || backend)
    difference: float  # largest distance of two logits


@dataclass(frozen=True, slots=True)
class Quality:
    """The figures of one kind of text. Perplexities are per token of the answers."""

    kind: str
    texts: int
    positions: int
    reference: float
    backend: float
    ratio: Ratio  # backend's perplexity over float32's, paired over texts
    agreement: float
    divergence: float  # mean KL(float32 || backend), nats
    difference: float

    def misses(self, most: float, least: float) -> list[str]:
        """The limits that are missed. NaN misses every limit."""
        said: list[str] = []
        if not self.ratio.value <= most:
            said.append(f"perplexity is {self.ratio.value:.4f} times that of float32, at most {most:g} is allowed")
        if not self.agreement >= least:
            said.append(f"top-1 agreement is {self.agreement:.2%}, at least {least:.2%} is wanted")
        return said


def write_texts(
    reference: Loaded, count: int, max_tokens: int, seed: int = 0, *, say: Say = lambda _: None
) -> list[Text]:
    """`count` texts: two of three turns are built in while they last, the others sampled; every other answer is greedy."""
    llm = LLM(reference, "autoregressive", config=EngineConfig(max_num_seqs=min(SLOTS, count)))
    ours = TURNS[: -(-2 * count // 3)]
    drawn = SamplingParams(temperature=1.0, max_tokens=TURN_TOKENS, min_tokens=4)
    seeds = [replace(drawn, seed=seed + i) for i in range(count - len(ours))]
    made = _write(llm, [before_a_turn(llm)] * len(seeds), seeds, "turns", say)
    turns = [*ours, *(llm.tokenizer.decode(ids) for ids in made)]
    prompts = [tuple(llm.chat_prompt(turn)) for turn in turns]
    kinds = [GREEDY if i % 2 == 0 else SAMPLED for i in range(count)]
    params = [
        SamplingParams(temperature=0.0 if kind == GREEDY else 1.0, max_tokens=max_tokens, seed=seed + i)
        for i, kind in enumerate(kinds)
    ]
    answers = _write(llm, prompts, params, "answers", say)
    return [Text(kind, prompt, answer) for kind, prompt, answer in zip(kinds, prompts, answers, strict=True)]


def before_a_turn(llm: LLM) -> tuple[int, ...]:
    """The tokens of a chat before the user's first word: the common prefix of two conversations with different words."""
    return tuple(shared_prefix(llm.chat_prompt("yes"), llm.chat_prompt("No")))


def _write(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], what: str, say: Say
) -> list[tuple[int, ...]]:
    requests = [llm.request(p, each) for p, each in zip(prompts, params, strict=True)]
    for request in requests:
        llm.engine.add(request)
    while llm.engine.has_work:
        if llm.engine.step():
            done = sum(request.finished for request in requests)
            say(f"{llm.loaded.info.backend} wrote {done}/{len(requests)} {what}")
    for request in requests:
        if request.finish_reason == "error":
            raise EngineError(f"the float32 model could not generate its texts: {request.error}")
    return [tuple(request.output) for request in requests]


def compare(reference: Loaded, backend: Loaded, texts: Sequence[Text], *, say: Say = lambda _: None) -> list[Quality]:
    """Greedy texts, sampled texts, and all of them together; kinds without a text are left out."""
    if reference.fingerprint != backend.fingerprint:
        raise ValueError(f"{backend.name} has other weights than {reference.name}")
    scores: list[Score] = []
    for i, text in enumerate(texts):
        scores.append(score(runner_of(reference), runner_of(backend), text))
        say(f"both models read {i + 1}/{len(texts)} texts")
    groups = [(kind, [s for s in scores if kind in (s.kind, OVERALL)]) for kind in (GREEDY, SAMPLED, OVERALL)]
    return [summary(kind, found) for kind, found in groups if found]


@torch.inference_mode()
def score(reference: Runner, backend: Runner, text: Text) -> Score:
    """Both models on one text, teacher-forced, at every position of the answer."""
    p, q = logits(reference, text), logits(backend, text)
    agree, loss_p, loss_q, divergence, difference = 0, 0.0, 0.0, 0.0, 0.0
    for at in range(0, len(text.answer), PART):
        part = slice(at, at + PART)
        target = torch.tensor(text.answer[part], device=p.device)[:, None]
        log_p, log_q = (x[part].double().log_softmax(-1) for x in (p, q))
        agree += int((p[part].argmax(-1) == q[part].argmax(-1)).sum())
        loss_p -= float(log_p.gather(1, target).sum())
        loss_q -= float(log_q.gather(1, target).sum())
        divergence += float((log_p.exp() * (log_p - log_q)).sum())
        largest = (p[part] - q[part]).abs().max().double().cpu()
        difference = torch.maximum(torch.tensor(difference), largest).item()  # NaN stays NaN
    return Score(text.kind, len(text.answer), loss_p, loss_q, agree, divergence, difference)


def logits(target: Runner, text: Text) -> Float[Tensor, "A V"]:
    """One pass over prompt and answer; logits for each token of the answer, from the tokens before it."""
    known = [*text.prompt, *text.answer][:-1]
    runner = target.open(1, len(known))
    runner.admit(0, known)
    places, device = torch.arange(len(text.prompt) - 1, len(known)), target.info.device
    x = flat(0, 0, known, chain(len(known)), device, head=False)
    return runner.execute(replace(x, want=places.to(device))).logits


def summary(kind: str, scores: Sequence[Score]) -> Quality:
    positions = sum(s.positions for s in scores)
    each = ratio_of_means([s.backend - s.reference for s in scores], [s.positions for s in scores])  # nats per token
    assert each is not None
    low, high = (None if x is None else _exp(x) for x in (each.low, each.high))
    return Quality(
        kind=kind,
        texts=len(scores),
        positions=positions,
        reference=_exp(sum(s.reference for s in scores) / positions),
        backend=_exp(sum(s.backend for s in scores) / positions),
        ratio=Ratio(_exp(each.value), low, high, each.pairs),
        agreement=sum(s.agree for s in scores) / positions,
        divergence=sum(s.divergence for s in scores) / positions,
        difference=max(s.difference for s in scores),
    )


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))  # a broken backend has a huge perplexity, not an overflow
