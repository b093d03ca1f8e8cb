"""Networks with their channels last, pruned, in one part and against onnxruntime."""

from __future__ import annotations

import pytest
from channels_last_nets import CHANNELS_LAST, channels_last_net
from sparse_nets import assert_same_at_batches, places, reasons

pytestmark = pytest.mark.usefixtures("every_region_pays")


@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_a_network_is_one_part(name: str) -> None:
    model = channels_last_net(name).model()
    program = assert_same_at_batches(model, [1, 17])
    assert len(program.parts) == 1
    assert set(places(program).values()) <= {"kernels", "folded"}
    assert [placement.name for placement in program.placements] == [node.name for node in model.graph.node]


def test_nodes_that_turn_images_say_why_they_are_left_out() -> None:
    program = assert_same_at_batches(channels_last_net("mobilenet").model(), [1])
    said = [reason for name, reason in reasons(program).items() if name.startswith("transpose")]
    assert (
        sum(
            reason == "what reads it takes its operand, in the order of axes and the type that it has"
            for reason in said
        )
        > 10
    )
