"""``sift-onnx doctor``: what this installation and this machine have."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sift_onnx.backends.processors import allowed_processors, cgroup_quota, usable_processors
from sift_onnx.cli.options import output_options
from sift_onnx.cli.output import deliver, status_line
from sift_onnx.cli.plugin_list import check_plugins, checked_rows
from sift_onnx.cli.verb import Verb
from sift_onnx.errors import BackendError, UsageError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["doctor", "inspect_host"]

# distribution -> module; imported, since a part may be installed and yet not load.
CORE = {
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "onnx-graphsurgeon": "onnx_graphsurgeon",
    "numpy": "numpy",
}
# distribution -> what to do without it; never imported, since torch takes seconds.
OPTIONAL = {"torch": "pip install 'sift-onnx[train]'", "matplotlib": "pip install 'sift-onnx[report]'"}


@dataclass(frozen=True)
class Kernels:
    """The compiled kernels of the cpu backend, as found.

    Attributes:
        status: ``present``, ``missing`` or ``broken``.
        isa: the best instruction set of the machine; None unless present.
        selected: the one that runs; None unless present, and where ``SIFT_ISA`` cannot be followed.
        generates: whether sparse layers become generated code; None unless ``selected``.
        features: the processor's features that may be used, as Linux names them.
        error: why the kernels do not load, or why ``SIFT_ISA`` cannot be followed.
    """

    status: str
    isa: str | None = None
    selected: str | None = None
    generates: bool | None = None
    features: list[str] = field(default_factory=list)
    error: str | None = None


@click.command(cls=Verb)
@output_options
def doctor(json_path: str | None, verbosity: int) -> None:
    """List versions, instruction sets, threads, optional parts and plug-ins.

    The exit code is 4 if a part that every verb needs is broken. Broken plug-ins are named.

    Examples:
        sift-onnx doctor
        sift-onnx doctor --json -
    """
    with status_line("looking at what is installed", verbosity):
        versions, problems = inspect_versions()
        kernels = inspect_kernels()
        host = inspect_host()
        plugins = check_plugins()
    if kernels.status == "broken":
        problems.append(f"the compiled kernels do not load ({kernels.error}): pip install --force-reinstall sift-onnx")
    document = {
        "schema": 1,
        "ok": not problems,
        "problems": problems,
        "versions": versions,
        "host": host,
        "kernels": {**vars(kernels), "SIFT_ISA": _setting("SIFT_ISA"), "SIFT_JIT": _setting("SIFT_JIT")},
        "plugins": plugins,
    }
    deliver(document, json_path, lambda _: [table_of(versions, host, kernels, plugins, verbosity)])
    if problems:
        raise BackendError("; ".join(problems))
    if kernels.status == "present" and kernels.error is not None:
        raise UsageError(kernels.error)


def inspect_versions() -> tuple[dict[str, str | None], list[str]]:
    """Versions by distribution name (None if not installed), and one line for each core part that does not load."""
    versions: dict[str, str | None] = {"python": platform.python_version(), "sift-onnx": installed_version("sift-onnx")}
    problems = []
    for distribution, module in CORE.items():
        versions[distribution] = installed_version(distribution)
        try:
            loaded = importlib.import_module(module)
        except Exception as error:  # a binary that does not fit raises anything at all
            reason = " ".join(str(error).split())
            problems.append(
                f"{distribution} cannot be imported ({reason}): pip install --force-reinstall {distribution}"
            )
        else:
            # onnxruntime-gpu and its like bring the module under another distribution's name.
            versions[distribution] = versions[distribution] or getattr(loaded, "__version__", None)
    return versions | {distribution: installed_version(distribution) for distribution in OPTIONAL}, problems


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, read without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def inspect_kernels() -> Kernels:
    """Whether the compiled kernels are there, and which instruction set they would run with."""
    if importlib.util.find_spec("sift_onnx.backends.cpu._kernels") is None:
        return Kernels("missing")
    try:
        from sift_onnx.backends.cpu import _kernels
        from sift_onnx.backends.cpu.isa import generates_code, selected_isa
    except ImportError as error:
        return Kernels("broken", error=" ".join(str(error).split()))
    isa, features = _kernels.detected_isa(), _kernels.cpu_features()
    try:
        selected = selected_isa()
        return Kernels("present", isa, selected, generates_code(selected), features)
    except UsageError as error:
        return Kernels("present", isa=isa, features=features, error=str(error))


def _setting(name: str) -> str | None:
    return os.environ.get(name) or None


def inspect_host() -> dict[str, Any]:
    """The operating system, the processor, and how much of it this process may use."""
    return {
        "os": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "affinity": allowed_processors(),
        "cgroup_quota": cgroup_quota(),
        "threads": usable_processors(),
    }


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name, or the architecture where the system does not report it."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def table_of(
    versions: dict[str, str | None],
    host: dict[str, Any],
    kernels: Kernels,
    plugins: list[dict[str, Any]],
    verbosity: int,
) -> Table:
    """What was found, one row each."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for name, version in versions.items():
        table.add_row(name, Text(version or "not installed" + (f": {OPTIONAL[name]}" if name in OPTIONAL else "")))
    table.add_section()
    table.add_row("system", Text(host["os"]))
    table.add_row("cpu", Text(host["cpu"]))
    table.add_row("threads", Text(threads_row(host)))
    table.add_section()
    table.add_row("compiled kernels", Text(kernels_row(kernels)))
    if kernels.isa is not None:
        table.add_row("instruction set", Text(kernels.isa))
        table.add_row("SIFT_ISA", Text(_setting("SIFT_ISA") or "not set"))
        table.add_row("generated code", Text("runs" if kernels.generates else "does not run"))
        table.add_row("SIFT_JIT", Text(_setting("SIFT_JIT") or "not set"))
        if verbosity > 0:
            table.add_row("cpu features", Text(" ".join(kernels.features)))
    table.add_section()
    for title, state in checked_rows(plugins):
        table.add_row(title, Text(state))
    return table


def threads_row(host: dict[str, Any]) -> str:
    """How many threads this process may run at once, and why not more."""
    quota = "no cgroup quota" if host["cgroup_quota"] is None else f"cgroup quota {host['cgroup_quota']:g}"
    return f"{host['threads']} (affinity {host['affinity']} of {host['cores']} cores, {quota})"


def kernels_row(kernels: Kernels) -> str:
    """The state of the kernels and what follows from it."""
    if kernels.status == "missing":
        return "missing: the cpu backend is not available; pip install --force-reinstall sift-onnx"
    return kernels.status if kernels.status == "present" else f"{kernels.status}: {kernels.error}"
