"""Networks in other programs' formats."""

from darknetpy.export.formats import FORMATS, Options, export_file, format_of
from darknetpy.export.verify import Comparison, verify

__all__ = ["FORMATS", "Comparison", "Options", "export_file", "format_of", "verify"]
