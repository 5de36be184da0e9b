"""Image formats: which suffixes name an image, and which of them this installation decodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from PIL import features

try:
    import pillow_heif
except ImportError:
    HAS_HEIF = False
else:
    pillow_heif.register_heif_opener()
    HAS_HEIF = True

ALWAYS = frozenset((".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"))
HEIF = frozenset((".heic", ".heif", ".hif"))  # photos of phones
AVIF = frozenset((".avif",))
CAMERA = frozenset((".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw"))
OTHERS = frozenset((".jxl", ".psd", ".svg", ".xcf"))
IMAGE_SUFFIXES = ALWAYS | HEIF | AVIF | CAMERA | OTHERS  # in lower case
DECODABLE = ALWAYS | (HEIF if HAS_HEIF else frozenset()) | (AVIF if features.check("avif") else frozenset())
BRANDS = {b"avif": AVIF, b"avis": AVIF, b"heic": HEIF, b"heix": HEIF, b"hevc": HEIF, b"mif1": HEIF, b"msf1": HEIF}
NEEDS_HEIF = "HEIC needs pillow-heif; run: pip install 'tagspread[heif]'"
NEEDS_AVIF = "AVIF needs Pillow 11.3 or later; run: pip install -U pillow"


def remedy_for(suffix: str) -> str:
    """Return how to make images with a suffix readable.

    >>> remedy_for(".nef")
    'convert them to JPEG or PNG'
    """
    if suffix in HEIF and not HAS_HEIF:
        return NEEDS_HEIF
    return NEEDS_AVIF if suffix in AVIF else "convert them to JPEG or PNG"


def missing_decoder(start: bytes) -> str | None:
    """Return what is needed to decode a file with these first bytes, if only a decoder is missing.

    The suffix tells less: phones write HEIC files that end in .jpg.
    """
    if start[4:8] != b"ftyp" or (suffixes := BRANDS.get(start[8:12])) is None or suffixes <= DECODABLE:
        return None
    return NEEDS_HEIF if suffixes is HEIF else NEEDS_AVIF


def undecodable_in_words(suffixes: Iterable[str]) -> str:
    """Return counts of suffixes with the remedies.

    >>> undecodable_in_words([".nef", ".svg", ".nef"])
    '2 .nef, 1 .svg: convert them to JPEG or PNG'
    """
    by_remedy: dict[str, list[str]] = {}
    for suffix, count in Counter(suffixes).most_common():
        by_remedy.setdefault(remedy_for(suffix), []).append(f"{count:,} {suffix}")
    return "; ".join(f"{', '.join(counts)}: {remedy}" for remedy, counts in by_remedy.items())
