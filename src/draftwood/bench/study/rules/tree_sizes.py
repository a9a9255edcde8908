"""tree_sizes: how many drafted tokens chains and trees of every size would have yielded, from one run with a large tree.

    python -m draftwood.bench.study.rules.tree_sizes eagle3 \\
        --out src/draftwood/weights/smollm2-135m-instruct.eagle3.profile.json

A best-first tree of n nodes and d levels is the n best nodes of a larger one, its deeper levels left out. So the accepted
path in the large tree gives the accepted path in every smaller one.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwood import recipes
from draftwood.bench.provenance import provenance
from draftwood.bench.spec.questions import chat_prompts
from draftwood.bench.study.backend_error import TURNS
from draftwood.bench.study.single_prompt import ask, engine
from draftwood.controllers.estimates.acceptance import DEPTHS, NODES
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import ForwardOutput
from draftwood.core.recipe import Recipe
from draftwood.core.round import Round
from draftwood.core.verdict import Outcome
from draftwood.drafters.nets.files.find import fingerprint
from draftwood.models.loading.load import Loaded, load
from draftwood.runners.open import runner_of
from draftwood.trees.best_first import WIDE, BestFirst
from draftwood.trees.chain import Chain
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection


@dataclass(slots=True)
class Counts:
    """A watcher of rounds with one sequence."""

    rounds: int = 0
    chains: list[int] = field(default_factory=lambda: [0] * len(DEPTHS))
    trees: list[list[int]] = field(default_factory=lambda: [[0] * len(NODES) for _ in DEPTHS])

    def __call__(self, rnd: Round, outcome: Outcome, output: ForwardOutput) -> None:
        if not rnd.batch or not outcome.drafted[0]:
            return
        self.rounds += 1
        tree, path = outcome.proposal.tree, outcome.verdict.to_host().paths[0][1:]
        score, parents, depth = (x[0].tolist() for x in (tree.score, tree.parents, tree.depths()))
        order = sorted(range(1, len(score)), key=lambda node: (-score[node], node))
        first: dict[int, int] = {}  # best child of every node
        for node in order:
            first.setdefault(parents[node], node)
        line = 0
        while line < len(path) and path[line] == first[parents[path[line]]]:
            line += 1
        for i, most in enumerate(DEPTHS):
            self.chains[i] += min(line, most)
            place = {node: rank for rank, node in enumerate(node for node in order if depth[node] <= most)}
            for j, nodes in enumerate(NODES):
                self.trees[i][j] += sum(depth[node] <= most and place[node] < nodes for node in path)

    def means(self) -> dict[str, Any]:
        def mean(total: int) -> float:
            return round(total / max(self.rounds, 1), 4)

        return {
            "rounds": self.rounds,
            "chains": [mean(x) for x in self.chains],
            "trees": [[mean(x) for x in level] for level in self.trees],
        }


def measure(loaded: Loaded, recipe: str, prompts: list[list[int]], temperature: float, max_tokens: int) -> Counts:
    """One answer to each prompt; the recipe lends its drafter."""
    drafter, counts = recipes.drafter(recipe, runner_of(loaded)), Counts()
    size = Fixed(depth=max(DEPTHS), nodes=max(NODES))
    whole = Recipe(drafter=drafter, policy=BestFirst(WIDE), verifier=Match(), controller=size, watch=(counts,))
    for i, prompt in enumerate(prompts):
        llm = engine(loaded, whole, [prompt], max_tokens, spare=256)
        ask(llm, prompt, i, temperature=temperature, max_tokens=max_tokens)
    return counts


def measure_drawn(loaded: Loaded, recipe: str, prompts: list[list[int]], temperature: float, max_tokens: int) -> Counts:
    """The same of chains of draws, at the recipe's own temperature of drafts. The token rule keeps a prefix, so the longest
    chain tells of all shorter ones; the block rule keeps a little more."""
    made, counts = recipes.build(recipe, runner_of(loaded)), Counts()
    size = Fixed(depth=max(DEPTHS))
    whole = Recipe(
        drafter=made.drafter,
        policy=Chain(),
        verifier=Rejection(),
        controller=size,
        watch=(counts,),
        draft_temperature=made.draft_temperature,
    )
    for i, prompt in enumerate(prompts):
        llm = engine(loaded, whole, [prompt], max_tokens)
        ask(llm, prompt, i, temperature=temperature, max_tokens=max_tokens)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--count", type=int, default=12, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:N, or auto: a GPU if there is one")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--drawn", action="store_true", help="add chains of draws at temperature 1 to an existing file")
    chosen = parser.parse_args()
    loaded = load(chosen.model, device=chosen.device)
    prompts = chat_prompts(loaded.tokenizer, TURNS[: chosen.count])
    settings = {"prompts": len(prompts), "max_tokens": chosen.max_tokens}
    made_with = provenance(loaded.info.backend, loaded.info.device)
    if chosen.drawn:
        note: dict[str, Any] = json.loads(chosen.out.read_text("utf-8"))
        counted = measure_drawn(loaded, chosen.recipe, prompts, 1.0, chosen.max_tokens).means()
        about = {"command": f"{note['command']} --drawn", **settings, "provenance": made_with}
        note["drawn"] = {**about, "rounds": counted["rounds"], "chains": counted["chains"]}
    else:
        found = {str(t): measure(loaded, chosen.recipe, prompts, float(t), chosen.max_tokens).means() for t in (0, 1)}
        note = {
            "command": f"python -m draftwood.bench.study.rules.tree_sizes {chosen.recipe} --out FILE",
            "recipe": chosen.recipe,
            "model": chosen.model,
            "target": fingerprint(runner_of(loaded)),
            **settings,
            "nodes": NODES,
            "temperatures": found,
            "provenance": made_with,
        }
    chosen.out.write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
