"""What is the matter with an installation, and what to do about it."""

from awa_py.doctor.examination import CHECKS, examine
from awa_py.doctor.finding import Finding, Level

__all__ = ["CHECKS", "Finding", "Level", "examine"]
