import torch

from sift_onnx.models.botnet import SelfAttention2d, botnet50


def test_parameters_are_the_20_8_million_of_the_paper():
    with torch.device("meta"):
        model = botnet50()
    convolutions, attention = 3 * 9 * 512**2, 3 * 3 * 512**2
    positions = 128 * 2 * (27 + 13 + 13)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032 - convolutions + attention + positions == 20_852_008


def test_the_last_stage_attends_at_14_and_at_7():
    model = botnet50(0.125)
    sizes = []
    for module in model.modules():
        if isinstance(module, SelfAttention2d):
            module.register_forward_hook(lambda module, inputs, _: sizes.append((module.size, *inputs[0].shape[1:])))
    assert model(torch.zeros(2, 3, 224, 224)).shape == (2, 1000)
    assert sizes == [(14, 64, 14, 14), (7, 64, 7, 7), (7, 64, 7, 7)]


def test_attention_is_that_of_the_paper_position_by_position():
    torch.manual_seed(0)
    heads, head_size, size = 2, 3, 3
    attention = SelfAttention2d(heads * head_size, size, heads)
    x = torch.randn(1, heads * head_size, size, size)
    query, key, value = (
        layer(x)[0].reshape(heads, head_size, size, size) for layer in (attention.query, attention.key, attention.value)
    )
    expected = torch.zeros(heads, head_size, size, size)
    places = [(row, column) for row in range(size) for column in range(size)]
    for head in range(heads):
        for i, j in places:
            scores = []
            for m, n in places:
                r = attention.relative_rows[m - i + size - 1]
                c = attention.relative_columns[n - j + size - 1]
                scores.append(query[head, :, i, j] @ (key[head, :, m, n] + r + c) / head_size**0.5)
            weights = torch.softmax(torch.stack(scores), 0)
            expected[head, :, i, j] = sum(w * value[head, :, m, n] for w, (m, n) in zip(weights, places, strict=True))
    torch.testing.assert_close(attention(x)[0], expected.reshape(heads * head_size, size, size))
