"""What a composite asks of the base filters that are its parts."""

__all__ = ["AsPart", "after_kill", "check_part", "grown_params", "needs_check", "stuck_count"]


class AsPart:
    """Answers of a filter that is a part; base of ``dlbf.filters.Filter``, where a class overrides what differs."""

    @classmethod
    def _items_in(cls, payload: memoryview) -> int:
        """Number of items that the contents themselves tell; 0 for filters that can only estimate it."""
        return 0

    def _check_part(self) -> None:
        """For filters that follow what their contents say; raises FormatError if that leads outside of them."""

    @classmethod
    def _after_kill(cls, params: tuple[int, ...]) -> str:
        """Why a part cannot be trusted if the process that was changing it was killed; "" if it can."""
        return f"a {cls.__name__} in it may be half changed"

    def _grown(self, n_key_bytes: int) -> tuple[int, ...] | None:
        """Own parameters with room for one more key of that size; None if there is room already."""
        raise NotImplementedError

    def _stuck_count(self) -> int:
        """Keys that an emptied filter still counts, because its counters have been at their maximum."""
        return 0


def check_part(filter: AsPart) -> None:
    """FormatError if what the contents of a part say leads outside of them."""
    filter._check_part()


def needs_check(cls: type[AsPart]) -> bool:
    """Whether a part of this class has anything for ``check_part`` to look at."""
    return cls._check_part is not AsPart._check_part


def after_kill(cls: type[AsPart], params: tuple[int, ...]) -> str:
    """Why a part cannot be trusted if the process that was changing it was killed; "" if it can."""
    return cls._after_kill(params)


def grown_params(filter: AsPart, n_key_bytes: int) -> tuple[int, ...] | None:
    """Own parameters with room for one more key of that size; None if there is room already."""
    return filter._grown(n_key_bytes)


def stuck_count(filter: AsPart) -> int:
    """Keys that an emptied filter still counts, because its counters have been at their maximum."""
    return filter._stuck_count()
