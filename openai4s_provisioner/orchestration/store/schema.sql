-- What must never be is refused here, not in Python. Wish and fact are separate columns, written by separate
-- statements. Times are seconds since the Unix epoch. No secret lies here but the workers' resume keys (the file is 0600).

CREATE TABLE daemon (
    daemon_id TEXT PRIMARY KEY CHECK (length(daemon_id) BETWEEN 1 AND 64),
    host TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started_at REAL NOT NULL,
    beat_at REAL NOT NULL,
    retired_at REAL
) STRICT;

CREATE TABLE workload (
    workload_id TEXT PRIMARY KEY CHECK (length(workload_id) BETWEEN 1 AND 64),
    kind TEXT NOT NULL CHECK (kind IN ('SESSION', 'BATCH')),
    owner TEXT NOT NULL CHECK (owner <> ''),
    profile TEXT NOT NULL CHECK (profile <> ''),
    spec TEXT NOT NULL CHECK (json_valid(spec)),
    created_at REAL NOT NULL,
    owner_daemon TEXT NOT NULL REFERENCES daemon (daemon_id),
    -- the wish
    desired TEXT NOT NULL CHECK (desired IN ('RUNNING', 'STOPPED')),
    desired_at REAL NOT NULL,
    stop_reason TEXT CHECK (stop_reason <> ''),
    stop_detail TEXT NOT NULL DEFAULT '',
    stop_actor TEXT NOT NULL DEFAULT '',
    -- the fact
    phase TEXT NOT NULL CHECK (phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING',
                                         'COMPLETED', 'FAILED', 'CANCELLED', 'LOST')),
    epoch INTEGER NOT NULL CHECK (epoch >= 1),
    reason TEXT CHECK (reason <> ''),
    reason_detail TEXT NOT NULL DEFAULT '',
    ended_at REAL,
    CHECK ((desired = 'RUNNING') = (stop_reason IS NULL)),
    CHECK ((phase IN ('COMPLETED', 'FAILED', 'CANCELLED', 'LOST')) = (ended_at IS NOT NULL))
) STRICT;

CREATE INDEX workload_by_driver ON workload (owner_daemon, phase);

CREATE TABLE allocation (
    allocation_id TEXT PRIMARY KEY CHECK (length(allocation_id) BETWEEN 1 AND 64),
    workload_id TEXT NOT NULL REFERENCES workload (workload_id),
    epoch INTEGER NOT NULL CHECK (epoch >= 1),
    token TEXT NOT NULL UNIQUE CHECK (length(token) >= 32),
    backend TEXT NOT NULL CHECK (backend <> ''),
    nodes INTEGER NOT NULL CHECK (nodes >= 1),
    phase TEXT NOT NULL CHECK (phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING',
                                         'COMPLETED', 'FAILED', 'CANCELLED', 'LOST')),
    created_at REAL NOT NULL,
    handle TEXT CHECK (handle <> ''),
    submit_attempts INTEGER NOT NULL DEFAULT 0 CHECK (submit_attempts >= 0),
    submit_unknown_since REAL,
    gone_since REAL,
    granted_at REAL,
    waiting TEXT NOT NULL DEFAULT '',
    drain_since REAL,
    cancel_asked_at REAL,
    ended_at REAL,
    reason TEXT CHECK (reason <> ''),
    backend_detail TEXT NOT NULL DEFAULT '',
    estimated_start REAL,
    estimate_as_of REAL,
    position INTEGER CHECK (position >= 0),
    ends_at REAL,
    end_warned_for REAL,
    extensions INTEGER NOT NULL DEFAULT 0 CHECK (extensions >= 0),
    paused_since REAL,
    resumed_at REAL,
    UNIQUE (workload_id, epoch),
    -- A handle settles the question whether the submission landed; without one nothing can be further than submitting.
    CHECK (handle IS NULL OR submit_unknown_since IS NULL),
    CHECK (phase NOT IN ('PENDING', 'GRANTED', 'ACTIVE', 'RELEASING', 'COMPLETED', 'LOST') OR handle IS NOT NULL),
    CHECK (phase <> 'SUBMITTING' OR handle IS NULL),
    CHECK ((phase IN ('COMPLETED', 'FAILED', 'CANCELLED', 'LOST')) = (ended_at IS NOT NULL))
) STRICT;

-- INV-3: at most one active allocation per workload.
CREATE UNIQUE INDEX one_active_allocation ON allocation (workload_id)
    WHERE phase IN ('SUBMITTING', 'PENDING', 'GRANTED', 'ACTIVE', 'RELEASING');

