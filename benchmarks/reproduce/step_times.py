"""Seconds of training steps, of networks that take turns in one process, and where in a step they go."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import text
import torch
from images import SETTINGS, batches, make_model, mask_recipe
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import sift_onnx
from sift_onnx.training import sparse, sparsify_layers

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from sparse_step_cases import Step

__all__ = ["step_times", "text_step_times"]

_OPERATIONS = 6
# The length of the schedule: longer than what is timed, so that masks are still updated at its end.
_STEPS = 1_000_000
# The same network in formats to choose from.
_Forms = dict[str, Step]


def step_times(setting: str, networks: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Time the steps of networks as ``train`` makes them, on one thread each.

    In each round every network makes as many steps as lie between two updates of masks, one update among them. The
    first round warms up. A dense network has the memory format of torch that is faster for it.

    Args:
        setting: a key of ``SETTINGS``.
        networks: ``transform``, ``algorithm`` and ``width`` of each, and ``network`` where it is not the setting's own,
            as :func:`images.train_images` takes them.
        rounds: that count.

    Returns:
        Of each network ``ms`` of a step (median of rounds), ``spread`` (fastest and slowest round), ``format``,
        ``phases`` (``ms`` of forward, backward and the rest) and ``operations`` (name and share of the time).
    """
    chosen = SETTINGS[setting]
    inputs, labels = next(iter(batches(setting, 0)))
    runs: list[_Forms] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in networks:
            name = network.get("network", "")
            path = make_model(setting, network["transform"], network["width"], 0, Path(folder), name)
            if network["transform"]:
                pattern = network["transform"].get("pattern")
                recipe = mask_recipe(setting, network["algorithm"], pattern, _STEPS)
                runs.append({"lanes where they pay": _masked(path, inputs, labels, recipe, chosen.batch)})
            else:
                last = torch.channels_last
                module = sift_onnx.to_torch(path).to(memory_format=last)  # type: ignore[call-overload]
                runs.append(
                    {
                        "contiguous": Step(sift_onnx.to_torch(path), inputs, labels),
                        "channels last": Step(module, inputs.contiguous(memory_format=last), labels),
                    }
                )
    return _in_turns(runs, chosen.update, rounds)


def text_step_times(setting: str, models: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """The same of models of text: ``sparsity``, ``scale``, ``budget`` of each, as :func:`text.pre_train` takes them."""
    chosen = text.SETTINGS[setting]
    (ids,) = next(iter(text.Windows(text.text_of(setting), chosen)))
    targets = ids.roll(-1, 1).reshape(-1)
    runs: list[_Forms] = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = text.make_model(setting, model["sparsity"], model["scale"], 0, Path(folder), model["budget"])
            if model["sparsity"]:
                recipe = text.mask_recipe(chosen, _STEPS)
                runs.append({"sparse kernels": _masked(path, ids, targets, recipe, chosen.batch)})
            else:
                runs.append({"contiguous": Step(sift_onnx.to_torch(path), ids, targets)})
    return _in_turns(runs, chosen.update, rounds)


def _in_turns(runs: list[_Forms], count: int, rounds: int) -> list[dict[str, Any]]:
    found: list[dict[str, list[float]]] = [{name: [] for name in forms} for forms in runs]
    for number in range(rounds + 1):
        for forms, times in zip(runs, found, strict=True):
            for name, step in forms.items():
                taken = _milliseconds(step, count)
                if number:
                    times[name].append(taken)
    results = []
    for forms, times in zip(runs, found, strict=True):
        best = min(times, key=lambda name: statistics.median(times[name]))
        step = forms[best]
        results.append(
            {
                "ms": statistics.median(times[best]),
                "spread": [min(times[best]), max(times[best])],
                "format": best,
                "phases": _phases(step, count),
                "operations": _operations(step),
            }
        )
    return results


def _masked(path: Path, inputs: torch.Tensor, labels: torch.Tensor, recipe: Any, batch: int) -> Step:
    step = Step(sift_onnx.to_torch(path), inputs, labels)
    algorithm = sparse.configure(recipe)
    assert algorithm is not None
    step.algorithm = algorithm.attach(step.module, step.optimizer)
    sparsify_layers(step.module, step.optimizer, kernels="auto", batch_size=batch)
    return step


def _milliseconds(run: Callable[[], Any], count: int) -> float:
    """Of one call, over ``count`` of them."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return 1e3 * (time.perf_counter() - start) / count


def _phases(step: Step, count: int) -> dict[str, float]:
    """Milliseconds of the parts of a step, means over ``count`` steps."""
    spent = dict.fromkeys(("forward", "backward", "optimizer and masks"), 0.0)
    for _ in range(count):
        step.optimizer.zero_grad(set_to_none=True)
        marks = [time.perf_counter()]
        scores = step.module(step.inputs)
        loss = functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), step.targets)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        step.optimizer.step()
        marks.append(time.perf_counter())
        for name, begin, end in zip(spent, marks, marks[1:], strict=False):
            spent[name] += 1e3 * (end - begin) / count
    return spent


def _operations(step: Step) -> list[list[Any]]:
    """What most of the time goes to, by torch's profiler, with its share of all."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(10):
            step()
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    return [[event.key, event.self_cpu_time_total / total] for event in events[:_OPERATIONS]]
