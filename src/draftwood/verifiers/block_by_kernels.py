"""The block rule by a backend's kernels: the chances of a whole chain in one call, and one token picked in another.

It judges what most sampled requests draft: a chain that was drawn from the root on, under a plain temperature. Coins are
those of `block.py`, by the same keys, so both agree up to rounding; which of them judges a sequence depends on that sequence
alone.
"""

from collections.abc import Callable, Iterator

import torch

from draftwood.core import host
from draftwood.core.host_tree import verdict
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import Verdict

Rule = Callable[[Proposal, Scored, Round], Verdict]


def judged_by_kernels(proposal: Proposal, target: Scored, rnd: Round, rule: Rule) -> Verdict:
    """The verdict: by kernels for the sequences whose chains they can judge, by `rule` for the others."""
    found = {
        b: kept for b, chain in _chains(proposal, target, rnd) if (kept := _judge(b, chain, proposal, target, rnd))
    }
    left = [b for b in range(rnd.batch) if b not in found]
    if len(left) == rnd.batch:
        return rule(proposal, target, rnd)
    if left:
        index = host.put(left, rnd.device)
        other = rule(proposal.take(index), target.take(left), rnd.take(left)).to_host()
        found |= {b: (path, token) for b, path, token in zip(left, other.paths, other.after, strict=True)}
    paths, after = zip(*(found[b] for b in range(rnd.batch)), strict=True)
    return verdict(list(paths), list(after), rnd.device)


def _chains(proposal: Proposal, target: Scored, rnd: Round) -> Iterator[tuple[int, list[int]]]:
    """Sequences that kernels can judge: their nodes, drawn one below the other, of some only the root."""
    q = proposal.q
    if q is None or target.output.kernels is None or not host.on_host(rnd.device) or not target.plain:
        return
    if not len(q.prob) or q.prob.dtype != torch.float32 or not q.rising:
        return
    lists, copies = target.host_tree, host.host(proposal.tree.copies)
    for b, whole in enumerate(rnd.sampler.whole):
        nodes = [i for i in range(1, lists.width) if lists.scored[b][i]]
        line = [lists.parents[b][i] for i in nodes] == [0, *nodes][: len(nodes)]
        if whole and line and all(copies[b][i] > 0 for i in nodes):
            yield b, [0, *nodes]


def _judge(b: int, chain: list[int], proposal: Proposal, target: Scored, rnd: Round) -> tuple[list[int], int] | None:
    """The path that is kept, and the token after it. None: logits are no distribution, and the rule says what follows from
    that."""
    rnd = rnd if rnd.batch == 1 else rnd.take([b])
    kernels, q, lists = target.output.kernels, proposal.q, target.host_tree
    assert kernels is not None and q is not None
    logits, temperature = target.output.logits, rnd.requests[0].params.temperature
    rows = target.rows(b, chain)
    index: list[int] = host.host(proposal.q_indices()[b])
    drawn = [index[node] for node in chain[:-1]]
    found = kernels.block_chances(
        logits, rows[:-1], temperature, q, drawn, [lists.tokens[b][node] for node in chain[1:]]
    )
    if found is None:
        return None
    w, chance = found
    at = host.put([chain], rnd.device)
    prob = host.put([[*chance, w[-1]]], rnd.device, torch.float64)
    kept: list[bool] = host.host(rnd.coin("accept", at, prob, torch.tensor([[*(x > 0 for x in w)]])))[0]
    last = max((i for i, yes in enumerate(kept) if yes), default=0)
    uniforms = rnd.noise.uniforms(rnd.key("residual", at[:, last]))
    if uniforms is None:  # such a noise picks by itself
        p = target.probs(at[:, last], host.put([b], rnd.device))
        rest = p.minus(
            q.over(p, host.put([[*drawn, -1][last]], rnd.device)), host.put([w[last]], rnd.device, p.prob.dtype)
        )
        token = int(
            rnd.pick("residual", at[:, last], p.unless_empty(rest), torch.ones_like(at[:, last], dtype=torch.bool))
        )
    elif last + 1 < len(chain):
        token = kernels.pick_left(logits, rows[last], temperature, w[last], q, drawn[last], uniforms[0])
    else:
        token = int(rnd.sampler.pick(target.output, host.put([rows[last]], rnd.device), uniforms))
    return chain[: last + 1], token
