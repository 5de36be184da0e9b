"""Fixtures for review tests: runs that were never trained (an index with made-up scores), and servers of their own."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tagspread.review.answers import AnswerStore
from tagspread.review.index import Index, write_index
from tagspread.review.session import Review
from tagspread.run.split import digest_files

EVIL = '<img src=x onerror="window.hit = 1">'
TAGS = ("cat", "dog", "cow", EVIL, "constructor")
LABELED = 8


def draw(file, number, side=48):
    image = Image.new("RGB", (side, side * 3 // 4), ((number * 37) % 256, (number * 91) % 256, (number * 53) % 256))
    ImageDraw.Draw(image).text((4, 4), str(number), fill="white")
    image.save(file)


def make_run(run, folder, count=40, tags=TAGS, seed=0, side=48):
    """Write images and the index of a run; the last eight images are labeled examples, with one tag each."""
    run.mkdir(parents=True, exist_ok=True)
    names = []
    for k in range(count + LABELED):
        name = f"{'abc'[k % 3]}/p{k:05}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        draw(folder / name, k, side)
        names.append(name)
    rng = np.random.default_rng(seed)
    unlabeled = np.arange(len(names)) < count
    scores = rng.random((len(names), len(tags))).astype(np.float32)
    pseudo = (scores >= 0.5).astype(np.int8)
    scores[~unlabeled] = np.nan
    y = np.full(scores.shape, -1, np.int8)
    y[~unlabeled] = np.eye(len(tags), dtype=np.int8)[np.arange(LABELED) % len(tags)]
    digests = [digest.decode() for digest in digest_files([folder / name for name in names]).tolist()]
    index = Index(
        "run0123456789", str(folder), str(folder), names, np.arange(len(names)) + 5, digests, unlabeled, tags,
        np.full(len(tags), 0.5), y, scores, pseudo, (), {},
    )  # fmt: skip
    write_index(run, index)
    return index


@pytest.fixture
def index(tmp_path):
    return make_run(tmp_path / "run", tmp_path / "images")


@pytest.fixture
def run(tmp_path, index):
    del index
    return tmp_path / "run"


@pytest.fixture
def review(run, index):
    with AnswerStore.open(run, create=True) as store:
        yield Review(run, index, store)


class Server:
    """A server in a process of its own."""

    def __init__(self, run, *options):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tagspread", "review", str(run), "--user", "ann", *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.output = self.process.stdout
        self.said = ""
        for line in self.output:
            self.said += line
            if found := re.search(r"http://\S+", line):
                self.address = found[0]
                break
        else:
            raise AssertionError(f"the server ended: {self.said}")
        self.port = urlsplit(self.address).port

    def request(self, method, path, body=None, **headers):
        """Send a request as the page would, unless headers say otherwise; return status, headers and content."""
        sent = {"Host": f"127.0.0.1:{self.port}"}
        if method != "GET":
            sent |= {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            content = None if body is None else json.dumps(body)
            target = urlsplit(self.address).path + path if not path.startswith("/") else path
            connection.request(method, target, content, {name: value for name, value in sent.items() if value})
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()

    def post(self, path, **body):
        status, _, content = self.request("POST", path, {"page": "page-0001", "who": "ann"} | body)
        return status, json.loads(content)

    def get(self, path):
        status, _, content = self.request("GET", path)
        return status, json.loads(content)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()
        self.output.close()

    def memory(self):
        """Return the largest resident memory so far, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [kilobytes] = re.findall(r"VmHWM:\s+(\d+)", status)
        return int(kilobytes) / 1000


@pytest.fixture
def serve():
    """Start servers, which are stopped after the test."""
    with contextlib.ExitStack() as stack:

        def start(run, *options):
            server = Server(run, "--port", "0", *options)
            stack.callback(server.stop)
            return server

        yield start


def wait_for(condition, seconds=20):
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")
