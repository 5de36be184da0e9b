"""Two small tables, the same in both shapes, and a way to read a text as one."""

import pytest

from tagspread.data.tables.read import read_table

LONG = "file,tags\na.jpg,sea|sand\nsub/b.jpg,sand\nc.jpg,\n"
WIDE = "file,sea,sand\na.jpg,1,1\nsub/b.jpg,0,1\nc.jpg,,-1\n"


@pytest.fixture
def read(tmp_path):
    def make(text, **options):
        file = tmp_path / "labels.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_table(file, "images", **options)

    return make
