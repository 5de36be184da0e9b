"""Every measurement of speed that needs a GPU, in one call, with the results in a folder (``docs/benchmarks.md``).

    python benchmarks/gpu_speed.py OUT --voc VOCdevkit/VOC2012 --weights WEIGHTS_DIR
    python benchmarks/gpu_speed.py OUT --tiny            a few small images, also without a GPU: does it work?

It decodes JPEG files by Pillow, by torchvision on the CPU, and by nvJPEG with resizing on the GPU, and writes
``OUT/decode.json``. Then it runs other benchmarks, each with its own log in ``OUT``: prediction from files, and, with
``--voc``, an epoch of training and a run with the default preset. A benchmark that fails is reported, and the next one
runs. ``OUT/summary.txt`` is written after each step, so that a session that ends early keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from tagspread.data.images.decode import available_cores, decode_all

HERE = Path(__file__).parent
SIZE, BATCH, REPEATS = 224, 256, 3


def save_images(folder: Path, count: int, width: int, height: int) -> list[Path]:
    """Save smooth images with noise as JPEG files."""
    rng, files = np.random.default_rng(0), []
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += np.rint(rng.normal(0, 4, (height, width, 1))).astype(np.int16)
        files.append(folder / f"{number}.jpg")
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(files[-1], quality=90)
    return files


def decode_on(files: Sequence[Path], size: int, out: torch.Tensor, device: torch.device) -> None:
    """Decode files on a device, a batch at a time, and resize each there."""
    for at in range(0, len(files), BATCH):
        contents = [torch.from_numpy(np.fromfile(file, np.uint8)) for file in files[at : at + BATCH]]
        if device.type == "cuda":  # decodes the batch in parallel
            images = decode_jpeg(contents, ImageReadMode.RGB, device=device)
        else:
            images = [decode_jpeg(content, ImageReadMode.RGB) for content in contents]
        for row, image in enumerate(images, start=at):
            resized = torch.nn.functional.interpolate(
                image[None].float(), (size, size), mode="bilinear", antialias=True
            )
            out[row] = resized[0].round_().clamp_(0, 255).to(torch.uint8)
    if device.type == "cuda":
        torch.cuda.synchronize()


def rate(work: Callable[[], object], count: int) -> float:
    """Return images per second, the best of some repeats after one for warming up."""
    best = 0.0
    for repeat in range(REPEATS + 1):
        began = time.perf_counter()
        work()
        if repeat:
            best = max(best, count / (time.perf_counter() - began))
    return best


def measure_decoding(count: int, width: int, height: int, device: torch.device) -> dict[str, float]:
    """Return the rates of all ways to decode, and how far the device's bytes are from those of the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        files = save_images(Path(folder), count, width, height)
        by_cpu = np.empty((count, 3, SIZE, SIZE), np.uint8)
        by_device = torch.empty(by_cpu.shape, dtype=torch.uint8, device=device)
        workers = available_cores()
        found = {
            "pillow": rate(lambda: decode_all(files, SIZE, by_cpu, workers, fast=False), count),
            "torchvision_cpu": rate(lambda: decode_all(files, SIZE, by_cpu, workers), count),
            f"torchvision_{device.type}_float": rate(lambda: decode_on(files, SIZE, by_device, device), count),
        }
        difference = np.abs(by_device.cpu().numpy().astype(np.int16) - by_cpu)
    return found | {"largest_difference": float(difference.max()), "mean_difference": float(difference.mean())}


def commands(options: argparse.Namespace, out: Path) -> dict[str, list[str]]:
    """Return the other benchmarks to run, by the names of their logs."""
    if options.tiny:
        return {"predict": ["predict.py", "--images", "8", "--backbone", "small", "--size", "32", "--rounds", "1"]}
    found = {"predict": ["predict.py"]}
    if options.voc is not None and options.weights is not None:
        voc, resnet = str(options.voc), str(options.weights / "resnet50_v1.safetensors")
        cache = str(out / "cache")
        found["engine"] = ["engine.py", voc, resnet, "--cache", cache, "--run", str(out / "engine-run")]
        found["preset"] = [
            "preset.py", voc, "tf_efficientnet_lite2", str(options.weights / "tf_efficientnet_lite2.safetensors"),
            "--p", "0.05", "--seed", "1", "--val", "--try", "{}",
        ]  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--voc", type=Path)
    parser.add_argument("--weights", type=Path, help="folder of the weights, as for headline.py")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "no GPU"
    lines = [f"{name}, {available_cores()} cores, torch {torch.__version__}"]

    def add(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        (options.out / "summary.txt").write_text("\n".join(lines) + "\n")

    shapes = ((12, 64, 48),) if options.tiny else ((11_540, 224, 224), (4_000, 500, 375))
    decoding = {}
    for count, width, height in shapes:
        decoding[f"{count} x {width} x {height}"] = found = measure_decoding(count, width, height, device)
        (options.out / "decode.json").write_text(json.dumps(decoding, indent=1))
        add(f"decode {count:,} of {width} x {height}: {json.dumps({key: round(found[key], 3) for key in found})}")
    for log, arguments in commands(options, options.out).items():
        began = time.perf_counter()
        with (options.out / f"{log}.log").open("w") as file:
            done = subprocess.run(
                [sys.executable, str(HERE / arguments[0]), *arguments[1:]],
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            )
        outcome = "done" if done.returncode == 0 else f"failed ({done.returncode})"
        add(f"{log}: {outcome} in {time.perf_counter() - began:.0f} s; see {log}.log")


if __name__ == "__main__":
    main()
