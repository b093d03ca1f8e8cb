"""From a file to a file: import, training, write-back."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sift_onnx.analysis.quantized_layers import quantized_weight
from sift_onnx.analysis.training_mode import mode_note
from sift_onnx.errors import OutputError, PreconditionError, UnsupportedError, UsageError
from sift_onnx.model import Model
from sift_onnx.model_files.paths import check_input, check_output
from sift_onnx.passes.batch_norm.folded_batch_norms import find_folded, starts_at_random
from sift_onnx.passes.prepare.inference_mode import InferenceMode
from sift_onnx.records.train import TrainReport
from sift_onnx.shapes.tensor_specs import TensorSpec
from sift_onnx.training import sparse
from sift_onnx.training.importing.importer import to_torch
from sift_onnx.training.prepare import prepare
from sift_onnx.training.trainer.batch import input_specs
from sift_onnx.training.trainer.data import load_data, source_of
from sift_onnx.training.trainer.loop import Progress, Report, Trainer
from sift_onnx.training.trainer.process_group import joined_ranks
from sift_onnx.training.trainer.run_record import RunHistory, example_cost
from sift_onnx.training.trainer.settings import KernelSetting, TrainingSettings
from sift_onnx.training.trainer.sparsity import check_globs, sparsity_report
from sift_onnx.training.trainer.state.checkpoint import (
    check_same_recipe,
    checkpoints_in,
    load_checkpoint,
    newest_checkpoint,
    prepare_folder,
)
from sift_onnx.training.writing.file import write_back_file

__all__ = ["train_file"]


def train_file(
    source: str | Path,
    target: str | Path,
    data: Any,
    settings: TrainingSettings,
    *,
    device: str = "auto",
    checkpoints: str | Path | None = None,
    resume: str | Path | None = None,
    kernels: KernelSetting | None = None,
    threads: int | None = None,
    teacher: str | Path | None = None,
    force: bool = False,
    report: Report = lambda event: None,
    progress: Progress = lambda step, total, loss: None,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Train the model in ``source``, and write it to ``target`` with its new weights and masks.

    Under ``torchrun`` every process calls it; the first one writes and reports.

    Args:
        source: an ONNX file.
        target: what is written; nothing but trained tensors and masks differ from ``source``, and nodes that were in
            training mode are not.
        data: ``FILE.npz``, a folder of images or ``FILE.py:FUNCTION``, see
            :func:`~sift_onnx.training.trainer.data.load_data`; or an iterable of batches, or a mapping of ``train`` and
            ``validation``, or a function that gives one of these.
        settings: of the training.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        checkpoints: folder for checkpoints; ``<target>.checkpoints`` if it is None.
        resume: folder whose newest checkpoint the training goes on from, and which further ones go to.
        kernels: ``auto``, ``sparse`` or ``dense``, whatever ``settings`` say; None leaves it to them.
        threads: of torch and of sparse kernels during the training; None for torch's present number.
        teacher: a trained model with the same inputs and outputs to learn from besides, see ``distillation`` of the
            settings.
        force: overwrite ``target``, and mix checkpoints with those of another run.
        report: is called with log lines, see :class:`~sift_onnx.training.trainer.loop.Trainer`.
        progress: is called after each step.
        stopping: is asked after each step whether to interrupt the run, which then keeps a checkpoint.

    Returns:
        What :class:`~sift_onnx.records.train.TrainReport` has, ready for JSON; None on all ranks but the first.

    Raises:
        SiftError: model, data and settings do not fit each other, or the loss is not finite.
        InterruptedRun: ``stopping`` said so.
    """
    start = time.perf_counter()
    history = RunHistory()

    def noted(event: dict[str, Any]) -> None:
        history.note(event)
        report(event)

    if kernels is not None:
        settings = dataclasses.replace(settings, kernels=kernels)
    source, target = Path(source), Path(target)
    check_input(source)
    check_output(target, force)
    folder = Path(resume or checkpoints or f"{target}.checkpoints")
    found = newest_checkpoint(folder) if resume is not None else None
    state = None if found is None else load_checkpoint(found)
    if found is not None and state is not None:
        check_same_recipe(found, state, settings)
    # Before anything is read that may take long.
    if settings.sparsity is not None:
        sparse.configure(settings.sparsity)
    if found is None and settings.checkpoint_every and checkpoints_in(folder) and not force:
        raise OutputError(
            f"{folder} has checkpoints of another run; go on from them with `resume`, or add `force=True`"
        )
    with _torch_threads(threads), joined_ranks(device) as ranks:
        model = Model.load(source)
        # Before the training: that a node cannot be put into inference mode should not be found out at its end.
        ready = InferenceMode()(model)
        _check_quantized(ready.model, settings, report if ranks.leads else lambda event: None)
        if ranks.leads:
            _report_modes(ready.report, report)
            _check_batch_norms(model, settings, report)
        module = to_torch(ready.model, trainable=settings.trainable)
        check_globs(settings.sparsity, module)
        specs = input_specs(model)
        batches = (
            load_data(str(data), specs, settings, ranks)
            if isinstance(data, (str, Path))
            else source_of(data, specs, settings, ranks)
        )
        keeps = settings.checkpoint_every > 0
        taught = None if teacher is None else _teacher(teacher, specs)
        trainer = Trainer(
            module,
            batches,
            settings,
            ranks,
            report=noted,
            progress=progress,
            # Of another run there may be some that this one would be resumed from.
            checkpoints=folder if keeps or found is not None or not checkpoints_in(folder) else None,
            teacher=taught,
            stopping=stopping,
            saved_kernels=None if state is None else state.get("kernels"),
        )
        if found is not None and state is not None:
            trainer.resume(found, state)
        if keeps and ranks.leads:
            prepare_folder(folder)
        result = trainer.run()
        state = trainer.final_state()
        if not ranks.leads:
            return None
        write_back_file(source, state, target, force=force)
        return TrainReport(
            model=str(source),
            out=str(target),
            **result,
            seed=settings.seed,
            sparsity=sparsity_report(trainer.sparsity),
            inference_mode=tuple(ready.report["inference_mode"]),
            cost=example_cost(target, specs, trainer.input_shapes),
            history=history.record(),
            teacher=None if teacher is None else str(teacher),
            device=str(ranks.device),
            ranks=ranks.size,
            checkpoints=str(folder) if keeps else None,
            seconds=time.perf_counter() - start,
        ).to_dict()


