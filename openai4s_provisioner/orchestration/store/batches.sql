-- name: active_batches
SELECT count(*) FROM workload
WHERE owner = :owner AND kind = 'BATCH' AND phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING');

-- name: insert_command_exit
INSERT INTO command_exit (allocation_id, exit_code, exit_signal, started_at, ended_at, asked, reason, detail)
VALUES (:allocation_id, :exit_code, :exit_signal, :started_at, :ended_at, :asked, :reason, :detail)
ON CONFLICT DO NOTHING;

-- name: command_exit
SELECT * FROM command_exit WHERE allocation_id = :allocation_id;

-- name: workloads
SELECT w.workload_id FROM workload AS w
WHERE :everything OR w.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')
   OR (w.kind = 'BATCH' AND w.ended_at >= :since)
ORDER BY w.created_at DESC, w.workload_id LIMIT :most;

-- name: workloads_named
SELECT workload_id FROM workload WHERE substr(workload_id, 1, length(:beginning)) = :beginning
ORDER BY created_at DESC LIMIT 10;
