-- Every statement by name; `sqlite.py` loads them. A writer of a wish never names `phase`, a writer of a fact never
-- names `desired`.

-- name: insert_daemon
INSERT INTO daemon (daemon_id, host, boot_id, pid, started_at, beat_at)
VALUES (:daemon_id, :host, :boot_id, :pid, :now, :now);

-- name: beat
UPDATE daemon SET beat_at = :now WHERE daemon_id = :daemon_id AND retired_at IS NULL;

-- name: retire_daemon
UPDATE daemon SET retired_at = :now WHERE daemon_id = :daemon_id AND retired_at IS NULL;

-- name: unretired_daemons
SELECT * FROM daemon WHERE retired_at IS NULL ORDER BY started_at, daemon_id;

-- name: other_drivers
SELECT * FROM daemon WHERE daemon_id <> :daemon_id AND daemon_id IN (
    SELECT owner_daemon FROM workload WHERE phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')
    UNION SELECT daemon_id FROM debris)
ORDER BY daemon_id;

-- name: adopt
UPDATE workload SET owner_daemon = :daemon_id
WHERE owner_daemon = :dead AND phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')
  AND (SELECT beat_at FROM daemon WHERE daemon_id = :dead) = :beat_at AND (:kind IS NULL OR kind = :kind)
RETURNING workload_id;

-- name: adopt_debris
UPDATE debris SET daemon_id = :daemon_id WHERE daemon_id = :dead;

-- name: restamp_unknown
UPDATE allocation SET submit_unknown_since = :now
WHERE workload_id = :workload_id AND phase = 'SUBMITTING' AND submit_unknown_since IS NOT NULL;

-- name: insert_workload
INSERT INTO workload (workload_id, kind, owner, profile, spec, created_at, owner_daemon, desired, desired_at, phase, epoch)
VALUES (:workload_id, :kind, :owner, :profile, :spec, :now, :daemon_id, 'RUNNING', :now, 'SUBMITTING', :epoch);

-- name: insert_allocation
INSERT INTO allocation (allocation_id, workload_id, epoch, token, backend, nodes, phase, created_at)
VALUES (:allocation_id, :workload_id, :epoch, :token, :backend, :nodes, 'SUBMITTING', :now);

-- name: insert_binding
INSERT INTO binding (kernel_id, workload_id, notebook_path, bound_at, launch_id)
VALUES (:kernel_id, :workload_id, :notebook_path, :now, :launch_id);

-- name: rebind_launch
UPDATE binding SET launch_id = :launch_id
WHERE workload_id = :workload_id AND kernel_id = :kernel_id AND released_at IS NULL;

-- name: insert_launch
INSERT INTO launch (launch_id, workload_id, kernel_id, created_at)
VALUES (:launch_id, :workload_id, :kernel_id, :now);

-- name: insert_lease
INSERT INTO lease (workload_id, kernel_id, idle_ttl_s, max_lifetime_s, warn_s, busy_counts, opened_at, last_active_at)
VALUES (:workload_id, :kernel_id, :idle_ttl_s, :max_lifetime_s, :warn_s, :busy_counts, :now, :now);

-- name: insert_event
INSERT INTO event (at, workload_id, kind, actor, reason, detail)
VALUES (:now, :workload_id, :kind, :actor, :reason, :detail);

-- name: events_of
SELECT at, workload_id, kind, actor, reason, detail FROM event WHERE workload_id IS :workload_id ORDER BY event_id;

-- name: active_sessions
SELECT count(*) FROM workload
WHERE owner = :owner AND kind = 'SESSION' AND phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING');

-- name: workload
SELECT * FROM workload WHERE workload_id = :workload_id;

-- name: driven
SELECT workload_id FROM workload
WHERE owner_daemon = :daemon_id AND phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')
ORDER BY created_at, workload_id;

-- name: driver_of
SELECT owner_daemon FROM workload WHERE workload_id = :workload_id;

-- name: newest_allocation
SELECT * FROM allocation WHERE workload_id = :workload_id ORDER BY epoch DESC LIMIT 1;

