"""ONNX export: ``tagspread export RUN --onnx FILE`` writes a tagger that needs no PyTorch.

The graph contains all steps from the pixels of an image to the probabilities of the tags: resizing, normalization, the
network and the calibration. Its metadata holds class names and thresholds. A file is kept only if it predicts the same
as the run.
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

FORMAT = 1  # version of the metadata; increase it with every incompatible change
OPSET = 18  # supported by ONNX Runtime since 1.14
INSTALL = "exporting to ONNX needs onnx, onnxruntime and onnxscript; run: pip install 'tagspread[onnx]'"


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
        """Return one probability per image and class."""
        sized = resize(images.permute(0, 3, 1, 2), *self.shape[1:])
        return torch.sigmoid(self.network(sized) * self.slope + self.intercept)


def export_onnx(
    run: str | Path, file: str | Path, *, images: str | Path | None = None, overwrite: bool = False
) -> Compared:
    """Export a run as an ONNX file, and compare it with PyTorch before it is kept.

    Args:
        run: the run's folder.
        file: a new file ending in ``.onnx``.
        images: a folder of images to compare on; by default the run's image folder.
        overwrite: replace an existing file.

    Returns:
        The images of the comparison, and the largest differences.
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
    """Return the content of the ONNX file: graph, weights and metadata."""
    from onnx.helper import set_model_props

    model = ImagesToProbabilities(tagger).eval()
    example = torch.zeros((2, 48, 40, 3), dtype=torch.uint8)  # all sizes differ, and none is special
    sides = {place: torch.export.Dim(name) for place, name in enumerate(("batch", "height", "width"))}
    with _silence():
        try:
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                dynamic_shapes={"images": sides},
                opset_version=OPSET,
                input_names=["images"],
                output_names=["probabilities"],
                external_data=False,
                verbose=False,
            )
            proto = program.model_proto  # type: ignore[union-attr]
            set_model_props(proto, metadata(tagger.artifact))
            return bytes(proto.SerializeToString())
        except Exception as error:  # the exporter raises errors of many kinds
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise TagspreadError(
                f"the network {tagger.artifact.facts['backbone']!r} cannot be exported to ONNX ({reason[:200]}); "
                "use the run itself, or a folder written with --hub."
            ) from error


def metadata(artifact: Artifact) -> dict[str, str]:
    """Return the metadata of the ONNX file; values are JSON, as ONNX stores strings only."""
    thresholds = [None if math.isinf(value) else value for value in artifact.thresholds.tolist()]
    facts = {
        "format": FORMAT,
        "tagspread": __version__,
        "classes": list(artifact.classes),
        "thresholds": thresholds,  # of the probability; null: the tag is never predicted
        "image_size": list(artifact.shape[1:]),
        "decision": artifact.facts.get("decision", {}),
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the exporter's warnings and log messages, which users cannot act on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
