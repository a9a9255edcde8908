"""The verifier's part of a round: a verdict for every sequence, and the report that the host reads of it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.host import host
from draftwood.core.host_tree import HostTree
from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.tree import SCORED
from draftwood.core.verdict import HostVerdict, Verdict
from draftwood.engine.drafting import index, log
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Report:
    """A round's result as lists, by sequence. A path begins with the root."""

    paths: list[list[int]]
    after: list[int]  # the token that follows the path; -1: there is none
    tokens: list[list[int]]  # of the path, the root left out
    sources: list[list[int]]
    entries: list[list[int]]  # staged entries of these tokens, counted from the root's
    drafted: list[int]  # scored nodes below the root
    deepest: list[int]
    in_pass: list[int]  # nodes below the root that the pass ran: scored ones and probes
    faults: list[int]  # what was wrong with the draft, as numbers of core.proposal_checks.REASONS; 0: nothing

    @property
    def emitted(self) -> list[list[int]]:
        """Accepted tokens, then the next root; -1 padded."""
        width = max(map(len, self.paths), default=1)
        both = zip(self.tokens, self.after, strict=True)
        return [[*accepted, last, *[-1] * (width - 1 - len(accepted))] for accepted, last in both]


def verify(
    e: "Engine", proposal: Proposal, scored: Scored, rnd: Round, faults: Int[Tensor, "B"] | None
) -> tuple[Verdict, Report]:
    """The verifier's verdict, and the round's one read of it. If a request's options leave no token to choose, that request
    ends and the others go on. `faults`: of drafts that were checked without a host read."""
    if rnd.batch == 0:
        none = torch.zeros(0, dtype=torch.int64, device=e.device)
        return Verdict(path=none[:, None], count=none, next_token=none), Report([], [], [], [], [], [], [], [], [])

    def told(verdict: Verdict) -> tuple[Verdict, Report]:
        report = report_of(scored.host_tree, verdict) if faults is None else read_report(proposal, verdict, faults)
        return replace(verdict, on_host=HostVerdict(report.paths, report.after)), report

    try:
        verdict, report = told(e.recipe.verifier.verify(proposal, scored, rnd))
        if min(report.after) >= 0:
            return verdict, report
    except Exception:
        log.debug("the verifier failed on the batch; each sequence is verified alone", exc_info=True)
    return told(_verify_alone(e, proposal, scored, rnd))


def report_of(tree: HostTree, verdict: Verdict) -> Report:
    """From trees that are lists already."""
    lists = verdict.to_host()
    tokens, sources, entries = (
        [[column[node] for node in path[1:]] for column, path in zip(columns, lists.paths, strict=True)]
        for columns in (tree.tokens, tree.source, tree.entries)
    )
    sizes = tree.drafted, tree.deepest, tree.in_pass
    return Report(lists.paths, lists.after, tokens, sources, entries, *sizes, [0] * tree.batch)


def read_report(proposal: Proposal, verdict: Verdict, faults: Int[Tensor, "B"]) -> Report:
    """From tensors, in the round's one read. All nodes are in the pass, so a node's number is its entry."""
    tree, path = proposal.tree, verdict.path
    node = path.clamp_min(0)
    depth = torch.zeros_like(faults)
    if tree.num_nodes > 1:
        depth = torch.where(tree.live & (tree.role == SCORED), proposal.node_depths(), 0).amax(1)
    columns = [path, tree.tokens.gather(1, node), tree.source.gather(1, node)]
    single = torch.stack([verdict.next_token, tree.num_drafted(), depth, tree.num_in_pass(), faults], dim=1)
    whole: list[list[int]] = host(torch.cat([*columns, single], dim=1))
    width = path.shape[1]
    sizes = [sum(node >= 0 for node in each[:width]) for each in whole]
    paths, tokens, sources = (
        [each[i * width : i * width + size] for each, size in zip(whole, sizes, strict=True)] for i in range(3)
    )
    tokens, sources, entries = ([each[1:] for each in lists] for lists in (tokens, sources, paths))
    after, nodes, deepest, inside, wrong = ([each[3 * width + i] for each in whole] for i in range(5))
    return Report(paths, after, tokens, sources, entries, nodes, deepest, inside, wrong)


def _verify_alone(e: "Engine", proposal: Proposal, scored: Scored, rnd: Round) -> Verdict:
    """Each sequence alone: with its tree first, then without, so that it emits what plain decoding emits before it fails.
    Only rules for given drafts verify twice: to verify drawn tokens again would bias the output."""
    verdicts: list[Verdict] = []
    zero = torch.zeros(1, dtype=torch.int64, device=e.device)
    for b, request in enumerate(rnd.requests):
        whole = proposal.take(index(e, [b]))
        tries = [whole]
        if Draw.GIVEN in e.recipe.verifier.draws:
            tries.append(whole.keep(torch.zeros_like(whole.tree.live)))
        verdict, failure = Verdict(path=zero[:, None], count=zero, next_token=zero), ""
        for each in tries:
            try:
                found = e.recipe.verifier.verify(each, scored.take([b]).over(each.tree), rnd.take([b]))
                if int(found.next_token) >= 0:
                    verdict, failure = found, ""
                    break
                failure = "the distribution of the next token has no mass: the model's logits are not numbers"
            except Exception as error:
                failure = str(error) if isinstance(error, OptionError) else f"{type(error).__name__}: {error}"
        if failure:
            request.finish("error", failure)
        verdicts.append(verdict)
    width = max(v.path.shape[1] for v in verdicts)
    path = torch.cat([torch.nn.functional.pad(v.path, (0, width - v.path.shape[1]), value=-1) for v in verdicts])
    return Verdict(path, torch.cat([v.count for v in verdicts]), torch.cat([v.next_token for v in verdicts]))
