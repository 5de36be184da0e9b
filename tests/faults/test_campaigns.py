"""A few cases of each campaign; ``make soak`` runs thousands. The first tests: the harness notices failures."""

import os
import random
import signal
import sys
import time

import pytest

from tests.faults.campaigns.harness import GOOD, MEMORY, Case, Flaw, Harness, command
from tests.faults.campaigns.soak import CAMPAIGNS, prepare, run_case, table
from tests.faults.campaigns.world import World

SEED = 20


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    top = tmp_path_factory.mktemp("campaigns")
    world = World(top / "world", Harness(top))
    prepare(world)
    return world


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path)


def _leave(code, words):
    def job():
        print(words, file=sys.stderr)  # noqa: T201
        sys.exit(code)

    return job


def _raise():
    raise KeyError("x")


def _fill_memory():
    assert len(bytearray(MEMORY + 2**27)) > MEMORY


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (lambda: None, "fine"),
        (_leave(0, "all is well"), "fine"),
        (_leave(2, "error: labels.csv is empty."), "refused"),
        (_leave(2, "error: one\nerror: two"), "traceback"),
        (_leave(2, "no message"), "traceback"),
        (_leave(1, "error: labels.csv is empty."), "traceback"),
        (_leave(0, "x.py:3: RuntimeWarning: overflow"), "traceback"),
        (_leave(0, "Exception ignored in: <function>"), "traceback"),
        (_raise, "traceback"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "traceback"),
        (lambda: os.close(1), "fine"),
        (_fill_memory, "memory"),
    ],
)
def test_verdicts(job, kind, harness):
    assert harness.run(Case("", job)).kind == kind


def test_a_hang_is_ended_and_counted(harness):
    assert harness.run(Case("", lambda: time.sleep(60), seconds=0.2)).kind == "slow"


def test_executed_code_is_noticed(harness):
    assert harness.run(Case("", lambda: harness.canary.write_text("x"))).kind == "executed"


def test_what_the_check_finds(harness):
    outcome = harness.run(Case("", lambda: None, lambda _: Flaw("lost", "labels.csv")))
    assert (outcome.kind, outcome.words) == ("lost", "labels.csv")


def test_a_signal_ends_only_cases_that_may_be_stopped(harness):
    def job():
        os.kill(os.getpid(), signal.SIGTERM)

    assert harness.run(Case("", job)).kind == "traceback"
    assert harness.run(Case("", job, stopped=True)).kind == "fine"


def test_a_command_runs_as_in_the_shell(world, tmp_path):
    job = command("check", world.images, "--labels", tmp_path / "none.csv")
    outcome = world.harness.run(Case("", job))
    assert outcome.kind == "refused"
    assert "there is no file" in outcome.words


def test_cases_depend_on_their_number_only(world, tmp_path):
    for kind in CAMPAIGNS:
        campaign, words = kind(world, SEED), set()
        for turn in range(2):
            folder = tmp_path / f"{kind.__name__}{turn}"
            folder.mkdir()
            words.add(campaign.case(random.Random("3"), folder).words)
        assert len(words) == 1, kind.name


@pytest.mark.parametrize("kind", CAMPAIGNS, ids=lambda kind: kind.name)
def test_a_few_cases(kind, world):
    campaign = kind(world, SEED)
    if hasattr(campaign, "small"):
        campaign.small = True
    for number in range(kind.quick):
        outcome, words = run_case(campaign, world.harness, SEED, number)
        slow = outcome.kind == "slow"  # of a busy machine; no test asserts a time
        assert outcome.kind in GOOD or slow, f"{kind.name}:{number} {words}: {outcome.kind}, {outcome.words}"


def test_the_table():
    lines = [{"campaign": "images", "kind": kind, "peak": 2**20 * peak} for kind, peak in (("fine", 3), ("lost", 7))]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(lines).splitlines()]
    assert dict(zip(rows[0], rows[2], strict=True)) == {
        "campaign": "images", "tried": "2", "fine": "1", "refused with one message": "0", "traceback": "0",
        "over 10 s": "0", "lost": "1", "stuck": "0", "executed": "0", "over 2 GB": "0", "largest memory": "7 MB",
    }  # fmt: skip
    assert rows[3][0] == "all"
