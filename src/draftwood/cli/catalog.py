"""The recipes, read from their source without importing them, because an import of torch takes seconds."""

import ast
import builtins
import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from draftwood import option_parsing
from draftwood.errors import UnknownNameError
from draftwood.option_parsing import Range, wanted

PACKAGE = Path(__file__).parents[1]
GROUP = "draftwood.recipes"  # where other packages add recipes
PARTS = {"drafters": "drafter", "trees": "policy", "verifiers": "verifier", "controllers": "controller"}
SIZES = "tree_size"  # chooses a controller
ALSO = {"engine": "scheduler", "recipes": "built on"}


@dataclass(frozen=True, slots=True)
class Part:
    """A class or function that a recipe uses, and its file."""

    role: str
    file: str
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe: PAPER, the options of build() and the parts it imports."""

    name: str
    file: str
    about: str
    title: str
    arxiv: str
    lossless: bool
    lossy_with: str  # an option that changes this
    needs: str  # an option that it cannot do without
    claim: str  # the authors' headline
    options: tuple[tuple[str, str, str], ...]  # name, what fits it, default
    parts: tuple[Part, ...]


def names() -> list[str]:
    """All recipes, ours and those of installed plug-ins, in alphabetical order."""
    return sorted(_own() | set(_plugins()))


def entry(name: str) -> Entry:
    """One recipe by name. UnknownNameError names the nearest ones."""
    if name not in names():
        raise UnknownNameError("recipe", name, names())
    path = PACKAGE / "recipes" / f"{name}.py"
    if name in _own():
        return _read(name, path, ast.parse(path.read_text("utf-8")))
    try:
        path = _source(_plugins()[name])
        tree = ast.parse(path.read_text("utf-8"))
    except (ImportError, ValueError, SyntaxError, OSError) as error:
        # One broken plug-in must not hide the other recipes.
        return Entry(name, "", "", f"broken plug-in: {type(error).__name__}: {error}", "", False, "", "", "", (), ())
    return _read(name, path, tree)


def _read(name: str, path: Path, tree: ast.Module) -> Entry:
    paper = _paper(tree)
    return Entry(
        name=name,
        file=path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else str(path),
        about=ast.get_docstring(tree) or "",
        title=str(paper.get("title", "no recipe: there is no PAPER")),
        arxiv=str(paper.get("arxiv", "")),
        lossless=bool(paper.get("lossless", True)),
        lossy_with=str(paper.get("lossy_with", "")),
        needs=str(paper.get("needs", "")),
        claim=str(paper.get("claim", "")),
        options=_options(tree),
        parts=tuple(_parts(tree)),
    )


def page(name: str) -> str | None:
    """The recipe's page of the documentation; None for an installed package, which has no docs folder."""
    try:
        return (PACKAGE.parents[1] / "docs" / "papers" / f"{name}.md").read_text("utf-8")
    except OSError:
        return None


def _own() -> set[str]:
    return {path.stem for path in (PACKAGE / "recipes").glob("*.py") if not path.stem.startswith("_")}


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _source(plugin: EntryPoint) -> Path:
    spec = importlib.util.find_spec(plugin.module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise ImportError(f"no source file of {plugin.module}")
    return Path(spec.origin)


def _paper(tree: ast.Module) -> dict[str, Any]:
    """The keywords of PAPER = Paper(...), as far as they are constants."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "PAPER" and isinstance(node.value, ast.Call):  # pyright: ignore[reportAttributeAccessIssue]
            return {k.arg: _constant(k.value) for k in node.value.keywords if k.arg}  # pyright: ignore[reportAttributeAccessIssue]
    return {}


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _options(tree: ast.Module) -> tuple[tuple[str, str, str], ...]:
    """Keyword arguments of build(), what fits them in words, and their defaults as written."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "build":
            return tuple(
                (arg.arg, _wanted(arg.annotation), _text(default))
                for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            )
    return ()


def _wanted(node: ast.expr | None) -> str:
    """An annotation in words, the same as those of `option_parsing.wanted` for the imported one."""
    match node:
        case ast.Name(id):
            return wanted({**vars(builtins), **vars(option_parsing)}.get(id, id))
        case ast.Constant(value=None):
            return "none"
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_wanted(left)} or {_wanted(right)}"
        case ast.Subscript(ast.Name("Literal"), slice):
            choices = slice.elts if isinstance(slice, ast.Tuple) else [slice]
            return " or ".join(str(_constant(each)) for each in choices)
        case ast.Subscript(ast.Name("tuple" | "list"), ast.Tuple([each, *_])):
            return f"a list with commas, each {_wanted(each)}"
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([base, *marks])):
            ranges = [m for m in marks if isinstance(m, ast.Call) and _text(m.func) == "Range"]
            return " ".join([_wanted(base), *(str(Range(*map(_constant, m.args))) for m in ranges)])
        case ast.Subscript(ast.Name("OfDrafter"), slice):
            return _wanted(slice)
        case _:
            return _text(node)


def _text(node: ast.expr | None) -> str:
    return "" if node is None else ast.unparse(node)


def _parts(tree: ast.Module) -> list[Part]:
    """What a recipe imports from the folders of parts, in the order in which a round uses them."""
    found: list[Part] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            package, *folders = node.module.split(".")
            role = {**PARTS, **ALSO}.get(folders[0] if folders else "")
            if node.module == "draftwood" and any(alias.name == "recipes" for alias in node.names):
                found.append(Part(ALSO["recipes"], "recipes/__init__.py", "any recipe"))
            file, used = f"{'/'.join(folders)}.py", [alias.name for alias in node.names]
            if package == "draftwood" and SIZES in used:
                found.append(Part(PARTS["controllers"], file, SIZES))
            if package == "draftwood" and role is not None and len(folders) > 1 and "learners" not in folders:
                found += [Part(role, file, name) for name in used if not name.isupper()]
    order = [*PARTS.values(), *ALSO.values()]
    return sorted(found, key=lambda part: order.index(part.role))
