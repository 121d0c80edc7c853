-- Workers before 0.1.0 stored no entry of a deck's usage, and a trigger did it for them (0028). They cannot run beside this version.
DROP TRIGGER usage_of_older_workers ON jobs;
DROP FUNCTION count_usage_of_older_worker();
