"""Quality control of the environment: are the tasks, and the verifiers, worth training on?"""

from practicum.environment.qc.report import EnvQC
from practicum.environment.qc.solvability import check_domain

__all__ = ["EnvQC", "check_domain"]
