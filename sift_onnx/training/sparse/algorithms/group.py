"""Several algorithms on one model, each on the parameters that a filter chooses."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sift_onnx.errors import UsageError
from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm
from sift_onnx.training.sparse.attachment.optimizer import update_now
from sift_onnx.training.sparse.errors import SparsityStateError, WrongTypeError
from sift_onnx.training.sparse.parameters.of_module import owned_parameters, unwrapped
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.hyper_parameters import HyperParameterSchedule

__all__ = ["Filter", "Group", "ParamFilter"]

ParamFilter = Callable[[str, torch.Tensor], bool]


@dataclass(frozen=True)
class Filter:
    """An algorithm and the parameters it is for.

    Attributes:
        filter: ``(name, parameter) -> bool``.
        algorithm: for the parameters that it accepts.
        globs: that the filter was made of; none if it was a function.
    """

    filter: ParamFilter
    algorithm: SparsityAlgorithm
    globs: tuple[str, ...] = ()


class Group(SparsityAlgorithm):
    """Several algorithms; a parameter belongs to the first whose filter accepts it, or stays dense.

    ::

        sparsity = Group({"fc1.*": Static(sparsity=0.5), "fc2.*": SET(sparsity=0.9, update={"freq": 1000})})
        sparsity.add(lambda name, param: param.dim() == 4, RigL(sparsity=0.9))

    Globs are matched as :mod:`fnmatch` does, on the full name of a parameter, case-sensitively; ``*`` crosses dots.
    """

    def __init__(self, groups: Mapping[str | Sequence[str] | ParamFilter, SparsityAlgorithm] | None = None) -> None:
        """A group.

        Args:
            groups: filter to algorithm; see :meth:`add`.
        """
        super().__init__()
        self._groups: list[Filter] = []
        for chosen, algorithm in (groups or {}).items():
            self.add(chosen, algorithm)

    def add(self, filter: str | Sequence[str] | ParamFilter, algorithm: SparsityAlgorithm) -> None:
        """Add an algorithm, after the others.

        Args:
            filter: a glob, several, or a function ``(name, parameter) -> bool``.
            algorithm: for the parameters that the filter, or any of the globs, accepts.

        Raises:
            WrongTypeError: the algorithm is none, or is a group; or the filter is neither.
        """
        if isinstance(algorithm, Group):
            raise WrongTypeError("a group holds algorithms, not groups; merge two groups with extend()")
        if not isinstance(algorithm, SparsityAlgorithm):
            raise WrongTypeError(f"a group holds sparsity algorithms, not {type(algorithm).__name__}")
        if isinstance(filter, str):
            filter = [filter]
        if isinstance(filter, (list, tuple)) and all(isinstance(glob, str) for glob in filter):
            globs = tuple(filter)
            self._groups.append(Filter(_glob_filter(globs), algorithm, globs))
        elif callable(filter):
            self._groups.append(Filter(filter, algorithm))
        else:
            raise WrongTypeError(f"a filter is a glob, a list of globs or a function, not {filter!r}")

    def extend(self, group: Group) -> None:
        """Add the algorithms of another group, with their filters.

        Raises:
            WrongTypeError: it is not a group.
        """
        if not isinstance(group, Group):
            raise WrongTypeError(f"extend() takes a group, not {type(group).__name__}; use add() for an algorithm")
        self._groups.extend(group._groups)

    def __getitem__(self, index: int) -> SparsityAlgorithm:
        return self._groups[index].algorithm

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def sparsity(self) -> Any:
        """Unavailable: the algorithms of a group have sparsities.

        Raises:
            SparsityStateError: always.
        """
        raise SparsityStateError("a group has no sparsity; its algorithms have: group[0].sparsity")

    @sparsity.setter
    def sparsity(self, sparsity: Any) -> None:
        raise SparsityStateError("a group has no sparsity; set those of its algorithms: group[0].sparsity = 0.9")

    @property
    def members(self) -> Sequence[SparsityAlgorithm]:
        # An algorithm that was added twice, with two filters, is updated once.
        return list({id(group.algorithm): group.algorithm for group in self._groups}.values())

    def sparsify_module(self, module: torch.nn.Module) -> None:
        if not self._groups:
            raise SparsityStateError("the group is empty; add an algorithm to it")
        self.check_globs([name for name, _, _ in owned_parameters(unwrapped(module))])
        super().sparsify_module(module)
        for group in self._groups:
            if not group.algorithm.sparse_params:
                warnings.warn(f"no parameters were left for {type(group.algorithm).__name__}", stacklevel=4)

    def check_globs(self, names: Sequence[str]) -> None:
        """Check that each glob matches a parameter of a model.

        Raises:
            UsageError: one matches none of them.
        """
        for group in self._groups:
            for glob in group.globs:
                if not any(fnmatch.fnmatchcase(name, glob) for name in names):
                    raise UsageError(f"glob {glob!r} matches no parameter; the model has {_some(names)}")

    def sparsify_parameter(self, module: torch.nn.Module, name: str, param: torch.Tensor) -> None:
        algorithm = self.algorithm_of(name, param)
        if algorithm is not None:
            algorithm.sparsify_parameter(module, name, param)

    def algorithm_of(self, name: str, param: torch.Tensor) -> SparsityAlgorithm | None:
        """The algorithm whose filter is the first to accept a parameter; None if it stays dense."""
        return next((group.algorithm for group in self._groups if group.filter(name, param)), None)

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        super().sparsify_optimizer(optimizer)
        for member in self.members:
            # So that a member's own finalize_grads() works, and a second optimizer is refused there, too.
            member._optimizer_hooks = self._optimizer_hooks

    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:
        for member in self.members:
            member.observe_gradients([sparse for sparse in params if member.sparse_params.get(sparse.name) is sparse])

    def wants_gradients(self) -> bool:
        return any(member.wants_gradients() for member in self.members)

    def forget_gradients(self) -> None:
        for member in self.members:
            member.forget_gradients()

    def takes_weight_step(self) -> bool:
        return all(member.takes_weight_step() for member in self.members)

    def densify_if_due(self) -> None:
        for member in self.members:
            member.densify_if_due()

    def end_step(self) -> None:
        for member in self.members if self.autoupdate else ():
            member.end_step()

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        for member in self.members:
            if not member.autoupdate:
                continue
            if optimizer is None:
                member.update()
            else:
                update_now(member, optimizer)

    def register_target_sparsity_hook(self, hook: Any) -> list[Any]:
        return [member.register_target_sparsity_hook(hook) for member in self.members]

    def register_computed_sparsity_hook(self, hook: Any) -> list[Any]:
        return [member.register_computed_sparsity_hook(hook) for member in self.members]

    def visit_state(self, f: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        for member in self.members:
            member.visit_state(f)

    def schedules(self) -> list[HyperParameterSchedule]:
        return [schedule for member in self.members for schedule in member.schedules()]

    def state_dict(self) -> list[dict[str, Any]]:
        return [member.state_dict() for member in self.members]

    def load_state_dict(self, state_dict: Any) -> None:
        states = [state_dict] if isinstance(state_dict, Mapping) else list(state_dict)
        if len(states) != len(self.members):
            raise UsageError(f"the saved run has {len(states)} sparsity algorithms, this one {len(self.members)}")
        for member, state in zip(self.members, states, strict=True):
            member.load_state_dict(state)


def _glob_filter(globs: Sequence[str]) -> ParamFilter:
    patterns = [re.compile(fnmatch.translate(glob)) for glob in globs]
    return lambda name, _: any(pattern.match(name) for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5} others" if len(names) > 5 else "") if names else "none"
