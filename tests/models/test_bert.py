import torch

from sift_onnx.models.bert import BertForPreTraining, bert_small


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_parameters_are_the_29_1_million_of_table_16():
    with torch.device("meta"):
        model = bert_small()
    table = 30522 * 512
    assert parameters(model) == 29_058_876
    assert parameters(model.bert) == 28_763_648  # with the pooler
    assert parameters(model.cls) - table == (512 + 1) * 512 + 2 * 512 + 30522 + (512 + 1) * 2


def test_state_dict_keys_are_those_of_checkpoints_in_circulation():
    with torch.device("meta"):
        keys = set(bert_small().state_dict())
    assert {
        "bert.embeddings.token_type_embeddings.weight",
        "bert.embeddings.LayerNorm.bias",
        "bert.encoder.layer.3.attention.self.query.weight",
        "bert.encoder.layer.0.attention.output.LayerNorm.weight",
        "bert.encoder.layer.0.intermediate.dense.bias",
        "bert.encoder.layer.0.output.dense.weight",
        "bert.pooler.dense.weight",
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.decoder.weight",
        "cls.seq_relationship.bias",
    } <= keys


def test_the_decoder_is_the_table_of_tokens():
    model = BertForPreTraining(1, 2, 4, vocabulary=10)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_masked_positions_change_nothing():
    model = BertForPreTraining(2, 2, 8, vocabulary=10).eval()
    ids, types = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[0, 0, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    other = torch.tensor([[1, 2, 3, 9, 9]])
    (tokens, following), (other_tokens, other_following) = model(ids, mask, types), model(other, mask, types)
    torch.testing.assert_close(tokens[:, :3], other_tokens[:, :3], rtol=0, atol=0)
    assert torch.equal(following, other_following)
    assert not torch.equal(model(other, torch.ones_like(mask), types)[1], following)
