-- Pages that stored facts have made old, by their keys, until they are made anew. Written in the transaction of the facts; whoever
-- makes a page while there are any makes all of them in one transaction, so that one event shows on every page or on none.
-- No key is unique here: two sinks that name one page must not wait for each other.
CREATE TABLE page_changes (
    key        text NOT NULL,
    changed_in xid8 NOT NULL DEFAULT pg_current_xact_id()
);
