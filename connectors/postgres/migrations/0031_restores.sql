-- A row while a restore is in progress: its database is not to be worked on before it has ended, also if it was interrupted.
CREATE TABLE restore_progress (
    one      boolean PRIMARY KEY DEFAULT true CHECK (one),
    began_at timestamptz NOT NULL,
    source   text        NOT NULL
);
