"""The names that saved files have for kernels, wherever these have moved since.

The identity of a model in its checkpoints names a kernel by its Python module, and so do pickles of earlier builds. The
folder of a family is no part of such a name: it may change, and what is in ``kernels/spatial/pooling.py`` is
``sift_onnx.training.kernels.pooling``. New pickles name a kernel by its operator. Only subclasses of
``torch.nn.Module``, whose objects are attributes of the pickled module, are still named by Python; their families stand
in no folder.
"""

from __future__ import annotations

import re
import sys

__all__ = ["alias_released_modules", "released_names"]

# Of a kernel in a module's name, and in the code that torch.fx writes, which has underscores for dots.
_FOLDER = re.compile(r"\b(sift_onnx([._])training\2kernels\2)(?:data_movement|elementwise|spatial)\2")
# The module of kernels on the host had another name.
_HOST = ("sift_onnx_shapes_numpy_ops_", "sift_onnx_small_arrays_")


def released_names(text: str) -> str:
    """A module's name, or code of torch.fx, with the names under which kernels were released."""
    return _FOLDER.sub(r"\1", text).replace(*_HOST)


def alias_released_modules() -> None:
    """Let pickles of earlier builds import kernels from the modules in which these were released."""
    for name, module in list(sys.modules.items()):
        if _FOLDER.match(name):
            sys.modules[released_names(name)] = module
