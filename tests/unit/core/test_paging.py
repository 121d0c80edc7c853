"""Pages of lists: where one begins, where the next one does, and cursors of other lists."""

from __future__ import annotations

import pytest

from highwater.api.core.errors import BadRequestError
from highwater.api.core.paging import encode_cursor, number_before, page_of, text_after


def test_a_page_has_the_cursor_of_its_last_row_only_if_there_are_more():
    """One row more than the limit was read; the last page has none."""
    page, cursor = page_of(["a", "b", "c"], 2, lambda row: (row,))
    assert (page, text_after(cursor)) == (["a", "b"], "b")
    assert page_of(["c", "d"], 2, lambda row: (row,)) == (["c", "d"], None)
    assert page_of([], 2, lambda row: (row,)) == ([], None)


def test_a_list_of_numbers_begins_above_all_of_them():
    """Without a cursor at its top, with one below the number that it names."""
    assert number_before(None, 100) == 100
    assert number_before(encode_cursor(7), 100) == 7


@pytest.mark.parametrize(
    "cursor", [encode_cursor(101), encode_cursor(-1), encode_cursor("a"), encode_cursor(1, 2), "?"]
)
def test_a_cursor_of_another_list_is_refused(cursor: str):
    """Also a number that the list cannot hold."""
    with pytest.raises(BadRequestError, match="does not come from this list"):
        number_before(cursor, 100)
