"""Which kernel runs which version of an operator.

A kernel is a function of tensors. It takes a node's inputs in their order, None for one that is left out, and the
node's attributes by their names, with ONNX's defaults. Attributes that several operators share may be the fields of a
dataclass: such a kernel takes ``**attributes`` and makes one of them. Its signature says what else it wants:

- ``outputs``: how many outputs the node has; such a kernel returns a tuple of at least as many.
- ``anchor``: a tensor on the device where new tensors belong.

Inputs that are numbers rather than tensors (shapes, axes, sizes) are declared as ``host`` inputs. They come as Python
numbers and tuples where the model has constants, as numpy arrays where the model computes them from shapes, and as
tensors where it computes them from data; :func:`~sift_onnx.training.host.ints` reads all of them.

A kernel may also be a subclass of ``torch.nn.Module``, for operators that differ between training and evaluation: it is
made once per node with the attributes, and called with the inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import onnx

from sift_onnx.errors import UnsupportedError, UsageError
from sift_onnx.operators.domains import canonical_domain, is_standard
from sift_onnx.operators.labels import operator_name
from sift_onnx.operators.registry import Registry

__all__ = ["NEWEST_OPSET", "Kernel", "find_kernel", "kernel", "kernels", "register_kernel", "registered_kernel"]

# Kernels of this package are validated up to this opset; a later version of an operator may mean something else.
NEWEST_OPSET = 28

Run = Callable[..., Any]
_Run = TypeVar("_Run", bound=Run)


@dataclass(frozen=True)
class Kernel:
    """How an operator is run.

    Attributes:
        op: the operator type.
        domain: its domain; empty for the standard one.
        since: the first version of the operator that the kernel computes; later ones too, up to the next kernel.
        until: the last version that it is known to compute; None for no limit.
        run: the function, or the module class.
        host: positions of inputs that are numbers.
        shared: names of attributes that the kernel shares with others.
    """

    op: str
    domain: str
    since: int
    until: int | None
    run: Run
    host: frozenset[int]
    shared: frozenset[str] = frozenset()

    @property
    def is_module(self) -> bool:
        """Whether :attr:`run` is a module class."""
        return isinstance(self.run, type)

    @property
    def parameters(self) -> Collection[inspect.Parameter]:
        """What the kernel can be called with, attributes included."""
        try:
            return inspect.signature(self.run).parameters.values()
        except ValueError:
            return ()  # a builtin of torch: tensors only

    def takes(self, name: str) -> bool:
        """Whether the kernel has a parameter that is called ``name``."""
        return name in self.shared or any(parameter.name == name for parameter in self.parameters)


_KERNELS: Registry[Kernel] = Registry("a torch kernel", built_in="sift_onnx.training.kernels")


def kernel(
    *ops: str, since: int = 1, host: Collection[int] = (), domain: str = "", attributes: type[Any] | None = None
) -> Callable[[_Run], _Run]:
    """Decorator: the function or module class runs ``ops`` from version ``since`` on.

    Args:
        ops: operator types.
        since: the first version of them.
        host: positions of inputs that are numbers.
        domain: of the operators.
        attributes: a dataclass whose fields are attributes that the kernel takes besides those of its signature.
    """
    shared = frozenset(field.name for field in fields(attributes)) if attributes is not None else frozenset[str]()

    def register(run: _Run) -> _Run:
        for op in ops:
            until = NEWEST_OPSET if is_standard(domain) else None
            entry = Kernel(op, domain, since, until, run, frozenset(host), shared)
            _KERNELS.add(op, entry, domain=domain, since=since)
        return run

    return register


def register_kernel(op: str, run: Run, *, since: int = 1, host: Collection[int] = (), domain: str = "") -> None:
    """Teach the importer an operator, or replace how it runs one.

    Args:
        op: the operator type.
        run: a function or a subclass of ``torch.nn.Module``, see the head of this module.
        since: the first version of the operator that ``run`` computes.
        host: positions of inputs that are numbers.
        domain: the operator's domain; the standard one by default.

    Raises:
        UsageError: ``run`` cannot be called.
    """
    if not callable(run):
        raise UsageError(
            f"register_kernel: the kernel of {op!r} is a {type(run).__name__}; give a function or a module"
        )
    entry = Kernel(op, domain, since, None, run, frozenset(host))
    _KERNELS.add(op, entry, domain=domain, since=since, replace=True)


def find_kernel(op: str, domain: str | None, opset: int) -> Kernel:
    """The kernel of an operator.

    Args:
        op: the operator type.
        domain: its domain.
        opset: version of the domain's operator set that the model imports.

    Raises:
        UnsupportedError: there is none.
    """
    shown = operator_name(op, domain)
    if _KERNELS.find(op, domain) is None:
        raise UnsupportedError(f"operator {shown} has no torch kernel; sift_onnx.training.register_kernel adds one")
    version = _version(op, canonical_domain(domain), opset)
    found = _KERNELS.find(op, domain, version)
    if found is None:
        raise UnsupportedError(f"operator {shown} has no torch kernel for its version {version} (opset {opset})")
    if found.until is not None and version > found.until:
        raise UnsupportedError(
            f"operator {shown} changed in opset {version}, and kernels are known to be right up to {found.until}; "
            "convert the model to an earlier opset"
        )
    return found


def _version(op: str, domain: str, opset: int) -> int:
    """``since_version`` of the operator; the opset itself where ONNX does not define it."""
    try:
        return int(onnx.defs.get_schema(op, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return opset


def registered_kernel(op: str, domain: str, since: int) -> Kernel | None:
    """The kernel that is registered for an operator from version ``since`` on."""
    return _KERNELS.versions(op, domain).get(since)


def kernels() -> list[Kernel]:
    """Every kernel, by domain, operator and version."""
    return [entry for *_, entry in _KERNELS.items()]
