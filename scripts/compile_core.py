"""Compile the serving core to machine code with mypyc; `src/kvfabric/compiled_core.py` loads it.

Sources stay as they are and remain the truth: the result is used only while they are unchanged.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
sys.path.insert(0, str(SRC))

from kvfabric import compiled_core  # noqa: E402

GROUP = "kvfabric_core"
PACKAGES = ("protocol", "kvcache", "serving", "sim")
PERF = ("floor_sum", "handoff", "roofline", "work")
SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(
    name="kvfabric-core",
    ext_modules=mypycify(
        {files!r}, opt_level="2", debug_level="0", group_name={group!r}, strict_dunder_typing=True
    ),
)
"""


def core_modules() -> list[str]:
    """Return the full names of the modules to compile."""
    names = [
        f"kvfabric.{package}.{file.stem}"
        for package in PACKAGES
        for file in sorted((SRC / "kvfabric" / package).glob("*.py"))
        if file.stem != "__init__"
    ]
    return names + [f"kvfabric.perf.{name}" for name in PERF]


def build(workshop: Path, modules: list[str]) -> None:
    """Compile a copy of the sources."""
    shutil.copytree(
        SRC, workshop / "src", ignore=shutil.ignore_patterns("_compiled", "__pycache__")
    )
    files = [str(compiled_core.source_of(name, Path("kvfabric"))) for name in modules]
    (workshop / "src" / "setup.py").write_text(SETUP.format(files=files, group=GROUP))
    environment = {**os.environ, compiled_core.VARIABLE: "interpreted"}
    made = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "-j", "2"],
        cwd=workshop / "src",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        sys.exit(f"compile: mypyc or the C compiler failed\n{made.stdout}{made.stderr}")


def keep(workshop: Path, modules: list[str]) -> None:
    """Put the result where the package looks for it, the list of sources last."""
    suffix, folder = EXTENSION_SUFFIXES[0], compiled_core.FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    for name in modules:
        made = (workshop / "src").joinpath(*name.split(".")).with_suffix(suffix)
        target = folder.joinpath(*name.split(".")[1:]).with_suffix(suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(made, target)
    group = f"{GROUP}__mypyc"
    shutil.copy2(workshop / "src" / f"{group}{suffix}", folder)
    sources = {name: compiled_core.digest(compiled_core.source_of(name)) for name in modules}
    manifest = {"suffix": suffix, "group": group, "sources": sources}
    (folder / compiled_core.MANIFEST).write_text(json.dumps(manifest, indent=1))


def main() -> None:
    """Compile what is not compiled yet, or is no longer current."""
    modules = core_modules()
    current = compiled_core.compiled_files()
    if set(modules) <= set(current):
        return
    with tempfile.TemporaryDirectory() as workshop:
        build(Path(workshop), modules)
        keep(Path(workshop), modules)


if __name__ == "__main__":
    main()
