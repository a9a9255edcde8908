"""Where a pass goes on: the hidden states of its tokens after the layers that a drafter has already run.

started sequences   handed over by the drafter, node by node
all others          prompt chunks and bare roots: the same layers are run for them first, in a pass of their own
"""

from jaxtyping import Bool, Float
from torch import Tensor

from draftwood.core.forward import ForwardInput, LayerPlan
from draftwood.core.host import put
from draftwood.core.proposal import Started
from draftwood.core.protocols import Runner


def hidden_after(
    runner: Runner,
    x: ForwardInput,
    started: Started,
    places: list[list[int]],
    ride: list[list[bool]] | Bool[Tensor, "B N"],
) -> Float[Tensor, "T H"]:
    """`places`: of every node in the pass. `ride`: which nodes have one; a tensor where nobody looks, and all nodes ride."""
    batch, nodes = started.hidden.shape[:2]
    which = started.sequences or (True,) * batch
    if x.size == batch * nodes and all(which) and isinstance(ride, Tensor):
        return started.hidden.flatten(0, 1)
    source: list[int] = []
    to: list[int] = []
    for b in (b for b, there in enumerate(which) if there):
        riding = [i for i in range(nodes) if isinstance(ride, Tensor) or ride[b][i]]
        source += [b * nodes + i for i in riding]
        to += [places[b][i] for i in riding]
    rest = sorted(set(range(x.size)) - set(to))
    hidden = started.hidden.new_zeros(x.size, started.hidden.shape[-1])
    at, node = put([to, source], hidden.device).unbind(0)
    hidden.index_copy_(0, at, started.hidden.flatten(0, 1).index_select(0, node))
    if rest:
        first = runner.execute(x.part(rest), layers=LayerPlan(stop=started.layers)).hidden
        hidden.index_copy_(0, put(rest, hidden.device), first.to(hidden.dtype))
    return hidden
