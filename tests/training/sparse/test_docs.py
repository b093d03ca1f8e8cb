"""What the documentation of cerebras.pytorch shows works here as it is written there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from training.sparse.loops import Net, batch_at, train

from sift_onnx.training import sparse
from sift_onnx.training.sparse import SET, Group, SparseParameter, Static


def test_model_apply_sparsifies_every_parameter_and_saves_masks_beside_them() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Sequential(torch.nn.Linear(10, 20)))
    assert model.apply(Static(sparsity=0.3)) is model

    assert {name: int(mask.sum()) for name, mask in model.state_dict().items() if name.endswith("_mask")} == {
        "0.weight_mask": 70,
        "0.bias_mask": 7,
        "1.0.weight_mask": 140,
        "1.0.bias_mask": 14,
    }
    assert all(mask.dtype == torch.bool for name, mask in model.named_buffers())


def test_model_apply_and_apply_and_a_call_do_the_same() -> None:
    masks = []
    for how in ("module", "algorithm", "call"):
        model, algorithm = Net(), Static(sparsity=0.3)
        if how == "module":
            model.apply(algorithm)
        else:
            (algorithm.apply if how == "algorithm" else algorithm)(model)
        masks.append(sorted((name, mask.tobytes()) for name, mask in _masks(model).items()))

    assert masks[0] == masks[1] == masks[2]


def _masks(model: torch.nn.Module) -> dict[str, Any]:
    return {name: buffer.numpy() for name, buffer in model.named_buffers() if name.endswith("_mask")}


def test_optimizer_apply_runs_as_written_once_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.Optimizer, "apply", None, raising=False)
    sparse.install_optimizer_apply()
    model = Net()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsity = Static(sparsity=0.3)
    model.apply(sparsity)

    assert optimizer.apply(sparsity) is optimizer
    train(model, optimizer, range(2))
    assert sparsity.step == 2


def test_requires_dense_parameters_and_modules_stay_dense() -> None:
    model = Net()
    model.fc1.weight.requires_dense = True  # type: ignore[attr-defined]
    model.body.requires_dense = True  # type: ignore[assignment]
    model.apply(Static(sparsity=0.3))

    assert not hasattr(model.fc1, "weight_mask")
    assert hasattr(model.fc1, "bias_mask")
    assert not hasattr(model.body, "weight_mask")


def test_requires_dense_of_a_module_is_not_that_of_its_children() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    model.requires_dense = True  # type: ignore[assignment]
    model.apply(Static(sparsity=0.5))

    assert hasattr(model[0], "weight_mask")


def test_autoupdate_can_be_turned_off_and_update_called_by_hand() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsity = sparse.RigL(sparsity=0.5, update={"freq": 1})
    model.apply(sparsity)
    sparsity.apply(optimizer)
    sparsity.autoupdate = False
    before = {name: mask.clone() for name, mask in sparsity.masks().items()}
    train(model, optimizer, range(2))
    assert all(torch.equal(mask, before[name]) for name, mask in sparsity.masks().items())

    sparsity.update(optimizer)
    assert not all(torch.equal(mask, before[name]) for name, mask in sparsity.masks().items())
    train(model, optimizer, range(2, 3))
    assert not any(p[~sparsity.masks()[name]].any() for name, p in model.named_parameters())


def test_groups_give_each_parameter_to_the_first_filter_that_matches() -> None:
    model = Net()
    group = Group({"fc1.*": Static(sparsity=0.3), "fc2.*": SET(sparsity=0.9, update={"freq": 1000}, drop_fraction=0.3)})
    group.add(["*.weight"], Static(sparsity=0.5))
    group.add(lambda name, param: param.dim() == 1, Static(sparsity=0.25))
    model.apply(group)

    assert [list(member.sparse_params) for member in group.members] == [
        ["fc1.weight", "fc1.bias"],
        ["fc2.weight", "fc2.bias"],
        ["stem.weight", "norm.weight", "body.weight"],
        ["stem.bias", "norm.bias", "body.bias"],
    ]
    assert group.num_sparse_params == 10
    assert group[1].num_sparse_params == 2


def test_a_custom_algorithm_needs_update_alone() -> None:
    class CustomSparsity(sparse.SparsityAlgorithm):
        def update(self) -> None:  # type: ignore[override]
            for sparse_param in self.sparse_params.values():
                sparse_param.mask = sparse_param.mask.roll(1, -1)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    model.apply(sparsity := CustomSparsity(sparsity=0.5))
    sparsity.apply(optimizer)
    first = model.fc1.weight_mask.clone()  # type: ignore[operator,union-attr]
    train(model, optimizer, range(3))

    assert torch.equal(model.fc1.weight_mask, first.roll(3, -1))  # type: ignore[arg-type]
    assert float(optimizer.state[model.fc1.weight]["exp_avg"][~first.roll(3, -1)].abs().sum()) == 0


def test_a_custom_dynamic_algorithm_needs_update_mask_alone() -> None:
    class Rows(sparse.DynamicSparsityAlgorithm):
        def update_mask(self, p: torch.Tensor, mask: torch.Tensor, sparsity: sparse.Share) -> torch.Tensor:
            return sparse.make_mask_topk_sparsity(torch.rand_like(p), 1 - (1 - sparsity.item()) / 2)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse.attach({"algorithm": "rows", "sparsity": 0.5, "update": {"steps": [0, 2]}}, model, optimizer)
    nnz = []
    train(model, optimizer, range(3), lambda _: nnz.append(int(model.fc1.weight_mask.sum())))  # type: ignore[operator,union-attr]

    assert nnz == [4096, 2048, 2048]


def test_get_sparse_params_of_a_tensor_a_module_and_an_optimizer() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.fc2.parameters(), lr=0.1)
    group = Group({"fc*.weight": Static(sparsity=0.5)})
    model.apply(group)

    found = group.get_sparse_params(model.fc1.weight)
    assert isinstance(found, SparseParameter)
    assert found.name == "fc1.weight"
    assert group.get_sparse_params(model.fc1.bias) is None
    assert [p.name for p in group.get_sparse_params(model)] == ["fc1.weight", "fc2.weight"]
    assert [p.name for p in group.get_sparse_params(optimizer)] == ["fc2.weight"]
    with pytest.raises(TypeError, match="got int"):
        group.get_sparse_params(3)  # type: ignore[arg-type]


def test_hooks_hear_of_targets_and_of_masks() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = Group({"fc*.weight": SET(sparsity=[0.5, 0.75], update={"freq": 2})})
    heard: list[tuple[str, str, float]] = []
    targets = group.register_target_sparsity_hook(lambda _, name, s: heard.append(("target", name, s)))
    group.register_computed_sparsity_hook(lambda _, name, s: heard.append(("computed", name, s)))
    group.attach(model, optimizer)
    train(model, optimizer, range(1))
    assert heard == [("target", "fc*", 0.75), ("computed", "fc1.weight", 0.5), ("computed", "fc2.weight", 0.5)]

    heard.clear()
    for handle in targets:
        handle.remove()
    train(model, optimizer, range(1, 2))
    # Half of the weights were active, and an update drops 30 % of them at most: 0.65 is as far as it gets.
    assert [(what, name) for what, name, _ in heard] == [("computed", "fc1.weight"), ("computed", "fc2.weight")]
    assert [s for _, _, s in heard] == [pytest.approx(0.65, abs=1e-3)] * 2


def test_static_tells_the_sparsity_of_all_of_it() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    static = Static(sparsity=0.5)
    heard = []
    static.register_computed_sparsity_hook(lambda _, name, s: heard.append((name, float(s))))
    static.attach(model, optimizer)
    train(model, optimizer, range(1))

    assert heard == [("*", 0.5)]


def test_visit_state_reaches_steps_and_cycles() -> None:
    sparsity = SET(sparsity=[0.5, 0.6], drop_fraction=[0.1, 0.2, 0.3], update={"freq": 2})
    Net().apply(sparsity)
    seen: list[int] = []
    sparsity.visit_state(lambda t: seen.append(int(t)))
    assert seen == [0, 1, 0]

    sparsity.visit_state(lambda t: t + 1)
    assert sparsity.step == 1
    assert sparsity.drop_fraction(0) == 0.2


def test_tied_weights_have_one_mask_under_the_first_name() -> None:
    model = torch.nn.ModuleDict({"encoder": torch.nn.Linear(8, 8), "decoder": torch.nn.Linear(8, 8)})
    model["decoder"].weight = model["encoder"].weight
    sparsity = Static(sparsity=0.5)
    model.apply(sparsity)

    assert list(sparsity.sparse_params) == ["encoder.weight", "encoder.bias", "decoder.bias"]
    assert not hasattr(model["decoder"], "weight_mask")


def test_masks_of_a_checkpoint_replace_the_first_ones() -> None:
    first, second = Net(), Net(seed=1)
    first.apply(Static(sparsity=0.5, seed=1))
    second.apply(sparsity := Static(sparsity=0.5, seed=2))
    second.load_state_dict(first.state_dict())
    second(batch_at(0)[0])

    assert torch.equal(sparsity.masks()["fc1.weight"], first.fc1.weight_mask)  # type: ignore[arg-type]
    assert torch.equal(second.fc1.weight, first.fc1.weight)
