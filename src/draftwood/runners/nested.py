"""NestedRunner: a model with exits. Each token is run as deep as it needs; a deeper one takes along what waits before it.

    part 0   layers [0, 2)    a b c d e      every token
    part 1   layers [2, 4)    a b c          d and e were sure enough after two layers
    part 2   layers [4, 6)    a              b and c wait before it: when a later token gets here, they are in its pass

Each part has a cache of its own, which holds as much of the text as the part has run. Known text of which nothing is wanted
is run through all parts. To its users it is one model: an entry is an entry of the first part.

On an accelerator no shape may depend on which exit a token takes. There all layers are one part, every token is run through
all of it, the head is multiplied at every exit, and the logits of the exit taken are chosen on the device. Nothing is saved,
and what is drafted is the same.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from draftwood.core import host as hosts
from draftwood.core.forward import ALL, CacheSpec, ForwardInput, ForwardOutput, HostInput, LayerPlan, logit_places
from draftwood.core.host import host, put
from draftwood.core.protocols import Runner, Saved
from draftwood.errors import EngineError, ModelError, OptionError
from draftwood.runners.exits import Exits
from draftwood.runners.waiting import COMMITTED, Token, Waiting, fresh

LONGEST = 64  # waiting tokens; more are run through with the next token, whoever it is


class NestedRunner:
    """`whole`: the model; `parts`: what `open` makes of it."""

    def __init__(self, whole: Runner, exits: Exits, parts: tuple[Runner, ...] = ()) -> None:
        if exits.layers[-1] != whole.info.num_layers:
            raise OptionError(
                f"exits after {list(exits.layers)} layers do not fit a model of {whole.info.num_layers} layers\n"
                "hint: the last exit is the end of the model"
            )
        if not whole.info.layer_ranges:
            raise ModelError(
                f"{whole.info.backend or 'this model'}: runs all of its layers or none, so it has no exits"
            )
        self.whole, self.exits, self._parts = whole, exits, parts
        self.info = replace(whole.info, layer_ranges=False)
        self._asked = exits.asked
        self._waiting: defaultdict[int, Waiting] = defaultdict(Waiting)

    def open(
        self, slots: int, capacity: int, max_cache_tokens: int | None = None, pools: Sequence[CacheSpec] = ()
    ) -> "NestedRunner":
        together = not hosts.on_host(self.info.device) or len(self._asked.layers) == 1
        models = [self.whole] if together else [self.whole.first_layers(layers) for layers in self._asked.layers]
        parts = [
            model.open(slots, capacity, max_cache_tokens, () if part else pools) for part, model in enumerate(models)
        ]
        return type(self)(self.whole, self.exits, tuple(parts))

    def first_layers(self, count: int) -> "NestedRunner":
        raise ModelError("a model with exits decides by itself how many layers run")

    # --- passes

    def execute(self, x: ForwardInput, *, taps: frozenset[int] = frozenset(), layers: LayerPlan = ALL) -> ForwardOutput:
        """Logits and hidden states of wanted tokens are those of the exit that each one takes."""
        if taps or layers != ALL:
            raise EngineError("a model with exits has no taps and runs its own layers only")
        return self._all_layers(x) if len(self._parts) == 1 else self._as_deep_as_needed(x)

    @torch.inference_mode()
    def _all_layers(self, x: ForwardInput) -> ForwardOutput:
        """One part: a schedule that does not depend on what the exits say."""
        inner = self._asked.layers[:-1]
        if not inner or not x.want.shape[0]:
            return self._first.execute(x)
        output = self._first.execute(x, taps=frozenset(inner))
        states = [output.features[tap].index_select(0, x.want) for tap in inner]
        said = [self.whole.head(each) for each in states]
        said.append(output.logits.index_select(0, output.logits_index.index_select(0, x.want)))
        states.append(output.hidden.index_select(0, x.want))
        taken = self._asked.first(said)[:, None]
        logits, hidden = said[-1], states[-1]
        for i in range(len(inner)):
            logits = torch.where(taken == i, said[i], logits)
            hidden = torch.where(taken == i, states[i], hidden)
        whole = output.hidden.index_copy(0, x.want, hidden)
        return ForwardOutput(logits, whole, logit_places(x.want, x.size), tokens=x)

    @torch.inference_mode()
    def _as_deep_as_needed(self, x: ForwardInput) -> ForwardOutput:
        columns, want = x.to_host(), host(x.want)
        output = self._first.execute(x)
        tokens = self._stage(columns, host(x.positions), output.hidden)
        logits, hidden = _wanted(output, x.want), output.hidden
        if want:
            crowded = {slot for slot in columns.slots if len(self._waiting[slot].text) > LONGEST}
            through = [i for i, slot in enumerate(columns.slots) if slot in crowded]
        else:
            through = list(range(x.size))
        staying = [u for u, left in enumerate(host(self._asked.leave(0, logits))) if not left]  # among the wanted ones
        for part in range(1, len(self._parts)):
            places = [want[u] for u in staying]
            deeper = [(columns.slots[i], tokens[i]) for i in (*through, *places)]
            if not deeper:
                break
            said, states = self._run(part, deeper, [tokens[i] for i in places])
            if not staying:
                continue
            if len(staying) == len(want):
                logits = said
            else:
                logits.index_copy_(0, put(staying, logits.device), said)
            hidden = hidden.index_copy(0, put(places, hidden.device), states)
            left = host(self._asked.leave(part, said))
            staying = [u for u, gone in zip(staying, left, strict=True) if not gone]
        return ForwardOutput(logits, hidden, logit_places(x.want, x.size), tokens=x)

    def _stage(self, columns: HostInput, positions: list[int], hidden: Float[Tensor, "T H"]) -> list[Token]:
        """What the first part has run, in the order of the pass."""
        rows = hidden.unbind(0)
        each = zip(columns.slots, columns.entries, columns.parents, columns.ids, positions, rows, strict=True)
        return [self._waiting[slot].stage(*column) for slot, *column in each]

    def _run(
        self, part: int, deeper: list[tuple[int, Token]], wanted: list[Token]
    ) -> tuple[Float[Tensor, "U W"], Float[Tensor, "U H"]]:
        """These tokens of these slots through one part, with what waits before them. Of `wanted`: logits, hidden states."""
        by_slot: dict[int, list[Token]] = {}
        for slot, token in deeper:
            by_slot.setdefault(slot, []).append(token)
        columns, positions = HostInput([], [], [], []), list[int]()
        place: dict[Token, int] = {}
        for slot, tokens in by_slot.items():
            waiting = self._waiting[slot]
            for token in tokens:
                for each in waiting.path(token, part):
                    place[each] = len(place)
                    each.entries.append(waiting.next_entry(part))
                    columns.ids.append(each.id)
                    columns.slots.append(slot)
                    columns.entries.append(each.entries[part])
                    columns.parents.append(COMMITTED if each.parent is None else each.parent.entries[part])
                    positions.append(each.position)
        states = torch.stack([each.hidden for each in place])
        x = ForwardInput.of(columns, positions, [place[each] for each in wanted], states.device, states)
        output = self._parts[part].execute(x, layers=LayerPlan(start=self._asked.layers[part - 1]))
        for each, hidden in zip(place, output.hidden.unbind(0), strict=True):
            each.hidden = hidden
        return _wanted(output, x.want), output.hidden.index_select(0, x.want)

    # --- slots

    @property
    def _opened(self) -> tuple[Runner, ...]:
        if not self._parts:
            raise EngineError("NestedRunner has no cache\nhint: runner.open(slots, capacity) gives it one")
        return self._parts

    @property
    def _first(self) -> Runner:
        return self._opened[0]

    def admit(self, slot: int, tokens: Sequence[int], most: int | None = None, before: Sequence[int] = ()) -> int:
        """No part begins with more than the last one has: hidden states are not shared."""
        for runner in reversed(self._opened):
            most = runner.admit(slot, tokens, most, before)
        self._waiting.pop(slot, None)
        while any(runner.length(slot) != most for runner in self._opened):  # a part has given up what a deeper one kept
            for runner in reversed(self._opened):
                runner.free([slot])
                most = runner.admit(slot, tokens, most, before)
        assert most is not None
        return most

    def present(self, tokens: Sequence[int], before: Sequence[int] = ()) -> tuple[int, int]:
        return self._opened[-1].present(tokens, before)

    def save(self, slot: int) -> None:
        """Its parts hold different numbers of entries: a preempted text is run again."""

    def restore(self, slot: int, saved: Saved, tokens: Sequence[int], most: int | None = None) -> int:
        raise EngineError("NestedRunner saves no text")

    def prefer(self, tokens: Sequence[int], free: Sequence[int], before: Sequence[int] = ()) -> int:
        return self._opened[-1].prefer(tokens, free, before)

    def length(self, slot: int) -> int:
        return self._first.length(slot)

    def reserve(self, slots: Sequence[int], extra: Sequence[int]) -> None:
        for part, runner in enumerate(self._opened):
            late = [self._waiting[slot].before(part) if part else 0 for slot in slots]
            runner.reserve(slots, [more + behind for more, behind in zip(extra, late, strict=True)])

    def commit(self, slots: Sequence[int], entries: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]]) -> None:
        self._first.commit(slots, entries, tokens)
        if len(self._parts) == 1:
            return
        texts = [self._waiting[slot].kept(kept) for slot, kept in zip(slots, entries, strict=True)]
        for part in range(1, len(self._parts)):
            each = [fresh(text, part) for text in texts]
            self._parts[part].commit(slots, [own for own, _ in each], [ids for _, ids in each])
        for slot, text in zip(slots, texts, strict=True):
            self._waiting[slot].commit(text, len(self._parts))

    def free(self, slots: Sequence[int]) -> None:
        for runner in self._opened:
            runner.free(slots)
        for slot in slots:
            self._waiting.pop(slot, None)

    def forget(self) -> None:
        for runner in self._opened:
            runner.forget()

    def check_integrity(self) -> None:
        for runner in self._opened:
            runner.check_integrity()
        for slot, waiting in self._waiting.items():
            for part, runner in enumerate(self._parts):
                have, lacks = runner.length(slot), waiting.before(part)
                if have + lacks != self.length(slot):
                    raise EngineError(
                        f"slot {slot}: part {part} has {have} entries and {lacks} tokens wait before it, "
                        f"of {self.length(slot)}"
                    )

    @property
    def spare(self) -> int | None:
        return self._first.spare

    @property
    def capacity(self) -> int:
        return self._first.capacity

    @property
    def max_cache_tokens(self) -> int:
        return self._first.max_cache_tokens

    def read_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"]
    ) -> Shaped[Tensor, "n heads width"]:
        return self._first.read_pool(name, slots, entries)

    def write_pool(
        self, name: str, slots: Int[Tensor, "n"], entries: Int[Tensor, "n"], values: Shaped[Tensor, "n heads width"]
    ) -> None:
        self._first.write_pool(name, slots, entries, values)

    def filled(self, slot: int, name: str, upto: int) -> None:
        self._first.filled(slot, name, upto)

    # --- weights

    def captured(
        self, key: Hashable, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        return self._first.captured(key, function, *inputs)

    def embed(self, ids: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
        return self.whole.embed(ids)

    def head(
        self, hidden: Float[Tensor, "*S H"], *, ids: Int[Tensor, "W"] | None = None, norm: bool = True
    ) -> Float[Tensor, "*S W"]:
        return self.whole.head(hidden, ids=ids, norm=norm)


def _wanted(output: ForwardOutput, want: Int[Tensor, "U"]) -> Float[Tensor, "U W"]:
    """Logits in the order in which they were asked for."""
    if output.logits.shape[0] <= 1:  # copying a single distribution would wake all threads
        return output.logits
    return output.logits.index_select(0, output.logits_index.index_select(0, want))
