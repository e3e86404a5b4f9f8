"""cfg, `.data` and list files to typed values."""

from darknetpy.config.cfg import Cfg, Option, Section, parse_cfg, read_cfg
from darknetpy.config.net import NetOptions
from darknetpy.config.options import Notes, key, read_options

__all__ = ["Cfg", "NetOptions", "Notes", "Option", "Section", "key", "parse_cfg", "read_cfg", "read_options"]
