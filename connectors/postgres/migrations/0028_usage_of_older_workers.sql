-- A worker of the release before entries of usage takes a place for a deck that it completes, and no more. While both releases run,
-- the entry and the sums are made up for it at the end of its transaction, as 0020 made them for what was counted before. This release
-- makes them itself, and then nothing is missing. The place's row is locked since it was taken, so nobody comes in between; of several
-- decks of an organization in one transaction the places may be each other's.
CREATE FUNCTION count_usage_of_older_worker() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    month text := to_char(NEW.completed_at AT TIME ZONE 'UTC', 'YYYY-MM');
    place bigint;
    made bigint;
BEGIN
    IF EXISTS (SELECT FROM usage_entries WHERE job_id = NEW.job_id) THEN
        RETURN NULL;
    END IF;
    SELECT coalesce(max(e.seq), 0) + 1 INTO place FROM usage_entries AS e
    WHERE e.organization_id = NEW.organization_id AND e.period = month;
    SELECT coalesce(jsonb_array_length(p.slides), 0) INTO made FROM presentations AS p WHERE p.presentation_id = NEW.job_id;
    UPDATE usage_sequences AS s
    SET presentations = s.presentations + 1, slides = s.slides + coalesce(made, 0), tokens = s.tokens + NEW.tokens,
        cost_cents = s.cost_cents + NEW.cost_cents, counted_at = greatest(s.counted_at, NEW.completed_at)
    WHERE s.organization_id = NEW.organization_id AND s.period = month AND s.last_seq >= place;
    IF FOUND THEN
        INSERT INTO usage_entries (organization_id, period, seq, job_id, presentations, slides, tokens, cost_cents, counted_at)
        VALUES (NEW.organization_id, month, place, NEW.job_id, 1, coalesce(made, 0), NEW.tokens, NEW.cost_cents, NEW.completed_at);
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER usage_of_older_workers AFTER UPDATE OF status ON jobs DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.kind = 'generation' AND NEW.status = 'completed' AND OLD.status <> 'completed' AND NEW.cost_cents IS NOT NULL)
EXECUTE FUNCTION count_usage_of_older_worker();
