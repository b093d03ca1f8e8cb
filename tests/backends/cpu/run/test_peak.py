import pytest
from sparse_nets import SparseNet

from sift_onnx.backends.base import CompileOptions, get_backend
from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.run import peak
from sift_onnx.backends.cpu.run.region_program import RegionProgram


@pytest.fixture
def clock(monkeypatch):
    """Seconds that each round takes, from the end; the loop is not run."""
    rounds = []
    now = [0.0]

    def multiply_adds(pool, iterations, isa):
        now[0] += rounds.pop()
        return 1e9

    monkeypatch.setattr(peak._kernels, "run_multiply_adds", multiply_adds)
    monkeypatch.setattr(peak.time, "perf_counter", lambda: now[0])
    return rounds


def test_a_round_that_others_disturb_does_not_count(clock):
    meter = peak.Peak(_kernels.ThreadPool(1), "portable")
    clock += [1.0, 0.25, 0.5]
    meter.sample()
    assert meter.gflops == pytest.approx(4.0)
    clock += [2.0, 2.0, 2.0]
    meter.sample()
    assert meter.gflops == pytest.approx(4.0)
    clock += [2.0, 0.125, 2.0]
    meter.sample()
    assert meter.gflops == pytest.approx(8.0)


def test_a_profile_takes_it_in_turns_with_its_runs(monkeypatch):
    net = SparseNet()
    net.density = 0.1
    net.output(net.conv(net.input("x", 1, 32, 28, 28), 32, 64, 3))
    program = get_backend("cpu").compile(net.model(), CompileOptions(threads=1, deterministic=True))
    done = []
    sample, run = peak.Peak.sample, RegionProgram.run
    monkeypatch.setattr(peak.Peak, "sample", lambda self: (done.append("peak"), sample(self))[1])
    monkeypatch.setattr(RegionProgram, "run", lambda *given: (done.append("run"), run(*given))[1])
    runs = program.profile().runs
    first = done.index("peak")
    assert set(done[:first]) == {"run"}  # which decide where it runs, and warm up
    assert ["peak", "run"] * runs == done[first : first + 2 * runs]


def test_it_is_measured_when_it_is_first_asked_for(clock):
    clock += [1.0, 0.5, 1.0]
    assert peak.Peak(_kernels.ThreadPool(1), "portable").gflops == pytest.approx(2.0)
