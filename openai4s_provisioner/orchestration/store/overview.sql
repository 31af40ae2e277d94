-- name: seen_of
SELECT workload_id FROM workload
WHERE owner = :owner AND (ended_at IS NULL OR ended_at >= :since)
ORDER BY ended_at IS NOT NULL, created_at DESC, workload_id LIMIT :most;

-- name: open_of
SELECT count(*) FROM workload WHERE owner = :owner AND ended_at IS NULL;
