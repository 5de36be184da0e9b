"""Registry of named datasets (Pascal VOC, MS-COCO, NUS-WIDE, demo); to add one, write a file and register it here."""

from __future__ import annotations

from tagspread.data.datasets.base import NamedDataset
from tagspread.data.datasets.coco import COCO
from tagspread.data.datasets.digits import DEMO
from tagspread.data.datasets.nus import NUS
from tagspread.data.datasets.voc import VOC
from tagspread.errors import check_choice

DATASETS: dict[str, NamedDataset] = {dataset.name: dataset for dataset in (VOC, COCO, NUS, DEMO)}


def find_dataset(name: str) -> NamedDataset:
    """Return a dataset by name.

    >>> find_dataset("coko")
    Traceback (most recent call last):
    tagspread.errors.TagspreadError: dataset is 'coko'; it must be one of 'voc', 'coco', 'nus', 'demo'. Did you ...
    """
    check_choice("dataset", name, DATASETS)
    return DATASETS[name]
