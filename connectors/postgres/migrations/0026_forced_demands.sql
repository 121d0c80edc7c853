-- Whether a manual rebuild takes another basis although the insights are the same (`?force=true`).

ALTER TABLE rebuild_demands ADD COLUMN forced boolean NOT NULL DEFAULT false;
