"""The numbers every driver of a job must agree on. Part of the on-disk protocol, not settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProtocolRules:
    """Constants of the protocol; only tests use other values than the defaults."""

    waypoint_stride: int = 1024
    """Every so many numbers of a sequence one is kept for ever, so that its end can be found."""
    adoption_window: int = 256
    """An epoch may adopt new files only from its own slot and this many slots before it.

    A delta lies in its own epoch's slot; a compacted file in the slot of the epoch after
    the one it was planned from, and is void when it comes later than this. So an object
    nobody refers to in a slot this far below the newest epoch can never be referred to
    again, even by a driver that slept: the epoch it would publish is already taken.
    """

    def may_adopt(self, slot_epoch: int, epoch: int) -> bool:
        """Tell whether `epoch` may refer to a new file that lies in the slot of `slot_epoch`."""
        return epoch - self.adoption_window <= slot_epoch <= epoch


RULES = ProtocolRules()
