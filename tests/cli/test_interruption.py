"""Runs that are asked to stop by a signal."""

from __future__ import annotations

import os
import signal

import pytest

from sift_onnx.cli.interruption import asked_to_stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_one_is_not_held_back(number: signal.Signals) -> None:
    def second(number: int, frame: object) -> None:
        raise TimeoutError

    own = signal.signal(number, second)
    try:
        with asked_to_stop(-1) as asked:
            assert not asked()
            os.kill(os.getpid(), number)
            assert asked()
            with pytest.raises(TimeoutError):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is second
    finally:
        signal.signal(number, own)
