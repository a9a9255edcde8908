"""The house keeps its shape: file sizes, import directions, mirrored tests, no paper's name in the engine.

Every guard is a function over a root folder that returns the violations it found, one line each.
Below, each guard is run on this checkout, where it must find nothing, and on a small tree with one
planted violation, which it must find: a guard that finds nothing anywhere would be no guard.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "draftwood"

FILE_CAP = 400
RECIPE_CAP = 80

FOR_ALL = frozenset({"errors", "_version", "option_parsing"})
# Lowest first. A folder (or top-level module) imports itself and what lies in a lower rank.
RANKS: tuple[frozenset[str], ...] = (
    FOR_ALL,
    frozenset({"core"}),
    frozenset({"kernels", "models", "cache"}),
    frozenset({"runners"}),
    frozenset({"trees", "verifiers", "controllers"}),
    frozenset({"drafters"}),
    frozenset({"sizing"}),
    frozenset({"recipes"}),
    frozenset({"llm", "grammar", "prompts", "results", "progress", "server", "bench", "train", "search", "cluster"}),
    frozenset({"cli"}),
    frozenset({"__init__", "__main__"}),
)
RANK = {unit: rank for rank, units in enumerate(RANKS) for unit in units}
TOP = RANK["llm"]

# What the ranks alone do not say. A folder named here as a key imports itself and these, nothing else.
ONLY: dict[str, frozenset[str]] = {
    "engine": frozenset({"core"}),
    "testing": frozenset(
        {"core", "cache", "models", "runners", "trees", "drafters", "engine"}
    ),  # the exact tester enumerates the engine itself
    "weights": frozenset(),
    "train/objectives.py": frozenset({"core"}),
}
# Single files that lie lower than their folder: the losses know shapes and nothing else, so learners may use them.
LOWER: dict[str, int] = {"draftwood.train.objectives": RANK["core"]}
# In addition to lower ranks.
ALSO: dict[str, frozenset[str]] = {
    "models": frozenset({"kernels"}),  # backends call kernels
    "cache": frozenset({"kernels"}),
    "sizing": frozenset({"engine"}),  # times rounds before the first request
    "recipes": frozenset({"engine"}),  # a recipe may choose a scheduler
}
# Who may import the folders that have no rank.
UNRANKED: dict[str, int] = {"engine": TOP, "testing": TOP, "weights": RANK["drafters"]}

# Tests of the whole house, which mirror no single file.
NOT_MIRRORED = frozenset(
    {
        "test_layout.py",
        "test_exactness.py",
        "test_packaging.py",
        "test_docs.py",
        "test_oracle.py",
        "kernels/cpu/test_neon.py",  # every file of the kernels, on another processor
        "models/test_architectures.py",
        "engine/test_one_read.py",
        "drafters/test_combinations.py",
        "server/test_page.py",  # of a folder of JavaScript
    }
)

# Every system the project holds or will hold, and the baselines beside them; files in recipes/ are added to it.
PAPER_NAMES = frozenset(
    """
    spectr mcsd dynamic_mcsd rsd canonical_multi_draft optimal_multi_draft dyspec opt_tree eagle2 griffin koala
    ada_eagle kangaroo draft_and_verify eesd hispec falcon sdsat mlp_speculator s2d specdec_pp fast_draft online_sd
    vocab_trim judge_decoding lantern_pp rasd dresd ouroboros cascade_drafting superposed_decoding smart_spec tetris
    laps_sd pearl duo_decoding dovetail easy_spec stree
    autoregressive speculative_sampling prompt_lookup suffix_decoding lookahead rest medusa hydra eagle eagle3
    block_verification traversal_verification spechub fr_spec
    """.split()
)
ENGLISH = frozenset({"rest", "autoregressive", "auto", "prediction"})  # recipes whose names are ordinary words too
NAMELESS_FOLDERS = ("core", "engine", "cache", "models", "server")


def sources(root: Path) -> list[Path]:
    return sorted((root / "src" / PACKAGE).rglob("*.py"))


# --- sizes


def oversized_files(root: Path) -> list[str]:
    """Files longer than their cap; kernels have none."""
    found = []
    for path in sources(root):
        parts = path.relative_to(root / "src" / PACKAGE).parts
        if parts[0] == "kernels":
            continue
        is_recipe = parts[0] == "recipes" and len(parts) == 2 and path.name != "__init__.py"
        cap = RECIPE_CAP if is_recipe else FILE_CAP
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > cap:
            found.append(f"{path.relative_to(root)}: {lines} lines, at most {cap}")
    return found


# --- import directions


def imported_modules(path: Path, src: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a file imports of ours: nested, under TYPE_CHECKING, relative, by import_module."""
    package = path.relative_to(src).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            # With the alias, because `from draftwood import core` names the folder only there.
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [text for text in map(leading_text, node.args[:1]) if text]
        if isinstance(node, (ast.stmt, ast.expr)):
            yield from ((node.lineno, name) for name in names if name.split(".")[0] == PACKAGE)


