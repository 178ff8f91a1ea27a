"""A checkup that nobody made."""

from us3l.checkup.findings import Checkup, DeviceCheck, Inventory, Measured, Recommendation

INVENTORY = Inventory(
    system="Linux 6.1 x86_64",
    processor="AMD EPYC",
    cores=8,
    usable_cores=4,
    memory=2**34,
    available_memory=2**33,
    device="cpu",
    gpus=[],
    versions={"python": "3.11.7"},
    extras={"deploy": [], "detect": ["pycocotools"]},
    decoders={"jpeg": "Pillow"},
)
MEASURED = Measured("mini", 32, 64, 4, {"32-true": 100.0}, 400.0, 90.0, 0.05, 2.0**20)
CHECKUP = Checkup(
    us3l="0.1.0",
    date="2026-11-17",
    seconds=30.0,
    inventory=INVENTORY,
    checks=[DeviceCheck("training step", True, 1e-5, 1e-3)],
    measured=MEASURED,
    recommendations=[Recommendation("precision", "32-true", "100 images/s")],
)
