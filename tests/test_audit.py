"""The audit of the pins: a finding fails, one with a written reason does not, and without a network it says so."""

import json
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("pip_audit")
AUDIT = Path(__file__).resolve().parents[1] / ".ci" / "audit.py"
KNOWN = {
    "id": "PYSEC-2026-1",
    "aliases": ["CVE-2026-1"],
    "summary": "a hole",
    "details": "a hole",
    "published": "2026-01-01T00:00:00Z",
    "affected": [
        {
            "package": {"name": "holed", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.2"}]}],
            "versions": ["1.0"],
        }
    ],
}


@contextmanager
def database():
    """The database's API over real HTTP; yields its address and what it was asked."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(question["package"]["name"])
            body = json.dumps({"vulns": [KNOWN]} if question["package"]["name"] == "holed" else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/query", asked
    finally:
        server.shutdown()
        server.server_close()


def audited(folder, pins, url, ignored=""):
    """(exit code, what was printed, what went to the error output) of the script beside a list of its own."""
    folder = folder / ".ci"
    folder.mkdir(exist_ok=True)
    (folder / "audit.py").write_bytes(AUDIT.read_bytes())
    (folder / "audit-ignore.txt").write_text(ignored)
    (folder.parent / "constraints.txt").write_text(pins)
    done = subprocess.run(
        [sys.executable, str(folder / "audit.py")],
        capture_output=True,
        text=True,
        check=False,
        env={"FINERY_OSV_URL": url, "PATH": "/usr/bin:/bin", "HOME": str(folder), "no_proxy": "*"},
    )
    return done.returncode, done.stdout, done.stderr


def test_a_finding_fails_unless_a_reason_is_written_down(tmp_path):
    with database() as (url, asked):
        code, said, errors = audited(tmp_path, "# pins\nfine==2.0\nholed==1.0\n", url)
        assert code == 1
        assert sorted(asked) == ["fine", "holed"]
        assert "holed 1.0 has PYSEC-2026-1, CVE-2026-1: fixed in 1.2" in errors
        assert "2 packages, 1 findings, 0 ignored" in said
        reasoned = "# why\nPYSEC-2026-1 only its server is concerned, which is not used\n"
        code, said, errors = audited(tmp_path, "fine==2.0\nholed==1.0\n", url, reasoned)
        assert (code, errors) == (0, "")
        assert "0 findings, 1 ignored" in said
        code, _, errors = audited(tmp_path, "fine==2.0\n", url, "PYSEC-2026-1\n")
        assert code == 2
        assert "audit-ignore.txt:1 ignores PYSEC-2026-1 without a reason" in errors


def test_without_a_network_it_says_so_in_one_line_and_goes_on(tmp_path):
    code, said, errors = audited(tmp_path, "fine==2.0\n", "http://127.0.0.1:9/v1/query")
    assert (code, errors) == (0, "")
    assert said.startswith("dependency audit: did not run, the database of vulnerabilities cannot be reached (")
    assert said.count("\n") == 1


def test_pins_that_cannot_be_read_fail(tmp_path):
    code, _, errors = audited(tmp_path, "no pin at all\n", "http://127.0.0.1:9/v1/query")
    assert code == 1
    assert "constraints.txt could not be audited" in errors


def test_the_list_of_this_project_has_a_reason_for_each_line():
    sys.path.insert(0, str(AUDIT.parent))
    try:
        from audit import ignored
    finally:
        sys.path.remove(str(AUDIT.parent))
    assert isinstance(ignored(AUDIT.with_name("audit-ignore.txt")), dict)
