-- By whose right something was done, or why it was refused.
ALTER TABLE audit ADD COLUMN user TEXT NOT NULL DEFAULT '';
ALTER TABLE audit ADD COLUMN role TEXT NOT NULL DEFAULT 'operator';
ALTER TABLE audit ADD COLUMN refused TEXT NOT NULL DEFAULT '';
UPDATE audit SET user = substr(who, 1, instr(who || ' ', ' ') - 1);
CREATE INDEX audit_by_user ON audit (user, seq);
CREATE INDEX audit_refused ON audit (seq) WHERE refused != '';

-- What is over for long is pruned: found by its end, with the submissions that no other job has.
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended >= 0;
CREATE INDEX jobs_by_digest ON jobs (digest);
