"""p and q over few columns: exact for every rule, whatever truncation leaves of p and of q."""

from dataclasses import replace
from typing import Any

import pytest

import native_levels
from draftwood.core.forward import ForwardOutput
from draftwood.core.legal_draws import Draw, Shape
from draftwood.core.proposal import Proposal
from draftwood.core.recipe import Recipe
from draftwood.core.sampling import draft_probs
from draftwood.core.sampling.draft_probs import Aligned, DraftProbs
from draftwood.core.sampling.params import SamplingParams
from draftwood.models.backends.kernel_sampling import Nucleus
from draftwood.runners.cpu import CpuRunner
from draftwood.testing.contracts import Always
from draftwood.testing.exact import first_token, joint_error, leaves
from draftwood.testing.parts.table_drafter import TableDrafter
from draftwood.testing.parts.table_model import Conditional, TableModel, context_free, random_probs
from draftwood.testing.runs import make_engine, serve
from draftwood.trees.chain import Chain
from draftwood.trees.paths import Paths
from draftwood.trees.static import Static
from draftwood.verifiers.block import Block
from draftwood.verifiers.match import Match
from draftwood.verifiers.path_block import PathBlock
from draftwood.verifiers.rejection import Rejection
from draftwood.verifiers.selection import Selection
from draftwood.verifiers.transport import Transport
from draftwood.verifiers.traversal import Traversal

VOCAB = 5
RULES: list[tuple[Any, Any]] = [
    (Match(), Static((2, 1), Draw.IID)),
    (Rejection(), Static((2, 1), Draw.IID)),
    (Rejection(), Static((3,), Draw.DISTINCT)),
    (Rejection(), Static((2, 1), Draw.DISTINCT)),
    (Transport(), Static((2, 1), Draw.IID)),
    (Transport(), Static((3,), Draw.IID)),
    (Selection(), Static((3,), Draw.IID)),
    (Selection(), Static((2, 1), Draw.IID)),
    (Block(), Chain()),
    (PathBlock(), Paths(2)),
    (PathBlock(counted=True), Paths(2)),
    (Traversal(), Static((2, 1), Draw.DISTINCT)),
    (Traversal(), Static((3,), Draw.DISTINCT)),
    (Traversal(), Paths(2)),
]
CUTS = [{"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.6, "temperature": 1.3}]


def truncated(probs: Conditional, **options: Any) -> Conditional:
    """What sampling with these options leaves of a distribution, by plain arithmetic."""
    temperature, top_p = options.get("temperature", 1.0), options.get("top_p", 1.0)

    def cut(text: tuple[int, ...]) -> list[float]:
        p = [x ** (1 / temperature) for x in probs(text)]
        order = sorted(range(len(p)), key=lambda t: -p[t])
        order = [t for t in order if p[t] >= options.get("min_p", 0.0) * p[order[0]]][: options.get("top_k", len(p))]
        total, kept = sum(p[t] for t in order), list[int]()
        for t in order:
            if sum(p[k] for k in kept) / total < top_p:
                kept.append(t)
        total = sum(p[t] for t in kept)
        return [p[t] / total if t in kept else 0.0 for t in range(len(p))]

    return cut


def error(rule: Any, policy: Any, options: dict[str, Any], seed: int = 1) -> float:
    p = random_probs(VOCAB, seed)
    q = random_probs(VOCAB, seed + 50)  # as a stranger: each leaves tokens that the other cuts
    depth = len(policy.widths) if isinstance(policy, Static) else 2
    made = lambda: Recipe(drafter=TableDrafter(q), policy=policy, verifier=rule, controller=Always(depth, 6))  # noqa: E731
    params = SamplingParams(**{"temperature": 1.0, **options})
    return joint_error(leaves(TableModel(VOCAB, p), made, params=params), truncated(p, **options), VOCAB, depth + 1)


def name(x: Any) -> str:
    return type(x).__name__ + (f"-{x.draw.value}" if hasattr(x, "draw") else "") if not isinstance(x, dict) else str(x)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "options", [CUTS[0], *(pytest.param(cut, marks=pytest.mark.slow) for cut in CUTS[1:])], ids=name
)
@pytest.mark.parametrize(("rule", "policy"), RULES, ids=name)
def test_what_truncation_leaves_comes_out_exactly(rule: Any, policy: Any, options: dict[str, Any]) -> None:
    assert (policy.draw in rule.draws) and (policy.shape in rule.shapes or policy.shape is Shape.TREE)
    assert error(rule, policy, options) < 1e-12


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("rule", "policy"),
    [(Rejection(), Static((2,), Draw.DISTINCT)), (Traversal(), Static((2,))), (Selection(), Static((2,), Draw.IID))],
    ids=name,
)
def test_control_a_draft_whose_mass_elsewhere_is_forgotten_fails(
    rule: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = draft_probs.with_rest

    def forgetful(distributions: DraftProbs, rows: Any, ids: Any, vocab_size: int) -> Any:
        q = read(distributions, rows, ids, vocab_size)
        q[:, -1] = 0
        return q

    monkeypatch.setattr(draft_probs, "with_rest", forgetful)
    assert max(error(rule, policy, options, seed) for options in CUTS[:2] for seed in range(4)) > 0.01


MIXED: list[dict[str, Any]] = [
    {}, {"top_k": 2}, {"top_p": 0.6}, {"temperature": 0.0}, {"min_p": 0.4}, {"top_k": 3, "presence_penalty": 0.5},
    {"temperature": 1.4}, {"top_p": 0.8, "top_k": 4},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "policy"), RULES, ids=name)