-- name: allocation
SELECT * FROM allocation WHERE allocation_id = :allocation_id;

-- name: workers
SELECT * FROM worker WHERE allocation_id = :allocation_id ORDER BY rank;

-- name: bindings
SELECT b.*, CASE WHEN l.isolated = 1 AND l.exited_at IS NULL THEN l.ready_at END AS kernel_ready_at
FROM binding AS b JOIN launch AS l ON l.launch_id = b.launch_id
WHERE b.workload_id = :workload_id ORDER BY b.bound_at, b.kernel_id;

-- name: current_launches
SELECT l.* FROM launch AS l JOIN binding AS b ON b.launch_id = l.launch_id
WHERE b.workload_id = :workload_id ORDER BY b.bound_at, b.kernel_id;

-- name: held_binding
SELECT workload_id FROM binding WHERE kernel_id = :kernel_id AND released_at IS NULL;

-- name: launch
SELECT * FROM launch WHERE launch_id = :launch_id;

-- name: begin_submit
UPDATE allocation SET submit_unknown_since = :now, submit_attempts = submit_attempts + 1
WHERE allocation_id = :allocation_id AND phase = 'SUBMITTING' AND handle IS NULL
  AND submit_unknown_since IS :unknown_since
  AND EXISTS (SELECT 1 FROM workload AS w WHERE w.workload_id = allocation.workload_id
              AND w.desired = 'RUNNING' AND w.owner_daemon = :daemon_id);

-- name: submit_unknown
UPDATE allocation SET submit_unknown_since = :now, waiting = :waiting, backend_detail = :backend_detail
WHERE allocation_id = :allocation_id AND phase = 'SUBMITTING' AND handle IS NULL;

-- name: take_submission_back
UPDATE allocation SET submit_unknown_since = NULL, submit_attempts = submit_attempts - 1,
    waiting = :waiting, backend_detail = :backend_detail
WHERE allocation_id = :allocation_id AND phase = 'SUBMITTING' AND handle IS NULL AND submit_unknown_since IS NOT NULL;

-- name: set_handle
UPDATE allocation SET handle = :handle, submit_unknown_since = NULL, phase = :phase, waiting = ''
WHERE allocation_id = :allocation_id AND phase = :before;

-- name: set_allocation_phase
UPDATE allocation SET phase = :phase, granted_at = coalesce(granted_at, :granted_at), waiting = '',
    estimated_start = NULL, estimate_as_of = NULL, position = NULL
WHERE allocation_id = :allocation_id AND phase = :before;

-- name: end_allocation
UPDATE allocation SET phase = :phase, ended_at = :now, submit_unknown_since = NULL,
    reason = coalesce(:backend_reason, reason),
    backend_detail = CASE WHEN :backend_detail = '' THEN backend_detail ELSE :backend_detail END
WHERE allocation_id = :allocation_id AND phase = :before;

-- name: retire_allocation
UPDATE allocation SET phase = :phase, reason = :reason, waiting = '',
    estimated_start = NULL, estimate_as_of = NULL, position = NULL
WHERE allocation_id = :allocation_id AND phase = :before;

-- name: next_epoch
UPDATE workload SET epoch = :next, phase = 'SUBMITTING'
WHERE workload_id = :workload_id AND epoch = :epoch AND desired = 'RUNNING' AND owner_daemon = :daemon_id;

-- name: set_workload_phase
UPDATE workload SET phase = :phase WHERE workload_id = :workload_id AND epoch = :epoch;

-- name: end_workload
UPDATE workload SET phase = :phase, ended_at = :now, reason = coalesce(:reason, reason),
    reason_detail = CASE WHEN :detail = '' THEN reason_detail ELSE :detail END
WHERE workload_id = :workload_id AND epoch = :epoch;

-- name: release_bindings
UPDATE binding SET released_at = :now WHERE workload_id = :workload_id AND released_at IS NULL;

-- name: forget_resume_keys
UPDATE worker SET resume_key = NULL WHERE allocation_id = :allocation_id;

