import sys

import pytest

from sift_onnx.backends.base import (
    Backend,
    CompileOptions,
    NodeProfile,
    Profile,
    Program,
    available_backends,
    get_backend,
)
from sift_onnx.backends.processors import usable_processors
from sift_onnx.errors import BackendError, MissingExtraError, UnsupportedError, UsageError

USER_BACKEND = """
from __future__ import annotations
from dataclasses import dataclass
from sift_onnx.backends.base import Backend, Program

@dataclass
class Zeros(Program):  # a dataclass looks its module up in sys.modules
    model: str
    def run(self, feeds):
        return {}

class Zero(Backend):
    name = "zero"
    def compile(self, model, options=None):
        return Zeros(model)

class Unrelated:
    pass

class Broken(Backend):
    name = "broken"
    def __init__(self):
        raise OSError("no device\\nat all")
    def compile(self, model, options=None):
        raise NotImplementedError
"""


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "json.py"  # the name of a module of the standard library, which must not be shadowed
    path.write_text(USER_BACKEND, encoding="utf-8")
    return path


def test_known_back_end_is_found_by_name():
    backend = get_backend("onnxruntime")
    assert isinstance(backend, Backend)
    assert backend.name == "onnxruntime"
    assert "onnxruntime" in available_backends()


def test_unknown_back_end_lists_those_there_are():
    with pytest.raises(BackendError, match=r"no back end 'abacus'; there are onnxruntime") as failure:
        get_backend("abacus:wse2")
    assert failure.value.exit_code == 4


def test_preset_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="'onnxruntime' has no preset 'fast'; it takes none"):
        get_backend("onnxruntime:fast")


def test_preset_after_the_colon_is_kept():
    class Tuned(Backend):
        name = "tuned"
        presets = ("small", "large")

        def compile(self, model, options=None):
            raise NotImplementedError

    assert Tuned("large").preset == "large"
    with pytest.raises(UsageError, match="choose small, large"):
        Tuned("huge")


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "sift_onnx.backends.onnxruntime", raising=False)
    with pytest.raises(MissingExtraError, match="'onnxruntime' needs onnxruntime; pip install") as failure:
        get_backend("onnxruntime")
    assert failure.value.exit_code == 4


def test_user_back_end_is_loaded_from_its_file(user_file):
    program = get_backend(f"{user_file}:Zero").compile("m.onnx")
    assert program.run({}) == {}
    import json

    assert json.loads("1") == 1


@pytest.mark.parametrize(
    ("attribute", "complaint"),
    [
        ("Nothing", "'Nothing' is not a subclass"),
        ("Unrelated", "'Unrelated' is not a subclass"),
        ("Broken", "does not start: OSError: no device$"),
    ],
)
def test_user_class_that_does_not_work_is_one_line(user_file, attribute, complaint):
    with pytest.raises(BackendError, match=complaint):
        get_backend(f"{user_file}:{attribute}")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [("class (:", "does not load: SyntaxError"), ("import not_there_at_all", "does not load: ModuleNotFoundError")],
)
def test_user_file_that_does_not_load_is_one_line(tmp_path, source, complaint):
    path = tmp_path / "mine.py"
    path.write_text(source, encoding="utf-8")
    with pytest.raises(BackendError, match=complaint) as failure:
        get_backend(f"{path}:Mine")
    assert "\n" not in str(failure.value)


def test_user_file_that_is_not_there(tmp_path):
    with pytest.raises(BackendError, match="no such file"):
        get_backend(f"{tmp_path / 'gone.py'}:Mine")


def test_user_file_without_a_class_is_wrong_usage():
    with pytest.raises(UsageError, match=r"mine\.py:CLASS"):
        get_backend("mine.py")


@pytest.mark.parametrize("options", [{"threads": 0}, {"batch": 0}])
def test_options_start_at_one(options):
    with pytest.raises(UsageError, match="at least 1"):
        CompileOptions(**options)


def test_there_is_a_thread():
    assert usable_processors() >= 1


def test_profile_sums_its_nodes():
    nodes = (NodeProfile("a", "Conv", "cpu", "why", 1.5), NodeProfile("b", "Relu", "cpu", "why", 0.25))
    profile = Profile(nodes, runs=10)
    assert profile.total_ms == 1.75
    assert profile.to_dict()["nodes"][1] == {
        "name": "b",
        "op": "Relu",
        "placement": "cpu",
        "reason": "why",
        "ms": 0.25,
    }


def test_program_without_a_profile_says_so():
    class Silent(Program):
        def run(self, feeds):
            return {}

    assert Silent().placements == ()
    with pytest.raises(UnsupportedError, match="Silent has no profile"):
        Silent().profile()
