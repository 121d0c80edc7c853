-- How often the current step of a job was begun and not ended: its worker ended while it read what the step needs.
ALTER TABLE jobs ADD COLUMN begun int NOT NULL DEFAULT 0;
