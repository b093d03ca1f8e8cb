"""The base of all sparsity algorithms: settings, parameters, masks and state."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec

import torch
from torch.utils.hooks import RemovableHandle

from sift_onnx.errors import UsageError
from sift_onnx.sparsity.patterns.pattern import Pattern
from sift_onnx.training.packed_masks import PackedMasks
from sift_onnx.training.sparse.algorithms.state import AlgorithmState
from sift_onnx.training.sparse.attachment.attached import AttachedAlgorithm
from sift_onnx.training.sparse.configuration import whole
from sift_onnx.training.sparse.errors import SparsityStateError
from sift_onnx.training.sparse.parameters.compact import compact_weight
from sift_onnx.training.sparse.parameters.first_masks import check_first_mask, first_mask
from sift_onnx.training.sparse.parameters.levels import Levels
from sift_onnx.training.sparse.parameters.mask_settings import MaskSettings
from sift_onnx.training.sparse.parameters.metrics import MaskHistory
from sift_onnx.training.sparse.parameters.of_module import axes_of, known_axes, masks_by_path, masks_of
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.hyper_parameters import Constant, HyperParameterSchedule
from sift_onnx.training.sparse.schedules.per_parameter import ParameterSchedules
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.selection.counts import Compat, count_rule
from sift_onnx.training.sparse.selection.init_methods import InitMethod, make_init_method
from sift_onnx.training.sparse.selection.shapers import ScoreShaper

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["SparsityAlgorithm", "SparsityHook", "UserHooks"]

_Arguments = ParamSpec("_Arguments")

#: ``(algorithm, parameter name or glob, sparsity)``.
SparsityHook = Callable[["SparsityAlgorithm", str, Share], None]


class UserHooks(Generic[_Arguments]):
    """User hooks that receive sparsity values, or others: functions of the same arguments, in their order."""

    def __init__(self) -> None:
        self._hooks: OrderedDict[int, Callable[_Arguments, None]] = OrderedDict()

    def register(self, hook: Callable[_Arguments, None]) -> RemovableHandle:
        """Add a function; the handle's ``remove()`` takes it out."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def __len__(self) -> int:
        return len(self._hooks)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        for hook in list(self._hooks.values()):
            hook(*args, **kwargs)


