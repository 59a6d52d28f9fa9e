-- The most memory that one process of a job's last run had, in KiB; 0 where nobody knows.
ALTER TABLE jobs ADD COLUMN rss_kib INTEGER NOT NULL DEFAULT 0;
