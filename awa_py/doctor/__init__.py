"""`awa doctor`: checks of an installation, with findings that say what to do."""

from awa_py.doctor.finding import Finding, Level
from awa_py.doctor.runner import CHECKS, run_checks

__all__ = ["CHECKS", "Finding", "Level", "run_checks"]