def leading_text(node: ast.expr) -> str:
    """The constant a string expression begins with: all of "a.b", the "a." of f"a.{x}"."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return leading_text(node.values[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def unit_of(name: str, package: Path) -> str:
    """The folder or top-level module a dotted name lives in; `draftwood.LLM` lives in `__init__`."""
    head = [*name.split("."), ""][1]
    exists = (package / head).is_dir() or (package / f"{head}.py").is_file()
    known = head in RANK or head in ONLY
    return head if head and (exists or known) else "__init__"


def may_import(unit: str, file: str, other: str) -> bool:
    if other in FOR_ALL:
        return True
    if file in ONLY:
        return other in ONLY[file]
    if unit == other:
        return True
    if unit in ONLY:
        return other in ONLY[unit]
    if other in ALSO.get(unit, frozenset()):
        return True
    if other in UNRANKED:
        return RANK[unit] >= UNRANKED[other]
    if other not in RANK:
        return False
    # The server, the bench and their neighbours may use each other; elsewhere neighbours are strangers.
    return RANK[unit] > RANK[other] or RANK[unit] == RANK[other] == TOP


def wrong_imports(root: Path) -> list[str]:
    """Imports that point up or sideways, and folders whose place nobody has written down."""
    src = root / "src"
    package = src / PACKAGE
    found = []
    for path in sources(root):
        file = path.relative_to(package)
        unit = file.parts[0].removesuffix(".py")
        if unit not in RANK and unit not in ONLY:
            found.append(f"{path.relative_to(root)}: {unit!r} has no place in the table of imports")
            continue
        for line, name in imported_modules(path, src):
            other = unit_of(name, package)
            if any(name.startswith(f"{low}.") and RANK.get(unit, -1) > rank for low, rank in LOWER.items()):
                continue
            if not may_import(unit, file.as_posix(), other):
                found.append(f"{path.relative_to(root)}:{line}: {unit} must not import {name}")
    return found


# --- mirrored tests


def unmirrored_tests(root: Path) -> list[str]:
    """Tests without the file they test: tests/a/test_x.py belongs to src/draftwood/a/x.py."""
    tests = root / "tests"
    found = []
    for path in sorted(tests.rglob("test_*.py")):
        test = path.relative_to(tests)
        subject = root / "src" / PACKAGE / test.parent / path.name.removeprefix("test_")
        is_package = (subject.with_suffix("") / "__init__.py").is_file()
        if test.as_posix() not in NOT_MIRRORED and not subject.is_file() and not is_package:
            found.append(f"{path.relative_to(root)}: no {subject.relative_to(root)}")
    return found


# --- no paper's name where every paper passes


def words_of(identifier: str) -> list[str]:
    """`is_eagle` -> is, eagle; `OptTree` -> opt, tree; `RSDTree` -> rsd, tree."""
    return [hump.lower() for hump in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+", identifier)]


def names_within(identifier: str, names: dict[str, str]) -> list[str]:
    """Names that a run of the identifier's words spells, however it is written: fr_spec, FRSpec, load_fr_spec."""
    words = words_of(identifier)
    runs = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, len(words) + 1)}
    return sorted(names[run] for run in runs & names.keys())