class SparsityAlgorithm(AttachedAlgorithm):
    """The base of all algorithms; subclasses implement :meth:`update`.

    An algorithm is applied to a model, then to its optimizer::

        model.apply(sparsity)        # or sparsity.apply(model)
        sparsity.apply(optimizer)    # or both: sparsity.attach(model, optimizer)

    Every floating-point parameter (and, in a :class:`Group`, every one that a filter chooses) gets a mask, unless it or
    the module that owns it has an attribute ``requires_dense`` that is true. Masks are persistent buffers
    ``<name>_mask`` beside the parameters. Weights are pruned in place: when the algorithm is applied, before a forward
    pass that finds them changed, and after each ``optimizer.step``. Gradients are masked before the step
    (:meth:`finalize_grads`), optimizer states of the parameter's shape after it, unless they have ``requires_dense``.

    Names, arguments and semantics are those of ``cerebras.pytorch.sparse`` 2.10. :class:`AttachedAlgorithm` has the
    attributes of training.

    Attributes:
        seed: of everything that is drawn.
        pattern: which weights may be active together.
        rule: how weights are counted.
        score_shaper: which weights of a parameter compete; all of them if None.
        history: of the masks, for metrics; None if it was not asked for.
        densify_at: the step after which all masks become ones, for good; None for never.
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
        super().__init__()
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
        self.score_shaper: ScoreShaper | None = None
        self._dense = False
        self._given = PackedMasks()
        self._known_axes: Mapping[str, tuple[int, int]] = {}
        self._cycled: set[int] = set()
        self.target_sparsity_hooks: UserHooks[SparsityAlgorithm, str, Share] = UserHooks()
        self.computed_sparsity_hooks: UserHooks[SparsityAlgorithm, str, Share] = UserHooks()

    @property
    def members(self) -> Sequence[SparsityAlgorithm]:
        return (self,)

    @property
    def mask_settings(self) -> MaskSettings:
        """How masks are chosen."""
        return MaskSettings(self.init_method, self.seed, self.pattern, self.rule, self.score_shaper)

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

    def start_from(self, masks: Mapping[str, ArrayLike | torch.Tensor]) -> None:
        given = PackedMasks({name: torch.as_tensor(mask).to(torch.bool) for name, mask in masks.items()})
        for member in self.members:
            member._given = given

    def learn_of(self, module: torch.nn.Module) -> None:
        for member in self.members:
            # A model that is sparse already would keep hardly a weight under a new mask.
            inherits = member._sparsity.is_empty or (member._takes_masks_of_model and member.starts_sparse)
            member._known_axes = known_axes(module)
            member._given = masks_by_path(module, member._given or (masks_of(module) if inherits else PackedMasks()))

    def sparsify_parameter(self, module: torch.nn.Module, name: str, param: torch.Tensor) -> None:
        if name in self.sparse_params:
            return
        leaf = name.rpartition(".")[2]
        if compact_weight(module, leaf) is not None:
            raise SparsityStateError(
                f"{name!r} is stored as its active values already; attach the sparsity algorithm to the dense model"
            )
        if hasattr(module, f"{leaf}_mask"):
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

    def initialize(self) -> None:
        for member in self.members:
            fresh = [sparse for sparse in member.sparse_params.values() if not sparse.initialized]
            for sparse in fresh:
                sparse.place(member._first_mask(sparse))
                if member.history is not None:
                    member.history.start(sparse.name, sparse.mask)
            member._advance(sparse.schedule for sparse in fresh)

    def _first_mask(self, sparse: SparseParameter) -> torch.Tensor:
        settings = self.mask_settings
        settings.check(sparse)
        given = self._given.get(sparse.name)
        if given is not None:
            return check_first_mask(sparse, settings, given)
        level = self.level_of(sparse)
        if not self.starts_sparse:
            return torch.ones(sparse.shape, dtype=torch.bool)
        return first_mask(sparse, settings, level, self.step)

    def _advance(self, schedules: Iterable[HyperParameterSchedule]) -> None:
        """Step 0 counts as an update of the schedules, once for each."""
        for schedule in schedules:
            if id(schedule) not in self._cycled:
                self._cycled.add(id(schedule))
                schedule.update(self.starts_sparse)

    def level_of(self, sparse: SparseParameter) -> Share:
        """The sparsity of a parameter at the present step, within [0, 1]."""
        return self.levels.of(sparse, self.sparse_params, self.step, self.pattern)

    def densify_if_due(self) -> None:
        if self.densify_at is not None and self.step >= self.densify_at and not self.is_dense:
            self.densify()

    def densify(self) -> None:
        """Make all masks ones, for good: weights are free, and no update will follow."""
        for member in self.members:
            for sparse in member.sparse_params.values():
                old = sparse.mask.clone()
                sparse.densify()
                if member.history is not None:
                    member.history.update(sparse.name, old, sparse.mask)
            member._dense = True

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
        return [schedule for _, schedule in self._sparsity_schedules()]

    def _sparsity_schedules(self) -> list[tuple[str, HyperParameterSchedule]]:
        """Each sparsity schedule once, under the name of its first parameter."""
        named: dict[int, tuple[str, HyperParameterSchedule]] = {}
        for name, sparse in self.sparse_params.items():
            named.setdefault(id(sparse.schedule), (name, sparse.schedule))
        return list(named.values())

    def settings(self) -> dict[str, str]:
        """What a run must have in common with the one it resumes, in words."""
        return {
            "sparsity": ", ".join(repr(schedule) for _, schedule in self._sparsity_schedules()),
            "pattern": str(self.pattern),
            "distribution": self.levels.distribution,
            "compat": str(self.compat),
            "densify_at": str(self.densify_at),
        }

    def _state(self) -> AlgorithmState:
        """What a resumed run needs; :meth:`state_dict` adds what subclasses keep."""
        return AlgorithmState(
            algorithm=type(self).__name__.lower(),
            step=self.step,
            seed=self.seed,
            dense=self.is_dense,
            parameters={name: list(sparse.shape) for name, sparse in self.sparse_params.items()},
            settings=self.settings(),
            sparsity={n: saved for n, schedule in self._sparsity_schedules() if (saved := schedule.state_dict())},
            metrics=None if self.history is None else self.history.state_dict(),
        )

    def state_dict(self) -> Any:
        """What a resumed run needs besides the model's own state, which has the masks, and the optimizer's.

        Steps, schedules, seed, metrics; tensors, numbers and strings only.
        """
        return self._state().to_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        """Take over a :meth:`state_dict`; the model's own state has to be loaded, too.

        Only ``step`` is needed, as in states that cstorch wrote.

        Raises:
            UsageError: it is of another algorithm, other settings or other parameters; the message says which.
        """
        saved = AlgorithmState.from_dict(state_dict)
        saved.check_fits(self._state())
        self.step, self._dense = saved.step, saved.dense
        self.seed = self.seed if saved.seed is None else int(saved.seed)
        schedules = dict(self._sparsity_schedules())
        for name, state in saved.sparsity.items():
            if name not in schedules:
                raise UsageError(f"the state has a sparsity schedule for {name!r}, which has none here")
            schedules[name].load_state_dict(state)
        if self.history is not None and saved.metrics is not None:
            self.history.load_state_dict(saved.metrics)


def _sparsity_of(mask: torch.Tensor) -> Share:
    return Share(1 - Fraction(int(torch.count_nonzero(mask)), mask.numel()))
