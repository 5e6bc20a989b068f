"""What we decide: laws of the token budget, order, triage, and the closed loops that join a decision to an engine."""

from headway.controllers.balanced import BalancedLaw
from headway.controllers.controller import Controller
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.pi import PILaw
from headway.controllers.static import StaticLaw
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw

CONTROLLERS: dict[str, type[Controller]] = {law.law: law for law in (StaticLaw, UpDownLaw, PILaw, BalancedLaw, FeedforwardLaw, TrackerLaw)}
"""Laws by name: one row, one file; `tests/test_controllers.py` holds each to the same contract."""
