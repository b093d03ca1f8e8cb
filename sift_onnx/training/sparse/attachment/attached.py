"""An algorithm on a model and its optimizer: which parameters it has, and what it is asked in each step."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch

from sift_onnx.training.sparse.attachment.model import is_inner_call_of_apply, prune_before_forward
from sift_onnx.training.sparse.attachment.optimizer import OptimizerHooks
from sift_onnx.training.sparse.attachment.protocol import HookedAlgorithm
from sift_onnx.training.sparse.distributed import check_agreement, is_parallel, local_shard, to_local
from sift_onnx.training.sparse.errors import SparsityStateError, WrongTypeError
from sift_onnx.training.sparse.host_tensors import zero_outside
from sift_onnx.training.sparse.parameters.compact import compact_weights
from sift_onnx.training.sparse.parameters.of_module import maskable_parameters, unwrapped
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["AttachedAlgorithm"]

_Algorithm = TypeVar("_Algorithm", bound="AttachedAlgorithm")


class AttachedAlgorithm(HookedAlgorithm):
    """How algorithms come to a model and take part in its training; subclasses decide about masks.

    Attributes:
        autoupdate: whether ``optimizer.step`` calls :meth:`update`.
        step: number of updates that were asked for, that is, of optimizer steps.
        sparse_params: name to :class:`SparseParameter`, in the order of the model.
        synchronize: whether ranks of ``torch.distributed`` agree on masks.
        process_group: of the ranks that agree; None for all.
    """

    def __init__(self) -> None:
        self.autoupdate = True
        self.step = 0
        self.sparse_params: dict[str, SparseParameter] = {}
        self.synchronize = True
        self.process_group: Any = None
        self._optimizer_hooks: OptimizerHooks | None = None

    @property
    def members(self) -> Sequence[AttachedAlgorithm]:
        """The algorithms that own parameters: this one; those of a group."""
        return (self,)

    @property
    def num_sparse_params(self) -> int:
        """Number of parameters that have a mask."""
        return sum(len(member.sparse_params) for member in self.members)

    def get_sparse_params(self, obj: torch.Tensor | torch.nn.Module | torch.optim.Optimizer) -> Any:
        """What this algorithm masks of ``obj``.

        Args:
            obj: a tensor, a module (with its submodules), or an optimizer.

        Returns:
            The :class:`SparseParameter` of a tensor, or None; of a module or an optimizer an iterator over them.

        Raises:
            WrongTypeError: it is none of these.
        """
        known = {id(sparse.param): sparse for member in self.members for sparse in member.sparse_params.values()}
        if isinstance(obj, torch.Tensor):
            return known.get(id(obj))
        if isinstance(obj, torch.nn.Module):
            params: Iterable[torch.Tensor] = obj.parameters()
        elif isinstance(obj, torch.optim.Optimizer):
            params = (param for group in obj.param_groups for param in group["params"])
        else:
            raise WrongTypeError(f"expected a tensor, a module or an optimizer, but got {type(obj).__name__}")
        return (known[id(param)] for param in params if id(param) in known)

    @final
    def apply(self, obj: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Sparsify a model, or an optimizer of one that has been.

        Raises:
            WrongTypeError: it is neither.
            UsageError: a mask that was asked for is not possible; the message names the parameter.
            SparsityStateError: a second optimizer.
        """
        if isinstance(obj, torch.nn.Module):
            self.sparsify_module(obj)
        elif isinstance(obj, torch.optim.Optimizer):
            self.sparsify_optimizer(obj)
        else:
            raise WrongTypeError(f"expected a module or an optimizer, but got {type(obj).__name__}")

    def __call__(self, module: torch.nn.Module) -> None:
        """Sparsify a model; ``model.apply(sparsity)`` comes here with each submodule, and only the model counts."""
        if not is_inner_call_of_apply(self):
            self.apply(module)

    def attach(
        self: _Algorithm,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        masks: Mapping[str, ArrayLike | torch.Tensor] | None = None,
    ) -> _Algorithm:
        """Sparsify a model and its optimizer.

        Args:
            model: the model.
            optimizer: over its parameters.
            masks: to start from; see :meth:`start_from`.

        Returns:
            This algorithm.
        """
        if masks is not None:
            self.start_from(masks)
        self.apply(model)
        self.apply(optimizer)
        return self

    def sparsify_module(self, module: torch.nn.Module) -> None:
        """Give masks to the parameters of a module and its submodules; see :meth:`apply`."""
        module = unwrapped(module)
        before = self.num_sparse_params
        self.learn_of(module)
        for name, owner, param in maskable_parameters(module):
            self.sparsify_parameter(owner, name, param)
        self.initialize()
        if self.num_sparse_params == before:
            warnings.warn(f"no parameters of {type(module).__name__} were sparsified", stacklevel=4)
            return
        for member in self.members:
            member.on_sparsified(module)
        prune_before_forward(self, module, (f"{name}_mask" for name in self.masks()))

    @abstractmethod
    def start_from(self, masks: Mapping[str, ArrayLike | torch.Tensor]) -> None:
        """Give first masks to parameters, before the algorithm is applied.

        A parameter for which there is no sparsity keeps that of its mask, exactly; one with neither stays dense.

        Args:
            masks: parameter (or initializer) name to an array of the parameter's shape, true where a weight is active,
                as ``sift_onnx.masks`` gives them.
        """

    @abstractmethod
    def learn_of(self, module: torch.nn.Module) -> None:
        """Called before parameters of ``module`` get masks."""

    @abstractmethod
    def sparsify_parameter(self, module: torch.nn.Module, name: str, param: torch.Tensor) -> None:
        """Give a mask to one parameter, all ones until :meth:`initialize`.

        Args:
            module: that owns the parameter.
            name: the parameter's full name.
            param: the parameter.
        """

    @abstractmethod
    def initialize(self) -> None:
        """Make the first masks of all parameters that have none."""

    def on_sparsified(self, module: torch.nn.Module) -> None:
        """Called when the parameters of ``module`` have their first masks."""

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Install what keeps an optimizer's steps within the masks; see :meth:`apply`."""
        if self._optimizer_hooks is not None:
            if self._optimizer_hooks.optimizer is optimizer:
                warnings.warn("the optimizer has been sparsified already", stacklevel=4)
                return
            raise SparsityStateError("one sparsity algorithm cannot sparsify several optimizers; use one for each")
        self._optimizer_hooks = OptimizerHooks(self, optimizer)

    def finalize_grads(self) -> None:
        """Note what the next update needs of the gradients, then mask them.

        To be called after the last backward pass (and ``scaler.unscale_``), before gradients are clipped. The step of
        the optimizer does it where it was not called; only a clipping norm would then count pruned weights.

        Raises:
            SparsityStateError: there is no optimizer yet.
        """
        if self._optimizer_hooks is None:
            raise SparsityStateError("finalize_grads needs an optimizer; call sparsity.apply(optimizer) first")
        self._optimizer_hooks.finalize_grads()

    def before_forward(self) -> None:
        optimizer = None if self._optimizer_hooks is None else self._optimizer_hooks.optimizer
        for member in self.members:
            for sparse in member.sparse_params.values():
                sparse.connect(member, optimizer)

    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:
        pass

    def wants_gradients(self) -> bool:
        return False

    def growth_limit(self, name: str) -> int | None:
        return None

    def forget_gradients(self) -> None:
        pass

    def takes_weight_step(self) -> bool:
        return True

    def end_step(self) -> None:
        if self.autoupdate:
            self.forget_gradients()

    def check_ranks(self) -> bool:
        if not (self.synchronize and is_parallel(self.process_group)):
            return False
        check_agreement(self.masks(), self.members[0].step, self.process_group)
        return True

    def masks(self) -> dict[str, torch.Tensor]:
        """Parameter name to mask."""
        return {name: sparse.mask for member in self.members for name, sparse in member.sparse_params.items()}

    def prune_copy(self, module: torch.nn.Module) -> None:
        """Prune a copy of the model, an exponential moving average, say, by the masks of the model.

        Copies of compact parameters get the model's active positions; call this after each step, before they are
        averaged with the model's.
        """
        params, compact = dict(unwrapped(module).named_parameters()), compact_weights(unwrapped(module))
        for member in self.members:
            for name, sparse in member.sparse_params.items():
                mask = sparse.mask
                if name in compact:
                    compact[name].move(mask)
                else:
                    zero_outside(local_shard(mask, params[name]), to_local(params[name]))
