-- The form of a document's bytes, and the version that has it: it holds only while `form_at` = `version`, since earlier releases move
-- `version` alone (`connectors/pages/forms.py`).
ALTER TABLE documents ADD COLUMN form int NOT NULL DEFAULT 0, ADD COLUMN form_at bigint NOT NULL DEFAULT 0;

-- Goals after extra time, those before included, and of a shoot-out; null: there was none.
ALTER TABLE league_matches
    ADD COLUMN home_goals_extra_time int,
    ADD COLUMN away_goals_extra_time int,
    ADD COLUMN home_penalties        int,
    ADD COLUMN away_penalties        int;

-- The rules of a season, as its last `league.rules-changed` has them.
CREATE TABLE league_rules (
    season     text   PRIMARY KEY,
    rules      json   NOT NULL,
    changed_ms bigint NOT NULL,
    position   text   NOT NULL
);
