-- When an allocation is expected to begin and will end, as far as its backend knows; and the end a person was told of.
-- A task may run once on every rank of its allocation.

ALTER TABLE allocation ADD COLUMN estimated_start REAL;
ALTER TABLE allocation ADD COLUMN estimate_as_of REAL;
ALTER TABLE allocation ADD COLUMN position INTEGER CHECK (position >= 0);
ALTER TABLE allocation ADD COLUMN ends_at REAL;
ALTER TABLE allocation ADD COLUMN end_warned_for REAL;
ALTER TABLE task ADD COLUMN every_rank INTEGER NOT NULL DEFAULT 0 CHECK (every_rank IN (0, 1));
