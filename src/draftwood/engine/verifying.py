"""The verifier's part of a round: a verdict for every sequence, and what the host reads of it."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from draftwood.core.legal_draws import Draw
from draftwood.core.proposal import Proposal
from draftwood.core.report import Report, from_lists, read
from draftwood.core.round import Round
from draftwood.core.scored import Scored
from draftwood.core.verdict import HostVerdict, Verdict
from draftwood.engine.drafting import index, log
from draftwood.errors import OptionError

if TYPE_CHECKING:
    from draftwood.engine.engine import Engine


def verify(
    e: "Engine", proposal: Proposal, scored: Scored, rnd: Round, faults: Int[Tensor, "B"] | None
) -> tuple[Verdict, Report]:
    """The verifier's verdict, and the round's one read of it. If a request's options leave no token to choose, that request
    ends and the others go on. `faults`: of drafts that were checked where they are."""
    if rnd.batch == 0:
        none = torch.zeros(0, dtype=torch.int64, device=e.device)
        return Verdict(path=none[:, None], count=none, next_token=none), Report([], [], [], [], [], [], [], [])
    try:
        verdict = e.recipe.verifier.verify(proposal, scored, rnd)
        report = _report(proposal, scored, verdict, faults)
        if min(report.after) >= 0:
            return _with_report(verdict, report), report
    except Exception:
        log.debug("the verifier failed on the batch; each sequence is verified alone", exc_info=True)
    verdict = _verify_alone(e, proposal, scored, rnd)
    report = _report(proposal, scored, verdict, faults)
    return _with_report(verdict, report), report


def _report(proposal: Proposal, scored: Scored, verdict: Verdict, faults: Int[Tensor, "B"] | None) -> Report:
    return from_lists(scored.host_tree, verdict) if faults is None else read(proposal, verdict, faults)


def _with_report(verdict: Verdict, report: Report) -> Verdict:
    return replace(verdict, on_host=HostVerdict(report.paths, report.after))


def _verify_alone(e: "Engine", proposal: Proposal, scored: Scored, rnd: Round) -> Verdict:
    """Each sequence alone: with its tree first, then without, so that it emits what plain decoding emits before it fails.
    Only rules for given drafts verify twice: drawn tokens must not get a second chance."""
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
