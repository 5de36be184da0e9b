"""``tagspread export RUN --onnx FILE``: one file that takes images and gives probabilities, without PyTorch.

The graph holds all there is between the bytes of a image and the probability of a tag: resizing, normalization, the
network, and the calibration. Class names and thresholds are in its metadata. A file is kept only if it answers as the
run does.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from tagspread._version import __version__
from tagspread.errors import TagspreadError
from tagspread.export.compare import Compared, compare, find_sample
from tagspread.export.resize import resize
from tagspread.files import atomic_path
from tagspread.predict.tables import check_output, reserve_output
from tagspread.predict.tagger import Tagger, load
from tagspread.run.artifact import Artifact

FORMAT = 1  # of the metadata; raised when programs that read them would misread them
OPSET = 18  # read by every ONNX Runtime since 1.14
INSTALL = "ONNX needs onnx, onnxruntime and onnxscript; run: pip install 'tagspread[onnx]'"


class ImagesToProbabilities(nn.Module):
    """Images (B x H x W x 3, uint8, any size) to calibrated probabilities (B x classes)."""

    def __init__(self, tagger: Tagger) -> None:
        super().__init__()
        self.network, self.shape = tagger.network, tagger.artifact.shape
        for name in ("slope", "intercept"):
            self.register_buffer(name, torch.tensor(getattr(tagger.calibration, name)).float())
        self.slope: Tensor
        self.intercept: Tensor

    def forward(self, images: Tensor) -> Tensor:
        """Return a probability per image and class."""
        sized = resize(images.permute(0, 3, 1, 2), *self.shape[1:])
        return torch.sigmoid(self.network(sized) * self.slope + self.intercept)


def export_onnx(
    run: str | Path, file: str | Path, *, images: str | Path | None = None, overwrite: bool = False
) -> Compared:
    """Write a run as one ONNX file, compared with PyTorch before it is kept.

    Args:
        run: the run's folder.
        file: a new file ending in ``.onnx``.
        images: a folder of images to compare on; by default those that the run was trained on.
        overwrite: replace a file that is there.

    Returns:
        On which images both were compared, and how far apart they are.
    """
    path = Path(file)
    check_output(path, overwrite, (".onnx",))
    _check_installed()
    tagger = load(run, device="cpu")
    sample = find_sample(Path(run), images, max(tagger.artifact.shape))
    model = _graph(tagger)
    with reserve_output(path, overwrite, (".onnx",)), atomic_path(path) as unnamed:
        unnamed.write_bytes(model)
        return compare(unnamed, tagger, sample)  # what raises here leaves no file


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped]  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise TagspreadError(INSTALL) from None


def _graph(tagger: Tagger) -> bytes:
    """Return the whole file: graph, weights, metadata."""
    from onnx.helper import set_model_props

    whole = ImagesToProbabilities(tagger).eval()
    example = torch.zeros((2, 48, 40, 3), dtype=torch.uint8)  # sizes that are all different, and none of them special
    sides = {place: torch.export.Dim(name) for place, name in enumerate(("batch", "height", "width"))}
    with _silence():
        try:
            program = torch.onnx.export(
                whole,
                (example,),
                dynamo=True,
                dynamic_shapes={"images": sides},
                opset_version=OPSET,
                input_names=["images"],
                output_names=["probabilities"],
                external_data=False,
                verbose=False,
            )
            model = program.model_proto  # type: ignore[union-attr]
            set_model_props(model, metadata(tagger.artifact))
            return bytes(model.SerializeToString())
        except Exception as error:  # tracing and translating raise whatever they trip over
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise TagspreadError(
                f"the network {tagger.artifact.facts['backbone']!r} cannot be written as ONNX ({reason[:200]}); use "
                "the run itself, or a folder made with --hub."
            ) from error


def metadata(artifact: Artifact) -> dict[str, str]:
    """Return what an ONNX file says about itself; each value is JSON, as ONNX keeps texts only."""
    cuts = [None if math.isinf(cut) else cut for cut in artifact.thresholds.tolist()]
    facts = {
        "format": FORMAT,
        "tagspread": __version__,
        "classes": list(artifact.classes),
        "thresholds": cuts,  # of the probability; null: the tag is never chosen
        "image_size": list(artifact.shape[1:]),
        "decision": artifact.facts.get("decision", {}),
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's remarks to itself: they are for those who work on exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
