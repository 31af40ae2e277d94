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
