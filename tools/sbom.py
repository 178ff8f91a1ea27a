"""`make sbom`: prints what is installed beside us3l as a bill of materials (CycloneDX 1.6, JSON)."""

from __future__ import annotations

import json
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution, distribution, distributions
from typing import Any


def bill() -> dict[str, Any]:
    """Every installed distribution once, with its version and its licence as it states them."""
    installed = {name_of(one): one for one in distributions()}
    us3l = installed.pop("us3l", None) or distribution("us3l")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {**component(us3l), "type": "application"},
            "properties": [{"name": "python", "value": sys.version.split()[0]}],
        },
        "components": [component(one) for _, one in sorted(installed.items())],
    }


def component(one: Distribution) -> dict[str, Any]:
    identity = f"pkg:pypi/{name_of(one)}@{one.version}"
    described: dict[str, Any] = {"type": "library", "name": name_of(one), "version": one.version}
    described |= {"purl": identity, "bom-ref": identity}
    stated = [one.metadata[key] for key in ("License-Expression", "License") if key in one.metadata]
    licence = next(filter(None, stated), "")
    if licence and "\n" not in licence:  # some put the whole text there
        described["licenses"] = [{"license": {"name": licence}}]
    return described


def name_of(one: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
