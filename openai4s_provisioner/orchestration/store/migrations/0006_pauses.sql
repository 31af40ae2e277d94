-- Since when the site has not let an allocation run, and since when it has again: nobody is late for that long.

ALTER TABLE allocation ADD COLUMN paused_since REAL;
ALTER TABLE allocation ADD COLUMN resumed_at REAL;
