"""The files that `deploy/release` makes, and the wheel, installed as operators do."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import stackmgr
from tests.support.processes import completed
from tests.support.programs import executable, git
from tests.support.releases import DATA, ROOT, copy_source

INSTALLED = ("stackmgr-9-py3-none-any.whl", "stackmgr-9-requirements.txt")


def tree(folder: str) -> set[str]:
    files = filter(Path.is_file, (ROOT / folder).rglob("*"))
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


def run(*command: str | Path, **options) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def head(checkout: Path, revision: str = "HEAD") -> str:
    return git(checkout, "rev-parse", "--short", revision).strip()


def committed(checkout: Path) -> Path:
    copy_source(checkout)
    (checkout / ".gitignore").write_text(".venv\n")
    changelog = checkout / "CHANGELOG.md"
    heading = f"## {stackmgr.__version__} - "
    text = re.sub(f"^{heading}.*$", f"{heading}2026-01-31", changelog.read_text(), flags=re.MULTILINE)
    changelog.write_text(text)
    git(checkout, "init", "--quiet")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "measured", "--date", "2026-01-31T12:00:00Z")
    figures = f"Fast, at commit `{head(checkout)}`."
    for path, line in (("README.md", figures), ("stackmgr/limits.py", "#"), ("sql/README.md", "")):
        with (checkout / path).open("a") as file:
            file.write(f"{line}\n")
        git(checkout, "commit", "--quiet", "--all", "--message", path)
    return checkout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text("[grep]\nlineNumber = true\n[color]\nui = always\n")
    checkout = committed(tmp_path_factory.mktemp("source") / "checkout")
    environ = os.environ | {"PYTHON": sys.executable, "HOME": str(home)}
    command = (checkout / "deploy" / "release", "--without-image", "--tag", f"v{stackmgr.__version__}")
    run("/bin/sh", "-c", 'umask 077; exec "$@"', "sh", *command, env=environ)
    return checkout / "dist"


def test_a_release_has_every_part_with_its_checksum(distributions):
    name = f"stackmgr-{stackmgr.__version__}"
    ends = ("-py3-none-any.whl", ".tar.gz", "-requirements.txt", ".cdx.json", "-reference.tar.gz")
    parts = {*(f"{name}{end}" for end in ends), "install", "NOTES.md"}
    assert {path.name for path in distributions.iterdir()} == {*parts, "SHA256SUMS"}
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=distributions)
    assert {line.split()[1] for line in (distributions / "SHA256SUMS").read_text().splitlines()} == parts
    with tarfile.open(distributions / f"{name}-reference.tar.gz") as archive:
        assert f"{name}-reference/index.html" in archive.getnames()
    notes = (distributions / "NOTES.md").read_text()
    assert "### Added" in notes
    assert "## 1.0.0" not in notes
    measured = head(distributions.parent, "HEAD~3")
    figures = f"README.md has figures of commit {measured}; 2 later commit(s) changed the service."
    assert f"\n- {figures}\n" in notes
    assert notes.endswith("no container image.\n")


def test_release_has_the_files_of_the_commit_and_its_wheel_the_package_and_data(distributions):
    committed_at = int(git(distributions.parent, "log", "-1", "--format=%ct"))
    for path in distributions.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            members = archive.getmembers()
        assert {member.mtime for member in members} == {committed_at}, path
        assert {member.mode & 0o066 for member in members} == {0o044}, path
        if "reference" not in path.name:
            packed = {member.name.partition("/")[2] for member in members if member.isfile()}
            assert packed == set(git(distributions.parent, "ls-files").splitlines())
    stamp = time.gmtime(committed_at)[:6]
    [wheel] = distributions.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == tree("stackmgr") | {f"stackmgr/{path}" for folder in DATA for path in tree(folder)}
    assert packed >= {"stackmgr/py.typed", "stackmgr/tokens.json", "stackmgr/deploy/gunicorn.conf.py"}
    entries = zipfile.ZipFile(wheel).infolist()
    assert {entry.external_attr >> 16 & 0o044 for entry in entries} == {0o044}
    assert {entry.date_time for entry in entries} == {(*stamp[:5], stamp[5] // 2 * 2)}


def undated(checkout: Path) -> None:
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(" - 2026-01-31", " - unreleased"))
    git(checkout, "commit", "--quiet", "--all", "--message", "not dated")


@pytest.mark.parametrize(("mistake", "arguments", "message"), [
    (lambda checkout: (checkout / "stackmgr" / "new.py").touch(), [], "not committed"),
    (undated, [], "no dated section"),
    (lambda _: None, ["--tag", "v9.9.9"], "tag 'v9.9.9'"),
], ids=["uncommitted", "undated", "tag"])  # fmt: skip
def test_no_release_is_made_of_what_is_not_ready(tmp_path, mistake, arguments, message):
    mistake(checkout := committed(tmp_path))
    ended = completed([checkout / "deploy" / "release", "--without-image", *arguments])
    assert (ended.returncode, message in ended.stderr) == (1, True), ended.stderr
    assert not (checkout / "dist").exists()


@pytest.mark.parametrize("way", ["not that of the release: fetch it again", "SHA256SUMS does not have both"])
@pytest.mark.parametrize("file", INSTALLED)
def test_a_damaged_file_is_not_installed(tmp_path, file, way):
    for name in INSTALLED:
        (tmp_path / name).write_text("intact")
    sums = run("sha256sum", *INSTALLED, cwd=tmp_path).splitlines(keepends=True)
    kept = [line for line in sums if file not in line or "not that" in way]
    (tmp_path / "SHA256SUMS").write_text("".join(kept))
    if "not that" in way:
        (tmp_path / file).write_text("damaged")
    environ = os.environ | {"PYTHON": "false"}  # nothing would be installed without the check either
    ended = completed(["/bin/sh", ROOT / "deploy" / "install", "9"], cwd=tmp_path, env=environ)
    assert (ended.returncode, way in ended.stderr) == (1, True)


PYTHON = """#!/bin/sh
case $* in
    *version_info*) ;;
    "-I -m venv "*)
        mkdir -p "$4/bin" "$4/lib/python3.11/site-packages/stackmgr/deploy"
        cp "$0" "$4/bin/python" ;;
    *) { umask; shift 3; echo "${0#FOLDER/} $*"; } >>FOLDER/log ;;
