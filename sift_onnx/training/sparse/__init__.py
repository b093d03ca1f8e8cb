"""Sparsity algorithms with the names and semantics of ``cerebras.pytorch.sparse``."""

from sift_onnx.training.sparse.algorithms.base import SparsityAlgorithm
from sift_onnx.training.sparse.algorithms.drop_grow import SET, RigL
from sift_onnx.training.sparse.algorithms.dynamic import DynamicSparsityAlgorithm
from sift_onnx.training.sparse.algorithms.group import Group
from sift_onnx.training.sparse.algorithms.magnitude import GMP, IMP
from sift_onnx.training.sparse.algorithms.static import Static
from sift_onnx.training.sparse.attach import attach, install_optimizer_apply
from sift_onnx.training.sparse.attachment.attached import AttachedAlgorithm
from sift_onnx.training.sparse.configure import configure, default_sparse_param_filter, map_sparsity_algorithm, spdf
from sift_onnx.training.sparse.errors import MissingSettingError, SparsityStateError, WrongTypeError
from sift_onnx.training.sparse.parameters.levels import erk_counts
from sift_onnx.training.sparse.parameters.metrics import MaskHistory, MaskMetrics
from sift_onnx.training.sparse.parameters.sparse_parameter import SparseParameter
from sift_onnx.training.sparse.schedules.hyper_parameters import (
    Constant,
    Cosine,
    Cubic,
    Cycling,
    Exp,
    ExponentialK,
    HyperParameterSchedule,
    Lambda,
    Linear,
    Power,
    make_hyperparam_schedule,
)
from sift_onnx.training.sparse.schedules.share import Share
from sift_onnx.training.sparse.schedules.update_schedules import (
    FreqSchedule,
    ListSchedule,
    StrictFreqSchedule,
    UpdateSchedule,
    make_update_schedule,
)
from sift_onnx.training.sparse.selection.init_methods import checkerboard, from_zeros, make_init_method, random, topk
from sift_onnx.training.sparse.selection.masks import (
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
)
from sift_onnx.training.sparse.selection.shapers import (
    InputGroupScoreShaper,
    OutputGroupScoreShaper,
    ScoreFlattener,
    ScoreShaper,
)

__all__ = [
    "GMP", "IMP", "SET", "AttachedAlgorithm", "Constant", "Cosine", "Cubic", "Cycling", "DynamicSparsityAlgorithm",
    "Exp", "ExponentialK", "FreqSchedule", "Group", "HyperParameterSchedule", "InputGroupScoreShaper", "Lambda",
    "Linear", "ListSchedule", "MaskHistory", "MaskMetrics", "MissingSettingError", "OutputGroupScoreShaper", "Power",
    "RigL", "ScoreFlattener", "ScoreShaper", "Share", "SparseParameter", "SparsityAlgorithm", "SparsityStateError",
    "Static", "StrictFreqSchedule", "UpdateSchedule", "WrongTypeError", "attach", "checkerboard", "configure",
    "default_sparse_param_filter", "erk_counts", "from_zeros", "install_optimizer_apply", "make_hyperparam_schedule",
    "make_init_method", "make_mask_drop_minimum", "make_mask_grow_maximum", "make_mask_topk_sparsity",
    "make_update_schedule", "map_sparsity_algorithm", "random", "spdf", "topk",
]  # fmt: skip
