import pytest
import torch

from tagspread.data.images import store
from tagspread.data.images.store import usable_memory

CPU = torch.device("cpu")
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Create a machine with 1,000 kB free; ``limit`` writes its control groups."""
    monkeypatch.setattr(store, "PROC", tmp_path / "proc")
    monkeypatch.setattr(store, "CGROUPS", tmp_path / "cgroup")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    1000 kB\n")
    return tmp_path


def limit(folder, names, most, taken, droppable):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{most}\n")
    (folder / names[1]).write_text(f"{taken}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {droppable}\n")


def test_share_of_the_free_memory(system):
    assert usable_memory(CPU) == int(0.6 * 1000 * 1024)
    assert usable_memory(CPU, 5) == 5
    (system / "proc" / "meminfo").unlink()
    assert usable_memory(CPU) > 2**20


def test_a_container_has_less_than_its_machine(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/\n")
    limit(system / "cgroup", VERSION_2, 5000, 3000, 1000)
    assert usable_memory(CPU) == int(0.6 * 3000)
    limit(system / "cgroup", VERSION_2, "max", 3000, 1000)
    assert usable_memory(CPU) == int(0.6 * 1000 * 1024)
    limit(system / "cgroup", VERSION_2, 1000, 5000, 0)  # lowered while it was running
    assert usable_memory(CPU) == 0


def test_a_cluster_job_has_the_minimum_of_its_groups(system):
    (system / "proc" / "self" / "cgroup").write_text("0::/jobs/job_7/step_0\n")
    limit(system / "cgroup" / "jobs" / "job_7", VERSION_2, 800, 100, 0)
    limit(system / "cgroup" / "jobs" / "job_7" / "step_0", VERSION_2, "max", 100, 0)
    limit(system / "cgroup" / "jobs", VERSION_2, 900, 100, 0)
    limit(system, VERSION_2, 1, 0, 0)  # above all groups: ignored
    assert usable_memory(CPU) == int(0.6 * 700)


def test_control_groups_version_1(system):
    (system / "proc" / "self" / "cgroup").write_text("9:name=systemd:/\n4:memory:/docker/seen/from/outside\n0::/\n")
    limit(system / "cgroup" / "memory", VERSION_1, 700, 200, 100)
    assert usable_memory(CPU) == int(0.6 * 600)
