"""How often a key may call: a bucket that fills as time passes."""

_BURST_S = 10.0


class Rate:
    """Shared by all channels and requests of one key."""

    def __init__(self, per_s: float) -> None:
        self._at_s = 0.0
        self.change(per_s)

    def change(self, per_s: float) -> None:
        """Another rate, from now on."""
        self._per_s = per_s
        self._most = max(1.0, per_s * _BURST_S)
        self._left = self._most

    def wait_s(self, now_s: float) -> float:
        """0: it may, and this one is counted. Else how long until it may."""
        if not self._per_s:
            return 0.0
        self._left = min(self._most, self._left + (now_s - self._at_s) * self._per_s) if self._at_s else self._most
        self._at_s = now_s
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_s