def paper_names_in_shared_code(root: Path) -> list[str]:
    """Recipe names among the identifiers, string literals (docstrings, f-strings) and file names of shared code."""
    package = root / "src" / PACKAGE
    stems = {path.stem for path in (package / "recipes").glob("*.py") if path.stem != "__init__"}
    names = {name.replace("_", ""): name for name in (PAPER_NAMES | stems) - ENGLISH}
    # f-strings are one STRING token before Python 3.12 and FSTRING_MIDDLE parts since.
    textual = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1), getattr(tokenize, "TSTRING_MIDDLE", -1)}
    found = []
    for folder in NAMELESS_FOLDERS:
        for path in sorted((package / folder).rglob("*.py")):
            where = path.relative_to(root)
            found += [f"{where}: file named after {name}" for name in names_within(path.stem, names)]
            for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
                if token.type == tokenize.NAME or token.type in textual:
                    for word in re.findall(r"\w+", token.string):
                        found += [f"{where}:{token.start[0]}: {word!r} names {n}" for n in names_within(word, names)]
    return found


# --- nothing of anybody's machine


def kept_files(root: Path) -> list[Path]:
    """What git tracks or would track; outside a repository, all files but caches and hidden folders."""
    git = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        listed = subprocess.run(git, capture_output=True, check=False)
        if listed.returncode == 0:
            names = filter(None, listed.stdout.decode().split("\0"))
            return sorted(path for name in names if (path := root / name).is_file())
    caches = {"__pycache__", "build", "dist"}
    kept = (
        path
        for path in root.rglob("*")
        if not any(
            part in caches or (part.startswith(".") and part != ".ci") for part in path.relative_to(root).parent.parts
        )
    )
    return sorted(path for path in kept if path.is_file())


def machine_paths(root: Path) -> list[str]:
    """Absolute paths that exist on one machine only: a working folder, somebody's home."""
    pattern = re.compile(rb"(?<![\w.~)}-])/(?:work|root|(?:home|Users)/[\w.-]+)/[^\s\"')\]]*")
    found = []
    for path in kept_files(root):
        data = path.read_bytes()
        found += [
            f"{path.relative_to(root)}:{data.count(10, 0, match.start()) + 1}: {match.group().decode(errors='replace')}"
            for match in pattern.finditer(data)
        ]
    return found


# --- the field's own words

# What the glossary's words replaced. Upper-case constants of C++ (LANES of a vector register) are not meant.
PRIVATE_WORDS = re.compile(r"\b(laws?|lanes?|heats?|benched|crew|row-exact|lawful)\b|\b(Laws?|Lanes?)\b")
READ_BY_PEOPLE = ("src/", "docs/", "README.md", "CONTRIBUTING.md")
TEXTS = (".py", ".md", ".cpp", ".hpp", ".toml", ".json", ".txt")


def private_words(root: Path) -> list[str]:
    """Words that readers of the field's papers and engines would have to look up. Recorded provenance is a quotation."""
    found = []
    for path in kept_files(root):
        name = path.relative_to(root).as_posix()
        if not name.startswith(READ_BY_PEOPLE) or path.suffix not in TEXTS or "/corpora/" in name:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if '"command":' not in line:
                found += [f"{name}:{number}: {match.group()!r}" for match in PRIVATE_WORDS.finditer(line)]
    return found


# --- nothing is found out by trying an attribute

DECLARED_FOLDERS = (
    "core", "engine", "cache", "runners", "trees", "verifiers", "controllers", "drafters", "recipes", "sizing",
)  # fmt: skip
# What cannot be declared: the operating system, and modules that others wrote. Two abilities of tree policies will be.
PROBES = {
    "engine/shared_engine.py": frozenset({"register_at_fork"}),
    "recipes/__init__.py": frozenset({"PAPER", "build"}),
    "trees/grow.py": frozenset({"passes"}),
    "drafters/on_features/features.py": frozenset({"reads"}),
}


def attribute_probes(root: Path) -> list[str]:
    """Calls `hasattr(x, "name")` and `getattr(x, "name", default)`: abilities belong into a protocol or into ModelInfo."""
    package = root / "src" / PACKAGE
    found = []
    for path in (path for folder in DECLARED_FOLDERS for path in sorted((package / folder).rglob("*.py"))):
        allowed = PROBES.get(path.relative_to(package).as_posix(), frozenset())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = probed(node)
            if name and name not in allowed:
                found.append(f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}")
    return found


def probed(call: ast.Call) -> str:
    """The attribute that a call tries, if its name is written out; a plain getattr raises and so tries nothing."""
    least = {"hasattr": 2, "getattr": 3}.get(ast.unparse(call.func).removeprefix("builtins."))
    given = len(call.args) + len(call.keywords)
    return leading_text(call.args[1]) if least and len(call.args) >= 2 and given >= least else ""


