"""What a store uses to learn its filter from a sample of its keys: targets, and a filter that it fills itself."""

from functools import partial

from dlbf.learned.filter import LearnedFilter
from dlbf.learned.preparing import Prepared
from dlbf.learned.preparing import prepare as prepare_composite
from dlbf.learned.static import StaticBuilder, build_static
from dlbf.learned.targets import Targets

__all__ = ["Prepared", "StaticBuilder", "Targets", "build_static", "prepare"]

prepare = partial(prepare_composite, LearnedFilter)
