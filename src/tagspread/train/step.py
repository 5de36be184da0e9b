"""One training step of the student: forward, loss, backward, optimizer update; on GPUs as a CUDA graph.

With small batches, a GPU waits for Python to launch a thousand kernels per step. Captured once as a CUDA graph, forward
and backward are one launch. The optimizer is not captured, because the schedule changes its learning rate and momentum.

On CPUs, the activations of a batch of 64 photos take some gigabytes, far more than the processor's cache. There the
gradients of a few images at a time are added up, where this gives the gradients of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from tagspread.train.distributed import Processes
from tagspread.train.scoring import autocast

LossOf = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Step:
    """Training step: calling it with a batch trains the student and returns the loss, still on the device.

    Args:
        student: the network to train.
        optimizer: its optimizer.
        loss_of: computes the loss from logits, labels, weights and places.
        precision: ``"auto"``, ``"bf16"`` or ``"fp32"``.
        graphs: capture forward and backward as a CUDA graph.
        touched: tensors that the loss may change in place.
        images_at_once: number of images in one forward and backward pass; all of the batch if not given. Fewer images
            give the same gradients only if the loss is a sum over rows, and no layer combines rows.
        processes: processes that compute parts of each batch; their gradients and losses are added up.
    """

    def __init__(
        self,
        student: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_of: LossOf,
        *,
        precision: str = "auto",
        graphs: bool = False,
        touched: Iterable[Tensor] = (),
        images_at_once: int | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.student, self.optimizer, self.loss_of, self.precision = student, optimizer, loss_of, precision
        self.graphs, self.optimizers = graphs, [optimizer]
        self._touched, self._images_at_once = list(touched), images_at_once
        self._processes = processes if processes is not None and processes.size > 1 else None
        self._trained: list[nn.Parameter] | None = None  # the parameters that have gradients in any process
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        """Train on one batch; return its loss."""
        batch = (images, labels, weight, places)
        if len(images):
            loss = self._gradients(batch)
        else:  # of a small batch, this process has no images
            self.optimizer.zero_grad()
            loss = torch.zeros((), device=images.device)
        if self._processes is not None:
            loss = self._add_up(loss, self._processes)
        self.optimizer.step()
        return loss

    def _gradients(self, batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Compute the gradients of a batch; return its loss."""
        if self.graphs and self._graph is None:
            with torch.cuda.device(batch[0].device):  # streams are created on the current device
                self.graphs = self._capture(*batch)
        if self._graph is None:
            self.optimizer.zero_grad()
            return torch.stack([self._forward_backward(*part) for part in self._parts(*batch)]).sum()
        for static_input, value in zip(self._inputs, batch, strict=True):
            static_input.copy_(value, non_blocking=True)
        self._graph.replay()
        return self._loss.clone()

    def _add_up(self, loss: Tensor, processes: Processes) -> Tensor:
        """Add up the gradients of all processes, in one exchange together with the loss, which is returned."""
        if self._trained is None:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            users = processes.sum(torch.tensor([int(parameter.grad is not None) for parameter in parameters]))
            self._trained = [parameter for parameter, count in zip(parameters, users.tolist(), strict=True) if count]
        for parameter in self._trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        whole = processes.sum(torch.cat([*(gradient.flatten() for gradient in gradients), loss.float().view(1)]))
        *parts, total = torch.split(whole, [*(gradient.numel() for gradient in gradients), 1])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view(gradient.shape))
        return total.view(())

    def _parts(
        self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield the batch in parts of a few images."""
        step = self._images_at_once or len(images)
        labeled = len(labels) - len(places)  # they come first
        for at in range(0, len(images), step):
            rows = slice(at, at + step)
            yield images[rows], labels[rows], weight[rows], places[max(0, at - labeled) : max(0, at + step - labeled)]

    def _forward_backward(self, images: Tensor, labels: Tensor, weight: Tensor, places: Tensor) -> Tensor:
        with autocast(images.device, self.precision):
            output = self.student(images)
        loss = self.loss_of(output.float(), labels, weight, places)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _capture(self, *batch: Tensor) -> bool:
        """Capture forward and backward as a CUDA graph with its own memory, without changing the student.

        Return False for a network that cannot be captured, such as one whose control flow depends on its values.
        """
        self._inputs = [value.clone() for value in batch]
        changing = [*self.student.buffers(), *self._touched]
        before = [value.clone() for value in changing]
        graph = torch.cuda.CUDAGraph()
        try:
            side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):  # warm up, so that libraries choose their algorithms before capture
                for _ in range(3):
                    self.optimizer.zero_grad()
                    self._forward_backward(*self._inputs)
            torch.cuda.current_stream().wait_stream(side_stream)
            self.optimizer.zero_grad()  # gradients are allocated during capture, in the memory of the graph
            # thread_local: another thread may load the next images meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._loss = self._forward_backward(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return False
        finally:
            with torch.no_grad():
                for tensor, value in zip(changing, before, strict=True):
                    tensor.copy_(value)
        self._graph = graph
        return True
