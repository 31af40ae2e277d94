-- name: insert_task
INSERT INTO task (task_id, workload_id, allocation_id, actor, argv, cwd, every_rank, created_at)
VALUES (:task_id, :workload_id, :allocation_id, :actor, :argv, :cwd, :every_rank, :now);

-- name: task
SELECT * FROM task WHERE task_id = :task_id;

-- name: open_tasks_in
SELECT count(*) FROM task WHERE allocation_id = :allocation_id AND ended_at IS NULL;

-- name: open_tasks
SELECT t.* FROM task AS t JOIN workload AS w USING (workload_id)
WHERE t.ended_at IS NULL AND (:daemon_id IS NULL OR w.owner_daemon = :daemon_id)
ORDER BY t.created_at, t.task_id;

-- name: tasks_of
SELECT * FROM task WHERE workload_id = :workload_id ORDER BY created_at DESC, task_id LIMIT 100;

-- name: tasks_named
SELECT * FROM task WHERE substr(task_id, 1, length(:beginning)) = :beginning ORDER BY created_at DESC LIMIT 10;

-- name: cancel_task
UPDATE task SET cancel_asked_at = :now, cancel_actor = :actor
WHERE task_id = :task_id AND cancel_asked_at IS NULL AND ended_at IS NULL;

-- name: cancel_tasks_in
UPDATE task SET cancel_asked_at = :now, cancel_actor = :actor
WHERE allocation_id = :allocation_id AND cancel_asked_at IS NULL AND ended_at IS NULL;

-- name: set_task_sent
UPDATE task SET sent_at = :now WHERE task_id = :task_id AND sent_at IS NULL AND ended_at IS NULL;

-- name: set_task_started
UPDATE task SET started_at = :now WHERE task_id = :task_id AND started_at IS NULL AND ended_at IS NULL;

-- name: end_task
UPDATE task SET ended_at = :now, exit_code = :exit_code, exit_signal = :exit_signal, detail = :detail
WHERE task_id = :task_id AND ended_at IS NULL;

-- name: renew_by_task
UPDATE lease SET last_active_at = max(last_active_at, :now)
WHERE workload_id = (SELECT workload_id FROM task WHERE task_id = :task_id) AND (busy_counts OR NOT :only_if_busy);

-- name: task_kernels
SELECT b.kernel_id, b.workload_id, b.notebook_path FROM binding AS b
WHERE b.released_at IS NULL ORDER BY b.bound_at DESC;

-- name: driver
SELECT d.* FROM daemon AS d JOIN workload AS w ON w.owner_daemon = d.daemon_id WHERE w.workload_id = :workload_id;
