"""The files of one fabric: parts list and wiring list as CSV, and both in a workbook."""

import re

from kvfabric.export.bom_csv import bom_csv
from kvfabric.export.wiring_csv import wiring_csv
from kvfabric.export.wiring_xlsx import wiring_xlsx
from kvfabric.plan.bom import BillOfMaterials
from kvfabric.plan.wiring import Wiring


def fabric_files(
    wiring: Wiring, bom: BillOfMaterials, *, label: str = ""
) -> dict[str, str | bytes]:
    """Return the content of each file by its name.

    Args:
        wiring: of the whole fabric, as ``plan.wiring.wire`` gives it.
        bom: of the same fabric and the same types of cables.
        label: of the fabric; begins the names, as in ``zcube-bom.csv``. Letters, digits, dots and
            dashes are kept, all else becomes a dash.
    """
    assert bom.cable_rule is wiring.cables.rule, "parts and wiring have the same cables"
    start = f"{re.sub(r'[^A-Za-z0-9.]+', '-', label)}-" if label else ""
    return {
        f"{start}bom.csv": bom_csv(bom),
        f"{start}wiring.csv": wiring_csv(wiring),
        f"{start}wiring.xlsx": wiring_xlsx(wiring, bom),
    }
