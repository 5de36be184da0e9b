"""The server in a process of its own: who may talk to it, what it serves, and what happens when something breaks."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tagspread.review.answers import AnswerStore, answers_file
from tests.review.conftest import TAGS, Server, make_run


@pytest.fixture
def server(run, serve):
    return serve(run)


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """A server that several tests use, and its run: none of them changes anything."""
    top = tmp_path_factory.mktemp("standing")
    make_run(top / "run", top / "images", 10)
    server = Server(top / "run", "--port", "0")
    yield server, top / "run"
    server.stop()


def answer(k=0, tag="cat", value="yes", batch="batch-0001"):
    return {"batch": batch, "answers": [{"image": k, "tag": tag, "answer": value}]}


def kept(run):
    with AnswerStore.open(run) as store:
        return store.history()


def test_answers_are_on_the_disk_before_the_reply(server, run):
    status, reply = server.post("api/answers", **answer(), visited=[0])
    assert (status, reply["new"]) == (200, True)
    server.kill()
    [one] = kept(run)
    assert (one.tag, one.answer, one.who, one.image) == ("cat", "yes", "ann", "a/p00000.png")


def test_a_step_that_is_sent_again_after_a_crash_is_kept_once(server, run, serve):
    server.post("api/answers", **answer())
    server.kill()
    again = serve(run)
    status, reply = again.post("api/answers", **answer())
    assert (status, reply["new"]) == (200, False)
    assert len(kept(run)) == 1


def test_images_are_served_by_number_and_reencoded(server, run, index):
    status, headers, content = server.request("GET", "image/3/large")
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(content)).size == (48, 36)
    for path in ("image/48/large", "image/-1/large", "image/../large", "image/3/../../x", "image/a%2Fp00000.png/large"):
        assert server.request("GET", path)[0] in (400, 404, 422), path
    index.path(3).unlink()
    status, reply = server.get("image/3/small")
    assert status == 404
    assert reply["message"].startswith("p00003.png cannot be shown: no such file")
    index.path(4).write_bytes(index.path(5).read_bytes())
    assert "was changed after training" in server.get("image/4/small")[1]["message"]
    assert server.post("api/answers", **answer(3))[0] == 200  # answers to a deleted image are still kept


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),  # a page in another tab
        ({"Origin": "null"}, 403),  # a sandboxed frame
        ({"Origin": None}, 403),
        ({"Host": "evil.example"}, 421),  # a name that was pointed at this machine
        ({"Host": "evil.example:80", "Origin": "http://evil.example:80"}, 421),
        ({"Content_Type": "text/plain"}, 415),  # what a form can send without asking
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_requests_of_other_pages_change_nothing(standing, headers, status):
    server, run = standing
    body = {"page": "page-0001", "who": "ann"} | answer()
    assert server.request("POST", "api/answers", body, **headers)[0] == status
    assert kept(run) == []


def test_the_token_is_needed_everywhere(standing):
    server, run = standing
    body = {"page": "page-0001", "who": "ann"} | answer()
    for path in ("/", "/api/overview", "/image/0/large", "/assets/page.js", "/x/", "/x/image/0/large"):
        assert server.request("GET", path)[0] == 403, path
    assert server.request("POST", "/api/answers", body)[0] == 403
    assert kept(run) == []


def test_get_changes_nothing_and_other_methods_are_refused(standing):
    server, _ = standing
    for path in ("api/answers", "api/undo", "api/tags", "api/next", "api/release", "api/hold", "api/grid"):
        assert server.request("GET", path)[0] == 405, path
    assert server.request("PUT", "api/answers", {})[0] == 405
    assert server.request("OPTIONS", "api/answers")[0] == 405


def test_the_page_may_load_nothing_from_elsewhere_and_runs_no_inline_script(standing):
    server, _ = standing
    status, headers, content = server.request("GET", "")
    policy = headers["content-security-policy"]
    assert status == 200
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["referrer-policy"] == "no-referrer"
    text = content.decode()
    assert "http" not in text
    assert " style=" not in text
    for name in ("style.css", "page.js", "outbox.js", "icon.svg"):
        assert server.request("GET", f"assets/{name}")[0] == 200
    assert server.request("GET", "assets/index.html")[0] == 404
    assert server.request("GET", "assets/..%2Fapp.py")[0] == 404


def test_damaged_requests_get_one_message(standing):
    server, run = standing
    for body in ({}, {"batch": "b"}, answer(value="maybe"), {"batch": "batch-0001", "answers": "x"}):
        status, reply = server.post("api/answers", **body)
        assert status in (400, 422), body
        assert isinstance(reply["message"], str)
    status, reply = server.post("api/answers", **answer(tag="lynx"))
    assert (status, reply["message"]) == (400, "there is no tag 'lynx'; add it first.")
    assert kept(run) == []


def test_a_second_server_of_the_same_run_is_refused(server, run):
    command = [sys.executable, "-m", "tagspread", "review", str(run), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert "is being reviewed by process" in ended.stderr
    assert "open the address that it printed" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert server.get("api/overview")[0] == 200


def test_a_run_without_its_images_is_refused(run, index):
    for k in range(40):
        index.path(k).unlink()
    ended = subprocess.run(
        [sys.executable, "-m", "tagspread", "review", str(run)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 2
    assert "none of the 40 unlabeled images" in ended.stderr
    assert "--images DIR" in ended.stderr


def test_another_machine_may_only_connect_after_a_warning(run, serve):
    server = serve(run, "--host", "0.0.0.0")
    assert "warning: other machines" in server.said
    assert server.request("GET", "api/overview", Host=f"10.0.0.7:{server.port}")[0] == 200
    assert server.request("GET", "api/overview", Host="evil.example")[0] == 421


def test_the_server_stays_small(server):
    for k in range(40):
        server.request("GET", f"image/{k}/large")
    assert server.memory() < 300
    assert "libtorch" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_two_people_answer_at_the_same_time(server, run):
    seen = {}
    for page in ("page-0001", "page-0002"):
        _, reply = server.post("api/next", page=page, who=page, count=10)
        seen[page] = [item["image"] for item in reply["items"]]
        for k in seen[page]:
            given = [{"image": k, "tag": tag, "answer": "yes"} for tag in TAGS]
            server.post("api/answers", page=page, who=page, batch=f"batch-{page}-{k}", answers=given, visited=[k])
    assert not set(seen["page-0001"]) & set(seen["page-0002"])
    assert len(kept(run)) == 20 * len(TAGS)
    assert answers_file(run).is_file()
