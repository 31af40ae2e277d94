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