# --- this checkout


def test_guards_see_the_real_sources():
    assert len(sources(ROOT)) > 10
    assert Path(__file__).resolve() in kept_files(ROOT)


@pytest.mark.parametrize(
    "guard",
    [
        oversized_files,
        wrong_imports,
        unmirrored_tests,
        paper_names_in_shared_code,
        machine_paths,
        private_words,
        attribute_probes,
    ],
)
def test_house_is_in_order(guard: Callable[[Path], list[str]]):
    violations = guard(ROOT)
    assert not violations, "\n".join(["", *violations])


# --- the twins: each guard finds what was planted, and only that


@pytest.fixture
def plant(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes one file below an otherwise blameless root and returns the root."""

    def write(name: str, text: str) -> Path:
        for file in ("core/tree.py", "recipes/plain.py", "engine/step.py", "errors.py"):
            clean = tmp_path / "src" / PACKAGE / file
            clean.parent.mkdir(parents=True, exist_ok=True)
            clean.write_text("from draftwood.errors import DraftwoodError\n" if file != "errors.py" else "")
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("file", "lines", "caught"),
    [
        ("core/long.py", 401, True),
        ("core/long.py", 400, False),
        ("recipes/long.py", 81, True),
        ("recipes/long.py", 80, False),
        ("recipes/__init__.py", 81, False),
        ("kernels/long.py", 401, False),
    ],
)
def test_file_over_its_cap_is_caught(plant, file, lines, caught):
    root = plant(f"src/draftwood/{file}", "x = 1\n" * lines)
    assert bool(oversized_files(root)) == caught


@pytest.mark.parametrize(
    ("file", "line", "caught"),
    [
        ("core/a.py", "from draftwood.models import decoder", True),
        ("core/a.py", "from draftwood import models", True),
        ("core/a.py", "import draftwood.models.decoder", True),
        ("core/a.py", "from ..models import decoder", True),
        ("core/a.py", "from . import tree", False),
        ("core/a.py", "def late():\n    from draftwood.cache import dense", True),
        ("core/a.py", "if TYPE_CHECKING:\n    from draftwood.engine import step", True),
        ("core/a.py", "from draftwood import LLM", True),
        ("core/a.py", "import draftwood", True),
        ("core/a.py", "importlib.import_module('draftwood.recipes')", True),
        ("core/a.py", "importlib.import_module(f'draftwood.recipes.{name}')", True),
        ("recipes/__init__.py", "importlib.import_module(f'draftwood.recipes.{name}')", False),
        ("engine/a.py", "from draftwood.cache import dense", True),
        ("engine/a.py", "from draftwood.core import tree\nfrom draftwood.errors import EngineError", False),
        ("engine/a.py", "from draftwood._version import __version__", False),
        ("models/a.py", "from draftwood.cache import dense", True),
        ("models/a.py", "from draftwood.kernels import native", False),
        ("trees/a.py", "from draftwood.drafters import ngram", True),
        ("trees/a.py", "from draftwood.verifiers import match", True),
        ("drafters/a.py", "from draftwood.trees import grow", False),
        ("drafters/a.py", "from draftwood.recipes import load", True),
        ("drafters/a.py", "from draftwood.testing import tables", True),
        ("recipes/a.py", "from draftwood.llm import LLM", True),
        ("recipes/a.py", "from draftwood.drafters import ngram", False),
        ("testing/a.py", "from draftwood.trees import grow", False),
        ("testing/a.py", "from draftwood.verifiers import match", True),
        ("train/objectives.py", "from draftwood.models import decoder", True),
        ("train/trainer.py", "from draftwood.models import decoder\nfrom draftwood.train import objectives", False),
        ("server/a.py", "from draftwood.llm import LLM", False),
        ("server/a.py", "from draftwood.cli import main", True),
        ("llm.py", "from draftwood.engine import engine", False),
        ("__init__.py", "from draftwood.llm import LLM", False),
        ("novelty/a.py", "x = 1", True),
    ],
)
def test_import_against_the_direction_is_caught(plant, file, line, caught):
    root = plant(f"src/draftwood/{file}", line + "\n")
    assert bool(wrong_imports(root)) == caught


@pytest.mark.parametrize(
    ("file", "caught"),
    [
        ("core/test_tree.py", False),
        ("core/test_three.py", True),
        ("test_tree.py", True),
        ("test_errors.py", False),
        ("test_exactness.py", False),
        ("core/test_exactness.py", True),
        ("core/conftest.py", False),
    ],
)
def test_test_without_a_subject_is_caught(plant, file, caught):
    root = plant(f"tests/{file}", "")
    assert bool(unmirrored_tests(root)) == caught


@pytest.mark.parametrize(
    ("file", "text", "caught"),
    [
        ("engine/a.py", "def is_eagle(): ...", True),
        ("engine/a.py", "class OptTreeStep: ...", True),
        ("core/a.py", "RSDTree = 1", True),
        ("models/a.py", "kind = 'medusa'", True),
        ("models/a.py", '"""Used by dyspec."""', True),
        ("server/a.py", "x = f'{y} with eagle3 {z}'", True),
        ("server/a.py", "x = f'{vocab_trim}'", True),
        ("cache/hydra.py", "", True),
        ("cache/a.py", "name = 'plain'", True),  # a file of recipes/ counts, listed above or not
        ("core/a.py", "rest = autoregressive = 'auto'", False),
        ("core/a.py", "# eagle2 wants this", False),  # comments may give reasons
        ("core/a.py", "beagles = opt = tree = 'fast drafts'", False),
        ("drafters/a.py", "x = 'eagle2'", False),
    ],
)
def test_paper_in_shared_code_is_caught(plant, file, text, caught):
    root = plant(f"src/draftwood/{file}", text + "\n")
    assert bool(paper_names_in_shared_code(root)) == caught


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("see /{}/main/notes", True),
        ('path = "/{}/x"', True),
        ("docs/{}/x", False),
        ("https://example.org/{}/x", False),
    ],
)
@pytest.mark.parametrize("folder", ["work", "root", "home/ann", "Users/ann"])
def test_path_of_one_machine_is_caught(plant, text, folder, caught):
    root = plant("docs/page.md", text.format(folder))
    assert bool(machine_paths(root)) == caught


@pytest.mark.parametrize(
    ("file", "text", "caught"),
    [
        ("src/draftwood/core/a.py", "law = softmax(logits)", True),
        ("src/draftwood/core/a.py", '"""A lane computes."""', True),
        ("docs/page.md", "The Laws of a draft", True),
        ("README.md", "each row is benched", True),
        ("docs/page.md", "flaws, planes and wheat", False),
        ("docs/page.md", '`{"command": "draftwood bench rules", "lane": "int8 amx"}`', False),
        ("src/draftwood/kernels/a.hpp", "for (int d = 0; d < width; d += LANES)", False),
        ("tests/core/test_tree.py", "law = 1", False),
    ],
)
def test_private_word_is_caught(plant, file, text, caught):
    root = plant(file, text + "\n")
    assert bool(private_words(root)) == caught


@pytest.mark.parametrize(
    ("file", "text", "caught"),
    [
        ("core/a.py", "size = getattr(model, 'config', None)", True),
        ("drafters/nets/a.py", "width = getattr(getattr(target, 'config', None), 'hidden_size')", True),
        ("runners/a.py", "def late():\n    return hasattr(model, 'first_layers')", True),
        ("sizing/a.py", "x = builtins.hasattr(y, 'z')", True),
        ("trees/grow.py", "most = getattr(policy, 'passes', None)", False),
        ("trees/grow.py", "most = getattr(policy, 'reads', None)", True),
        ("trees/place.py", "most = getattr(policy, 'passes', None)", True),
        ("recipes/__init__.py", "paper = getattr(module, 'PAPER', None)", False),
        ("engine/shared_engine.py", "if hasattr(os, 'register_at_fork'): ...", False),
        ("core/a.py", "x = getattr(tree, 'tokens')", False),  # raises: nothing is tried
        ("core/a.py", "x = [getattr(tree, name, None) for name in names]", False),
        ("models/a.py", "cap = getattr(config, 'softcap', None)", False),  # configs of another library
    ],
)
def test_probe_of_an_attribute_is_caught(plant, file, text, caught):
    root = plant(f"src/draftwood/{file}", text + "\n")
    assert bool(attribute_probes(root)) == caught