def _teacher(path: str | Path, specs: Sequence[TensorSpec]) -> nn.Module:
    """The teacher as a module.

    Raises:
        UsageError: it takes other inputs.
    """
    model = InferenceMode()(Model.load(path)).model
    own = input_specs(model)
    if [spec.dtype for spec in own] != [spec.dtype for spec in specs]:
        listed = [", ".join(f"{spec.name} ({spec.dtype})" for spec in each) for each in (own, specs)]
        raise UsageError(f"the teacher {path} takes {listed[0]}, and the model {listed[1]} (`teacher`)")
    return to_torch(model)


@contextlib.contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    """Have torch compute with a number of threads for a while."""
    if threads is not None and threads < 1:
        raise UsageError(f"threads is {threads}; give 1 or more, or leave it out")
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _report_modes(found: Mapping[str, Any], report: Report) -> None:
    """Say what is written otherwise than it was exported, and what cannot be."""
    if found["inference_mode"]:
        report({"event": "warning", "text": mode_note(found["inference_mode"])})
    for text in found["warnings"]:
        report({"event": "warning", "text": text})


def _check_quantized(model: Model, settings: TrainingSettings, report: Report) -> None:
    """Say that quantized weights are not trained.

    Raises:
        UnsupportedError: there are some, and the settings do not name what to train.
    """
    name = quantized_weight(prepare(model).graph)
    if name is None:
        return
    what = f"the weights of the model are quantized ({name!r}, ...)"
    if not settings.trainable:
        raise UnsupportedError(
            f"{what}; train it before it is quantized, or name the initializers to train under 'trainable'"
        )
    report({"event": "warning", "text": f"{what} and stay as they are; no gradient passes their rounded inputs"})


def _check_batch_norms(model: Model, settings: TrainingSettings, report: Report) -> None:
    if settings.folded_batch_norm == "allow":
        return
    found = find_folded(model)
    advice = found.advice()
    if not advice:
        return
    if not starts_at_random(model):
        text = f"{found.what()}; this does not matter for fine-tuning, but it does for training from random weights"
        report({"event": "warning", "text": text})
    elif found.prevails:
        raise PreconditionError(f"{advice}, or go on as it is with 'folded_batch_norm: allow' in the recipe")
    else:
        report({"event": "warning", "text": advice})
