"""What to practise next, learnt from how it went so far."""

from practicum.environment.curriculum.curriculum import PassRateCurriculum
from practicum.environment.curriculum.mixture import Mixture
from practicum.environment.curriculum.scheduler import Scheduler

__all__ = ["Mixture", "PassRateCurriculum", "Scheduler"]
