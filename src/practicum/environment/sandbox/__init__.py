"""Where model-written code runs: isolated, limited, and gone without a trace afterwards."""

from practicum.environment.sandbox.open_pool import open_pool
from practicum.environment.sandbox.probe import Capabilities, capabilities

__all__ = ["Capabilities", "capabilities", "open_pool"]
