"""Recipes are found by name, explain themselves, and refuse what would bias the output."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood import recipes
from draftwood.controllers.fixed import Fixed
from draftwood.core.forward import Needs
from draftwood.core.legal_draws import Draw
from draftwood.core.recipe import Loop, Recipe
from draftwood.drafters.nothing import Nothing
from draftwood.drafters.retrieval.ngram import NGram
from draftwood.drafters.retrieval.stores.build import Piece, build_store
from draftwood.drafters.retrieval.stores.dense.build import build_dense
from draftwood.errors import CompositionError, OptionError, UnknownNameError
from draftwood.models.loading.load import load
from draftwood.runners.open import runner_of
from draftwood.testing.folder import write_folder
from draftwood.testing.parts.heads import random_head, write_head
from draftwood.testing.parts.tiny import tiny_runner
from draftwood.train.data.hidden_states import final_states
from draftwood.trees.best_first import BestFirst
from draftwood.trees.chain import Chain
from draftwood.trees.static import Static
from draftwood.verifiers.match import Match
from draftwood.verifiers.rejection import Rejection

KINDS = {
    "eagle2": "eagle",
    "rasd": "eagle3",
    "mlp_speculator": "mlp",
    "fast_draft": "language",
    "dynamic_mcsd": "decision",
    "ada_eagle": "length",
    "specdec_pp": "acceptance",
    "kangaroo": "exit",
    "eesd": "exit_layer",
    "s2d": "nested",
    "hispec": "exits",
    "sdsat": "probes",
    "koala": "deep_eagle",
    "dflash": "block",
    "falcon": "semi",
}  # whose weights a recipe loads


def needed(name: str, target: Any, folder: Path) -> dict[str, Any]:
    """Options that a recipe cannot do without on a small target, and the files that they name."""
    np.save(folder / "counts.npy", np.arange(target.info.vocab_size))
    (folder / "text.txt").write_text("some text")
    inner = "speculative_sampling:draft=first:2"
    texts = (str(folder / "text.txt"),)
    files = {"draft": "first:2", "inner": inner, "counts": str(folder / "counts.npy"), "texts": texts}
    chosen = {key: value for key, value in files.items() if key in recipes.options(name)}
    if name == "dresd":
        chosen["store"] = folder / "texts.dense"
        build_dense(chosen["store"], [Piece(np.arange(9))], final_states(target), target.info)
    elif "store" in recipes.options(name):
        tokenizer = target.info.tokenizer
        named = {"vocab_size": tokenizer.vocab_size, "tokenizer": tokenizer.fingerprint}
        build_store(folder / "texts.store", [Piece(np.arange(9))], **named)
        chosen["store"] = folder / "texts.store"
    if name == "hispec":  # its `draft` is a number
        chosen.pop("draft")
    if "draft" in chosen:  # one of the two is enough
        chosen.pop("inner", None)
    if "skip" in recipes.options(name):
        chosen["skip"] = "a1+m1"
    if "weights" in recipes.options(name):
        head = random_head(KINDS.get(name, name), target)
        chosen["weights"] = str(write_head(folder / "head.safetensors", head))
    return chosen


@pytest.mark.one_in(13)
@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_builds_for_a_target_and_names_its_paper(name: str, tmp_path: Path) -> None:
    target = runner_of(load(str(write_folder(tmp_path / "model", num_layers=4)), dtype="float32"))
    options = needed(name, target, tmp_path)
    recipe = recipes.build(name, target, **options)
    assert isinstance(recipe, Recipe) and recipe.lossless == recipes.paper(name).lossless
    assert recipes.paper(name).title
    assert recipes.paper(name).claim or not recipes.paper(name).arxiv  # stands beside ours in the table of results
    key, _, value = recipes.paper(name).lossy_with.partition("=")
    assert not key or not recipes.build(name, target, **{**options, key: value}).lossless


def test_an_unknown_recipe_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'prompt_lookup'"):
        recipes.load("prompt_lokup")


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"(?s)no option 'width'.*depth"):
        recipes.build("prompt_lookup", tiny_runner(), width=3)


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        (Recipe(drafter=NGram(), policy=Static((2,)), verifier=Match(), controller=Fixed(1)), "Static.*NGram"),
        (
            Recipe(drafter=Nothing(), policy=Chain(Draw.GIVEN), verifier=Rejection(), controller=Fixed(1)),
            "Rejection.*Chain",
        ),
        (
            Recipe(
                drafter=Nothing(needs=Needs(taps=frozenset({99}))),
                policy=Chain(),
                verifier=Match(),
                controller=Fixed(1),
            ),
            r"Nothing taps layers \[99\], the target has taps 0 to 4",
        ),
        (
            Recipe(
                drafter=Nothing(needs=Needs(borrow=True)),
                policy=Chain(),
                verifier=Match(),
                controller=Fixed(1),
                loop=Loop.OVERLAPPED,
            ),
            "Loop.OVERLAPPED.*Nothing",
        ),
    ],
)
def test_a_composition_that_would_bias_the_output_cannot_be_built(recipe: Recipe, names: str) -> None:
    with pytest.raises(CompositionError, match=names):
        recipe.check(tiny_runner())


@pytest.mark.parametrize(("drafter", "policy"), [(NGram(), Chain(Draw.GIVEN)), (NGram(), BestFirst())])
def test_what_a_hint_names_can_be_built(drafter: NGram, policy: Chain | BestFirst) -> None:
    """Of a drafter without a distribution; the recipes that lend one with a distribution can take its place."""
    Recipe(drafter=drafter, policy=policy, verifier=Match(), controller=Fixed(4, 8)).check(tiny_runner())
    wrong = Recipe(drafter=drafter, policy=Static((2,)), verifier=Rejection(), controller=Fixed(1))
    with pytest.raises(CompositionError, match=r"hint: .*take Chain\(Draw.GIVEN\) or BestFirst.*with Match") as caught:
        wrong.check(tiny_runner())
    assert type(policy).__name__ in str(caught.value)


def test_a_recipe_that_borrows_a_drafter_without_distributions_names_others(tmp_path: Path) -> None:
    target = runner_of(load(str(write_folder(tmp_path / "model")), dtype="float32"))
    with pytest.raises(CompositionError, match="or another inner: inner=auto, inner=eagle3, inner=fast_draft"):
        recipes.build("dyspec:inner=prompt_lookup", target)
    for inner in ("fast_draft", "eagle3"):
        head = write_head(tmp_path / f"{inner}.safetensors", random_head(KINDS.get(inner, inner), target))
        recipes.build(f"dyspec:inner={inner}:weights={head}", target)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"verifier": Rejection}, r"verifier is a class: Rejection\nhint: Rejection\(\)"),
        ({"controller": Fixed}, r"controller is a class: Fixed\nhint: Fixed\(\.\.\.\)"),
        ({"drafter": "eagle3"}, r"drafter is of type str: 'eagle3'\nhint: recipes.drafter\('eagle3', target\)"),
        ({"policy": "chain"}, r"policy is of type str: 'chain'\nhint: a tree policy, such as Chain\(\)"),
        ({"verifier": None}, r"verifier is of type NoneType: None\nhint: a rule, such as Rejection\(\)"),
        ({"controller": 5}, r"controller is of type int: 5\nhint: a length controller, such as Fixed\(depth=4\)"),
    ],
)
def test_a_part_that_is_none_is_refused_with_what_was_meant(parts: dict[str, Any], said: str) -> None:
    good = {"drafter": Nothing(), "policy": Chain(), "verifier": Rejection(), "controller": Fixed(1)}
    Recipe(**good)
    with pytest.raises(CompositionError, match=said):
        Recipe(**{**good, **parts})


@pytest.mark.parametrize("draft", ["first:0", "first:9", "first:x"])
def test_a_draft_that_cannot_be_cut_is_refused(draft: str) -> None:
    with pytest.raises(OptionError, match="first:N"):
        recipes.build("speculative_sampling", tiny_runner(), draft=draft)


def test_a_name_may_carry_options() -> None:
    recipe = recipes.build("prompt_lookup:depth=3", tiny_runner())
    assert recipe.controller == recipes.build("prompt_lookup", tiny_runner(), depth=3).controller
    assert recipe.controller != recipes.build("prompt_lookup", tiny_runner()).controller
    for wrong in ("prompt_lookup:width=3", "prompt_lookup:depth=x", "prompt_lookup:depth"):
        with pytest.raises(OptionError, match=r"prompt_lookup|--option"):
            recipes.build(wrong, tiny_runner())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("auto", []),
        ("a:depth=3:nodes=4", ["depth=3", "nodes=4"]),
        ("a:draft=first:10:depth=2", ["draft=first:10", "depth=2"]),
        ("a:vocab_size=5:inner=b:depth=7:nodes=60", ["vocab_size=5", "inner=b:depth=7:nodes=60"]),
        ("a:inner=b", ["inner=b"]),
        ("a:weights=dinner=x:depth=2", ["weights=dinner=x", "depth=2"]),
        ("a:depth", ["depth"]),
        ("a:", [""]),
    ],
)
def test_values_may_hold_colons_and_an_inner_recipe_keeps_its_options(name: str, words: list[str]) -> None:
    assert recipes.parted(name) == (name.partition(":")[0], words)


_WHOLE = ("vocab_trim", "fr_spec", "laps_sd")  # these take a whole recipe
_BORROWERS = [name for name in recipes.names() if "inner" in recipes.options(name) and name not in _WHOLE]


@pytest.mark.parametrize("name", _BORROWERS)
@pytest.mark.slow
def test_shape_of_a_recipe_that_only_lends_its_drafter_is_refused(name: str, tmp_path: Path) -> None:
    """It would have no effect. A twin: without it, the drafter is lent."""
    target, outer = tiny_runner(), name
    if "weights" in recipes.options(name):
        outer = f"{name}:weights={write_head(tmp_path / 'head.safetensors', random_head(KINDS[name], target))}"
    recipes.build(f"{outer}:inner=speculative_sampling:draft=first:2", target)
    with pytest.raises(
        OptionError, match=r"'depth' would have no effect\nhint: leave depth out, or put it before inner="
    ):
        recipes.build(f"{outer}:inner=speculative_sampling:depth=3:draft=first:2", target)


HUGE = 10**30


@pytest.mark.parametrize(
    "words",
    [
        "spectr:paths={}",
        "spectr:depth={}",
        "mcsd:widths={}",
        "mcsd:widths=64,64,64",
        "rsd:beam={}",
        "rsd:depth={}",
        "spechub:depth={}",
        "spechub:depth=4000",
        "optimal_multi_draft:widths={}",
        "dyspec:nodes={}",
        "opt_tree:depth={}",
        "sequoia:nodes={}",
        "sequoia:depth={}",
        "block_verification:depth={}",
        "traversal_verification:paths={}",
        "dynamic_mcsd:weights=none:depth={}",
        "dynamic_mcsd:weights=none:width={}",
    ],
)
def test_a_draft_without_end_is_refused_at_once(words: str) -> None:
    with pytest.raises(OptionError, match="4096"):
        recipes.build(f"{words.format(HUGE)}:inner=speculative_sampling:draft=first:1", tiny_runner(2))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("dynamic_mcsd:weights=none:threshold=0.9:inner=speculative_sampling:draft=first:1", "without a net"),
        ("canonical_multi_draft:size=9:inner=speculative_sampling:draft=first:1", "only with solver=lp"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        recipes.build(words, tiny_runner(2))


@pytest.mark.parametrize(
    ("name", "lends"),
    [
        ("eagle3", "eagle3"),
        ("eagle3:depth=7:weights=w.safetensors", "eagle3:weights=w.safetensors"),
        ("sequoia:inner=eagle3", "eagle3"),
        ("sequoia", "auto"),
        ("sequoia:nodes=9:inner=dyspec:ahead=2:inner=eagle3:weights=w", "eagle3:weights=w"),
        ("dynamic_mcsd:weights=none:roots=target:inner=fast_draft", "fast_draft"),
        ("mcsd:widths=2,2:inner=speculative_sampling:depth=2:draft=first:2", "speculative_sampling:draft=first:2"),
        ("mcsd:inner=eagle3", "eagle3"),
        ("vocab_trim:vocab_size=64:inner=eagle3", "vocab_trim:vocab_size=64:inner=eagle3"),
    ],
)
def test_lender_is_the_recipe_whose_drafter_it_is(name: str, lends: str) -> None:
    assert recipes.lender(name) == lends


# These do not only borrow: they may name a model, run it in a way of their own, or put copies behind it.
_OWN_DRAFTERS = {"speculative_sampling", "superposed_decoding", "cascade_drafting"}


@pytest.mark.parametrize("name", sorted(set(_BORROWERS) - _OWN_DRAFTERS))
def test_every_recipe_that_borrows_is_unwrapped(name: str) -> None:
    assert recipes.lender(f"{name}:inner=prompt_lookup") == "prompt_lookup"


GOOD = """
from draftwood.core.recipe import Paper
from draftwood.recipes.autoregressive import build as plain
PAPER = Paper(title="Foreign")
def build(target, *, depth: int = 2, what: "NoSuchName" = None):
    {}
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("import no_such_package", "cannot be imported: ModuleNotFoundError"),
        ("x = 1", "is no recipe: it needs PAPER"),
        ("PAPER = 'Foreign'\ndef build(target): ...", "is no recipe: it needs PAPER"),
        (GOOD.format("return 1 / 0"), "cannot be built: ZeroDivisionError"),
        (GOOD.format("return None"), "is no recipe: build.. returns NoneType"),
    ],
)
def test_a_broken_plug_in_is_named_and_other_recipes_work(
    tmp_path: Path, monkeypatch: Any, source: str, said: str
) -> None:
    install(source, tmp_path, monkeypatch)
    with pytest.raises(OptionError, match=f"recipe 'foreign' of the plug-in 'foreign_.*' {said}(.|\n)*hint: update or"):
        recipes.build("foreign", tiny_runner())
    assert "foreign" in recipes.names() and recipes.build("prompt_lookup", tiny_runner()).lossless


def test_a_recipe_of_another_package_is_built(tmp_path: Path, monkeypatch: Any) -> None:
    install(GOOD.format("return plain(target)"), tmp_path, monkeypatch)
    assert recipes.build("foreign:depth=3", tiny_runner()).lossless and recipes.paper("foreign").title == "Foreign"


def install(source: str, folder: Path, monkeypatch: Any) -> None:
    """A plug-in that adds the recipe `foreign`, and one that would replace a recipe of ours."""
    module = f"foreign_{abs(hash(source))}"
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    points = {name: EntryPoint(name, module, recipes.GROUP) for name in ("foreign", "prompt_lookup")}
    monkeypatch.setattr(recipes, "_plugins", lambda: points)
