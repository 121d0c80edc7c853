"""What every route uses: authentication, errors, limits, conditional and fresh reads, publishing."""

# Registers the convertor `:id`, without which no route with an id in its path can be declared.
from highwater.api.core import paths as _paths  # noqa: F401
