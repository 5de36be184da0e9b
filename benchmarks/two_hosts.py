"""Train on two "hosts": network namespaces joined by a cable that can be unplugged (as root, on Linux).

$ python benchmarks/two_hosts.py            # trains the demo, compares it with one process
$ python benchmarks/two_hosts.py --unplug   # unplugs the cable after two epochs, plugs it in again after a minute

Both hosts share the disk. Each runs one torchrun with one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from processes import SETTINGS, difference

HOSTS = ("tagspread-a", "tagspread-b")


def run(*words: str) -> None:
    """Run a command; raise if it fails."""
    subprocess.run(words, check=True)


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Make two network namespaces joined by a veth pair, and remove them again."""
    try:
        for number, host in enumerate(HOSTS, 1):
            run("ip", "netns", "add", host)
            run("ip", "-n", host, "link", "set", "lo", "up")
            if number == 1:
                run("ip", "link", "add", "veth1", "netns", HOSTS[0], "type", "veth", "peer", "name", "veth2")
                run("ip", "link", "set", "veth2", "netns", HOSTS[0])
        run("ip", "-n", HOSTS[0], "link", "set", "veth2", "netns", HOSTS[1])
        for number, host in enumerate(HOSTS, 1):
            run("ip", "-n", host, "addr", "add", f"10.77.0.{number}/24", "dev", f"veth{number}")
            run("ip", "-n", host, "link", "set", f"veth{number}", "up")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False)


def start(number: int, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start torchrun on a host."""
    launcher = [
        "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29500",
        "--rdzv-id", "demo", "--local-addr", f"10.77.0.{number}", "--max-restarts", "5",
        "--rdzv-conf", f"is_host={int(number == 1)}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", *launcher, "-m", "tagspread", "train", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"veth{number}"}
    inside = ["ip", "netns", "exec", HOSTS[number - 1], *command]
    with log.open("wb") as file:
        return subprocess.Popen(inside, env=environment, stdout=file, stderr=subprocess.STDOUT)


def cable(state: str) -> None:
    """Unplug the cable, or plug it in."""
    run("ip", "-n", HOSTS[1], "link", "set", "veth2", state)


def epochs_of(out: Path) -> int:
    """Return the number of epochs that a run has recorded."""
    log = out / "log.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0


def main() -> None:
    """Train on two hosts; print what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unplug", action="store_true")
    parser.add_argument("--canvases", type=int, default=800)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=90, help="time to keep the cable unplugged")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as top, hosts():
        folder, out, one = Path(top) / "images", Path(top) / "run", Path(top) / "one"
        export = ["demo", "--canvases", str(given.canvases), "--export-folder", str(folder)]
        subprocess.run([sys.executable, "-m", "tagspread", *export], check=True, stdout=subprocess.DEVNULL)
        arguments = [
            str(folder), "--labels", str(folder / "labels.csv"), "--test-labels", str(folder / "test.csv"),
            *SETTINGS[:-1], "--backbone", "small", "--image-size", "32", "--epochs", str(given.epochs),
        ]  # fmt: skip
        logs = [Path(top) / f"{host}.log" for host in HOSTS]
        began = time.perf_counter()
        running = [start(number, [*arguments, "--out", str(out)], log) for number, log in enumerate(logs, 1)]
        if given.unplug:
            while epochs_of(out) < 2 and time.perf_counter() - began < 600:
                time.sleep(0.2)
            unplugged = time.perf_counter()
            cable("down")
            print(f"unplugged after {epochs_of(out)} epochs")
            said = {}
            while time.perf_counter() - unplugged < given.seconds:
                for host, log in zip(HOSTS, logs, strict=True):
                    for line in log.read_text(errors="replace").splitlines():
                        if line.startswith("error:") and host not in said:
                            said[host] = line
                            print(f"{host} after {time.perf_counter() - unplugged:.0f} s: {line}", flush=True)
                time.sleep(0.5)
            cable("up")
            print("plugged in again", flush=True)
        codes = [process.wait() for process in running]
        print(f"exit codes {codes} after {time.perf_counter() - began:.0f} s, {epochs_of(out)} epochs")
        for host, log in zip(HOSTS, logs, strict=True):
            print(f"--- {host}", *log.read_text(errors="replace").splitlines()[-15:], sep="\n")
        subprocess.run(
            [sys.executable, "-m", "tagspread", "train", *arguments, "--quiet", "--out", str(one)],
            check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        worst, targets = difference(one, out)
        maps = [json.loads((folder / "metrics.json").read_text())["test"]["mAP"] for folder in (one, out)]
        print(f"one process and two hosts: mAP {maps[0]:.4f} and {maps[1]:.4f}, weights differ by {worst:.1e}, "
              f"{targets} targets differ")  # fmt: skip


if __name__ == "__main__":
    main()
