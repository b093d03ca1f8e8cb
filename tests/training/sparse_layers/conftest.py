from __future__ import annotations

import importlib.util

from sift_onnx.backends.cpu import _kernels

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]

if not hasattr(_kernels, "WeightGradient") and importlib.util.find_spec("torch"):
    from weight_gradient import WeightGradient

    _kernels.WeightGradient = WeightGradient