CREATE UNIQUE INDEX one_handle_per_allocation ON allocation (backend, handle) WHERE handle IS NOT NULL;

-- INV-6: terminal is final.
CREATE TRIGGER terminal_allocation_is_final BEFORE UPDATE ON allocation
    WHEN OLD.phase IN ('COMPLETED', 'FAILED', 'CANCELLED', 'LOST')
BEGIN
    SELECT RAISE(ABORT, 'a terminal allocation is never rewritten');
END;

-- Recovery is a new epoch: the only rewrite of a workload whose phase is terminal that could ever be right.
CREATE TRIGGER terminal_workload_is_final BEFORE UPDATE ON workload
    WHEN OLD.phase IN ('COMPLETED', 'FAILED', 'CANCELLED', 'LOST') AND NEW.epoch <= OLD.epoch
BEGIN
    SELECT RAISE(ABORT, 'a terminal workload is never rewritten');
END;

CREATE TRIGGER epoch_never_falls BEFORE UPDATE OF epoch ON workload
    WHEN NEW.epoch < OLD.epoch
BEGIN
    SELECT RAISE(ABORT, 'an epoch never falls');
END;

CREATE TRIGGER token_and_handle_are_final BEFORE UPDATE OF token, handle, epoch, workload_id ON allocation
    WHEN NEW.token <> OLD.token OR NEW.epoch <> OLD.epoch OR NEW.workload_id <> OLD.workload_id
      OR (OLD.handle IS NOT NULL AND NEW.handle IS NOT OLD.handle)
BEGIN
    SELECT RAISE(ABORT, 'what identifies an allocation is never rewritten');
END;

-- A row is the burn of its credential: the nonce is unique, and a rank registers once.
CREATE TABLE worker (
    allocation_id TEXT NOT NULL REFERENCES allocation (allocation_id),
    rank INTEGER NOT NULL CHECK (rank >= 0),
    nonce TEXT NOT NULL UNIQUE,
    resume_key BLOB,
    host TEXT NOT NULL,
    registered_at REAL NOT NULL,
    link TEXT NOT NULL CHECK (link IN ('connected', 'reconnecting', 'gone')),
    link_since REAL NOT NULL,
    workspace_ready INTEGER NOT NULL DEFAULT 0 CHECK (workspace_ready IN (0, 1)),
    workspace_detail TEXT NOT NULL DEFAULT '',
    ended_at REAL,
    exit_code INTEGER,
    exit_reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (allocation_id, rank)
) STRICT;

-- What a worker reports after the end of its allocation comes too late to be a fact about it.
CREATE TRIGGER late_reports_are_dropped BEFORE UPDATE OF link, workspace_ready, ended_at ON worker
    WHEN EXISTS (SELECT 1 FROM allocation AS a WHERE a.allocation_id = OLD.allocation_id
                 AND a.phase IN ('COMPLETED', 'FAILED', 'CANCELLED', 'LOST'))
BEGIN
    SELECT RAISE(IGNORE);
END;

CREATE TABLE binding (
    kernel_id TEXT NOT NULL CHECK (kernel_id <> ''),
    workload_id TEXT NOT NULL REFERENCES workload (workload_id),
    notebook_path TEXT NOT NULL,
    bound_at REAL NOT NULL,
    launch_id TEXT NOT NULL,
    released_at REAL,
    PRIMARY KEY (workload_id, kernel_id)
) STRICT;

CREATE UNIQUE INDEX one_binding_per_kernel ON binding (kernel_id) WHERE released_at IS NULL;

CREATE TABLE launch (
    launch_id TEXT PRIMARY KEY CHECK (launch_id <> ''),
    workload_id TEXT NOT NULL,
    kernel_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    isolated INTEGER CHECK (isolated IN (0, 1)),
    pid INTEGER,
    started_at REAL,
    ready_at REAL,
    exited_at REAL,
    exit_code INTEGER,
    exit_signal INTEGER,
    exit_tail TEXT NOT NULL DEFAULT '',
    FOREIGN KEY (workload_id, kernel_id) REFERENCES binding (workload_id, kernel_id)
) STRICT;

