-- How often a person has put the end of an allocation off: what was asked before that tells an older end.

ALTER TABLE allocation ADD COLUMN extensions INTEGER NOT NULL DEFAULT 0 CHECK (extensions >= 0);
