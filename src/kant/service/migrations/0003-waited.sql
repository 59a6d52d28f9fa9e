-- What the wait of a job that is over was owed to: microseconds by cause, as JSON; empty where nobody knows.
ALTER TABLE jobs ADD COLUMN waited BLOB NOT NULL DEFAULT x'';
