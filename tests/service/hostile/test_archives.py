"""Archives that are cut, changed or made by an enemy: refused with a sentence before anything is written. And what jobs leave to a backup."""

import gzip
import hashlib
import io
import json
import os
import resource
import tarfile
import zlib

import pytest

from pipelines.core.errors import CommandError
from service.cli import restore as module
from service.cli.backup import MANIFEST, BadArchive, backup
from service.cli.restore import restore
from service.jobs.job import JobRequest
from service.settings import read_settings
from service.store.store import NEWEST, open_store
from service.store.tables import metadata, projects
from tests.service.databases import fresh_postgresql, missing
from tests.words import words_of


@pytest.fixture(autouse=True)
def _stages_in_the_home(monkeypatch):
    monkeypatch.delenv("FINERY_HOME", raising=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small, right archive."""
    folder = tmp_path_factory.mktemp("whole")
    home = folder / "home"
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("FINERY_HOME", raising=False)
        store = open_store(read_settings({}, home=home))
        store.submit(JobRequest("name: x\n", "p"))
        (home / "web.key").write_bytes(b"k" * 3000)
        (home / "secrets" / "p").mkdir(parents=True)
        (home / "secrets" / "p" / "HF_TOKEN").write_text("hf_x")
        store.close()
        assert backup(folder / "b.tar", home, None, True, True, True) == 0
    return (folder / "b.tar").read_bytes()


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Restores these bytes, and checks that it is refused without a file, a folder or a row written."""

    def never(*_, **__):
        raise AssertionError("something was written before the archive was refused")

    def check(content, match, late=False):
        path = tmp_path / "evil.tar"
        path.write_bytes(content)
        before = sorted(str(each) for each in tmp_path.rglob("*"))
        with monkeypatch.context() as patched:
            if not late:
                patched.setattr(module, "_extract", never)
                patched.setattr(module, "_fill", never)
            with pytest.raises(CommandError, match=match):
                restore(path, tmp_path / "new", None, True)
        assert sorted(str(each) for each in tmp_path.rglob("*")) == before
        assert not os.path.lexists("/tmp/finery-escaped")

    return check


def entries(content):
    """{name: bytes} of an archive of ours."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def archive(members, manifest=None, kinds=None):
    """A tar of these, with a manifest that fits it unless one is given."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.type = (kinds or {}).get(name, tarfile.REGTYPE)
            made.addfile(info, io.BytesIO(content))
        if manifest is not None:
            text = json.dumps(manifest).encode()
            info = tarfile.TarInfo(MANIFEST)
            info.size = len(text)
            made.addfile(info, io.BytesIO(text))
    return output.getvalue()


def fitting(members, **changes):
    """A manifest for these members."""
    listed = [
        {"path": name, "member": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
    ]
    return {
        "format": 1,
        "finery": "1",
        "schema": NEWEST,
        "database": "sqlite",
        "made": "now",
        "home": "/srv/finery",
        "members": listed,
        **changes,
    }


def own(whole):
    members = entries(whole)
    members.pop(MANIFEST)
    return members


def test_the_archive_itself_is_right(whole, tmp_path):
    (tmp_path / "evil.tar").write_bytes(archive(own(whole), fitting(own(whole))))
    assert restore(tmp_path / "evil.tar", tmp_path / "new", None, True) == 0


@pytest.mark.parametrize("part", [0, 1, 511, 512, 1000, 0.3, 0.6, 0.9, 0.99])
def test_one_that_is_cut_is_refused(whole, refused, part):
    size = part if isinstance(part, int) else int(len(whole) * part)
    refused(whole[:size], "not whole|damaged")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
def test_a_packed_one_that_is_cut_or_changed_is_refused(whole, refused, part):
    packed = gzip.compress(whole, 1)
    at = int(len(packed) * part)
    refused(packed[:at], "damaged|not whole")
    while is_packed_so(changed := packed[:at] + bytes([packed[at] ^ 1]) + packed[at + 1 :], whole):
        at += 1  # among zeros another place to copy them from is the same archive
    refused(changed, "damaged|not whole|checksum|manifest")


def is_packed_so(packed, whole):
    try:
        return gzip.decompress(packed) == whole
    except (OSError, EOFError, zlib.error):
        return False


def test_every_changed_byte_of_a_content_is_noticed(whole, refused):
    for needle in (b"hf_x", b"k" * 100, b"SQLite format 3"):
        at = whole.index(needle)
        refused(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], "checksum")


@pytest.mark.parametrize(
    "path",
    [
        *words_of(
            "/tmp/finery-escaped ../finery-escaped home/../../finery-escaped home/files/../../../finery-escaped "
            "home//tmp/finery-escaped home/files/./x home/files/ home"
        ),
        "",
        ".",
        "home/finery.db",
        "home/serve.lock",
        "home/.bashrc",
        "home/hub/p/x",
        "home/files",
        "database/../x",
        "database/a/b",
        "home/files/a\nb",
        "home/files/a\u202eb",
        "home/files/a\\..\\b",
        "home/files/a\x00b",
        "home/secrets/" + "x/" * 2100 + "y",
        "other/x",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(whole, refused, path):
    members = own(whole)
    manifest = fitting(members)
    manifest["members"].append(
        {"path": path, "member": "plain", "bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    )
    refused(archive({**members, "plain": b"x"}, manifest), "no place of a backup|manifest cannot be read")


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.GNUTYPE_SPARSE,
        tarfile.CONTTYPE,
    ],
)
def test_links_devices_folders_and_extended_headers_are_refused(whole, refused, kind):
    info = tarfile.TarInfo("home/files/p/x")
    info.type, info.linkname = kind, "/etc/passwd"
    refused(info.tobuf(tarfile.USTAR_FORMAT) + whole, "no regular file")


def test_a_header_that_announces_gigabytes_is_refused_before_they_are_read(whole, refused):
    """An extended header is read into memory by most readers of tar; a file that is larger than the disk fills it."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 7 << 30
    refused(info.tobuf(tarfile.USTAR_FORMAT) + whole, "no regular file")
    info = tarfile.TarInfo("home/files/p/x")
    info.size = 1 << 60
    refused(info.tobuf(tarfile.GNU_FORMAT) + whole, "needs more than the")
    info = tarfile.TarInfo(MANIFEST)
    info.size = 7 << 30
    refused(info.tobuf(tarfile.USTAR_FORMAT) + whole, "manifest has 7516192768 bytes")


def test_a_bomb_of_zeros_takes_no_memory(refused, monkeypatch):
    """A gigabyte behind a megabyte of gzip, under a limit of memory: read piece by piece, refused for the disk."""
    info = tarfile.TarInfo("home/files/p/x")
    info.size = 1 << 30
    output = io.BytesIO()
    with gzip.GzipFile(fileobj=output, mode="wb", compresslevel=1) as packed:
        packed.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(64):
            packed.write(bytes(1 << 20))
    monkeypatch.setattr(
        module.shutil, "disk_usage", lambda _: os.terminal_size((0, 0)) and type("Disk", (), {"free": 1 << 40})
    )
    now = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024  # noqa: SIM115
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), before[1]))
    try:
        refused(output.getvalue(), "damaged|not whole")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda m: m.update(format=2), "format 2"),
        (lambda m: m.update(format="x"), "cannot be read"),
        (lambda m: m.update(members=[]), "does not hold what its manifest lists"),
        (lambda m: m["members"].append(m["members"][0]), "does not hold what its manifest lists"),
        (
            lambda m: m["members"].append({"path": "home/files/p/x", "same_as": "home/files/p/none"}),
            "before what it is a copy of",
        ),
        (
            lambda m: m["members"].append({"path": "home/files/p/x", "same_as": "/etc/passwd"}),
            "before what it is a copy of",
        ),
        (lambda m: m["members"].append({"path": "home/web.key", "same_as": "home/web.key"}), "twice"),
        (
            lambda m: m["members"].append({"path": "home/secrets/p/HF_TOKEN/x", "same_as": "home/web.key"}),
            "as a file and as a folder",
        ),
        (lambda m: m.update(links=[{"path": "home/jobs/j/x", "to": "home/../../etc"}]), "no place of a backup"),
        (lambda m: m.update(links=[{"path": "home/jobs/j/x", "to": "/etc/passwd"}]), "no place of a backup"),
        (lambda m: m.update(links=[{"path": "home/jobs/j/x", "to": "home/secrets/p"}]), "would not make"),
        (
            lambda m: m.update(links=[{"path": "home/files/p", "to": "home/jobs/j"}]),
            "no place of a backup|would not make",
        ),
        (
            lambda m: m.update(links=[{"path": "home/secrets/p", "to": "home/jobs/j"}]),
            "no place of a backup|would not make",
        ),
        (lambda m: m.update(database="mysql"), "cannot be read"),
        (lambda m: m.update(schema="../x"), "cannot be read"),
        (lambda m: m.update(more=1), "cannot be read"),
    ],
)
def test_a_manifest_that_finery_would_not_write_is_refused(whole, refused, change, match):
    manifest = fitting(own(whole))
    change(manifest)
    refused(archive(own(whole), manifest), match)


def test_a_file_below_a_link_is_refused(whole, refused):
    """A link first and a file through it next: the old way out of every unpacker."""
    members = {**own(whole), "home/jobs/j/out/x": b"x"}
    refused(
        archive(members, fitting(members, links=[{"path": "home/jobs/j/out", "to": "home/cache/stages"}])),
        "as a file and as a folder",
    )


@pytest.mark.parametrize("text", [b"[" * 200_000, b"{}", b"null", b"\xff\xfe", b'{"format": 1e999}', b""])
def test_a_manifest_that_is_no_manifest_is_refused(whole, refused, text):
    refused(archive({**own(whole), MANIFEST: text}), "cannot be read")


def test_what_stands_twice_or_after_the_manifest_is_refused(whole, refused):
    members = own(whole)
    good = archive(members, fitting(members))
    end = good.index(MANIFEST.encode())
    refused(good[:512] + good, "twice|damaged|not whole|does not hold")
    stripped = good.rstrip(b"\0")
    stripped += b"\0" * (-len(stripped) % 512)
    extra = tarfile.TarInfo("home/files/p/x").tobuf(tarfile.USTAR_FORMAT)
    refused(stripped + extra + bytes(1024), "after its manifest")
    assert end > 0


def test_a_schema_of_a_later_version_and_a_database_that_is_none_leave_nothing(whole, refused):
    members = own(whole)
    refused(archive(members, fitting(members, schema="9999")), "knows up to")
    refused(archive(members, fitting(members, schema="0001")), "its manifest says 0001", late=True)
    broken = {**members, "database/finery.db": b"no database at all" * 100}
    refused(archive(broken, fitting(broken)), "damaged|could not be restored|no service", late=True)
    without = {name: content for name, content in members.items() if not name.startswith("database/")}
    refused(archive(without, fitting(without)), "holds no database")


def test_rows_that_fit_no_table_leave_nothing_in_either_database(whole, refused, tmp_path):
    rows = {f"database/{table.name}.jsonl": b"" for table in metadata.sorted_tables}
    for name, content, match in (
        ("database/alembic_version.jsonl", b"{}\n", "a table that"),
        ("database/tokens.jsonl", b'{"id": "x"}\n', "other columns"),
        (
            "database/projects.jsonl",
            json.dumps({column.name: None for column in projects.columns} | {"name": "x", "settings": {}}).encode()
            + b"\n",
            "could not be restored",
        ),
    ):
        members = {**rows, name: content}
        refused(archive(members, fitting(members, database="postgresql")), match, late=True)
    if missing():
        pytest.skip(missing())
    with fresh_postgresql() as url:
        members = {**rows, "database/tokens.jsonl": b'{"id": "x"}\n'}
        (tmp_path / "evil.tar").write_bytes(archive(members, fitting(members, database="postgresql")))
        with pytest.raises(CommandError, match="other columns"):
            restore(tmp_path / "evil.tar", tmp_path / "new", url, True)
        assert not (tmp_path / "new").exists()
        import psycopg

        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_an_archive_that_changes_between_the_two_readings_is_refused(whole, tmp_path, monkeypatch):
    path = tmp_path / "evil.tar"
    path.write_bytes(whole)
    real = module.examine

    def exchanged(archive_path, home):
        manifest = real(archive_path, home)
        at = whole.index(b"hf_x")
        path.write_bytes(whole[:at] + b"hf_y" + whole[at + 4 :])
        return manifest

    monkeypatch.setattr(module, "examine", exchanged)
    with pytest.raises(BadArchive, match="changed while it was read"):
        restore(path, tmp_path / "new", None, True)
    assert not (tmp_path / "new").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["evil.tar"]


# What a tenant's job leaves in its folder


@pytest.fixture
def job(tmp_path):
    """A service with one job; (home, the job's run folder)."""
    store = open_store(read_settings({}, home=tmp_path / "home"))
    submitted = store.submit(JobRequest("name: x\n", "p"))[0]
    store.close()
    run = tmp_path / "home" / "jobs" / submitted.id / "runs" / "x"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("name: x\n")
    (tmp_path / "home" / "admin.token").write_text("fin_the_admins")
    return tmp_path / "home", run


def kept(tmp_path, capsys):
    assert backup(tmp_path / "b.tar", tmp_path / "home", None, True, True, True) == 0
    told = json.loads(capsys.readouterr().out)
    (tmp_path / "home").rename(tmp_path / "lost")
    assert restore(tmp_path / "b.tar", tmp_path / "home", None, True) == 0
    return told, entries((tmp_path / "b.tar").read_bytes())


def test_links_pipes_sockets_and_holes_of_a_job_do_not_stop_or_leak_into_a_backup(job, tmp_path, capsys):
    home, run = job
    (run / "token").symlink_to(home / "admin.token")
    (run / "passwd").symlink_to("/etc/passwd")
    (run / "everything").symlink_to("/")
    os.mkfifo(run / "pipe")
    with open(run / "holes.bin", "wb") as file:
        file.truncate(1 << 42)
    told, members = kept(tmp_path, capsys)
    assert [
        name for name, content in members.items() if b"fin_the_admins" in content and name != "home/admin.token"
    ] == []
    assert b"root:" not in b"".join(content for name, content in members.items() if name.startswith("home/jobs/"))
    assert [sentence for sentence in told["left_out"] if "holes" in sentence]
    assert sorted(path.name for path in run.iterdir()) == ["recipe.yaml"]


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\\b", "\u202ea", b"\xff\xfe", "long" * 60])
def test_no_name_of_a_jobs_file_makes_an_archive_that_cannot_be_restored(job, tmp_path, capsys, name):
    _, run = job
    with open(os.path.join(os.fsencode(run), name if isinstance(name, bytes) else name.encode()), "wb") as file:
        file.write(b"x")
    told, _ = kept(tmp_path, capsys)
    assert (run / "recipe.yaml").is_file()
    assert (len(told["left_out"]) == 1) == (name != "long" * 60)


def test_a_folder_that_becomes_a_link_while_it_is_read_is_not_followed(job, tmp_path, capsys, monkeypatch):
    """The job exchanges a folder for a link to the server's secrets, after it was listed and before it is read."""
    from service.cli import backup as writing

    home, run = job
    (home / "secrets" / "other").mkdir(parents=True)
    (home / "secrets" / "other" / "HF_TOKEN").write_text("hf_of_another_project")
    (run / "out").mkdir()
    (run / "out" / "HF_TOKEN").write_text("mine")
    real = writing.ArchiveWriter._take

    def exchanged(self, path, below):
        if path == run / "out" / "HF_TOKEN":
            path.unlink()
            path.parent.rmdir()
            path.parent.symlink_to(home / "secrets" / "other")
        return real(self, path, below)

    monkeypatch.setattr(writing.ArchiveWriter, "_take", exchanged)
    _, members = kept(tmp_path, capsys)
    assert [name for name, content in members.items() if b"hf_of_another_project" in content] == [
        "home/secrets/other/HF_TOKEN"
    ]


def test_a_job_with_too_many_files_does_not_stop_a_backup(job, tmp_path, capsys, monkeypatch):
    from service.cli import backup as writing

    monkeypatch.setattr(writing, "MOST_OF_A_JOB", 10)
    _, run = job
    for number in range(50):
        (run / f"{number}.txt").write_text("x")
    told, members = kept(tmp_path, capsys)
    assert len([name for name in members if "/jobs/" in name]) == 10
    assert "only the newest 10 of 51 files" in told["left_out"][0]
