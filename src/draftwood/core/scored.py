"""Scored: the target's distributions over a proposal, made on demand, for visited nodes only."""

from dataclasses import replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.forward import ForwardOutput
from draftwood.core.host import host, put
from draftwood.core.host_tree import HostTree
from draftwood.core.round import TARGET, Round
from draftwood.core.sampling.draft_probs import Aligned, DraftProbs, align
from draftwood.core.sampling.probs import TokenProbs
from draftwood.core.sampling.sampler import best_of
from draftwood.core.tree import TokenTree
from draftwood.errors import OptionError

_ARGMAX, _KERNELS, _STOCK, _NOT_ASKED = range(4)  # how a sequence's own token is found


class Scored:
    """One pass, indexed by the tree it scored. `adjusted`: its logits already hold the penalties, bias and bans of the
    requests, as those of a rule that runs inside a drafter."""

    def __init__(
        self,
        output: ForwardOutput,
        tree: TokenTree,
        rnd: Round,
        host_tree: HostTree | None = None,
        *,
        adjusted: bool = False,
    ) -> None:
        assert output.token_index is not None
        self.output, self.tree, self.rnd = output, tree, rnd
        self._token_index = output.token_index
        self._host_tree, self._adjusted_before = host_tree, adjusted
        self._best: Tensor | None = None
        # Sequences whose token is the plain argmax need no distribution; known on the host, so no shape depends on data.
        self._simple = [(adjusted or r.params.plain) and r.params.greedy for r in rnd.requests]
        # Distributions depend on logits alone, not on the path.
        self.plain = adjusted or all(r.params.plain for r in rnd.requests)

    @property
    def host_tree(self) -> HostTree:
        """The tree as lists; made at the first use, because it has to be copied from the device."""
        if self._host_tree is None:
            self._host_tree = HostTree.of(self.tree)
        return self._host_tree

    @property
    def simple(self) -> bool:
        """Whether the token of every sequence is the plain argmax."""
        return all(self._simple)

    @property
    def vocab_size(self) -> int:
        return self.output.logits.shape[-1]

    def logits(self, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """Raw logits of some nodes."""
        return self.output.logits[self.output.logits_index[self._token_index.gather(1, nodes.clamp_min(0))]]

    def rows(self, b: int, nodes: list[int]) -> list[int]:
        """Where the logits of some nodes of sequence b stand in the pass."""
        at = self._token_index[b][put(nodes, self._token_index.device)]
        return host(self.output.logits_index[at])

    def probs(
        self,
        nodes: Int[Tensor, "R"],
        sequences: Int[Tensor, "R"] | None = None,
        where: Bool[Tensor, "R"] | None = None,
    ) -> TokenProbs:
        """p at one node of each sequence, or of each of some, which may come several times: by the sequence's own sampling
        along the node's own path. Distributions that are not asked for are any. Sparse if every sequence truncates."""
        if where is not None and (self.rnd.sampler.sparse or not self.plain) and not bool(where.all()):
            asked = where.nonzero()[:, 0]
            found = self.probs(nodes[asked], asked if sequences is None else sequences[asked])
            return found.scatter(asked, len(nodes))
        return self.rnd.sampler.probs(*self._adjusted(nodes, sequences))

    def dense(self, nodes: Int[Tensor, "B K"], where: Bool[Tensor, "B K"]) -> Float[Tensor, "B K V"]:
        """p at some nodes of every sequence, over all tokens, by stock operations. No shape depends on what is asked for; if
        all parameters are plain, nothing is read."""
        if self.plain:
            return self.rnd.sampler.dense(self.logits(nodes))
        # Penalties, bias and masks depend on the text along a path, which is a host read.
        each = zip(nodes.unbind(1), where.unbind(1), strict=True)
        return torch.stack([self.probs(node, where=asked).dense() for node, asked in each], dim=1)

    def aligned(
        self,
        nodes: Int[Tensor, "R"],
        sequences: Int[Tensor, "R"] | None,
        where: Bool[Tensor, "R"] | None,
        q: DraftProbs | None,
        q_index: Int[Tensor, "R"],
        tokens: Int[Tensor, "R C"],
    ) -> Aligned:
        """The same, together with the distributions `q_index` of q over the same columns; `tokens` have columns of their
        own, and `vocab_size` is no token."""
        if self.plain:
            _, at, listed = self._adjusted(nodes, sequences)
            at = at if where is None else torch.where(where, at, -1)
            found = self.rnd.sampler.aligned(self.output, at, listed, tokens, q, q_index)
            if found is not None:
                return found
        index = q_index if where is None else torch.where(where, q_index, -1)
        return align(self.probs(nodes, sequences, where), q, index, tokens)

    def best(self) -> Int[Tensor, "B N"]:
        """The most probable token after every node, without making a distribution; -1 where the logits are not numbers. Dead
        nodes hold any."""
        if self._best is None:
            self._best = best_of(self.output.logits) if self.output.best is None else self.output.best
        return self._best[self.output.logits_index[self._token_index]]

    def token(self, nodes: Int[Tensor, "B"], depth: int, where: Bool[Tensor, "B"] | None = None) -> Int[Tensor, "B"]:
        """The target's own token after each node, `depth` below the root: what plain decoding would emit there. -1 where
        none is asked for, or the logits are not numbers."""
        routes = self._routes
        if not self.plain and where is not None:  # options may have left no token where none is asked for
            routes = [route if asked else _NOT_ASKED for route, asked in zip(routes, host(where), strict=True)]
        if routes.count(routes[0]) < len(routes) or routes[0] == _NOT_ASKED:  # each goes the way that it would go alone
            token = torch.full_like(nodes, -1)
            for route in set(routes) - {_NOT_ASKED}:
                part = [b for b, other in enumerate(routes) if other == route]
                index = put(part, nodes.device)
                asked = None if where is None else where[index]
                token.index_copy_(0, index, self.take(part).token(nodes[index], depth, asked))
            return token
        if routes[0] == _ARGMAX:
            token = self.best().gather(1, nodes.clamp_min(0)[:, None])[:, 0]
            return token if where is None else torch.where(where, token, -1)
        key = self.rnd.target_key(depth)
        if routes[0] == _KERNELS and (u := self.rnd.noise.uniforms(key)) is not None:
            output, at, _ = self._adjusted(nodes, None)
            return self.rnd.sampler.pick(output, at if where is None else torch.where(where, at, -1), u)
        where = torch.ones_like(nodes, dtype=torch.bool) if where is None else where
        return self.rnd.noise.pick(key, self.probs(nodes, where=where), where, self.rnd.ids)

    def tokens(
        self, nodes: Int[Tensor, "B K"], depth: int | Int[Tensor, "B K"], where: Bool[Tensor, "B K"]
    ) -> Int[Tensor, "B K"]:
        """The same after K nodes of each sequence, which may differ in depth. No shape depends on what is asked for; if all
        parameters are plain, nothing is read. If not, one depth must serve all."""
        if isinstance(depth, int):
            if not self.plain:  # a host read, as above
                each = zip(nodes.unbind(1), where.unbind(1), strict=True)
                return torch.stack([self.token(node, depth, asked) for node, asked in each], dim=1)
            depth = torch.full_like(nodes, depth)
        sampler = self.rnd.sampler
        drawn = where & ~sampler.greedy()[:, None] if sampler.any_greedy else where
        probs = sampler.dense(self.logits(nodes), ranked=True)
        token = self.rnd.noise.pick(self.rnd.key(TARGET, depth), probs, drawn, self.rnd.ids)
        return torch.where(where & ~drawn, self.best().gather(1, nodes), token) if sampler.any_greedy else token

    @cached_property
    def _routes(self) -> list[int]:
        """How the own token of each sequence is found."""
        picked = self.rnd.sampler.picked(self.output)
        return [_ARGMAX if self._simple[b] else _KERNELS if picked[b] else _STOCK for b in range(self.rnd.batch)]

    def feature(self, tap: int, nodes: Int[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
        """Tapped features of some nodes."""
        return self.output.features[tap][self._token_index.gather(1, nodes.clamp_min(0))]

    def logprobs(
        self, b: int, nodes: Int[Tensor, "K"], tokens: list[int], best: int
    ) -> list[tuple[float, list[tuple[int, float]]]]:
        """The model's own log-probabilities of the tokens after some nodes of sequence b, and of the `best` most probable
        ones."""
        probs = torch.log_softmax(self.take([b]).logits(nodes[None])[0].double(), dim=-1)
        chosen: list[float] = host(probs.gather(1, put(tokens, probs.device)[:, None])[:, 0])
        top = probs.topk(min(best, probs.shape[-1]), dim=-1)
        pairs = [list(zip(*each, strict=True)) for each in zip(host(top.indices), host(top.values), strict=True)]
        return list(zip(chosen, pairs, strict=True))

    def over(self, tree: TokenTree) -> "Scored":
        """The same pass, read through the same tree with some nodes cut."""
        return Scored(self.output, tree, self.rnd, adjusted=self._adjusted_before)

    def take(self, sequences: list[int]) -> "Scored":
        """The same pass, read by some sequences of the round."""
        index = put(sequences, self.tree.tokens.device)
        output, tree, rnd = self.output.take(sequences), self.tree.take(index), self.rnd.take(sequences)
        return Scored(output, tree, rnd, adjusted=self._adjusted_before)

    def _adjusted(
        self, nodes: Int[Tensor, "R"], sequences: Int[Tensor, "R"] | None
    ) -> tuple[ForwardOutput, Int[Tensor, "R"], list[int]]:
        """Logits with the options of each sequence along each node's path, the row of each node, and whose it is."""
        output, at = self.output, self.output.logits_index[self._places(nodes, sequences)]
        listed = list(range(self.rnd.batch)) if sequences is None else host(sequences)
        if self.plain:
            return output, at, listed
        rnd, tree = self.rnd, self.tree
        if sequences is not None:
            rnd, tree = rnd.take(listed), tree.take(sequences)
        logits, failed = rnd.adjusted(output.logits[at][:, None], tree, nodes[:, None])
        if failed:
            raise OptionError(next(iter(failed.values())))
        own = replace(output, logits=logits[:, 0], best=None)
        return own, torch.arange(len(nodes), device=nodes.device), listed

    def _places(self, nodes: Int[Tensor, "R"], sequences: Int[Tensor, "R"] | None) -> Int[Tensor, "R"]:
        """Where nodes stand in the pass."""
        if sequences is None and self._token_index.shape[1] == 1:
            return self._token_index[:, 0]
        node = nodes.clamp_min(0)
        return (
            self._token_index.gather(1, node[:, None])[:, 0]
            if sequences is None
            else self._token_index[sequences, node]
        )
