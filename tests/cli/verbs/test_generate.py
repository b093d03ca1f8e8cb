import json

import onnx
import pytest
from click.testing import CliRunner
from decoder_nets import decoder

from sift_onnx.backends.decoding.decoder import Decoder
from sift_onnx.cli import main


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(decoder("gpt2"), path)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(main, [*arguments, "--threads", "1", "--backend", "onnxruntime"])


def test_tokens_are_those_of_the_decoder(model):
    result = run("generate", model, "--prompt-ids", "3,5", "--max-new-tokens", "4")
    assert result.exit_code == 0
    assert result.stdout == " ".join(map(str, Decoder(model, 1, backend="onnxruntime").generate([3, 5], 4))) + "\n"


def test_several_prompts_have_a_line_each_and_json_has_all(model, tmp_path):
    settings = ("--prompt-ids", "3,5", "--prompt-ids", "7", "--max-new-tokens", "3", "--json", str(tmp_path / "j"))
    lines = run("generate", model, *settings).stdout.splitlines()
    data = json.loads((tmp_path / "j").read_text())
    assert [" ".join(map(str, row)) for row in data["generated"]] == lines
    assert data["prompts"] == [[3, 5], [7]]
    assert data["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        (("--prompt-ids", "3;5"), 2, "not of the form 1,2,3"),
        (("--prompt-ids", "3", "--max-new-tokens", "500"), 2, "the model has 64"),
        ((), 2, "--prompt-ids"),
    ],
)
def test_wrong_use_is_one_line(model, settings, code, said):
    result = run("generate", model, *settings)
    assert result.exit_code == code
    assert said in result.stderr


def test_decoders_are_timed_token_by_token(model, tmp_path):
    settings = ("--baseline", model, "--decode", "4,3", "--seconds", "0.01", "--batch", "1,2")
    result = run("benchmark", model, *settings, "--json", str(tmp_path / "j"))
    assert result.exit_code == 0
    data = json.loads((tmp_path / "j").read_text())
    assert [(run["batch"], run["prompt"], run["tokens"]) for run in data["decodes"]] == [(1, 4, 3)] * 2 + [
        (2, 4, 3)
    ] * 2
    assert all(run["first_ms"] > 0 and run["token_ms"] > 0 for run in data["decodes"])
    assert len(data["ratios"]) == 2
    assert "tokens/s" in result.stdout


@pytest.mark.parametrize("value", ["4", "4,1", "0,4", "4,x"])
def test_a_decode_setting_that_times_nothing_is_refused(model, value):
    assert run("benchmark", model, "--decode", value).exit_code == 2
