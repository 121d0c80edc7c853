-- A further role: an assistant enters the results of matches (streams/jobs/validation.py).
ALTER TABLE user_roles DROP CONSTRAINT user_roles_role_check,
    ADD CONSTRAINT user_roles_role_check CHECK (role IN ('viewer', 'assistant', 'editor', 'admin'));