esac
"""


def test_a_release_is_installed_beside_the_active_one(tmp_path):
    """Twice, since an interrupted run is repeated; another release then changes nothing of the active one."""
    script = (ROOT / "deploy" / "install").read_text().replace("/opt/stackmgr", str(tmp_path))
    (tmp_path / "install").write_text(script)
    (tmp_path / "bootstrap.sh").write_text((ROOT / "deploy" / "bootstrap.sh").read_text())
    python = executable(tmp_path / "python", PYTHON.replace("FOLDER", str(tmp_path)))
    environ = {"PYTHON": str(python), "PATH": os.defpath}

    def install(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", "-c", 'umask 077; exec "$@"', "sh", "/bin/sh", tmp_path / "install", *arguments]
        return completed(command, cwd=tmp_path, env=environ)

    for release in ("8", "8", "9"):
        if release == "9":  # the link stays, even where it leads nowhere
            shutil.rmtree(tmp_path / "8")
        names = (f"stackmgr-{release}-py3-none-any.whl", f"stackmgr-{release}-requirements.txt")
        for name in names:
            (tmp_path / name).write_text(release)
        (tmp_path / "SHA256SUMS").write_text(run("sha256sum", *names, cwd=tmp_path))
        (tmp_path / "log").write_text("")
        ended = install(release)
        said = f"installed {tmp_path}/{release}; the active release is 8\n"
        assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
        pip = f"0022\n{release}/bin/python install --quiet"
        said = f"{pip} --require-hashes --requirement {names[1]}\n{pip} --no-deps {names[0]}\n"
        assert (tmp_path / "log").read_text() == said
        link = tmp_path / release / "deploy"
        assert str(link.readlink()) == f"{tmp_path}/{release}/lib/python3.11/site-packages/stackmgr/deploy"
        assert list(link.iterdir()) == []
    assert str((tmp_path / "current").readlink()) == "8"
    for arguments in ((), ("8", "9")):
        assert "which release?" in install(*arguments).stderr
    python.write_text("#!/bin/sh\nexit 1\n")
    assert "Python 3.11 or newer is required" in install("9").stderr


def test_what_an_earlier_build_left_is_in_no_wheel(tmp_path, monkeypatch):
    backend = runpy.run_path(str(ROOT / "deploy" / "build_backend.py"))
    monkeypatch.chdir(tmp_path)
    for name in ("lib", "lib.linux", "bdist.linux", "other"):
        (tmp_path / "build" / name).mkdir(parents=True)
    monkeypatch.setattr(backend["build_meta"], "build_wheel", lambda *given: given)
    assert backend["build_wheel"]("to", {"a": "b"}, "metadata") == ("to", {"a": "b"}, "metadata")
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["other"]