-- name: insert_debris
INSERT INTO debris (allocation_id, daemon_id, since)
SELECT a.allocation_id, w.owner_daemon, :now FROM allocation AS a JOIN workload AS w USING (workload_id)
WHERE a.allocation_id = :allocation_id;

-- name: delete_debris
DELETE FROM debris WHERE allocation_id = :allocation_id;

-- name: debris
SELECT a.* FROM debris AS d JOIN allocation AS a USING (allocation_id)
WHERE d.daemon_id = :daemon_id ORDER BY d.since, d.allocation_id;

-- name: set_gone_since
UPDATE allocation SET gone_since = :gone_since WHERE allocation_id = :allocation_id;

-- name: set_waiting
UPDATE allocation SET waiting = :waiting, backend_detail = :backend_detail, estimated_start = :estimated_start,
    estimate_as_of = CASE WHEN :estimated_start IS NOT NULL THEN :now END, position = :position
WHERE allocation_id = :allocation_id;

-- name: set_paused
UPDATE allocation SET paused_since = :now WHERE allocation_id = :allocation_id AND paused_since IS NULL;

-- name: set_resumed
UPDATE allocation SET paused_since = NULL, resumed_at = :now
WHERE allocation_id = :allocation_id AND paused_since IS NOT NULL;

-- name: set_way
UPDATE allocation SET waiting = :waiting WHERE allocation_id = :allocation_id AND phase = 'GRANTED';

-- name: set_ends_at
UPDATE allocation SET ends_at = :ends_at WHERE allocation_id = :allocation_id AND extensions = :extensions;

-- name: put_end_off
UPDATE allocation SET ends_at = :ends_at, extensions = extensions + 1 WHERE allocation_id = :allocation_id;

-- name: set_end_warned
UPDATE allocation SET end_warned_for = :warned_for WHERE allocation_id = :allocation_id;

-- name: running_ends
SELECT w.workload_id, w.profile FROM workload AS w JOIN allocation AS a
    ON a.workload_id = w.workload_id AND a.epoch = w.epoch
WHERE w.owner_daemon = :daemon_id AND w.kind = 'SESSION' AND w.desired = 'RUNNING'
  AND a.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')
  AND (a.ends_at IS NOT NULL OR a.end_warned_for IS NOT NULL)
ORDER BY w.workload_id;

-- name: set_drain_since
UPDATE allocation SET drain_since = coalesce(drain_since, :now) WHERE allocation_id = :allocation_id;

-- name: set_cancel_asked
UPDATE allocation SET cancel_asked_at = :now WHERE allocation_id = :allocation_id;

-- name: wish_stopped
UPDATE workload SET desired = 'STOPPED', desired_at = :now, stop_reason = :reason, stop_detail = :detail,
    stop_actor = :actor
WHERE workload_id = :workload_id AND desired = 'RUNNING'
  AND phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING');

-- name: release_binding
UPDATE binding SET released_at = :now WHERE kernel_id = :kernel_id AND released_at IS NULL RETURNING workload_id;

-- name: held_bindings
SELECT count(*) FROM binding WHERE workload_id = :workload_id AND released_at IS NULL;

-- name: register_worker
INSERT INTO worker (allocation_id, rank, nonce, resume_key, host, registered_at, link, link_since)
SELECT a.allocation_id, :rank, :nonce, :resume_key, :host, :now, 'connected', :now
FROM allocation AS a JOIN workload AS w ON w.workload_id = a.workload_id AND w.epoch = a.epoch
WHERE a.allocation_id = :allocation_id AND a.workload_id = :workload_id AND a.epoch = :epoch AND :rank < a.nodes
  AND w.desired = 'RUNNING' AND a.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE')
ON CONFLICT DO NOTHING
RETURNING rank;

-- name: resume_key
SELECT k.resume_key FROM worker AS k JOIN allocation AS a USING (allocation_id)
JOIN workload AS w ON w.workload_id = a.workload_id AND w.epoch = a.epoch
WHERE k.allocation_id = :allocation_id AND k.rank = :rank
  AND a.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING');

-- name: is_expected
SELECT 1 FROM allocation AS a JOIN workload AS w ON w.workload_id = a.workload_id AND w.epoch = a.epoch
WHERE a.allocation_id = :allocation_id AND a.epoch = :epoch AND w.desired = 'RUNNING'
  AND a.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE');

