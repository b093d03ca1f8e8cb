"""SparseLab 0.2.2 and SparseProp 0.1.14, each in a separate Python environment, in processes that wait to be asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import TracebackType

__all__ = ["SPARSELAB", "SPARSEPROP", "Peer", "missing_peer"]

_HOME = Path(os.environ.get("SIFT_PEERS", "~/.cache/sift-peers")).expanduser()
SPARSELAB, SPARSEPROP = "SparseLab 0.2.2", "SparseProp 0.1.14"
_FOLDERS = {SPARSELAB: "sparselab", SPARSEPROP: "sparseprop"}
_INSTALL = {
    SPARSELAB: "pip install torch sparselab==0.2.2",
    # Its set-up looks for pybind11 in whatever `python3` it finds.
    SPARSEPROP: "pip install {project}[train] scipy wheel pybind11 'setuptools<80' && "
    "pip install --no-build-isolation sparseprop==0.1.14",
}
# Each line names what to run; the answer is its milliseconds.
_LOOP = """
import json, os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import torch
arguments = json.loads(sys.argv[1])
torch.set_num_threads(arguments["threads"])
torch.manual_seed(0)
{cases}
for line in sys.stdin:
    start = time.perf_counter()
    cases[line.strip()]()
    print(1e3 * (time.perf_counter() - start), file=answers, flush=True)
"""
_CASES = {
    SPARSELAB: """
from sparselab import SparseLinear
layer = SparseLinear(arguments["inputs"], arguments["outputs"], sparsity=arguments["sparsity"])
x = torch.randn(arguments["rows"], arguments["inputs"], requires_grad=True)
gradient = torch.randn(arguments["rows"], arguments["outputs"])
cases = {"forward": lambda: layer(x), "both": lambda: layer(x).backward(gradient)}
""",
    SPARSEPROP: """
from sparseprop.utils import swap_modules_with_sparse
from sift_onnx.models import build
module = build("resnet18", zero_init_residual=False)
with torch.no_grad():
    for name, param in module.named_parameters():
        if param.dim() > 1 and name not in ("conv1.weight", "fc.weight"):
            param *= torch.rand_like(param) >= arguments["sparsity"]
images = torch.randn(arguments["rows"], 3, 224, 224)
labels = torch.randint(0, 1000, (arguments["rows"],))
module = swap_modules_with_sparse(module, images.shape, inplace=True).train()
optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
def step():
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(module(images), labels).backward()
    optimizer.step()
cases = {"step": step}
""",
}


def missing_peer(name: str) -> str:
    """How to install a peer; empty if it is there."""
    home = _HOME / _FOLDERS[name]
    if (home / "bin" / "python").exists():
        return ""
    install = _INSTALL[name].format(project=Path(__file__).parents[2])
    return f"{name} is not installed in {home}:\n    python3.11 -m venv {home} && . {home}/bin/activate && {install}"


class Peer:
    """A peer at work on one case."""

    def __init__(self, name: str, **arguments: float) -> None:
        python = str(_HOME / _FOLDERS[name] / "bin" / "python")
        self._process = subprocess.Popen(
            [python, "-c", _LOOP.replace("{cases}", _CASES[name]), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parent,
        )
        self._name = name

    def run(self, case: str) -> float:
        """Milliseconds of one run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._name} ended; run its case by hand to see why")
        return float(answer)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
