"""One step of the student: forward, loss, backward, update.

At small batches a GPU waits for Python to launch a thousand kernels per step. Captured once as a CUDA graph, forward
and backward are one launch; the optimizer stays outside, so that its learning rate and momentum are ordinary numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from tagspread.train.scoring import autocast

LossOf = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Step:
    """Calling it with a batch trains the student on it and returns the loss, still on the device."""

    def __init__(
        self,
        student: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: LossOf,
        *,
        precision: str = "auto",
        graphs: bool = False,
        touched: Iterable[Tensor] = (),
    ) -> None:
        self.student, self.optimizer, self.loss_of, self.precision = student, optimizer, loss_of, precision
        self.graphs, self.optimizers = graphs, [optimizer]
        self._touched = list(touched)  # what the loss may change in place
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Train on one batch; return its loss."""
        batch = (images, labels, weight, places)
        if self.graphs and self._graph is None:
            with torch.cuda.device(images.device):  # streams belong to the current one
                self.graphs = self._capture(*batch)
        if self._graph is not None:
            for held, given in zip(self._inputs, batch, strict=True):
                held.copy_(given, non_blocking=True)
            self._graph.replay()
            loss = self._loss.clone()
        else:
            self.optimizer.zero_grad()
            loss = self._forward_backward(*batch)
        self.optimizer.step()
        return loss

    def _forward_backward(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        with autocast(images.device, self.precision):
            output = self.student(images)
        loss = self.loss_of(output.float(), labels, weight, places)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _capture(self, *batch: Tensor) -> bool:
        """Record forward and backward on memory of their own; the student is left as it was found.

        Return False for a network that cannot be recorded, such as one whose control flow depends on its values.
        """
        self._inputs = [given.clone() for given in batch]
        changing = [*self.student.buffers(), *self._touched]
        before = [value.clone() for value in changing]
        graph = torch.cuda.CUDAGraph()
        try:
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # libraries choose their algorithms before anything is recorded
                for _ in range(3):
                    self.optimizer.zero_grad()
                    self._forward_backward(*self._inputs)
            torch.cuda.current_stream().wait_stream(aside)
            self.optimizer.zero_grad()  # gradients are made anew inside, where every replay will find them
            # thread_local: meanwhile another thread may bring the next images from the disk
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._loss = self._forward_backward(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False
        finally:
            with torch.no_grad():
                for changed, value in zip(changing, before, strict=True):
                    changed.copy_(value)
        self._graph = graph
        return True
