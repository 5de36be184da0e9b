"""Processes that train together, as ``torchrun`` starts them; a plain run is one process, for which this is idle.

Process 0 is the first: it prints, and writes the run folder. A failure in one process ends all with one message. Each
process sends a sign of life every few seconds, so that a host that vanishes is noticed although it closes no
connection.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from tagspread.errors import TagspreadError
from tagspread.progress import Watcher
from tagspread.wording import counted

T = TypeVar("T")
SECONDS_TO_JOIN = 300
BEAT, SILENCE = 2.0, 40.0  # seconds between two signs of life, and without one until a process counts as lost
GRACE = 10.0  # seconds in which a process ends by itself after another one has failed
NEVER = timedelta(hours=24)  # collective operations wait for slow processes; lost ones are found by their silence
RESUME = "Resume the run with --resume; torchrun --max-restarts 3 does so by itself."


class Processes:
    """The processes of a training. This base class is the one process of a plain run.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        host_size: number of processes on this host.
        sent: bytes that this process has contributed to exchanges so far.
        job: identity of the job, by which processes that torchrun restarts find their run; "" without torchrun.
    """

    rank, size, host_size, sent = 0, 1, 1, 0

    def __init__(self) -> None:
        job = os.environ.get("TORCHELASTIC_RUN_ID", "")
        self.job = f"{socket.gethostname()}, PID {os.getppid()}" if job == "none" else job  # "none": one torchrun only

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes the run folder."""
        return self.rank == 0

    def watcher(self, quiet: bool) -> Watcher:
        """Return what shows the progress: only the first process prints."""
        return Watcher(quiet or not self.is_first)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag

    def gather(self, rows: Tensor, *, first_only: bool = False) -> list[Tensor]:
        """Return the rows of each process; with ``first_only``, all other processes get none."""
        del first_only
        return [rows]

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send the first ``send[0]`` rows to process 0, and so on; return the rows received, by sender."""
        del send, receive
        return rows

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of the first process."""

    def share(self, value: T) -> T:
        """Return the value of the first process, a plain object."""
        return value

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes, plain objects."""
        return [value]

    def check_same(self, what: str, value: str) -> None:
        """Raise unless all processes have the same value, such as a digest of their data."""
        found = self.collect((value, socket.gethostname()))
        for rank, (other, host) in enumerate(found):
            if other != found[0][0]:
                raise TagspreadError(
                    f"the processes have different {what}: {found[0][0]} in process 0 on {found[0][1]}, but {other} in "
                    f"process {rank} on {host}. Give all of them the same."
                )

    def leave(self) -> None:
        """Wait until all processes have finished, then part."""


class SeveralProcesses(Processes):
    """Processes that are connected by ``torch.distributed``: with gloo on CPUs, with NCCL between GPUs."""

    def __init__(self) -> None:
        super().__init__()
        import torch.distributed
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._dist = torch.distributed
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.host_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.sent = 0
        address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        try:
            timeout = timedelta(seconds=SECONDS_TO_JOIN)
            agents_store, _, _ = next(rendezvous("env://", self.rank, self.size, timeout=timeout))
            # torchrun keeps its store when it restarts the processes, but what they wrote there is outdated
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"tagspread/attempt_{attempt}", agents_store)
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            torch.distributed.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=NEVER
            )
        except (RuntimeError, ValueError) as error:
            raise _cannot_join(self.rank, self.size, address, port, error) from None
        self._watch = Watch(store, self.rank, self.size)
        self._watch.places = self.collect(f"{socket.gethostname()}, PID {os.getpid()}")
        atexit.register(self._part)
        self.job = self.share(self.job)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all processes, in place."""
        self.sent += tensor.nbytes
        with self._connection():
            self._dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return bool(self.sum(torch.tensor([int(flag)])).item())

    def gather(self, rows: Tensor, *, first_only: bool = False) -> list[Tensor]:
        """Return the rows of each process; with ``first_only``, all other processes get none."""
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.empty_like(count) for _ in range(self.size)]
        with self._connection():
            self._dist.all_gather(counts, count)
        lengths = [int(each) for each in counts]
        if not max(lengths):
            return [rows] * self.size
        padded = rows.new_zeros(max(lengths), *rows.shape[1:])  # the operation needs equal shapes
        padded[: len(rows)] = rows
        self.sent += padded.nbytes
        parts = [torch.empty_like(padded) for _ in lengths] if self.is_first or not first_only else []
        with self._connection():
            if first_only:
                self._dist.gather(padded, parts or None)
            else:
                self._dist.all_gather(parts, padded)
        if not parts:
            return [rows[:0]] * self.size
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """Send the first ``send[0]`` rows to process 0, and so on; return the rows received, by sender."""
        self.sent += rows.nbytes - send[self.rank] * (rows.nbytes // max(1, len(rows)))
        received = rows.new_empty(sum(receive), *rows.shape[1:])
        with self._connection():
            self._dist.all_to_all_single(received, rows.contiguous(), list(receive), list(send))
        return received

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors with those of the first process."""
        with torch.no_grad(), self._connection():
            for tensor in tensors:
                self.sent += tensor.nbytes if self.is_first else 0
                whole = tensor.detach().contiguous()
                self._dist.broadcast(whole, 0)
                tensor.copy_(whole)

    def share(self, value: T) -> T:
        """Return the value of the first process, a plain object."""
        values: list[Any] = [value if self.is_first else None]
        with self._connection():
            self._dist.broadcast_object_list(values, 0)
        shared: T = values[0]
        return shared

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes, plain objects."""
        values: list[Any] = [None] * self.size
        with self._connection():
            self._dist.all_gather_object(values, value)
        return values

    def leave(self) -> None:
        """Wait until all processes have finished, then part."""
        self.sum(torch.zeros(1))
        self._part()

    def _part(self) -> None:
        self._watch.stop()
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    @contextmanager
    def _connection(self) -> Iterator[None]:
        """Turn the error of a broken connection into one message: why another process has ended."""
        try:
            yield
        except RuntimeError as error:
            if "out of memory" in str(error).lower():
                raise
            self._watch.explain()

    def fail(self, error: TagspreadError) -> NoReturn:
        """End all processes with one message, printed by the first of them."""
        self._watch.fail(error.on_command_line)
        raise error if self.is_first else SystemExit(2)


class Lost(TagspreadError):  # noqa: N818 - named for what it is
    """Raised when another process has ended, or does not answer; its message is for one of the remaining processes."""


class Silent(SystemExit):
    """Raised to end a process without a message, because another process has printed it."""

    def __init__(self) -> None:
        super().__init__(2)


class Watch:
    """Signs of life, and notices of failure, between processes; kept in the key-value store that torchrun runs.

    Args:
        store: the store.
        rank: number of this process.
        size: number of processes.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._threads_store, self._rank, self._size = store, store.clone(), rank, size
        now = time.monotonic()
        self._signs = [(0, now)] * size  # the last sign of life of each process, and when it was new
        self._contact = now  # when the store last answered
        self._stopped, self._is_told, self._lock = threading.Event(), False, threading.Lock()
        self.places = ["another host"] * size  # of the processes, for messages
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._exchange_signs, self._judge)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads; one that still runs when Python ends would abort the process."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * BEAT)

    def fail(self, message: str) -> None:
        """Announce that this process fails; the others then end without a message. Returns when the first one knows.

        Raises:
            Silent: if a message has been printed already.
        """
        self._claim()
        with suppress(RuntimeError):  # the store is gone, and the others with it
            if self._store.add("failures", 1) == 1:
                self._store.set("failure", json.dumps({"rank": self._rank, "message": message}))
            if self._rank:
                self._store.wait(["told"], timedelta(seconds=GRACE))
            else:
                self._store.set("told", "")

    def explain(self) -> NoReturn:
        """Raise what a broken connection means: another process was lost, or has announced its failure."""
        deadline, is_speaker = time.monotonic() + 3 * BEAT, self._is_first_to("lose")
        with suppress(RuntimeError, KeyboardInterrupt):  # torchrun interrupts this process meanwhile
            while time.monotonic() < deadline:
                if self._is_told or (self._rank and self._store.check(["failure"])):
                    raise Silent
                time.sleep(BEAT / 10)
        now = time.monotonic()
        lost = [rank for rank, (_, new) in enumerate(self._signs) if now - new > 2 * BEAT]
        self._raise_lost(lost, "has ended", is_speaker)

    def _claim(self) -> None:
        """Reserve the message of this process; raise if there was one already."""
        with self._lock:
            if self._is_told:
                raise Silent
            self._is_told = True

    def _exchange_signs(self) -> None:
        """Send signs of life; read those of the other processes, and notices of failure."""
        store, keys = self._threads_store, [f"alive/{rank}" for rank in range(self._size)]
        with suppress(RuntimeError):  # the store is gone; noticed by the missing contact
            while not self._stopped.is_set():
                for rank, key in enumerate(keys):
                    sign = store.add(key, int(rank == self._rank))
                    if sign != self._signs[rank][0]:
                        self._signs[rank] = (sign, time.monotonic())
                self._contact = time.monotonic()
                if self._rank == 0 and store.check(["failure"]):
                    self._stopped.wait(BEAT)  # this process may be about to fail for the same reason
                    notice = json.loads(store.get("failure"))
                    with suppress(Silent):
                        self._claim()
                        where = self.places[notice["rank"]]
                        self._print_and_end(f"{notice['message']} (process {notice['rank']} on {where})", GRACE)
                    store.set("told", "")
                    return
                self._stopped.wait(BEAT)

    def _judge(self) -> None:
        """End this process if another one, or the store, gives no sign of life."""
        while not self._stopped.wait(1.0):
            now = time.monotonic()
            lost = [rank for rank, (_, new) in enumerate(self._signs) if now - new > SILENCE]
            if lost or now - self._contact > SILENCE:
                try:
                    # without contact, no other process can be asked, and each host says so
                    is_speaker = now - self._contact > SILENCE or self._is_first_to("lose")
                    self._raise_lost(lost, f"has not answered for {SILENCE:.0f} seconds", is_speaker)
                except Lost as error:
                    self._print_and_end(error.on_command_line, 0.0)
                except Silent:
                    self._print_and_end("", GRACE)
                return

    def _is_first_to(self, do: str) -> bool:
        """Return whether no other process has asked the same before; also if there is no store to ask."""
        with suppress(RuntimeError):
            return bool(self._store.add(do, 1) == 1)
        return True

    def _raise_lost(self, ranks: list[int], what: str, is_speaker: bool) -> NoReturn:
        """Raise the error to print in one of the remaining processes, and :class:`Silent` in all others."""
        self._claim()
        if not is_speaker:
            raise Silent
        lost = f"process {ranks[0]} on {self.places[ranks[0]]}" if ranks else "another process"
        if time.monotonic() - self._contact > SILENCE:
            lost = "the host of process 0" if self._rank else lost
        raise Lost(f"{lost} {what}, so training ends. {RESUME}")

    def _print_and_end(self, message: str, grace: float) -> None:
        """Print a message from a thread; end the process later, as it may wait for a process that is lost."""
        if message:
            print(f"error: {message}", file=sys.stderr, flush=True)  # noqa: T201

        def end() -> None:
            time.sleep(grace)
            os._exit(2)

        threading.Thread(target=end, daemon=True).start()


_joined: Processes | None = None


def join() -> Processes:
    """Join the processes that ``torchrun`` has started together with this one; return a single process otherwise."""
    global _joined  # noqa: PLW0603 - a process joins once
    if _joined is None:
        _joined = (
            SeveralProcesses() if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ else Processes()
        )
    return _joined


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes, and part at the end of the block; whatever fails, one process prints one message."""
    processes = join()
    try:
        yield processes
        processes.leave()
    except Lost:
        raise
    except TagspreadError as error:
        if isinstance(processes, SeveralProcesses):
            processes.fail(error)
        raise
    except KeyboardInterrupt:
        if not processes.is_first:
            raise SystemExit(130) from None
        raise


def device_of(processes: Processes, device: torch.device) -> torch.device:
    """Return the device of this process: with several processes on a host, each has a GPU of its own."""
    if processes.size == 1 or device.type != "cuda" or device.index is not None:
        return device
    place, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= gpus:
        raise TagspreadError(
            f"{socket.gethostname()} has {counted(gpus, 'GPU')} but {processes.host_size} processes; start one process "
            f"for each GPU (torchrun --nproc-per-node {gpus}), or give @device.",
            device="cpu",
        )
    torch.cuda.set_device(place)
    return torch.device("cuda", place)


def _cannot_join(rank: int, size: int, address: str, port: str, error: Exception) -> TagspreadError:
    reason = " ".join(str(error).split())
    if "in use" in reason:
        remedy = (
            "give a port that is free, such as with torchrun --master-port, or use torchrun --standalone on one host"
        )
    else:
        remedy = f"check that all {size} processes were started, and that the host and the port can be reached"
    return TagspreadError(
        f"process {rank} of {size} cannot join the others at {address}:{port} ({reason[:200]}); {remedy}."
    )
