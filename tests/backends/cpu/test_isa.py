"""The instruction sets that are detected, and the choice among them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from sift_onnx.backends.cpu import _kernels
from sift_onnx.backends.cpu.isa import ISAS, selected_isa
from sift_onnx.errors import UsageError

CPUINFO = Path("/proc/cpuinfo")

OSXSAVE, AVX, FMA = 1 << 27, 1 << 28, 1 << 12  # CPUID.1:ECX
AVX2, AVX512F, AVX512BW = 1 << 5, 1 << 16, 1 << 30  # CPUID.7.0:EBX
AVX512_BF16 = 1 << 5  # CPUID.7.1:EAX
AMX_TILE, AMX_INT8 = 1 << 24, 1 << 25  # CPUID.7.0:EDX
YMM_STATE, ZMM_STATE, TILE_STATE = 0x6, 0xE0, 0x60000  # XCR0


@pytest.mark.skipif(
    not CPUINFO.exists() or platform.machine() != "x86_64", reason="needs the flags of /proc/cpuinfo on x86-64"
)
def test_detected_features_are_those_that_linux_reports() -> None:
    line = next(line for line in CPUINFO.read_text().splitlines() if line.startswith("flags"))
    flags = line.partition(":")[2].split()
    all_bits = 2**32 - 1
    known = _kernels.decode_x86_features(
        leaf1_ecx=all_bits,
        leaf7_ebx=all_bits,
        leaf7_ecx=all_bits,
        leaf7_edx=all_bits,
        leaf7_1_eax=all_bits,
        xcr0=YMM_STATE | ZMM_STATE | TILE_STATE,
    )

    assert len(known) > 10
    assert _kernels.cpu_features() == [name for name in known if name in flags]


@pytest.mark.skipif(platform.machine() not in {"aarch64", "arm64"}, reason="needs an Arm machine")
def test_neon_is_detected_on_arm() -> None:
    assert _kernels.cpu_features() == ["neon"]
    assert _kernels.detected_isa() == "neon"


def test_features_need_the_operating_system_to_save_their_registers() -> None:
    cpuid = {"leaf1_ecx": OSXSAVE | AVX | FMA, "leaf7_ebx": AVX2 | AVX512F | AVX512BW, "leaf7_1_eax": AVX512_BF16}

    assert _kernels.decode_x86_features(**cpuid, xcr0=0) == []
    assert _kernels.decode_x86_features(**cpuid, xcr0=YMM_STATE) == ["avx", "fma", "avx2"]
    assert _kernels.decode_x86_features(**cpuid, xcr0=ZMM_STATE) == []
    assert _kernels.decode_x86_features(**cpuid, xcr0=YMM_STATE | ZMM_STATE) == [
        "avx",
        "fma",
        "avx2",
        "avx512f",
        "avx512bw",
        "avx512_bf16",
    ]


@pytest.mark.parametrize(
    ("xcr0", "features"),
    [(YMM_STATE | ZMM_STATE, []), (0x20000, []), (0x40000, []), (TILE_STATE, ["amx_tile", "amx_int8"])],
)
def test_tiles_need_both_of_their_states(xcr0: int, features: list[str]) -> None:
    cpuid = {"leaf1_ecx": OSXSAVE, "leaf7_edx": AMX_TILE | AMX_INT8}

    assert _kernels.decode_x86_features(**cpuid, xcr0=xcr0) == features


def test_saved_state_counts_only_if_the_operating_system_enabled_xgetbv() -> None:
    features = _kernels.decode_x86_features(leaf1_ecx=AVX | FMA, leaf7_ebx=AVX2, xcr0=YMM_STATE | ZMM_STATE)

    assert features == []


@pytest.mark.parametrize(
    ("features", "isas"),
    [
        (["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"], ["avx512", "avx2", "portable"]),
        (["avx2", "fma", "f16c", "avx512f"], ["avx2", "portable"]),
        (["avx", "avx2", "fma"], ["portable"]),
        (["neon"], ["neon", "portable"]),
        ([], ["portable"]),
    ],
)
def test_an_instruction_set_needs_all_of_its_features(features: list[str], isas: list[str]) -> None:
    assert _kernels.isas_of(features) == isas


def test_detected_isa_is_the_best_supported_one() -> None:
    supported = _kernels.supported_isas()

    assert supported == [isa for isa in ISAS if isa in supported]
    assert supported[0] == _kernels.detected_isa()
    assert supported[-1] == "portable"


@pytest.mark.parametrize("unset", [None, ""])
def test_the_detected_isa_is_selected_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch, unset: str | None
) -> None:
    if unset is None:
        monkeypatch.delenv("SIFT_ISA", raising=False)
    else:
        monkeypatch.setenv("SIFT_ISA", unset)

    assert selected_isa() == _kernels.detected_isa()


@pytest.mark.parametrize("isa", _kernels.supported_isas())
def test_every_supported_isa_can_be_selected(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)

    assert selected_isa() == isa


def test_an_unknown_isa_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIFT_ISA", "sse9")

    with pytest.raises(UsageError, match=r"^unknown instruction set 'sse9' \(SIFT_ISA\): set it to avx512, .*$"):
        selected_isa()


@pytest.mark.parametrize("isa", sorted(set(ISAS) - set(_kernels.supported_isas())))
def test_an_isa_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("SIFT_ISA", isa)

    with pytest.raises(UsageError, match=rf"^this machine does not run {isa!r} \(SIFT_ISA\): set it to .*portable.*$"):
        selected_isa()
