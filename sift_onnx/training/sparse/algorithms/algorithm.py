"""What all sparsity algorithms have in common: settings, parameters, masks, hooks and state."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, final

import torch

from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.training.sparse.algorithms.first_masks import first_mask
from sift_onnx.training.sparse.algorithms.state import algorithm_state, load_algorithm_state, sparsity_schedules
from sift_onnx.training.sparse.errors import SparsityStateError, WrongTypeError
from sift_onnx.training.sparse.parameters.feature_axes import axes_of, known_axes
from sift_onnx.training.sparse.parameters.given_masks import masks_by_path, masks_of
from sift_onnx.training.sparse.parameters.levels import Levels
from sift_onnx.training.sparse.parameters.metrics import MaskHistory
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.parameters.traversal import is_inner_call_of_apply, owned_parameters, unwrapped
from sift_onnx.training.sparse.schedules.hyper_parameters import Constant, HyperParameterSchedule
from sift_onnx.training.sparse.schedules.numbers import whole
from sift_onnx.training.sparse.schedules.per_parameter import ParameterSchedules
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection.counts import Compat, count_rule
from sift_onnx.training.sparse.selection.init_methods import InitMethod, make_init_method
from sift_onnx.training.sparse.selection.shapers import ScoreShaper
from sift_onnx.training.sparse.stepping.forward_hook import PruneBeforeForward, keep_from_ddp
from sift_onnx.training.sparse.stepping.optimizer_hooks import OptimizerHooks
from sift_onnx.training.sparse.stepping.sparsity_hooks import SparsityHook, SparsityHooks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["SparsityAlgorithm"]


class SparsityAlgorithm(ABC):
    """The base of all algorithms; subclasses implement :meth:`update`.

    An algorithm is applied to a model, then to its optimizer::

        model.apply(sparsity)        # or sparsity.apply(model)
        sparsity.apply(optimizer)    # or both: sparsity.attach(model, optimizer)

    Every floating-point parameter (and, in a :class:`Group`, every one that a filter chooses) gets a mask, unless it or
    the module that owns it has an attribute ``requires_dense`` that is true. Masks are persistent buffers
    ``<name>_mask`` beside the parameters. Weights are pruned in place: when the algorithm is applied, before a forward
    pass that finds them changed, and after each ``optimizer.step``. Gradients are masked before the step
    (:meth:`finalize_grads`), optimizer states of the parameter's shape after it, unless they have ``requires_dense``.

    Names, arguments and semantics are those of ``cerebras.pytorch.sparse`` 2.10.

    Attributes:
        autoupdate: whether ``optimizer.step`` calls :meth:`update`.
        step: number of updates that were asked for, that is, of optimizer steps.
        seed: of everything that is drawn.
        sparse_params: name to :class:`SparseParameter`, in the order of the model.
        pattern: which weights may be active together.
        rule: how weights are counted.
        score_shaper: which weights of a parameter compete; all of them if None.
        history: of the masks, for metrics; None if it was not asked for.
        densify_at: the step after which all masks become ones, for good; None for never.
        synchronize: whether ranks of ``torch.distributed`` agree on masks.
        process_group: of the ranks that agree; None for all.
    """

    def __init__(
        self,
        sparsity: Any = None,
        init_method: str | InitMethod | None = None,
        *,
        seed: int = 0,
        pattern: str | Pattern = "unstructured",
        distribution: Literal["uniform", "erk"] = "uniform",
        compat: Compat | None = None,
        metrics: bool = False,
        densify_at: int | None = None,
    ) -> None:
        """Settings.

        Args:
            sparsity: share of the weights to leave out: what :func:`make_hyperparam_schedule` takes, or a dictionary
                ``{parameter: that}``. None only where there are masks to start from, whose sparsity is kept: those of
                :meth:`start_from`, or of a model imported from ONNX.
            init_method: how the first mask is made; see :func:`make_init_method`. None starts from the masks of a model
                that has been imported with some, and is ``random`` otherwise, as in cstorch.
            seed: of what is drawn. Draws depend on seed, name and step alone.
            pattern: ``unstructured``, ``N:M``, ``N:M-transposable`` or ``block:RxC``. Masks have at most N of M, and as
                many non-zeros as the sparsity says or the pattern has room for.
            distribution: ``uniform`` gives every parameter the sparsity, ``erk`` all of them together.
            compat: count, update and draw as another implementation does: ``cstorch`` or ``cbsparse``.
            metrics: follow what masks explore; see :class:`MaskHistory`.
            densify_at: make all masks ones after this step (SPDF: sparse pre-training, dense fine-tuning).

        Raises:
            UsageError: a setting is out of its range.
        """
        self._sparsity = ParameterSchedules(sparsity)
        self.init_method = make_init_method("random" if init_method is None else init_method)
        self._takes_masks_of_model = init_method is None
        self.seed = whole(seed, "seed")
        self.pattern = Pattern.parse(pattern)
        self.compat = compat
        self.rule = count_rule(compat)
        self.levels = Levels(distribution)
        self.history = MaskHistory() if metrics else None
        self.densify_at = None if densify_at is None else whole(densify_at, "densify_at")
        self.autoupdate = True
        self.synchronize = True
        self.process_group: Any = None
        self.step = 0
        self.sparse_params: dict[str, SparseParameter] = {}
        self.score_shaper: ScoreShaper | None = None
        self._dense = False
        self._given: Mapping[str, torch.Tensor] = {}
        self._known_axes: Mapping[str, tuple[int, int]] = {}
        self._cycled: set[int] = set()
        self.target_sparsity_hooks = SparsityHooks()
        self.computed_sparsity_hooks = SparsityHooks()
        self._optimizer_hooks: OptimizerHooks | None = None

    @property
    def members(self) -> Sequence[SparsityAlgorithm]:
        """The algorithms that own parameters: this one; those of a group."""
        return (self,)

    @property
    def starts_sparse(self) -> bool:
        """Whether the first masks have the sparsity that was asked for; they are all ones otherwise."""
        return True

    @property
    def is_dense(self) -> bool:
        """Whether masks have become ones for good."""
        return self._dense

    @property
    def sparsity(self) -> ParameterSchedules:
        """Sparsity schedules by parameter; setting it changes that of all parameters without one of their own."""
        return self._sparsity

    @sparsity.setter
    def sparsity(self, sparsity: Any) -> None:
        self._sparsity = self._sparsity.with_default(sparsity)
        for sparse_param in self.sparse_params.values():
            sparse_param.schedule = self._sparsity[sparse_param.param]

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
            params: Iterator[torch.Tensor] = iter(obj.parameters())
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
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        masks: Mapping[str, ArrayLike | torch.Tensor] | None = None,
    ) -> SparsityAlgorithm:
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

    def start_from(self, masks: Mapping[str, ArrayLike | torch.Tensor]) -> None:
        """Give first masks to parameters, before the algorithm is applied.

        A parameter for which there is no sparsity keeps that of its mask, exactly; one with neither stays dense.

        Args:
            masks: parameter (or initializer) name to an array of the parameter's shape, true where a weight is active,
                as ``sift_onnx.masks`` gives them.
        """
        given = {name: torch.as_tensor(mask).to(torch.bool) for name, mask in masks.items()}
        for member in self.members:
            member._given = given

    def sparsify_module(self, module: torch.nn.Module) -> None:
        """Give masks to the parameters of a module and its submodules; see :meth:`apply`."""
        module = unwrapped(module)
        before = self.num_sparse_params
        for member in self.members:
            # A mask drawn anew would leave hardly a weight of a model that is sparse already.
            inherits = member._sparsity.is_empty or (member._takes_masks_of_model and member.starts_sparse)
            member._known_axes = known_axes(module)
            member._given = masks_by_path(module, member._given or (masks_of(module) if inherits else {}))
        for name, owner, param in owned_parameters(module):
            if getattr(owner, "requires_dense", False) or getattr(param, "requires_dense", False):
                continue
            if param.is_floating_point() and param.numel():
                self.sparsify_parameter(owner, name, param)
        self.initialize()
        if self.num_sparse_params == before:
            warnings.warn(f"no parameters of {type(module).__name__} were sparsified", stacklevel=4)
            return
        for member in self.members:
            member.on_sparsified(module)
        keep_from_ddp(module, (f"{name}_mask" for name in self.masks()))
        module.register_forward_pre_hook(PruneBeforeForward(self))

    def sparsify_parameter(self, module: torch.nn.Module, name: str, param: torch.Tensor) -> None:
        """Give a mask to one parameter, all ones until :meth:`initialize`.

        Args:
            module: that owns the parameter.
            name: the parameter's full name.
            param: the parameter.
        """
        if name in self.sparse_params:
            return
        if hasattr(module, f"{name.rpartition('.')[2]}_mask"):
            warnings.warn(f"{name!r} has a mask already; it is left as it is", stacklevel=5)
            return
        if param not in self._sparsity and self._given:
            if name not in self._given:
                return
            mask = self._given[name]
            self._sparsity[param] = Constant(_sparsity_of(mask))
        axes = self._known_axes.get(name)
        if self.score_shaper is not None:
            self.score_shaper.along(*axes_of(param, axes)).check(name, param.shape)
        self.sparse_params[name] = SparseParameter(module, name, self._sparsity[param], axes)

    def shaper_of(self, sparse: SparseParameter) -> ScoreShaper | None:
        """Which weights of a parameter compete, along its own feature axes; all of them if None."""
        return None if self.score_shaper is None else self.score_shaper.along(*sparse.feature_axes)

    def on_sparsified(self, module: torch.nn.Module) -> None:  # noqa: B027
        """Called when the parameters of ``module`` have their first masks."""

    def initialize(self) -> None:
        """Make the first masks of all parameters that have none."""
        for member in self.members:
            fresh = [sparse for sparse in member.sparse_params.values() if not sparse.initialized]
            for sparse in fresh:
                sparse.place(first_mask(member, sparse, member._given.get(sparse.name)))
                if member.history is not None:
                    member.history.start(sparse.name, sparse.mask)
            member._advance(sparse.schedule for sparse in fresh)

    def _advance(self, schedules: Iterator[HyperParameterSchedule]) -> None:
        """Step 0 counts as an update of the schedules, once for each."""
        for schedule in schedules:
            if id(schedule) not in self._cycled:
                self._cycled.add(id(schedule))
                schedule.update(self.starts_sparse)

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

    @abstractmethod
    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Update the masks; called after each step of the optimizer.

        Args:
            optimizer: whose parameters are to be updated; all parameters if None. Subclasses may do without it.
        """

    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:  # noqa: B027
        """Called with the parameters that have a gradient, whole and unmasked, before a step of the optimizer."""

    def wants_gradients(self) -> bool:
        """Whether the coming step needs gradients of inactive weights."""
        return False

    def forget_gradients(self) -> None:  # noqa: B027
        """Called when the step is over, or was skipped."""

    def takes_weight_step(self) -> bool:
        """Whether the optimizer is to take the coming step."""
        return True

    def densify(self) -> None:
        """Make all masks ones, for good: weights are free, and no update will follow."""
        for member in self.members:
            for sparse in member.sparse_params.values():
                old = sparse.mask.clone()
                sparse.mask.fill_(True)
                if member.history is not None:
                    member.history.update(sparse.name, old, sparse.mask)
            member._dense = True

    def masks(self) -> dict[str, torch.Tensor]:
        """Parameter name to mask."""
        return {name: sparse.mask for member in self.members for name, sparse in member.sparse_params.items()}

    def prune_copy(self, module: torch.nn.Module) -> None:
        """Prune a copy of the model, an exponential moving average, say, by the masks of the model."""
        params = dict(unwrapped(module).named_parameters())
        for member in self.members:
            for name, sparse in member.sparse_params.items():
                sparse.zero_outside(sparse.mask, [params[name]])

    def register_target_sparsity_hook(self, hook: SparsityHook) -> Any:
        """Call ``hook(algorithm, name glob, sparsity)`` at each :meth:`update`, once for each sparsity schedule.

        Returns:
            A handle with ``remove()``; of a group, a list of them.
        """
        return self.target_sparsity_hooks.register(hook)

    def register_computed_sparsity_hook(self, hook: SparsityHook) -> Any:
        """Call ``hook(algorithm, name, sparsity of the mask)`` at each :meth:`update`, for each parameter.

        Returns:
            A handle with ``remove()``; of a group, a list of them.
        """
        return self.computed_sparsity_hooks.register(hook)

    def visit_state(self, f: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Call ``f`` with each stateful number, as a tensor, and take over what it returns if that is not None."""
        seen = f(torch.tensor(self.step))
        if seen is not None:
            self.step = int(seen)
        for schedule in self.schedules():
            schedule.visit_state(f)

    def schedules(self) -> list[HyperParameterSchedule]:
        """Every schedule once: those of sparsities, then those of other settings."""
        return [schedule for _, schedule in sparsity_schedules(self)]

    def settings(self) -> dict[str, str]:
        """What a run must have in common with the one it resumes, in words."""
        return {
            "sparsity": ", ".join(repr(schedule) for _, schedule in sparsity_schedules(self)),
            "pattern": str(self.pattern),
            "distribution": self.levels.distribution,
            "compat": str(self.compat),
            "densify_at": str(self.densify_at),
        }

    def state_dict(self) -> Any:
        """What a resumed run needs beside the model's own state, which has the masks, and the optimizer's.

        Steps, schedules, seed, metrics; tensors, numbers and strings only.
        """
        return algorithm_state(self)

    def load_state_dict(self, state_dict: Any) -> None:
        """Take over a :meth:`state_dict`; the model's own state has to be loaded, too.

        Raises:
            UsageError: it is of another algorithm, other settings or other parameters; the message says which.
        """
        load_algorithm_state(self, state_dict)


def _sparsity_of(mask: torch.Tensor) -> Share:
    return Share(1 - Fraction(int(torch.count_nonzero(mask)), mask.numel()))
