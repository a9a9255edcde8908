"""Trains a GriffinNet on its own outputs, at positions that its own drafts could reach.

Pass i at index t reads the token x_{t+i} and, from the second pass on, what the pass before put out for its next step,
without its gradient. It attends as it does when it drafts: to the keys of the target's features up to t, and to those of
the passes since. A position counts in pass i + 1 if its label was among the best tokens of the roll-out that began one
index later and guesses the same token in pass i, and so were all labels of that roll-out before it:

    M_1 = all      M_{i+1}(t) = N_1(t+1) .. N_i(t+1)      N_i(t): the label of pass i at t is among its `near` best tokens

Each pass is a loss of its own, and its graph is gone before the next one begins.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.forward import FINAL, Needs
from draftwood.core.train_plan import Shown
from draftwood.drafters.learners.positions import Taught, taught
from draftwood.drafters.learners.unrolling.unrolled import RollOut, noisy_features
from draftwood.drafters.nets.modules.griffin import GriffinNet
from draftwood.train.objectives import aligned_cross_entropy, among, chunks, inverse, shifted, smooth_l1


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Loss weights: `regress` for features, `soft` for distributions, `top` for the `most` most probable tokens of each."""

    net: GriffinNet
    keep: Int[Tensor, "W"]  # ids of the draft vocabulary, ascending
    passes: int = 1
    regress: float = 1.0
    soft: float = 0.1
    top: float = 0.0
    most: int = 10
    near: int = 3
    noise: float = 0.0  # maximum noise on a feature, relative to the mean magnitude at its position

    @property
    def needs(self) -> Needs:
        return Needs(taps=frozenset({*self.net.config.taps, FINAL}))

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"head": list(self.net.parameters())}

    def losses(self, shown: Shown, progress: float) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
        places = inverse(self.keep, self.net.config.layer.vocab_size)
        labels = [places[shifted(shown.text, 2 + i)] for i in range(self.passes)]
        counted = [taught(shown, places, 2 + i) for i in range(self.passes)]
        reads = [self.net.fuse(noisy_features(shown, self.net.config.taps, self.noise))]
        reached = torch.ones(shown.ids.shape, dtype=torch.bool, device=shown.ids.device)  # N_1 .. N_i
        for i, (label, at) in enumerate(zip(labels, counted, strict=True)):
            label, at = label.to(reached.device), at.to(reached.device)
            out = self.output(shown, reads)
            mask = shifted(reached, 1).flatten() if i else reached.flatten()
            some = Taught(at.answers[mask[at.answers]], at.prompts[mask[at.prompts]])
            loss, figures, close = self._loss(shown, i, out, label.flatten(), some)
            figures |= {f"counted{i}": torch.tensor(len(some.every) / max(len(at.every), 1))}
            yield "head", loss, figures
            if i + 1 == self.passes:
                return
            reads.append(self.net.forward_feature(out).detach())
            reached = reached & self._close(shown, out, label, at, some, close, reached)

    def output(self, shown: Shown, reads: list[Float[Tensor, "B T H"]]) -> Float[Tensor, "B T O"]:
        """Of the pass that reads the last of `reads`, from the keys of all of them with this graph's gradients."""
        rollout = RollOut(self.net, shown)
        for j, u in enumerate(reads[:-1]):
            rollout.entries(j, u)
        return rollout.step(len(reads) - 1, reads[-1])

    def _loss(
        self, shown: Shown, i: int, out: Float[Tensor, "B T O"], label: Int[Tensor, "L"], at: Taught
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor], Bool[Tensor, "N"]]:
        """The loss of pass i at these positions, and where their labels were among the best tokens."""
        rows, net, every = shown.rows(self.keep), self.net, at.every
        f = shifted(shown.features[FINAL], 1 + i).flatten(0, 1).index_select(0, every)
        regress, predict = (x.flatten(0, 1).index_select(0, every) for x in (net.forward_feature(out), net.read(out)))
        loss, same, close = aligned_cross_entropy(
            predict, rows, f, rows, label[every], soft=self.soft, top=self.top, most=self.most, near=self.near
        )
        hits = {"hit": same[: len(at.answers)], "near": close[: len(at.answers)]}
        if len(at.prompts):
            hits["prompt_hit"] = same[len(at.answers) :]
        figures = {f"{name}{i}": x.float().sum() / max(len(x), 1) for name, x in hits.items()}
        return loss + self.regress * smooth_l1(regress, f), figures, close

    @torch.no_grad()
    def _close(
        self,
        shown: Shown,
        out: Float[Tensor, "B T O"],
        label: Int[Tensor, "B T"],
        at: Taught,
        known: Taught,
        close: Bool[Tensor, "N"],
        reached: Bool[Tensor, "B T"],
    ) -> Bool[Tensor, "B T"]:
        """N_i: where the label is among the best tokens. `close`: where that is known already. A token that is not in the
        draft vocabulary never is; a label that teaches nothing, such as one of a prompt, breaks no roll-out."""
        found = (label >= 0).flatten()
        asked = reached.flatten().clone()
        asked[known.every] = False
        rest = at.every[asked[at.every]]
        y, rows = self.net.read(out).flatten(0, 1).index_select(0, rest), shown.rows(self.keep)
        own = label.flatten()[rest]
        for part in chunks(y):
            found[rest[part]] = among(y[part].to(rows.dtype) @ rows.T, own[part], self.near)
        found[known.every] = close
        return found.view(label.shape)
