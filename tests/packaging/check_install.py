"""What is published, installed into fresh environments and used there, far from the repository and without torch.

    python -m build --outdir build/dist . && python tests/packaging/check_install.py build/dist
    python tests/packaging/check_install.py build/dist --python python3.10 --python python3.13
    python tests/packaging/check_install.py --here

The wheel is installed for the interpreters that it suits, the sdist for all others. Uses nothing but the standard
library; `make package-check` does all of it for the interpreter of the repository's environment. ``--here`` uses what
is installed in the environment that runs this, and asks for no folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

NEEDED = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "sift_onnx/py.typed", "tests/support/builders.py")
# Compiled or generated files, which may lie about in a working tree.
UNWANTED = (".so", ".o", ".pyc", ".onnx", ".stamp", ".data", ".whl")
UNWANTED_FOLDERS = ("build", "dist", ".venv", ".git", "__pycache__", ".mypy_cache", ".pytest_cache", ".hypothesis")

MAKE_MODEL = """
import numpy as np, onnx
from onnx import helper, numpy_helper
shapes = {"stem": (16, 3, 3, 3), "body": (32, 16, 3, 3), "deep": (32, 32, 3, 3), "head": (10, 32, 1, 1)}
rng = np.random.default_rng(0)
weights = [numpy_helper.from_array((rng.standard_normal(s) / 8).astype("f4"), f"{n}.weight") for n, s in shapes.items()]
nodes, x = [], "x"
for tensor in weights:
    name = tensor.name.split(".")[0]
    nodes.append(helper.make_node("Conv", [x, tensor.name], [f"{name}.out"], name, pads=[tensor.dims[2] // 2] * 4))
    nodes.append(helper.make_node("Relu", [f"{name}.out"], [f"{name}.relu"]))
    x = f"{name}.relu"
info = helper.make_tensor_value_info
graph = helper.make_graph(nodes, "net", [info("x", 1, ["n", 3, 16, 16])], [info(x, 1, ["n", 10, 16, 16])], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
"""

IN_PYTHON = """
import importlib.util, numpy as np, sift_onnx
from sift_onnx.errors import MissingExtraError
assert importlib.util.find_spec("torch") is None, "torch came along"
wide = sift_onnx.transform("net.onnx", wide=0.75)
sift_onnx.save(wide, "library.onnx")
x = np.ones((2, 3, 16, 16), np.float32)
(y,) = sift_onnx.InferenceSession("library.onnx").run(None, {"x": x})
assert y.shape == (2, 10, 16, 16) and np.isfinite(y).all()
assert sift_onnx.masks(wide) and sift_onnx.simulate("library.onnx").to_dict()["totals"]["cycles"] > 0
try:
    sift_onnx.to_torch("net.onnx")
except MissingExtraError as error:
    assert "sift-onnx[train]" in str(error), error
else:
    raise AssertionError("to_torch without torch")
"""

# Arguments, and the exit code that is due.
COMMANDS = (
    ("--version", 0),
    ("doctor", 0),
    ("transform net.onnx wide.onnx --wide 0.9 --json report.json", 0),
    ("transform net.onnx parallel.onnx --parallel 0.75 --storage sparse", 0),
    ("inspect wide.onnx", 0),
    ("check wide.onnx", 0),
    ("check parallel.onnx", 0),
    ("prune net.onnx pruned.onnx --sparsity 0.8", 0),
    ("benchmark wide.onnx --baseline net.onnx --backend onnxruntime --backend cpu --seconds 0.2 --warmup 0", 0),
    ("profile wide.onnx", 0),
    ("simulate wide.onnx", 0),
    ("models list", 0),
    ("models export resnet18-cifar r.onnx", 4),
    ("train net.onnx out.onnx --data d.npz --epochs 1", 4),
    ("transform missing.onnx out.onnx --wide 0.9", 2),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dist", type=Path, nargs="?", help="folder of one sdist and one wheel")
    parser.add_argument("--here", action="store_true", help="check the environment that runs this")
    parser.add_argument("--python", action="append", help="interpreter, repeatable [the one that runs this]")
    parser.add_argument("--sdist", action="store_true", help="install the sdist where the wheel would do, too")
    options = parser.parse_args()
    if options.here:
        with tempfile.TemporaryDirectory() as folder:
            use(sys.executable, Path(sys.executable).with_name("sift-onnx"), Path(folder))
        say(f"{sys.executable}: {len(COMMANDS) + 2} checks passed")
        return 0
    if options.dist is None:
        parser.error("name the folder of the sdist and the wheel, or --here")
    (sdist,) = options.dist.glob("*.tar.gz")
    (wheel,) = options.dist.glob("*.whl")
    check_sdist(sdist)
    check_wheel(wheel)
    for python in options.python or [sys.executable]:
        begin = time.monotonic()
        version, installed = check_install(python, sdist.resolve(), wheel.resolve(), options.sdist)
        say(f"Python {version}, {installed}: {len(COMMANDS) + 2} checks passed, {time.monotonic() - begin:.0f} s")
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check_sdist(path: Path) -> None:
    """All that is needed to build and test, and nothing that was built."""
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    missing = [name for name in NEEDED if name not in names]
    assert not missing, f"{path.name} lacks {missing}"
    built = [n for n in names if n.endswith(UNWANTED) or set(n.split("/")[:-1]) & set(UNWANTED_FOLDERS)]
    assert not built, f"{path.name} holds {built[:5]}"
    say(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.1f} MB")


def check_wheel(path: Path) -> None:
    """The package and nothing beside it."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0].partition("-")[0] for name in names}
    assert tops == {"sift_onnx"}, f"{path.name} installs {tops}"
    assert any("_kernels." in name and name.endswith(".so") for name in names), "the kernels are missing"
    assert not [name for name in names if name.endswith((".cpp", ".h"))]
    say(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.1f} MB")


def check_install(python: str, sdist: Path, wheel: Path, prefer_sdist: bool) -> tuple[str, str]:
    """Install into a fresh environment, and use it; the interpreter's version, and what was installed."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run([python, "-m", "venv", str(home / "venv")], home)
        own = str(home / "venv" / "bin" / "python")
        tag = run([own, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"], home).strip()
        chosen = wheel if suits(wheel, tag) and not prefer_sdist else sdist
        run([own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(chosen)], home)
        use(own, home / "venv" / "bin" / "sift-onnx", home)
        return run([own, "-c", "import platform; print(platform.python_version())"], home).strip(), chosen.name


def suits(wheel: Path, tag: str) -> bool:
    """Whether a wheel is for the interpreter ``cp313``, say; one of the stable ABI is for later ones too."""
    python, abi, _ = wheel.stem.split("-")[-3:]
    return python == tag or (abi == "abi3" and int(tag[2:]) >= int(python[2:]))


def use(python: str, program: Path, folder: Path) -> None:
    """Do what a user does, with an interpreter that has the package, and with its ``sift-onnx``."""
    run([python, "-c", MAKE_MODEL], folder)
    run([python, "-c", IN_PYTHON], folder)
    for number, (arguments, due) in enumerate(COMMANDS):
        # One way to call it, and the other.
        command = [python, "-m", "sift_onnx"] if number % 2 else [str(program)]
        run([*command, *arguments.split()], folder, due)
    totals = json.loads((folder / "report.json").read_text())["totals"]
    assert abs(totals["weight_macs_ratio"] - 1) < 0.01, totals


def run(command: list[str], folder: Path, due: int = 0) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != due or (due and len(done.stderr.splitlines()) != 1):
        raise SystemExit(
            f"{' '.join(command)[:300]}\nleft with {done.returncode}, not {due}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
