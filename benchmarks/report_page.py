"""Size of a report page, whether it fits the screen, and how long a headless browser takes to draw it.

``python benchmarks/report_page.py`` makes a page of a full run first, in build/report: ResNet-18 widened at three
sparsities, timed and simulated, and six trainings of a small one (some ten minutes); ``--page FILE`` takes another one.

A page is drawn as high as it is, so that nothing is left for scrolling, in a tab of its own each time; the time is from
the start of the navigation to the second animation frame after the load event. On a busy machine, the processor time of
the page's main thread says more.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from browser import Browser, find_browser  # noqa: E402

SPARSITIES = ("0.5", "0.75", "0.9")
RECIPE = """\
version: 1
training:
  epochs: 2
  batch_size: 32
  optimizer: {type: sgd, lr: 0.05, momentum: 0.9}
  log_every: 1
"""
RIGL = "  sparsity: {algorithm: rigl, sparsity: masks, update: {freq: 5}, metrics: true}\n"
AFTER_TWO_FRAMES = """
new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))
"""


def commands() -> Iterator[str]:
    """Arguments of ``sift-onnx``, in order."""
    # No residual branch of zeros: what is timed is as trained weights are.
    yield "models export resnet18 resnet18.onnx --fold-batch-norm --batch dynamic --no-zero-init-residual"
    for s in SPARSITIES:
        yield f"transform resnet18.onnx wide{s}.onnx --wide {s} --json transform{s}.json"
        yield f"simulate wide{s}.onnx --batch 64 --baseline resnet18.onnx --html s{s}.html --json simulate{s}.json"
    yield "inspect wide0.9.onnx --json inspect.json"
    yield "check wide0.9.onnx --json check.json"
    yield "profile wide0.9.onnx --backend cpu --json profile.json"
    wide = " ".join(f"wide{s}.onnx" for s in SPARSITIES)
    both = "--backend cpu --backend onnxruntime"
    yield f"benchmark {wide} --baseline resnet18.onnx {both} --batch 1,4 --seconds 1 --json benchmark.json"
    for width in (4, 8, 16):
        options = "--batch dynamic --num-classes 10"
        yield f"models export resnet18-cifar net{width}.onnx --width {width / 64} {options}"
        yield f"train net{width}.onnx net{width}-trained.onnx --recipe dense.yaml --data d.npz --json train{width}.json"
    for s in SPARSITIES:
        yield f"transform net8.onnx net8-wide{s}.onnx --wide {s}"
        yield f"train net8-wide{s}.onnx net8-{s}.onnx --recipe rigl.yaml --data d.npz --json train-wide{s}.json"


def full_run(folder: Path) -> Path:
    """A page of results of all verbs."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    patterns, labels = rng.standard_normal((10, 3, 32, 32)), rng.integers(0, 10, 800)
    images = (patterns[labels] + 4 * rng.standard_normal((800, 3, 32, 32))).astype(np.float32)
    parts = {"input": images[:640], "target": labels[:640], "val_input": images[640:], "val_target": labels[640:]}
    np.savez(folder / "d.npz", **parts)
    (folder / "dense.yaml").write_text(RECIPE)
    (folder / "rigl.yaml").write_text(RECIPE + RIGL)
    for command in commands():
        force = [] if command.split()[0] in ("inspect", "check", "benchmark", "profile") else ["--force"]
        sift(folder, *command.split(), *force)
    files = [path.name for path in sorted(folder.glob("*.json"))]
    sift(folder, "report", *files, "--model", "wide0.9.onnx", "--html", "report.html", "--force")
    return folder / "report.html"


def sift(folder: Path, *arguments: str) -> None:
    """Run the tool in ``folder``."""
    print("sift-onnx", *arguments, flush=True)
    program = Path(sys.executable).with_name("sift-onnx")
    subprocess.run([program, *arguments, "-q"], cwd=folder, check=True, stdout=subprocess.DEVNULL)


def overflow(browser: Browser, page: Path, width: int, dark: bool) -> int:
    """Pixels by which the page is wider than the screen."""
    with browser.page() as tab:
        tab.open(page, width, dark=dark)
        return int(tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def draw_times(browser: Browser, page: Path, width: int, dark: bool, rounds: int) -> list[tuple[float, float]]:
    """Milliseconds of each round: passed, and of processor time that the page's main thread took."""
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        with browser.page() as tab:
            tab.open(page, width, dark=dark)
            height = tab.evaluate("document.documentElement.scrollHeight")
        with browser.page() as tab:
            tab.call("Performance.enable", timeDomain="threadTicks")
            tab.open(page, width, dark=dark, height=height)
            wall = tab.evaluate(AFTER_TWO_FRAMES)
            metrics = {m["name"]: m["value"] for m in tab.call("Performance.getMetrics")["metrics"]}
            times.append((wall, 1e3 * metrics["TaskDuration"]))
    return times


def main() -> None:
    """Make the page if none is given, and measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    program = find_browser()
    if program is None:
        sys.exit("no browser is installed; this benchmark needs Chromium or Chrome")
    page = options.page or full_run(ROOT / "build" / "report")
    text = page.read_text(encoding="utf-8")
    print(f"{page}: {page.stat().st_size / 1e6:.2f} MB, {text.count('<figure')} charts")
    with Browser(program) as browser:
        for width in (380, 1440):
            for dark in (False, True):
                print(f"{width} px, {'dark' if dark else 'light'}: {overflow(browser, page, width, dark)} px too wide")
                times = draw_times(browser, page, width, dark, options.rounds)
                for what, values in zip(("passed", "main thread"), zip(*times, strict=True), strict=True):
                    print(
                        f"{width} px, {'dark' if dark else 'light'}, {what}: median {statistics.median(values):.0f} ms "
                        f"({min(values):.0f} to {max(values):.0f} in {len(values)} rounds)"
                    )


if __name__ == "__main__":
    main()
