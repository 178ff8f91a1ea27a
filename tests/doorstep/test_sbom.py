import runpy
from importlib.metadata import version
from pathlib import Path

SBOM = Path(__file__).parents[2] / "tools" / "sbom.py"


def test_the_bill_names_what_is_installed() -> None:
    bill = runpy.run_path(str(SBOM))["bill"]()
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "us3l")
    components = {one["name"]: one for one in bill["components"]}
    assert components["torch"]["version"] == version("torch")
    assert components["scikit-learn"]["purl"] == f"pkg:pypi/scikit-learn@{version('scikit-learn')}"
    assert len({one["bom-ref"] for one in bill["components"]}) == len(bill["components"])
