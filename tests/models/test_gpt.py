import pytest
import torch

from sift_onnx.errors import UsageError
from sift_onnx.models.gpt import GPT, gpt3_1_3b, gpt3_medium, gpt3_small


@pytest.mark.parametrize(
    ("builder", "published"), [(gpt3_small, 124_439_808), (gpt3_medium, 354_823_168), (gpt3_1_3b, 1_313_626_112)]
)
def test_parameter_counts_are_those_of_gpt_2_at_the_same_sizes(builder, published):
    with torch.device("meta"):
        assert sum(p.numel() for p in builder().parameters()) == published


def test_sizes_are_those_of_table_14():
    with torch.device("meta"):
        model = gpt3_small()
    assert (len(model.h), model.wte.weight.shape, model.wpe.weight.shape) == (12, (50257, 768), (1024, 768))
    assert (model.h[0].attn.heads, model.h[0].attn.head_size) == (12, 64)
    assert model.h[0].mlp.c_fc.weight.shape == (3072, 768)


def test_width_multiplies_the_size_of_heads():
    with torch.device("meta"):
        model = gpt3_small(1.5)
    assert (model.h[0].attn.heads, model.h[0].attn.head_size) == (12, 96)
    assert model.lm_head.weight.shape == (50257, 1152)


def test_the_head_is_the_table_of_tokens():
    model = GPT(1, 2, 4, vocabulary=10)
    assert model.lm_head.weight is model.wte.weight


def test_weights_begin_as_those_of_gpt_2():
    model = gpt3_small(0.5, 2000, layers=8)
    layer = model.h[3]
    for weight in (model.wte.weight, model.wpe.weight, layer.attn.c_attn.weight, layer.mlp.c_fc.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    for weight in (layer.attn.c_proj.weight, layer.mlp.c_proj.weight):
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert not layer.attn.c_attn.bias.any()
    assert bool((layer.ln_1.weight == 1).all())


def test_a_token_changes_no_prediction_before_it():
    model = GPT(2, 2, 8, vocabulary=10).eval()
    before = torch.tensor([[1, 2, 3, 4, 5, 6]])
    after = torch.tensor([[1, 2, 3, 9, 5, 6]])
    same = torch.isclose(model(before), model(after), rtol=0, atol=1e-7).all(-1)
    assert same.tolist() == [[True, True, True, False, False, False]]


def test_a_sequence_beyond_1024_tokens_gets_as_many_positions():
    with torch.device("meta"):
        assert gpt3_small(sequence=2048).wpe.weight.shape[0] == 2048
        assert gpt3_small(sequence=16).wpe.weight.shape[0] == 1024


@pytest.mark.parametrize("arguments", [{"layers": 0}, {"num_classes": 0}, {"sequence": 1 << 21}, {"width": 0.0}])
def test_sizes_out_of_range_are_refused(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        gpt3_small(**arguments)
