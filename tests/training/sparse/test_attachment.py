"""The hooks of models and optimizers: what they need of an algorithm is their protocol, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from training.sparse.loops import matrix

from sift_onnx.training.sparse import Group, SparseParameter, Static
from sift_onnx.training.sparse.attachment.model import prune_before_forward
from sift_onnx.training.sparse.attachment.optimizer import OptimizerHooks
from sift_onnx.training.sparse.schedules.hyper_parameters import Constant


class Recorder:
    """No sparsity algorithm, but what the hooks take one for."""

    def __init__(self, module: torch.nn.Module, mask: torch.Tensor) -> None:
        self.autoupdate = True
        self.calls: list[str] = []
        self._sparse = SparseParameter(module, "weight", Constant(0.5))
        self._sparse.place(mask)

    def get_sparse_params(self, obj: Any) -> Iterator[SparseParameter]:
        return iter([self._sparse])

    def before_forward(self) -> None:
        self.calls.append("before_forward")

    def observe_gradients(self, params: Sequence[SparseParameter]) -> None:
        self.calls.append("observe_gradients")
        assert all(sparse.gradient_looks_unmasked() for sparse in params)

    def wants_gradients(self) -> bool:
        return False

    def forget_gradients(self) -> None:
        self.calls.append("forget_gradients")

    def takes_weight_step(self) -> bool:
        self.calls.append("takes_weight_step")
        return True

    def update(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.calls.append("update")

    def densify_if_due(self) -> None:
        self.calls.append("densify_if_due")

    def check_ranks(self) -> bool:
        self.calls.append("check_ranks")
        return True

    def end_step(self) -> None:
        self.calls.append("end_step")


def test_hooks_call_an_algorithm_in_the_order_of_their_protocol() -> None:
    model = matrix()
    mask = torch.arange(400).reshape(20, 20) % 3 == 0
    recorder = Recorder(model, mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    prune_before_forward(recorder, model, ["weight_mask"])
    OptimizerHooks(recorder, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 20)).square().sum().backward()
        optimizer.step()

    step = ["before_forward", "observe_gradients", "takes_weight_step", "update", "densify_if_due"]
    # Ranks that have agreed once are compared again only when a mask changes.
    assert recorder.calls == [*step, "check_ranks", "end_step", *step, "end_step"]
    assert not model.weight[~mask].any()
    assert model.weight[mask].all()
    assert not optimizer.state[model.weight]["momentum_buffer"][~mask].any()


def test_members_that_update_by_hand_keep_the_gradients_that_were_observed() -> None:
    forgotten: list[str] = []

    class Noted(Static):
        def forget_gradients(self) -> None:
            forgotten.append(next(iter(self.sparse_params)))

    model = torch.nn.Sequential(matrix(), matrix())
    group = Group({"0.*": Noted(sparsity=0.5), "1.*": Noted(sparsity=0.5)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group.attach(model, optimizer)
    group[1].autoupdate = False
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()

    assert forgotten == ["0.weight"]
    assert [member.step for member in group.members] == [1, 0]
