import pytest

from sift_onnx.backends.dataflow.machines.preset_files import load_machine
from sift_onnx.backends.dataflow.simulation.simulator import Settings, as_dense, run
from sift_onnx.backends.dataflow.workloads.decoder import decoder_workload, load_decoder
from sift_onnx.errors import UsageError


def test_a_sparse_wide_decoder_keeps_the_non_zeros_of_the_original():
    decoder = load_decoder("gpt3-1.3b")
    original, wide = decoder_workload(decoder), decoder_workload(decoder, 0.9)
    assert wide.products[0].pattern.map.rows == 6476
    assert [p.pattern.nnz for p in wide.products[:-1]] == [p.pattern.nnz for p in original.products[:-1]]
    assert wide.products[0].tokens == 256 * 528


def test_the_fitted_window_gives_the_published_speed_up_of_gpt_at_ninety_percent():
    # Fitted to it: this holds the calibration, and validates nothing.
    wide = decoder_workload(load_decoder("gpt3-1.3b"), 0.9)
    machine = load_machine("wse2")
    dense, sparse = (sum(layer.cycles for layer in run(w, machine, Settings())) for w in (as_dense(wide), wide))
    assert dense / sparse == pytest.approx(3.8, abs=0.1)


def test_bad_decoders_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there are gpt3-1"):
        load_decoder("gpt9")
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nsource = "me"\nlayers = 0\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.toml: layers is 0; write a whole number, 1 or more"):
        load_decoder(path)
    path.write_text('name = "mine"\nsource = "me"\nlayers = 1\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.toml needs 'hidden'"):
        load_decoder(path)
    path.write_text('name = "mine"\nlayer = 1\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.toml has no setting 'layer'; there are .*; did you mean 'layers'"):
        load_decoder(path)
    with pytest.raises(UsageError, match="below 1"):
        decoder_workload(load_decoder("gpt3-1.3b"), 1.0)
