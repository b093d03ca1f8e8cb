"""Memory of a training step, each measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Memory", "memory_of"]

_PROBE = """
import gc, json, sys
from pathlib import Path
import torch
from sparse_step_cases import resnet18

kind, batch, sparsity, folder, threads = json.loads(sys.argv[1])
torch.set_num_threads(threads)
step = getattr(resnet18(batch), kind)(Path(folder), sparsity)
for _ in range(2):
    step()
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is resident
step()
peak = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"state": step.state_bytes(), "peak": peak}))
"""


@dataclass(frozen=True)
class Memory:
    """Bytes of a training.

    Attributes:
        state: of parameters, masks, gradients and optimizer states.
        peak: resident in the process during a step.
    """

    state: int
    peak: int


def memory_of(kind: str, batch: int, sparsity: float, folder: Path, threads: int) -> Memory:
    """Memory of the third step of ResNet-18; ``kind`` is a method of ``TrainedModel``."""
    argument = json.dumps([kind, batch, sparsity, str(folder.resolve()), threads])
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", _PROBE, argument], check=True, stdout=subprocess.PIPE, cwd=here)
    return Memory(**json.loads(done.stdout))
