"""Print the components of a release as a CycloneDX document: `python deploy/bill_of_materials.py`.

The packages are those of `deploy/locks/runtime.txt`, the licences those of `deploy/locks/README.md`; tests
compare both with what is installed.  Run it with a Python that has these packages: libpq and OpenSSL, which
advisories are about, are inside the wheel of psycopg-binary, where no generator of such documents finds them.
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
PACKAGE = re.compile(r"^([\w.-]+)==([^\s;]+).*\n(?:    --hash.*\n)+((?:    #.*\n)+)", re.MULTILINE)
LICENCE = re.compile(r"^\| ([\w-]+) \| .+? \| (.+?) \| .+ \|$", re.MULTILINE)


def component(name: str, version: str, licence: str, purl: str, kind: str = "library") -> dict[str, Any]:
    """Return the entry of one component."""
    return {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "licenses": [{"expression": licence}],
        "purl": purl,
    }


def bundled() -> list[dict[str, Any]]:
    """Return the libraries inside the wheel of psycopg-binary."""
    [libcrypto] = [
        file for file in metadata.files("psycopg-binary") or [] if file.name.startswith("libcrypto")
    ]
    [openssl] = set(re.findall(rb"OpenSSL (\d+\.\d+\.\d+) ", libcrypto.read_binary()))
    libpq = f"{pq.version() // 10000}.{pq.version() % 10000}"
    return [
        component("libpq", libpq, "PostgreSQL", f"pkg:generic/postgresql@{libpq}"),
        component("openssl", openssl.decode(), "Apache-2.0", f"pkg:generic/openssl@{openssl.decode()}"),
    ]


def document() -> dict[str, Any]:
    """Return the CycloneDX document."""
    version = metadata.version("stackmgr")
    root = component("stackmgr", version, "MIT", f"pkg:pypi/stackmgr@{version}", "application")
    packages = PACKAGE.findall((LOCKS / "runtime.txt").read_text(encoding="utf-8"))
    licences = dict(LICENCE.findall((LOCKS / "README.md").read_text(encoding="utf-8")))
    references = {"stackmgr": root["bom-ref"]} | {
        name: f"pkg:pypi/{name}@{version}" for name, version, _ in packages
    }
    needed: dict[str, list[str]] = {reference: [] for reference in references.values()}
    for name, _, notes in packages:
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
            *(component(name, version, licences[name], references[name]) for name, version, _ in packages),
            *inside,
        ],
        "dependencies": [{"ref": name, "dependsOn": sorted(below)} for name, below in needed.items()],
    }


if __name__ == "__main__":
    print(json.dumps(document(), indent=2))
