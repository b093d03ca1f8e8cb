"""Tables and HTML pages from results of other verbs.

``sift_onnx.report`` is also the function that writes such a page. The import of a module of this package puts the
package under that name, so the package can be called as the function.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **settings: Any) -> Any:
        """See ``sift_onnx.api.pages.report``."""
        return import_module("sift_onnx.api.pages").report(*args, **settings)


sys.modules[__name__].__class__ = _CallablePackage
