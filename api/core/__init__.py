"""What every route stands on: who asks, errors, limits, conditional and fresh reads, publishing."""

# Registers the convertor `:id`, without which no route with an id in its path can be declared.
from highwater.api.core import paths as _paths  # noqa: F401
