"""The first lines of the scripts: of a developer's or an operator's environment, little has an effect."""

import os
import re
import shlex
import shutil
import socket
import sys

import pytest

from tests.deploy.units import EXPECTED
from tests.support.processes import completed
from tests.support.programs import executable
from tests.support.releases import ROOT, copy_source

KEPT, FOREIGN, PIP = (EXPECTED[name].split() for name in ("kept", "foreign", "pip"))
# pip's settings that say where packages come from, and others.
SOURCES = {
    "index-url": "https://one.test/simple", "extra-index-url": "\nhttps://two.test/a b\nhttps://three.test",
    "find-links": "/wheels", "trusted-host": "one.test", "cert": "/ca.pem", "proxy": "http://proxy.test",
}  # fmt: skip
MESSAGES = (
    "Failed to establish a new connection", "NameResolutionError", "ConnectTimeoutError", "ProxyError",
)  # fmt: skip
SCRIPTS = ("deploy/dev", "deploy/release", "deploy/locks/renew", "tests/run", ".ci/run")


def sourced(line: str, **environ: str) -> str:
    command = ["/bin/sh", "-euc", f". deploy/bootstrap.sh; {line}"]
    ended = completed(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin"} | environ)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_only_listed_variables_remain():
    printed = sourced("env", **dict.fromkeys([*KEPT, *FOREIGN, "two\nPATH"], "x"))
    left = {line.partition("=")[0] for line in printed.splitlines()}
    git = {f"GIT_CONFIG_{name}" for name in ("GLOBAL", "SYSTEM", "COUNT", "KEY_0", "VALUE_0")}
    assert left - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "HOME", *KEPT, *git}
    assert "HOME=/\n" in printed


@pytest.mark.parametrize("section", ["global", "variables"])
def test_of_pips_settings_only_sources_remain(tmp_path, section):
    given = SOURCES | dict.fromkeys(PIP, "yes")
    lines = "".join(f"{name} = {value.replace(chr(10), chr(10) + ' ')}\n" for name, value in given.items())
    (tmp_path / "pip.conf").write_text("" if section == "variables" else f"[{section}]\n{lines}")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    if section == "variables":
        environ |= {f"PIP_{name.upper().replace('-', '_')}": value for name, value in given.items()}
    printed = sourced(f"pip_of {shlex.quote(sys.prefix)} config list", **environ)
    found = {name.removeprefix(":env:.") for name in (row.partition("=")[0] for row in printed.splitlines())}
    assert found >= SOURCES.keys()
    assert not found & {*PIP, f"{section}.user"}
    assert f":env:.index-url='{SOURCES['index-url']}'\n" in printed


def test_an_installation_is_repeated_when_what_it_follows_from_changes(tmp_path):
    copy_source(tmp_path / "one")
    given = "deploy/locks/build.txt deploy/locks/test.txt setup.cfg pyproject.toml stackmgr/__init__.py"
    changes = ["", *(f"echo >>{name}" for name in given.split()), "mv ../one ../two; cd ../two"]
    changes += ["mkdir -p .venv/lib/python3.11/site-packages/new.dist-info", ""]
    states = [sourced(f"cd '{tmp_path}'/*\n{change}\nstate test") for change in changes]
    assert len({*states}) == len(states) - 1
    assert states[-1] == states[-2]


@pytest.mark.parametrize("version", ["", "{}.{}".format(*sys.version_info), "3.99"])
def test_another_python_makes_another_environment(tmp_path, version):
    executable(tmp_path / ".venv/bin/python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    executable(tmp_path / "python", f"#!/bin/sh\necho {version}\n")
    environ = {"PYTHON": str(tmp_path / "python")} if version else {}
    line = f"cd {shlex.quote(str(tmp_path))}; state() {{ :; }}; bootstrap test 1 2>&1; trap"
    printed = sourced(line, **environ)
    assert not (tmp_path / ".venv.incomplete").exists()
    assert printed == ("creating .venv with Python 3.99\n" if version == "3.99" else "")


def test_supported_versions_and_an_index_out_of_reach_are_known(tmp_path):
    python = executable(tmp_path / "python", '#!/bin/sh\necho "$V"\n')
    (tmp_path / ".venv").mkdir()
    versions = "2.7 3.9 3.10 3.11 3.14 3.19 3.20 3.30"
    each = f"for V in {versions}; do (check_version 2>/dev/null; echo $V) || :; done"
    assert sourced(f"export V; python={python}; {each}").split() == versions.split()[3:]
    fails = f'cd {tmp_path}; pip_of() {{ echo "a $M b" >&2; return 1; }}; pip x 2>&1 || cat .venv/pip.log'
    for message in MESSAGES:
        assert sourced(f"M='{message}'; {fails}").startswith("the package index cannot be reached")
    assert sourced(f"M=other; {fails}") == "a other b\n" * 2


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_its_checkout_whatever_cdpath_is(script):
    [line] = re.findall(r'^.*\bcd "\$\(dirname "\$0"\)/.*$', (ROOT / script).read_text(), re.MULTILINE)
    assert line.startswith("CDPATH='' cd ")


def test_what_was_not_installed_is_installed_the_next_time(tmp_path):
    copy_source(tmp_path)
    executable(tmp_path / ".venv/bin/python", "#!/bin/sh\n")
    stub = 'pip() { echo "$*"; [ "$1" != "$STACKMGR_X" ]; }'
    command = ["/bin/sh", "-euc", f". deploy/bootstrap.sh; {stub}; bootstrap test 1"]
    locked = "--require-hashes --requirement deploy/locks/build.txt --requirement deploy/locks/test.txt\n"
    both = f"{locked}--no-deps --no-build-isolation --editable .\n"
    said = {"--require-hashes": (1, locked), "--no-deps": (1, both), "none": (0, both), "nothing": (0, "")}
    for failing, outcome in said.items():
        ended = completed(command, cwd=tmp_path, env={"PATH": os.defpath, "STACKMGR_X": failing})
        assert (ended.returncode, ended.stdout) == outcome, ended.stderr


def test_dev_names_a_port_that_cannot_be_used_before_it_installs(tmp_path):
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/dev", tmp_path / "deploy")
    (tmp_path / "deploy/bootstrap.sh").write_text('bootstrap() { echo "$*"; mv ready .venv; }\n')
    executable(tmp_path / "ready/bin/python", "#!/bin/sh\nprintf '%s|' \"$@\" $PPID\n")
    with socket.create_server(("127.0.0.1", 0)) as left:
        recent = left.getsockname()[1]
        with socket.create_connection(left.getsockname()) as client:
            left.accept()[0].close()  # its end waits in TIME_WAIT
            client.recv(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {taken.getsockname()[1]: 1, 70000: 1, recent: 0}
        for port, status in ports.items():
            command = [tmp_path / "deploy/dev", "--data", "x y", "--port", str(port)]
            ended = completed(command, env=os.environ | {"PYTHON": sys.executable})
            said = f"port {port} is in use or not permitted; choose another with --port\n"
            served = f"dev 15\n-m|stackmgr|dev|--data|x y|--port|{port}|{os.getpid()}|"  # signals reach it
            expected = (1, said, "") if status else (0, "", served)
            assert (ended.returncode, ended.stderr, ended.stdout) == expected