def test_a_sequence_gets_the_same_in_a_batch_with_other_options(rule: Any, policy: Any) -> None:
    """With one in the batch that leaves every token, all distributions are dense; alone they are sparse."""
    p, q = random_probs(7, 3), random_probs(7, 53)
    depth = len(policy.widths) if isinstance(policy, Static) else 2
    made = Recipe(drafter=TableDrafter(q), policy=policy, verifier=rule, controller=Always(depth, 6))
    params = [SamplingParams(**{"temperature": 1.0, "max_tokens": 16, "seed": i, **x}) for i, x in enumerate(MIXED * 2)]
    prompts = [[i % 7] for i in range(len(params))]
    together = serve(make_engine(CpuRunner(TableModel(7, p)), made, slots=len(params)), prompts, params)
    for prompt, param, found in zip(prompts, params, together, strict=True):
        (alone,) = serve(make_engine(CpuRunner(TableModel(7, p)), made), [prompt], param)
        assert alone.output == found.output, param


@pytest.mark.parametrize("tail", [7e-8, 1e-20])
@pytest.mark.parametrize("rule", [Rejection(), Traversal()], ids=name)
def test_what_is_left_of_a_sure_distribution_is_told_however_little_it_is(rule: Any, tail: float) -> None:
    """After a sure token was drawn, the next one comes from what is left, which is less than the rounding of one."""
    for size, options in ((3, {"top_k": 3}), (4, {"top_k": 3})):
        p, q = [0.02, 0.49, 0.49, 0.0][:size], [1 - tail, tail * 0.7, tail * 1e-9, tail * 0.3][:size]
        found = peaked(rule, p, q, options)
        assert found == pytest.approx(p, abs=1e-6)


def peaked(rule: Any, p: list[float], q: list[float], options: dict[str, Any]) -> list[float]:
    made = lambda: Recipe(drafter=Single(context_free(q)), policy=Static((2,)), verifier=rule, controller=Always(1, 6))  # noqa: E731
    params = SamplingParams(**{"temperature": 1.0, **options})
    return first_token(leaves(TableModel(len(p), context_free(p)), made, params=params), len(p))


def test_control_what_is_missing_to_one_is_not_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(distributions: DraftProbs, rows: Any, ids: Any, vocab_size: int) -> Any:
        q = distributions.at(rows[:, None], ids, vocab_size).double()
        q[:, -1] = (1 - q.sum(-1)).clamp_min(0)
        return q

    monkeypatch.setattr(draft_probs, "with_rest", missing)
    p = [0.02, 0.49, 0.49]
    found = peaked(Rejection(), p, [1 - 4.5e-8, 4.5e-8, 4.5e-20], {"top_k": 3})
    assert max(abs(a - b) for a, b in zip(found, p, strict=True)) > 0.05


# --- by a backend's kernels: the same columns, with p and q in float32


class Backend(TableModel):
    """Tables whose distributions the kernels make."""

    def __init__(self, probs: Conditional, kernels: Any) -> None:
        super().__init__(VOCAB, probs)
        self.kernels = kernels

    def forward(self, x: Any, cache: Any, **more: Any) -> ForwardOutput:
        output = super().forward(x, cache, **more)
        return replace(output, logits=output.logits.float(), kernels=self.kernels)


class Single(TableDrafter):
    def propose(self, state: Any, rnd: Any, base: Any, limit: Any, policy: Any) -> Proposal:
        made = super().propose(state, rnd, base, limit, policy)
        return made if made.q is None else replace(made, q=DraftProbs(made.q.prob.float(), made.q.ids))


class Watched(Nucleus):
    """Counts, so that nothing else can have made the distributions."""

    asked = 0

    def aligned(self, *given: Any) -> Aligned | None:
        Watched.asked += 1
        return super().aligned(*given)


class Forgetful(Nucleus):
    def aligned(self, *given: Any) -> Aligned | None:
        found = super().aligned(*given)
        assert found is not None
        found.q.prob[:, -1] = 0
        return found


def error_on_backend(rule: Any, policy: Any, kernels: Any, seed: int = 1) -> float:
    p, q = random_probs(VOCAB, seed), random_probs(VOCAB, seed + 50)
    depth = len(policy.widths) if isinstance(policy, Static) else 2
    made = lambda: Recipe(drafter=Single(q), policy=policy, verifier=rule, controller=Always(depth, 6))  # noqa: E731
    found = leaves(Backend(p, kernels), made, params=SamplingParams(temperature=1.0, top_p=0.7))
    return joint_error(found, truncated(p, top_p=0.7), VOCAB, depth + 1)


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("rule", "policy"), RULES, ids=name)
def test_what_kernels_leave_comes_out_exactly(rule: Any, policy: Any) -> None:
    before = Watched.asked
    assert error_on_backend(rule, policy, Watched(native_levels.opened(native_levels.BEST))) < 1e-6
    assert (Watched.asked > before) == (not isinstance(rule, Match | Block)), "these two ask for p and q apart"


@pytest.mark.parametrize(
    ("rule", "policy"),
    [(Rejection(), Static((2,), Draw.DISTINCT)), (Traversal(), Static((2,))), (Selection(), Static((2,), Draw.IID))],
    ids=name,
)
def test_control_kernels_that_forget_mass_elsewhere_fail(rule: Any, policy: Any) -> None:
    kernels = Forgetful(native_levels.opened(native_levels.BEST))
    assert max(error_on_backend(rule, policy, kernels, seed) for seed in range(4)) > 0.01
