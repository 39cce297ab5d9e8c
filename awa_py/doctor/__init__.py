"""What is the matter with an installation, and what to do about it."""

from awa_py.doctor.finding import Finding, Level
from awa_py.doctor.runner import CHECKS, run_checks

__all__ = ["CHECKS", "Finding", "Level", "run_checks"]
