-- The form of a stored feed's items: what a newer program does not know as its own is built anew when it is read.

ALTER TABLE feed_documents ADD COLUMN form int NOT NULL DEFAULT 0;
