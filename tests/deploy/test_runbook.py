"""The runbook's installation and upgrade commands, run as printed in the folder of two releases."""

import os
import re
import shutil
import signal
import sys
from pathlib import Path

import stackmgr
from stackmgr import paths
from tests.deploy.runbook import block
from tests.deploy.units import DEPLOY
from tests.support.clusters import new_database
from tests.support.processes import completed
from tests.support.releases import copy_source
from tests.support.server import free_port, running, send_request, workers_replaced


def command(folder: Path, text: str) -> str:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.defpath}"}
    ended = completed(["/bin/sh", "-c", text], cwd=folder, env=environ)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


class Host:
    """A host whose /opt/stackmgr and /etc/stackmgr are below *folder*."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        (folder / "etc").mkdir()
        (folder / "etc" / "operator.env").write_text(f"STACKMGR_DATABASE_URL='{database_url}'\n")
        # The secret of the service is in a file; the operator's commands find one in their environment.
        (folder / "etc" / "stackmgr.env").write_text(
            f"STACKMGR_DATABASE_URL_FILE='{folder}/etc/url'\nSTACKMGR_TOKENS='{paths.default_whitelist()}'\n"
        )
        (folder / "etc" / "url").write_text(database_url)

        for version in ("1.0.0", "1.1.0"):
            self._make_release(version)
        script = (DEPLOY / "install").read_text().replace("/opt/stackmgr", f"{folder}/opt")
        shutil.copy(DEPLOY / "bootstrap.sh", folder / "release")
        (folder / "release" / "install").write_text(script)
        (folder / "release" / "SHA256SUMS").write_text(command(folder / "release", "sha256sum *"))

    def _make_release(self, version: str) -> None:
        """Make what an installation needs of a release of this source with another version."""
        source, release = copy_source(self.folder / "source"), self.folder / "release"
        module = source / "stackmgr" / "__init__.py"
        module.write_text(module.read_text().replace(stackmgr.__version__, version))
        wheel = "-m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation"
        command(source, f"'{sys.executable}' {wheel} -w '{release}' .")
        locked = release / f"stackmgr-{version}-requirements.txt"
        shutil.copy(DEPLOY / "locks" / "runtime.txt", locked)
        shutil.rmtree(source)

    def sh(self, commands: str, *, master: int | None = None) -> str:
        """Run commands of the runbook in the folder with the files of the releases."""
        reload = f"systemctl() {{ [ \"$*\" = 'reload stackmgr' ] && kill -s HUP {master}; }}"
        text = f"set -eu\n{block('Runbook', 'stackmgr() {')}\n{reload}\n{commands}"
        text = text.replace("/opt/stackmgr", f"{self.folder}/opt").replace(
            "/etc/stackmgr", f"{self.folder}/etc"
        )
        return command(self.folder / "release", text)

    def service(self, database_url: str, admin_port: int):
        """Start what stackmgr.service starts."""
        [command] = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "stackmgr.service").read_text(), re.MULTILINE)
        gunicorn = command.replace("/opt/stackmgr", f"{self.folder}/opt").split()
        env = {"STACKMGR_DATABASE_URL": database_url, "STACKMGR_ADMIN_BIND": f"127.0.0.1:{admin_port}"}
        return running(gunicorn, env=env, folder=self.folder)


def test_runbook_installs_and_upgrades(server_url, tmp_path):
    with new_database(server_url) as url:
        host = Host(tmp_path, url)
        assert host.sh(block("Installation", "sh install")).endswith("the active release is 1.0.0\n")
        assert "the schema is up to date" in host.sh(
            block("Installation", "stackmgr migrate").splitlines()[0]
        )
        admin_port = free_port()
        wait = block("Upgrade", "timeout 180").replace("9108", str(admin_port))
        with host.service(url, admin_port) as service:
            with workers_replaced(service.pid):
                os.kill(service.pid, signal.SIGHUP)
            assert send_request(service.port, "/")[0] == 404
            with workers_replaced(service.pid):
                steps = block("Upgrade", "sh install") + block("Upgrade", "systemctl reload") + wait
                upgrade = host.sh(steps, master=service.pid)
            assert "opt/1.1.0; the active release is 1.0.0\n" in upgrade
            assert upgrade.endswith('{"status": "ready"}'), upgrade
            rejected = host.sh("V=1.2.0\n" + wait.replace("180", "3"))
            assert rejected == "not upgraded: set the link back\n"
            assert send_request(service.port, "/")[0] == 404
            assert service.stop() == 0
        assert (tmp_path / "opt" / "current").readlink() == Path("1.1.0")
        with (tmp_path / "release" / "stackmgr-1.0.0-requirements.txt").open("a") as changed:
            changed.write("\n")
        assert "not that of the release" in host.sh("sh install 1.0.0 2>&1 || :")
        with host.service(url, admin_port) as service:
            assert send_request(service.port, "/")[0] == 404