CREATE TABLE lease (
    workload_id TEXT NOT NULL,
    kernel_id TEXT NOT NULL,
    idle_ttl_s INTEGER NOT NULL CHECK (idle_ttl_s >= 1),
    max_lifetime_s INTEGER NOT NULL CHECK (max_lifetime_s >= 1),
    opened_at REAL NOT NULL,
    last_active_at REAL NOT NULL,
    warn_s INTEGER NOT NULL DEFAULT 600 CHECK (warn_s >= 0),
    busy_counts INTEGER NOT NULL DEFAULT 1 CHECK (busy_counts IN (0, 1)),
    activity TEXT NOT NULL DEFAULT 'unknown' CHECK (activity IN ('unknown', 'idle', 'busy')),
    started_at REAL,
    idle_from REAL,
    warned_for REAL,
    PRIMARY KEY (workload_id, kernel_id),
    FOREIGN KEY (workload_id, kernel_id) REFERENCES binding (workload_id, kernel_id)
) STRICT;

-- What an ended attempt still leaves outside this file. Its own table, because terminal rows are final.
CREATE TABLE debris (
    allocation_id TEXT PRIMARY KEY REFERENCES allocation (allocation_id),
    daemon_id TEXT NOT NULL REFERENCES daemon (daemon_id), -- who is to clear it away
    since REAL NOT NULL
) STRICT;

-- INV-12: who did what, when and why. Appended to, never rewritten.
CREATE TABLE event (
    event_id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    workload_id TEXT,
    kind TEXT NOT NULL CHECK (kind <> ''),
    actor TEXT NOT NULL CHECK (actor <> ''),
    reason TEXT,
    detail TEXT NOT NULL DEFAULT ''
) STRICT;

CREATE INDEX event_by_workload ON event (workload_id, event_id);

CREATE TRIGGER events_are_final BEFORE UPDATE ON event
BEGIN
    SELECT RAISE(ABORT, 'an event is never rewritten');
END;

-- How the command of a BATCH ended, as its own worker wrote it down.
CREATE TABLE command_exit (
    allocation_id TEXT PRIMARY KEY REFERENCES allocation (allocation_id),
    exit_code INTEGER,
    exit_signal INTEGER,
    started_at REAL,
    ended_at REAL NOT NULL,
    asked TEXT NOT NULL DEFAULT '',
    reason TEXT CHECK (reason <> ''),
    detail TEXT NOT NULL DEFAULT '',
    CHECK (exit_code IS NULL OR exit_signal IS NULL)
) STRICT;

CREATE TRIGGER command_exits_are_final BEFORE UPDATE ON command_exit
BEGIN
    SELECT RAISE(ABORT, 'how a command ended is never rewritten');
END;

CREATE INDEX workload_by_age ON workload (created_at);

-- A step that runs in the allocation which a session holds.
CREATE TABLE task (
    task_id TEXT PRIMARY KEY CHECK (length(task_id) BETWEEN 1 AND 64),
    workload_id TEXT NOT NULL REFERENCES workload (workload_id),
    allocation_id TEXT NOT NULL REFERENCES allocation (allocation_id),
    actor TEXT NOT NULL CHECK (actor <> ''),
    argv TEXT NOT NULL CHECK (json_valid(argv)),
    cwd TEXT NOT NULL,
    created_at REAL NOT NULL,
    -- the wish
    cancel_asked_at REAL,
    cancel_actor TEXT NOT NULL DEFAULT '',
    -- the fact
    sent_at REAL,
    started_at REAL,
    ended_at REAL,
    exit_code INTEGER,
    exit_signal INTEGER,
    detail TEXT NOT NULL DEFAULT '',
    every_rank INTEGER NOT NULL DEFAULT 0 CHECK (every_rank IN (0, 1)),
    CHECK (exit_code IS NULL OR exit_signal IS NULL)
) STRICT;

CREATE INDEX open_tasks ON task (allocation_id) WHERE ended_at IS NULL;

-- INV-4: a task never asks for an allocation, and none begins in one that is not there.
CREATE TRIGGER tasks_need_a_live_allocation BEFORE INSERT ON task
    WHEN NOT EXISTS (SELECT 1 FROM allocation WHERE allocation_id = NEW.allocation_id
                     AND workload_id = NEW.workload_id AND phase IN ('GRANTED', 'ACTIVE'))
BEGIN
    SELECT RAISE(ABORT, 'a task needs a live allocation');
END;

CREATE TRIGGER ended_tasks_are_final BEFORE UPDATE ON task
    WHEN OLD.ended_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'an ended task is never rewritten');
END;

CREATE TRIGGER tasks_end_with_their_allocation AFTER UPDATE OF phase ON allocation
    WHEN NEW.ended_at IS NOT NULL
BEGIN
    UPDATE task SET ended_at = NEW.ended_at, detail = 'Its session ended.'
    WHERE allocation_id = NEW.allocation_id AND ended_at IS NULL;
END;
