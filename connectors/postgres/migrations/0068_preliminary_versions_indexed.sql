-- Empty most of the time. Built beside readers and writers; what an interrupted build left is dropped first.
DROP INDEX CONCURRENTLY IF EXISTS user_clusters_preliminary;
CREATE INDEX CONCURRENTLY user_clusters_preliminary ON user_clusters (user_id, cluster_version)
WHERE preliminary AND replacement_asked_at IS NULL;
