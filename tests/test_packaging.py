"""The package as users get it: the engine needs few packages, and the wheel works away from the checkout."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # whole runs

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "draftwood"

ABSENT = (
    "transformers gguf huggingface_hub scipy pydantic hypothesis matplotlib xllamacpp pydivsufsort usearch"
).split()
NEEDS_LITTLE = "core engine cache models verifiers trees controllers drafters recipes".split()

# Not an import hook that raises: a package that is not installed is also not found by `find_spec`.
WITHOUT = """
import importlib, sys
from importlib.machinery import PathFinder

absent, wanted = sys.argv[1].split(), sys.argv[2].split()

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
for name in wanted:
    importlib.import_module(name)
print("imported", len(wanted))
"""


RUN_BY_TRANSFORMERS = [f"draftwood.models.hf.{name}" for name in ("model", "cache", "model_check")]


def run(*command: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run([sys.executable, *command], cwd=cwd, env=env, capture_output=True, text=True, check=False)


def import_without(
    absent: Sequence[str], wanted: Sequence[str], cwd: Path, path: Path
) -> subprocess.CompletedProcess[str]:
    return run("-c", WITHOUT, " ".join(absent), " ".join(wanted), cwd=cwd, path=path)


def modules(folder: Path) -> list[str]:
    paths = (path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(folder.rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def test_engine_imports_without_the_packages_of_the_extras(tmp_path):
    wanted = ["draftwood", *(name for folder in NEEDS_LITTLE for name in modules(PACKAGE / folder))]
    wanted = [name for name in wanted if name not in RUN_BY_TRANSFORMERS]
    assert len(wanted) > len(NEEDS_LITTLE)
    done = import_without(ABSENT, wanted, tmp_path, PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(len(wanted))


@pytest.mark.parametrize("name", RUN_BY_TRANSFORMERS)
def test_what_transformers_runs_says_how_to_install_it(name, tmp_path):
    done = import_without(ABSENT, [name], tmp_path, PACKAGE.parent)
    assert "pip install draftwood[hf]" in done.stderr and "ModelError" in done.stderr


def test_import_of_an_extra_would_be_noticed(tmp_path):
    (tmp_path / "greedy.py").write_text("import json\nimport gguf\n")
    assert "No module named 'gguf'" in import_without(ABSENT, ["greedy"], tmp_path, tmp_path).stderr
    (tmp_path / "polite.py").write_text("import importlib.util\nassert importlib.util.find_spec('gguf') is None\n")
    assert import_without(ABSENT, ["polite"], tmp_path, tmp_path).returncode == 0


def test_public_names_are_the_documented_ones():
    import draftwood

    assert {"LLM", "Recipe", "SamplingParams", "recipes"} <= set(dir(draftwood))


@pytest.mark.slow
def test_wheel_runs_outside_the_checkout(tmp_path):
    for tool in ("build", "hatchling", "pip"):
        pytest.importorskip(tool)
    version: dict[str, str] = {}
    exec((PACKAGE / "_version.py").read_text(), version)

    built = run("-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT), cwd=tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"draftwood-{version['__version__']}-py3-none-any")

    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    kept = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(PACKAGE.parent).as_posix() for path in kept} <= packed

    site = tmp_path / "site"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    installed = run(*pip, "--target", str(site), str(wheel), cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    origin = run("-c", "import draftwood; print(draftwood.__file__)", cwd=tmp_path, path=site)
    assert Path(origin.stdout.strip()).is_relative_to(site), origin.stderr
    said = run("-m", "draftwood", "--version", cwd=tmp_path, path=site)
    assert said.returncode == 0, said.stderr
    assert version["__version__"] in said.stdout
