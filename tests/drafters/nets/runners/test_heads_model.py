"""Heads with tables of their own draft what the same heads draft through the target's tables."""

from dataclasses import replace

import pytest
import torch

from draftwood.drafters.nets.files.build import filled
from draftwood.drafters.nets.files.store import Head
from draftwood.drafters.nets.runners.heads_model import StageModel
from draftwood.testing.parts.heads import random_head
from draftwood.testing.parts.tiny import CONFIG, tiny_runner, tiny_weights

TABLE = tiny_weights()["model.embed_tokens.weight"]  # the tiny target is tied


def with_tables(head: Head) -> Head:
    """The same head, its tables multiplied out."""
    c, t, n = head.config, head.tensors, head.config.stages
    config = replace(c, own_tables=True, rows=CONFIG.vocab_size)
    if c.kind == "medusa":
        rows = {"rows": TABLE[None].expand(n, -1, -1)}
        return Head(config, {"blocks.weight": t["weight"], "blocks.bias": t["bias"], **rows}, None, "")
    own = 1 if c.tied else n
    tables = {"emb": TABLE @ t["emb.weight"].T, "head": TABLE @ t["head.weight"]}
    kept = {name: x for name, x in t.items() if name not in ("emb.weight", "head.weight")}
    return Head(config, {**kept, **{name: x[None].repeat(own, 1, 1) for name, x in tables.items()}}, None, "")


def run(head: Head, columns: torch.Tensor | None) -> torch.Tensor:
    model = StageModel(filled(head).double(), tiny_runner(), head.ids)
    noise = torch.Generator().manual_seed(0)
    carry = model.start(torch.randn(4, CONFIG.hidden_size, generator=noise).double())
    left, stage = [], []
    for k in range(model.stages):
        carry, y = model.step(k, carry, torch.tensor([3, 1, 4, 1]) + k)
        left.append(y)
        stage.append(torch.full((4,), k))
    return model.logits(torch.cat(left), columns, torch.cat(stage))


@pytest.mark.parametrize(("kind", "more"), [("medusa", {}), ("mlp", {}), ("mlp", {"tied": True, "scale_input": True})])
@pytest.mark.parametrize("columns", [None, torch.tensor([5, 2, 40])])
def test_own_tables_say_what_the_target_s_say(kind: str, more: dict[str, bool], columns: torch.Tensor | None):
    head = random_head(kind, tiny_runner(), **more)
    shared, own = run(head, columns), run(with_tables(head), columns)
    torch.testing.assert_close(own, shared, rtol=1e-4, atol=1e-4)  # tables were multiplied out in float32


def test_each_stage_multiplies_its_own_table():
    """A twin: tables that differ by stage give other logits."""
    head = with_tables(random_head("medusa", tiny_runner()))
    other = replace(
        head, tensors={**head.tensors, "rows": head.tensors["rows"] * torch.tensor([1, 2, 3])[:, None, None]}
    )
    first, second = run(head, None), run(other, None)
    torch.testing.assert_close(second[:4], first[:4])
    torch.testing.assert_close(second[4:8], 2 * first[4:8])


def test_rows_of_a_trimmed_table_are_found_by_their_token():
    whole = with_tables(random_head("medusa", tiny_runner()))
    ids = torch.tensor([40, 2, 5, 17])
    trimmed = replace(
        whole,
        ids=ids,
        config=replace(whole.config, rows=4),
        tensors={**whole.tensors, "rows": whole.tensors["rows"][:, ids]},
    )
    wanted = torch.tensor([5, 40])
    torch.testing.assert_close(run(trimmed, wanted), run(whole, wanted))
