CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

-- Submissions by the digest of their text: thousands of jobs share one.
CREATE TABLE submissions (digest BLOB PRIMARY KEY, body BLOB NOT NULL);

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    array INTEGER NOT NULL,
    array_index INTEGER NOT NULL,
    phase TEXT NOT NULL,
    name TEXT NOT NULL,
    queue TEXT NOT NULL,
    user TEXT NOT NULL,
    priority INTEGER NOT NULL,
    gpus REAL NOT NULL,
    submitted INTEGER NOT NULL,
    started INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    code INTEGER,
    signal INTEGER,
    reason TEXT NOT NULL,
    stopping TEXT NOT NULL,
    place BLOB NOT NULL,
    waits BLOB NOT NULL,
    digest BLOB NOT NULL
);
CREATE INDEX jobs_by_phase ON jobs (phase, seq);
CREATE INDEX jobs_by_queue ON jobs (queue, seq);
CREATE INDEX jobs_by_user ON jobs (user, seq);
CREATE INDEX jobs_by_array ON jobs (array, seq) WHERE array >= 0;

-- Who did what: of the API's caller, as the socket says who that is.
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY,
    time INTEGER NOT NULL,
    who TEXT NOT NULL,
    verb TEXT NOT NULL,
    what TEXT NOT NULL
);
