-- What the clocks of a lease need: the rest of the profile's policy, what the kernel does, since when the clocks run
-- (started_at: its first kernel became ready; idle_from: it did so in the present attempt), and the end that was
-- announced to a person.

ALTER TABLE lease ADD COLUMN warn_s INTEGER NOT NULL DEFAULT 600 CHECK (warn_s >= 0);
ALTER TABLE lease ADD COLUMN busy_counts INTEGER NOT NULL DEFAULT 1 CHECK (busy_counts IN (0, 1));
ALTER TABLE lease ADD COLUMN activity TEXT NOT NULL DEFAULT 'unknown' CHECK (activity IN ('unknown', 'idle', 'busy'));
ALTER TABLE lease ADD COLUMN started_at REAL;
ALTER TABLE lease ADD COLUMN idle_from REAL;
ALTER TABLE lease ADD COLUMN warned_for REAL;
