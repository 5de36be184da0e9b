"""Damage bytes, JSON values and tensors at random."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

TOKENS = (
    b"\0",
    b"\xff",
    b"\xff\xfe",
    b'"',
    b"'",
    b",",
    b";",
    b"\t",
    b"|",
    b"\n",
    b"\r",
    b"\r\n",
    b"",
    b"\xef\xbb\xbf",
    b"\x80",
    b"[",
    b"{",
    b"]",
    b"}",
    b"\\",
    b"../",
    b"/etc/passwd",
    b"NaN",
    b"1e999",
    b"-1",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"9" * 5000,
    b"[" * 100_000,
    b"=1+1",
    b"%s",
    b"{}",
    b"\x1b[2J",
    b"image",
    b"tags",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x98\x80",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    2**70,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    " ",
    "x",
    "x" * 5000,
    "\0",
    "../../etc/passwd",
    "/etc/passwd",
    "\ud800",
    "=1+1",
    "evil.py:Rule",
    "resnet50",
    "cuda",
    [],
    {},
    [[]],
    [None],
    ["a"],
    [1, 2, 3],
    {"a": 1},
    {"": None},
    "1",
    "[bold]",
    "nan",
    "%s%n",
    [3, 16384, 16384],
    [1e999] * 3,
)


def damaged(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Return bytes with one to three faults, and what was done."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        kind = rng.choice(("flip", "flip", "token", "token", "cut", "drop", "repeat", "swap", "zero", "number"))
        at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        near = min(len(data), at + rng.choice((1, 2, 4, 16, 200)))
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif kind == "token":
            data = data[:at] + rng.choice(TOKENS) + data[rng.choice((at, near)) :]
        elif kind == "cut":
            data = data[: rng.choice((at, end))]
        elif kind == "drop":
            data = data[:at] + data[near:]
        elif kind == "repeat":
            data = data[:near] + data[at:near] * rng.choice((1, 5, 100)) + data[near:]
        elif kind == "swap":
            data = data[:at] + data[end:] + data[at:end]
        elif kind == "zero":
            data = data[:at] + bytes(near - at) + data[near:]
        elif kind == "number":
            value = struct.pack(
                rng.choice("<>") + "I", rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x10000, rng.getrandbits(32)))
            )
            data = data[:at] + value + data[at + 4 :]
        done.append(f"{kind} at {at}")
    return data, ", ".join(done)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*path, key))
    return found


def wrong_value(value: Any, rng: random.Random) -> tuple[Any, str]:
    """Return a JSON value with one to three wrong, missing or additional values inside, and what was done."""
    value, done = copy.deepcopy(value), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not (paths := places(value)):
            break
        # keys near the top are as likely as the many items of long lists
        depth = rng.choice(sorted({len(path) for path in paths}))
        path = rng.choice([path for path in paths if len(path) == depth])
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        kind = rng.choice(("odd", "odd", "odd", "odd", "delete", "repeat", "nest", "swap", "rename"))
        if kind == "delete":
            del parent[path[-1]]
        elif kind == "repeat" and isinstance(parent, list):
            parent += [copy.deepcopy(parent[path[-1]])] * rng.choice((1, 10, 1000))
        elif kind == "nest":
            for _ in range(rng.choice((1, 5, 200))):
                parent[path[-1]] = [parent[path[-1]]]
        elif kind == "swap":
            other = value
            for key in rng.choice(paths):
                other = other[key] if isinstance(other, dict | list) and _has(other, key) else other
            parent[path[-1]] = copy.deepcopy(other) if other is not value else None
        elif kind == "rename" and isinstance(parent, dict):
            parent[rng.choice(("", "x", "\ud800", "format", "name"))] = parent.pop(path[-1])
        else:
            parent[path[-1]] = copy.deepcopy(rng.choice(ODD))
        done.append(f"{kind} {'.'.join(map(str, path))[:80]}")
    return value, ", ".join(done)


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else isinstance(key, int) and key < len(container)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON, as odd as it may be."""
    return json.dumps(value).encode()


def wrong_tensors(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Return a safetensors file with tensors that are missing, renamed, reshaped, of another type, or of odd values."""
    import torch
    from safetensors.torch import load, save

    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__")
    tensors = load(data)
    done = []
    for _ in range(rng.choice((1, 1, 2))):
        if not tensors:
            break
        name = rng.choice(sorted(tensors))
        tensor = tensors[name]
        kind = rng.choice(
            (
                "missing",
                "rename",
                "flat",
                "empty",
                "double",
                "long",
                "bool",
                "nan",
                "huge",
                "negative",
                "longer",
                "extra",
                "facts",
            )
        )
        if kind in ("missing", "rename"):
            del tensors[name]
            if kind == "rename":
                tensors[rng.choice((name + ".x", "x." + name, "optimizer.99999.exp_avg", "optimizer.x.step", "x"))] = (
                    tensor
                )
        elif kind == "flat":
            tensors[name] = tensor.flatten()[:-1].contiguous() if tensor.numel() > 1 else tensor[None]
        elif kind == "empty":
            tensors[name] = torch.empty(0, dtype=tensor.dtype)
        elif kind in ("double", "long", "bool"):
            tensors[name] = tensor.to({"double": torch.float64, "long": torch.int64, "bool": torch.bool}[kind])
        elif kind == "longer":
            tensors[name] = torch.cat([tensor.flatten()] * 2)
        elif kind == "extra":
            tensors[f"extra.{rng.randrange(9)}"] = torch.zeros(3)
        elif kind == "facts":
            if metadata and "tagspread" in metadata:
                facts, words = wrong_value(json.loads(metadata["tagspread"]), rng)
                metadata = {"tagspread": json.dumps(facts)}
                done.append(words)
                continue
            metadata = {"tagspread": rng.choice(("", "[]", "{}", "[" * 100_000, '{"format": 2}'))}
        else:
            value = {"nan": float("nan"), "huge": 1e30, "negative": -7}[kind]
            tensors[name] = torch.full_like(tensor.float(), value).to(tensor.dtype)
        done.append(f"{kind} {name}")
    try:
        return save(tensors, metadata), ", ".join(done)
    except Exception:  # a name that safetensors refuses, or text that is not UTF-8
        return data[:-7], "cut"
