"""Networks in other programs' formats."""

from darknetpy.export.formats import export_file

__all__ = ["export_file"]
