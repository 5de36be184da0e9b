"""Run a function in several processes that train together, as torchrun would start them."""

import multiprocessing
import os
import pickle
import socket
import traceback
from contextlib import closing
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")  # its children start with the imports made
# torch imports the last one at the first optimizer, which would take each child 2 s
CONTEXT.set_forkserver_preload(["tagspread.api", "tests.train.test_distributed", "torch._dynamo"])
SECONDS = 180


def free_port():
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _child(pipe, rank, size, environment, work, arguments):
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)})
    import torch

    from tagspread.train.distributed import join

    torch.set_num_threads(1)
    try:
        processes = join()
        pipe.send_bytes(pickle.dumps(("result", work(processes, *arguments))))
        processes.leave()
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(("error", (type(error).__name__, str(error), traceback.format_exc()))))


def outcomes(size: int, work: Any, *arguments: Any, **environment: str) -> list[tuple[str, Any]]:
    """Return ("result", value), ("error", (type, message, traceback)) or ("gone", exit code) for each process."""
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LOCAL_WORLD_SIZE": str(size)}
    children = []
    for rank in range(size):
        here, there = CONTEXT.Pipe()
        child = CONTEXT.Process(target=_child, args=(there, rank, size, environment, work, arguments))
        child.start()
        there.close()
        children.append((child, here))
    found: list[tuple[str, Any]] = []
    for child, pipe in children:
        try:
            found.append(pickle.loads(pipe.recv_bytes()) if pipe.poll(SECONDS) else ("late", None))
        except EOFError:
            child.join()
            found.append(("gone", child.exitcode))
    for child, _ in children:
        child.join(15)
        if child.is_alive():
            child.kill()
    return found


def in_processes(size: int, work: Any, *arguments: Any, **environment: str) -> list[Any]:
    """Return the result of each process; raise if one of them failed."""
    found = outcomes(size, work, *arguments, **environment)
    for kind, value in found:
        assert kind == "result", value[2] if kind == "error" else (kind, value)
    return [value for _, value in found]
