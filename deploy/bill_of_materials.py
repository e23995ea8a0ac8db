"""Print the components of a release as a CycloneDX document: `python deploy/bill_of_materials.py`.

Packages are those of `deploy/locks/runtime.txt`, licences those of its README.  Run this program
with a Python that has these packages: the libraries of most advisories are inside the wheel of
psycopg-binary, where no generator of such documents finds them.
"""

import json
import os
import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from psycopg import pq

LOCKS = Path(__file__).parent / "locks"
PACKAGE = re.compile(r"^([\w.-]+)==([^\s;]+)(.*)\n((?:    --hash.*\n)+)((?:    #.*\n)+)", re.MULTILINE)
LICENCE = re.compile(r"^\| ([\w-]+) \| .+? \| (.+?) \| .+ \|$", re.MULTILINE)
# By file inside the wheel of psycopg-binary: project, licence, and the version's place in it.
BUNDLED = (
    ("libpq", "libpq", "PostgreSQL", None),
    ("libcrypto libssl", "openssl", "Apache-2.0", rb"OpenSSL (\d+\.\d+\.\d+) "),
    ("libgssapi_krb5 libk5crypto libkrb5 libkrb5support", "krb5", "MIT", rb"krb5-(\d+\.\d+\.\d+)-final"),
    ("libcom_err", "com_err", "MIT", None),
    ("liblber libldap", "openldap", "OLDAP-2.8", None),
    ("libsasl2", "cyrus-sasl", "BSD-Attribution-HPND-disclaimer", rb"\0(2\.\d+\.\d+)\0"),
    ("libkeyutils", "keyutils", "LGPL-2.1-or-later", None),
    ("libcrypt", "libxcrypt", "LGPL-2.1-or-later", None),
)


def component(name: str, version: str, licence: str, purl: str, kind: str = "library") -> dict[str, Any]:
    """Return the entry of one component; a *version* may be unknown."""
    entry = {"type": kind, "bom-ref": purl, "name": name, "licenses": [{"expression": licence}], "purl": purl}
    return entry | ({"version": version} if version else {})


def bundled() -> list[dict[str, Any]]:
    """Return the projects with libraries in the wheel of psycopg-binary.  Raises SystemExit."""
    files = [file for file in metadata.files("psycopg-binary") or [] if "psycopg_binary.libs" in file.parts]
    by_library = {library: row for row in BUNDLED for library in row[0].split()}
    content: dict[tuple[str, str, str, bytes | None], bytes] = {}
    for file in files:
        library = file.name.partition("-")[0]
        if library not in by_library:
            raise SystemExit(f"psycopg-binary has a library that is not known here: {file.name}")
        content[by_library[library]] = content.get(by_library[library], b"") + file.read_binary()
    found = []
    for (_, name, licence, pattern), binary in content.items():
        versions = set(re.findall(pattern, binary)) if pattern else set()
        version = max(versions).decode() if versions else ""
        if name == "libpq":
            version = f"{pq.version() // 10000}.{pq.version() % 10000}"
        found.append(component(name, version, licence, f"pkg:generic/{name}" + (version and f"@{version}")))
    return found


def document() -> dict[str, Any]:
    """Return the CycloneDX document."""
    version = metadata.version("stackmgr")
    root = component("stackmgr", version, "MIT", f"pkg:pypi/stackmgr@{version}", "application")
    locked = PACKAGE.findall((LOCKS / "runtime.txt").read_text(encoding="utf-8"))
    packages = [found for found in locked if "win32" not in found[2]]
    licences = dict(LICENCE.findall((LOCKS / "README.md").read_text(encoding="utf-8")))
    references = {"stackmgr": root["bom-ref"]} | {
        name: f"pkg:pypi/{name}@{version}" for name, version, *_ in packages
    }
    needed: dict[str, list[str]] = {reference: [] for reference in references.values()}
    for name, *_, notes in packages:
        for parent in re.findall(r"^ +#(?: via)? +(?!-c |via$)([\w.-]+)", notes, re.MULTILINE):
            needed[references[parent]].append(references[name])
    inside = bundled()
    needed[references["psycopg-binary"]] += [each["bom-ref"] for each in inside]
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", datetime.now(UTC).timestamp()))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": root,
        },
        "components": [
            *(
                component(name, version, licences[name], references[name])
                | {
                    "hashes": [
                        {"alg": "SHA-256", "content": each} for each in re.findall("sha256:(\\w+)", hashes)
                    ]
                }
                for name, version, _, hashes, _ in packages
            ),
            *inside,
        ],
        "dependencies": [{"ref": name, "dependsOn": sorted(below)} for name, below in needed.items()],
    }


if __name__ == "__main__":
    print(json.dumps(document(), indent=2))
