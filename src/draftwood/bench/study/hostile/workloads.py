"""Workloads that leave little to draft, or take a drafter's advantage away midway. All prompts are our own."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from draftwood.bench.spec.questions import chat_prompts
from draftwood.core.sampling.params import SamplingParams
from draftwood.models.loading.load import Loaded

Prompt = tuple[int, ...]

RANDOM_TOKENS = 96  # of a prompt
BATCH = 8
HOT = 1.2  # temperature
PENALTY = (
    1.5  # of repetitions: without it a greedy answer to random text soon repeats itself, and that is easy to draft
)

FORMS = (
    "Write the beginning of a strange story about {}.",
    "Write a poem without rhymes about {}. Use words that are seldom used.",
    "Write a dialogue between two people who disagree about {}.",
    "Write a page of a diary that mentions {} only once.",
    "Invent a legend that explains {}.",
    "Write a letter to a friend about {}. Be playful.",
)
SUBJECTS = ("a clock that runs sideways", "the last ferry", "a town without shadows", "an orchard in winter")

TASKS = (
    "Write a Python class for {}, with four methods. Then show the same class again with a comment on every line.",
    "Write a README for a program that manages {}, with the sections Install, Use and Limits.",
    "Write an SQL table for {} and five queries on it.",
    "List ten facts about {}, then repeat the list in upper case.",
    "Write a JSON file with six entries for {}. Each has a name, a date and a price.",
    "Explain {} to a child. Then write the same explanation again, sentence by sentence, with a number before each.",
)
TOPICS = ("the books of a library", "the trains of a small country", "a shop for bicycles", "the animals of a farm")

QUESTIONS = (
    "Does the text mention water? Answer yes or no.",
    "Which word of the text is the longest?",
    "What is the mood of the text, in one word?",
    "Is the text about the past? Answer with one word.",
    "How many people are in the text? Answer with a number.",
)
PASSAGE = (
    "The harbour was closed for two days because of the storm.",
    "Ships waited outside, and the market had no fish.",
    "A pilot walked along the pier and counted the lights.",
    "In the office nobody answered the telephone.",
    "On the third day the wind turned, and the first boats came in before sunrise.",
    "By noon every stall was open again, and the price of cod had doubled.",
    "Children collected rope and broken boxes from the beach.",
    "The old crane, which had survived four storms, leaned a little more than before.",
    "An engineer measured it, shook her head and wrote three pages.",
    "In the evening the bell of the harbour church rang for the first time in a week.",
)


class Fault(Enum):
    """What happens midway."""

    USELESS = "every draft is wrong"
    SLOW_MACHINE = "target passes and drafting take several times as long"
    SLOW_DRAFTS = "passes of several tokens take several times as long"


@dataclass(frozen=True, slots=True)
class Workload:
    """`groups`: prompts that run together, one group after another. `fault`: from the middle of each answer on, or with
    `stays` from the middle of the run to its end."""

    name: str
    groups: tuple[tuple[Prompt, ...], ...]
    params: SamplingParams
    fault: Fault | None = None
    stays: bool = False

    @property
    def batch(self) -> int:
        return max(map(len, self.groups))

    def of(self, group: int, place: int) -> SamplingParams:
        """Sampling of one request: a seed of its own, the same for all methods."""
        return replace(self.params, seed=(self.params.seed or 0) + group * self.batch + place)

    def faulty(self, group: int, emitted: int) -> bool:
        """Whether the fault is there in this group after so many tokens of its answer."""
        late, middle = emitted >= self.params.max_tokens // 2, len(self.groups) // 2
        return self.fault is not None and (group > middle or (group == middle and late) if self.stays else late)


FAULTS = {
    "useless-drafter": (Fault.USELESS, False),
    "useless-drafter-stays": (Fault.USELESS, True),
    "slow-machine": (Fault.SLOW_MACHINE, False),
    "slow-machine-stays": (Fault.SLOW_MACHINE, True),
    "slow-drafts": (Fault.SLOW_DRAFTS, False),
    "slow-drafts-stays": (Fault.SLOW_DRAFTS, True),
}
NAMES = ("random-text", "random-answers", "creative-writing", "one-token", "one-token-batch", *FAULTS)


def workload(name: str, loaded: Loaded, count: int, max_tokens: int, seed: int) -> Workload:
    """One of NAMES with `count` groups. Prompts of text go through the chat template, random ones do not."""
    params = SamplingParams(max_tokens=max_tokens, seed=seed)
    if name in ("random-text", "random-answers"):
        info, penalty = loaded.info, PENALTY if name == "random-answers" else 1.0
        prompts = random_prompts(info.vocab_size, info.eos_token_ids, count, seed)
        return Workload(name, _alone(prompts), replace(params, repetition_penalty=penalty))
    if name == "creative-writing":
        hot = replace(params, temperature=HOT)
        return Workload(name, _alone(_asked(loaded, mixed(FORMS, SUBJECTS, count))), hot)
    if name in ("one-token", "one-token-batch"):
        batch = BATCH if name == "one-token-batch" else 1
        asked = _asked(loaded, one_token_questions(batch * count))
        groups = tuple(tuple(asked[i : i + batch]) for i in range(0, len(asked), batch))
        return Workload(name, groups, replace(params, max_tokens=1))
    return Workload(name, _alone(_asked(loaded, mixed(TASKS, TOPICS, count))), params, *FAULTS[name])


def random_prompts(vocab_size: int, eos: Sequence[int], count: int, seed: int) -> list[Prompt]:
    rng, ids = random.Random(seed), [token for token in range(vocab_size) if token not in eos]
    return [tuple(rng.choices(ids, k=RANDOM_TOKENS)) for _ in range(count)]


def mixed(forms: Sequence[str], subjects: Sequence[str], count: int) -> list[str]:
    """Every form with every subject before one returns: 24 different prompts of six forms and four subjects."""
    return [forms[i % len(forms)].format(subjects[(i // len(forms) + i) % len(subjects)]) for i in range(count)]


def one_token_questions(count: int) -> list[str]:
    """About texts of one to ten sentences. The number in front keeps prompts from sharing cache entries."""
    found: list[str] = []
    for i in range(count):
        text = " ".join(PASSAGE[: 1 + 3 * i % len(PASSAGE)])
        found.append(f"Text {i + 1}. {text}\n{QUESTIONS[i % len(QUESTIONS)]}")
    return found


def _asked(loaded: Loaded, texts: Sequence[str]) -> list[Prompt]:
    return [tuple(ids) for ids in chat_prompts(loaded.tokenizer, texts)]


def _alone(prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], ...]:
    return tuple((prompt,) for prompt in prompts)
