-- A call that a model refused for its length: less is sent with the next attempt.
ALTER TABLE llm_calls
    DROP CONSTRAINT llm_calls_outcome_check,
    ADD CONSTRAINT llm_calls_outcome_check CHECK (
        outcome IN ('answered', 'timeout', 'rate_limited', 'unavailable', 'unusable', 'too_long', 'refused')
    );