-- name: set_link
UPDATE worker SET link = :link, link_since = :now
WHERE allocation_id = :allocation_id AND rank = :rank AND link <> :link;

-- name: end_worker
UPDATE worker SET ended_at = :now, exit_code = :exit_code, exit_reason = :exit_reason
WHERE allocation_id = :allocation_id AND rank = :rank AND ended_at IS NULL;

-- name: set_workspace
UPDATE worker SET workspace_ready = :ready, workspace_detail = :detail
WHERE allocation_id = :allocation_id AND rank = :rank;

-- name: set_isolated
UPDATE launch SET isolated = coalesce(isolated, :isolated) WHERE launch_id = :launch_id;

-- name: set_kernel_started
UPDATE launch SET pid = :pid, started_at = coalesce(started_at, :now) WHERE launch_id = :launch_id;

-- name: set_kernel_ready
UPDATE launch SET ready_at = coalesce(ready_at, :now) WHERE launch_id = :launch_id AND exited_at IS NULL;

-- name: set_kernel_exited
UPDATE launch SET exited_at = :now, exit_code = :exit_code, exit_signal = :exit_signal, exit_tail = :tail
WHERE launch_id = :launch_id AND exited_at IS NULL;

-- name: start_lease
UPDATE lease SET started_at = coalesce(started_at, :now),
    idle_from = CASE WHEN idle_from IS NULL OR idle_from < (
        SELECT max(granted_at) FROM allocation AS a WHERE a.workload_id = lease.workload_id) THEN :now ELSE idle_from END
WHERE (workload_id, kernel_id) = (
    SELECT workload_id, kernel_id FROM launch WHERE launch_id = :launch_id AND exited_at IS NULL);

-- name: note_activity
UPDATE lease SET activity = :activity, last_active_at = CASE
    WHEN :began OR (busy_counts AND (activity = 'busy' OR :activity = 'busy'))
    THEN max(last_active_at, :now) ELSE last_active_at END
WHERE (workload_id, kernel_id) = (
    SELECT workload_id, kernel_id FROM binding WHERE launch_id = :launch_id AND released_at IS NULL)
RETURNING warned_for;

-- name: keep_lease
UPDATE lease SET last_active_at = max(last_active_at, :now)
WHERE workload_id = :workload_id AND kernel_id = :kernel_id
  AND EXISTS (SELECT 1 FROM workload AS w WHERE w.workload_id = lease.workload_id AND w.desired = 'RUNNING'
              AND w.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING'));

-- name: set_warned
UPDATE lease SET warned_for = :warned_for WHERE workload_id = :workload_id;

-- name: running_leases
SELECT l.*, b.released_at, EXISTS (
    SELECT 1 FROM task AS t WHERE t.workload_id = l.workload_id AND t.started_at IS NOT NULL AND t.ended_at IS NULL
) AS runs_task FROM lease AS l JOIN binding AS b USING (workload_id, kernel_id)
JOIN workload AS w USING (workload_id)
WHERE w.desired = 'RUNNING' AND w.phase = 'ACTIVE' AND w.owner_daemon = :daemon_id
ORDER BY l.workload_id, l.kernel_id;

-- name: leases_of
SELECT l.*, b.released_at, EXISTS (
    SELECT 1 FROM task AS t WHERE t.workload_id = l.workload_id AND t.started_at IS NOT NULL AND t.ended_at IS NULL
) AS runs_task FROM lease AS l JOIN binding AS b USING (workload_id, kernel_id)
JOIN workload AS w USING (workload_id)
WHERE w.desired = 'RUNNING' AND w.phase = 'ACTIVE' AND l.workload_id = :workload_id
ORDER BY l.kernel_id;

-- name: held_kernels
SELECT b.kernel_id FROM binding AS b JOIN workload AS w USING (workload_id)
WHERE b.released_at IS NULL AND w.desired = 'RUNNING'
  AND w.phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING')
ORDER BY b.bound_at, b.kernel_id;
