-- Every statement of the SQLite adapter, as named blocks. A block starts with "-- name: NAME" and ends where
-- the next one starts. Parameters are bound by position (?1, ?2, ...); nothing is ever formatted into the text.
-- What the columns mean is told in docs/design.md, "What is stored".

-- name: schema
CREATE TABLE this_store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    store_id BLOB NOT NULL,
    sequence INTEGER NOT NULL,
    journal TEXT NOT NULL DEFAULT 'wal',
    seal BLOB
) STRICT;
CREATE TABLE threads (
    thread INTEGER PRIMARY KEY,
    thread_id ANY NOT NULL UNIQUE,
    revision INTEGER NOT NULL,
    session BLOB,
    next_blob INTEGER NOT NULL,
    collected INTEGER NOT NULL,
    secret BLOB NOT NULL
) STRICT;
CREATE TRIGGER take_sequence AFTER UPDATE OF revision ON threads
BEGIN
    UPDATE this_store SET sequence = NEW.revision WHERE sequence < NEW.revision;
END;
CREATE TABLE spaces (
    space INTEGER PRIMARY KEY,
    thread INTEGER NOT NULL,
    ns ANY NOT NULL,
    head BLOB,
    UNIQUE (thread, ns)
) STRICT;
CREATE TABLE checkpoints (
    seq INTEGER PRIMARY KEY,
    space INTEGER NOT NULL,
    id ANY NOT NULL,
    parent ANY,
    run ANY,
    undone INTEGER,
    frame BLOB NOT NULL,
    history BLOB,
    environment INTEGER
) STRICT;
CREATE TABLE environments (
    environment INTEGER PRIMARY KEY,
    content TEXT NOT NULL UNIQUE
) STRICT;
CREATE UNIQUE INDEX checkpoints_id ON checkpoints (space, id);
CREATE INDEX checkpoints_order ON checkpoints (space);
CREATE INDEX checkpoints_undone ON checkpoints (space) WHERE undone IS NOT NULL;
CREATE INDEX checkpoints_run ON checkpoints (run) WHERE run IS NOT NULL;
CREATE TABLE writes (
    seq INTEGER PRIMARY KEY,
    space INTEGER NOT NULL,
    checkpoint ANY NOT NULL,
    task INTEGER NOT NULL,
    run ANY,
    undone INTEGER,
    frame BLOB NOT NULL
) STRICT;
CREATE INDEX writes_checkpoint ON writes (space, checkpoint, task);
CREATE INDEX writes_undone ON writes (space) WHERE undone IS NOT NULL;
CREATE INDEX writes_run ON writes (run) WHERE run IS NOT NULL;
CREATE TABLE blobs (
    blob INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    frame ANY NOT NULL
) STRICT;
CREATE INDEX blobs_digest ON blobs (digest);
CREATE TABLE packs (
    pack INTEGER PRIMARY KEY,
    items INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;
CREATE TABLE vaults (
    vault INTEGER PRIMARY KEY,
    thread_id ANY NOT NULL UNIQUE,
    revision INTEGER NOT NULL,
    keys BLOB NOT NULL,
    frame BLOB NOT NULL
) STRICT;
CREATE TABLE credential_uses (
    use INTEGER PRIMARY KEY,
    vault INTEGER NOT NULL,
    frame BLOB NOT NULL
) STRICT;
CREATE INDEX credential_uses_vault ON credential_uses (vault);
CREATE TABLE leases (
    thread_id ANY PRIMARY KEY,
    fence INTEGER NOT NULL,
    holder BLOB NOT NULL,
    label ANY NOT NULL,
    turn INTEGER NOT NULL,
    since REAL NOT NULL,
    expires REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE waiters (
    place INTEGER PRIMARY KEY,
    thread_id ANY NOT NULL,
    holder BLOB NOT NULL,
    expires REAL NOT NULL
) STRICT;
CREATE INDEX waiters_thread ON waiters (thread_id);
INSERT INTO this_store (one, store_id, sequence) VALUES (1, randomblob(16), 0);

-- name: journal_chosen
SELECT journal FROM this_store;

-- name: journal_choose
UPDATE this_store SET journal = ?1 WHERE one = 1 AND journal <> ?1;

-- name: store_row
SELECT store_id, sequence, seal FROM this_store;

-- name: store_state
SELECT store_id, sequence, seal, EXISTS (SELECT 1 FROM threads) FROM this_store;

-- name: set_seal
UPDATE this_store SET seal = ?1 WHERE one = 1;

-- name: thread_row
SELECT thread, revision, session, next_blob, collected, secret FROM threads WHERE thread_id = ?1;

-- name: next_sequence
UPDATE this_store SET sequence = sequence + 1 WHERE one = 1 RETURNING sequence;

-- name: advance_sequence
UPDATE this_store SET sequence = sequence + ?1 WHERE one = 1 RETURNING sequence;

-- name: put_begin
-- The last column is the commit sequence given out last. The put takes the next one with its revision (take_sequence).
SELECT t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.space, h.id, h.seq,
       e.seq, e.parent, e.run, e.frame, p.seq, p.parent, p.run, CASE WHEN ?5 THEN p.frame END,
       l.fence, l.holder, l.label, l.turn, l.since, l.expires,
       (SELECT sequence FROM this_store)
FROM threads t
LEFT JOIN leases l ON l.thread_id = ?1
LEFT JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
LEFT JOIN checkpoints h ON h.seq = (
    SELECT seq FROM checkpoints WHERE space = s.space AND undone IS NULL ORDER BY seq DESC LIMIT 1
)
LEFT JOIN checkpoints e ON e.space = s.space AND e.id = ?3
LEFT JOIN checkpoints p ON p.space = s.space AND p.id = ?4
WHERE t.thread_id = ?1;

-- name: writes_begin
SELECT t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.space, h.id, e.seq,
       EXISTS (SELECT 1 FROM writes w
               WHERE w.space = s.space AND w.checkpoint = ?3 AND w.task = ?4 AND w.undone IS NULL),
       l.fence, l.holder, l.label, l.turn, l.since, l.expires,
       (SELECT sequence FROM this_store)
FROM threads t
LEFT JOIN leases l ON l.thread_id = ?1
LEFT JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
LEFT JOIN checkpoints h ON h.seq = (
    SELECT seq FROM checkpoints WHERE space = s.space AND undone IS NULL ORDER BY seq DESC LIMIT 1
)
LEFT JOIN checkpoints e ON e.space = s.space AND e.id = ?3
WHERE t.thread_id = ?1;

-- name: insert_thread
-- Nothing, where the store is sealed and the thread isn't, or the other way about.
INSERT INTO threads (thread, thread_id, revision, session, next_blob, collected, secret)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 FROM this_store WHERE (seal IS NULL) = (length(?7) = 16) RETURNING thread;

-- name: update_thread
UPDATE threads SET revision = ?2, session = ?3, next_blob = ?4 WHERE thread = ?1;

-- name: update_next_blob
UPDATE threads SET next_blob = ?2 WHERE thread = ?1;

-- name: park_space
-- ?2: what the thread's sealed head knows of the namespace, or NULL when that stands in the head itself.
UPDATE spaces SET head = ?2 WHERE space = ?1;

-- name: unpark_spaces
UPDATE spaces SET head = NULL WHERE thread = ?1 AND head IS NOT NULL;

-- name: parked_of_thread
SELECT space, head FROM spaces WHERE thread = ?1 AND head IS NOT NULL;

-- name: marks_of_thread
-- Of each row, what the sum of a sealed thread's rows is made of; of a history record its end.
SELECT c.seq, c.undone, substr(c.history, -8) FROM spaces s JOIN checkpoints c ON c.space = s.space
WHERE s.thread = ?1
UNION ALL
SELECT w.seq, w.undone, NULL FROM spaces s JOIN writes w ON w.space = s.space WHERE s.thread = ?1;

-- name: insert_space
INSERT INTO spaces (thread, ns) VALUES (?1, ?2) RETURNING space;

-- name: insert_checkpoint
INSERT INTO checkpoints (seq, space, id, parent, run, frame) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: insert_own_checkpoint
INSERT INTO checkpoints (seq, space, id, parent, run, frame, environment) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: insert_copied_checkpoint
-- ?7: the seq of the checkpoint that it is a copy of.
INSERT INTO checkpoints (seq, space, id, parent, run, frame, environment)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, environment FROM checkpoints WHERE seq = ?7;

-- name: note_environment
INSERT INTO environments (content) VALUES (?1)
ON CONFLICT (content) DO UPDATE SET content = ?1 RETURNING environment;

-- name: environment_of_checkpoint
-- ?3: the checkpoint's id, or NULL for the head.
SELECT v.content FROM threads t
JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
JOIN checkpoints c ON c.space = s.space AND c.seq = coalesce(
    (SELECT seq FROM checkpoints WHERE space = s.space AND id = ?3),
    (SELECT seq FROM checkpoints WHERE space = s.space AND undone IS NULL AND ?3 IS NULL ORDER BY seq DESC LIMIT 1)
)
JOIN environments v ON v.environment = c.environment
WHERE t.thread_id = ?1;

-- name: insert_writes
INSERT INTO writes (seq, space, checkpoint, task, run, frame) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: lease_of_thread
SELECT fence, holder, label, turn, since, expires FROM leases WHERE thread_id = ?1;

-- name: all_leases
SELECT thread_id, fence, holder, label, turn, since, expires FROM leases ORDER BY thread_id;

-- name: put_lease
INSERT INTO leases (thread_id, fence, holder, label, turn, since, expires) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (thread_id) DO UPDATE SET fence = ?2, holder = ?3, label = ?4, turn = ?5, since = ?6, expires = ?7;

-- name: renew_lease
UPDATE leases SET expires = ?3 WHERE thread_id = ?1 AND holder = ?2 RETURNING fence;

-- name: drop_lease
DELETE FROM leases WHERE thread_id = ?1 AND holder = ?2;

-- name: break_lease
DELETE FROM leases WHERE thread_id = ?1 RETURNING fence;

-- name: waiters_of_thread
SELECT place, holder, expires FROM waiters WHERE thread_id = ?1 ORDER BY place;

-- name: insert_waiter
INSERT INTO waiters (thread_id, holder, expires) VALUES (?1, ?2, ?3) RETURNING place;

-- name: renew_waiter
UPDATE waiters SET expires = ?3 WHERE place = ?1 AND holder = ?2 RETURNING place;

-- name: drop_waiter
DELETE FROM waiters WHERE thread_id = ?1 AND holder = ?2;

-- name: drop_dead_waiters
DELETE FROM waiters WHERE thread_id = ?1 AND expires < ?2;

-- name: stored_until
SELECT EXISTS (
    SELECT 1 FROM checkpoints WHERE seq <= ?2 AND space IN (SELECT space FROM spaces WHERE thread = ?1)
);

-- name: drop_checkpoints_since
DELETE FROM checkpoints WHERE seq > ?2 AND space IN (SELECT space FROM spaces WHERE thread = ?1);

-- name: drop_writes_since
DELETE FROM writes WHERE seq > ?2 AND space IN (SELECT space FROM spaces WHERE thread = ?1);

-- name: insert_blob
INSERT INTO blobs (blob, digest, frame) VALUES (?1, ?2, ?3);

-- name: blobs_by_digest
-- ?1: 16-byte addresses joined; ?2 and ?3: the thread's range of rows.
WITH RECURSIVE place (at) AS (
    SELECT 1 UNION ALL SELECT at + 16 FROM place WHERE at + 16 < length(?1)
)
SELECT b.digest, b.blob - ?2 FROM place
CROSS JOIN blobs b ON b.digest = substr(?1, place.at, 16) AND b.blob BETWEEN ?2 AND ?3;

-- name: blobs_by_number
-- ?1: the thread's first row; ?2: numbers as a JSON array. With a group (codec 4) comes its pack, if it has one.
SELECT wanted.value, b.digest, b.frame, p.items, p.frame FROM json_each(?2) AS wanted
CROSS JOIN blobs b ON b.blob = ?1 + wanted.value
LEFT JOIN packs p ON p.pack = CASE WHEN substr(b.frame, 3, 1) = x'04' THEN b.blob END;

-- name: take_for_pack
-- ?1: the thread's first row; ?2: numbers as a JSON array; ?3: how few are left as they are.
-- Those that have a row of their own yet. They are deleted and made anew, since SQLite joins pages that deleting has
-- left half empty, and not those that updating has.
DELETE FROM blobs
WHERE blob IN (SELECT ?1 + value FROM json_each(?2)) AND typeof(frame) = 'blob' AND ?3 <= (
    SELECT count(*) FROM json_each(?2) AS wanted CROSS JOIN blobs b ON b.blob = ?1 + wanted.value
    WHERE typeof(b.frame) = 'blob'
)
RETURNING blob - ?1, digest;

-- name: leave_in_pack
-- ?1: the thread's first row; ?2: numbers as a JSON array; ?3: their digests joined; ?4: the pack's number.
INSERT INTO blobs (blob, digest, frame)
SELECT ?1 + value, substr(?3, 1 + 16 * key, 16), ?4 FROM json_each(?2);

-- name: insert_pack
INSERT INTO packs (pack, items, frame) VALUES (?1, ?2, ?3);

-- name: packs_by_number
-- ?1: the thread's first row; ?2: numbers as a JSON array. With the address of the group.
SELECT wanted.value, b.digest, p.items, p.frame FROM json_each(?2) AS wanted
CROSS JOIN packs p ON p.pack = ?1 + wanted.value CROSS JOIN blobs b ON b.blob = p.pack;

-- name: packs_page
SELECT p.pack - ?1, b.digest, p.items, p.frame FROM packs p LEFT JOIN blobs b ON b.blob = p.pack
WHERE p.pack BETWEEN ?1 + ?2 AND ?3 ORDER BY p.pack LIMIT ?4;

-- name: moved_blobs
SELECT blob - ?1, frame FROM blobs WHERE blob BETWEEN ?1 AND ?2 AND typeof(frame) = 'integer';

-- name: packs_but
-- ?1 and ?2: the thread's range of rows; ?3: numbers of the blobs to keep as a JSON array.
SELECT p.pack - ?1, b.digest, p.frame FROM packs p JOIN blobs b ON b.blob = p.pack
WHERE p.pack BETWEEN ?1 AND ?2 AND p.pack - ?1 NOT IN (SELECT value FROM json_each(?3));

-- name: drop_packs_but
DELETE FROM packs WHERE pack BETWEEN ?1 AND ?2 AND pack - ?1 NOT IN (SELECT value FROM json_each(?3));

-- name: set_pack_as_stored
UPDATE packs SET frame = ?2 WHERE pack = ?1;

-- name: copy_packs
INSERT INTO packs (pack, items, frame)
SELECT pack - ?1 + ?3, items, frame FROM packs WHERE pack BETWEEN ?1 AND ?2;

-- name: delete_packs_of_thread
DELETE FROM packs WHERE pack BETWEEN ?1 AND ?2;

-- name: head_of_space
SELECT t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.space,
       c.seq, c.id, c.parent, c.run, c.frame, c.history,
       l.fence, l.holder, l.label, l.turn, l.since, l.expires
FROM threads t
LEFT JOIN leases l ON l.thread_id = ?1
LEFT JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
LEFT JOIN checkpoints c ON c.seq = (
    SELECT seq FROM checkpoints WHERE space = s.space AND undone IS NULL ORDER BY seq DESC LIMIT 1
)
WHERE t.thread_id = ?1;

-- name: head_id
SELECT id FROM checkpoints WHERE space = ?1 AND undone IS NULL ORDER BY seq DESC LIMIT 1;

-- name: checkpoint_by_id
SELECT t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.space,
       c.seq, c.id, c.parent, c.run, c.frame, c.history,
       l.fence, l.holder, l.label, l.turn, l.since, l.expires
FROM threads t
LEFT JOIN leases l ON l.thread_id = ?1
LEFT JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
LEFT JOIN checkpoints c ON c.space = s.space AND c.id = ?3
WHERE t.thread_id = ?1;

-- name: writes_of_checkpoint
SELECT seq, run, frame FROM writes WHERE space = ?1 AND checkpoint = ?2 AND undone IS NULL ORDER BY seq;

-- name: writes_of_task
SELECT seq, run, frame FROM writes
WHERE space = ?1 AND checkpoint = ?2 AND task = ?3 AND undone IS NULL ORDER BY seq;

-- name: writes_of_page
-- ?1: seqs of checkpoints as a JSON array.
SELECT c.seq, w.seq, w.run, w.frame FROM json_each(?1) AS page
CROSS JOIN checkpoints c ON c.seq = page.value
CROSS JOIN writes w ON w.space = c.space AND w.checkpoint = c.id AND w.undone IS NULL
ORDER BY c.seq, w.seq;

-- name: writes_of_ancestors
-- ?1: seqs of checkpoints as a JSON array. With what was rolled back: it is part of the history of what came before.
SELECT c.seq, w.seq, w.run, w.frame, w.undone FROM json_each(?1) AS page
CROSS JOIN checkpoints c ON c.seq = page.value
CROSS JOIN writes w ON w.space = c.space AND w.checkpoint = c.id
ORDER BY c.seq, w.seq;

-- name: page_of_space
SELECT t.thread_id, t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.ns,
       c.seq, c.id, c.parent, c.run, c.frame, c.history, s.space
FROM threads t
JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
JOIN checkpoints c ON c.space = s.space
WHERE t.thread_id = ?1 AND c.seq < ?3
ORDER BY c.seq DESC LIMIT ?4;

-- name: page_of_thread
SELECT t.thread_id, t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.ns,
       c.seq, c.id, c.parent, c.run, c.frame, c.history, s.space
FROM threads t
JOIN spaces s ON s.thread = t.thread
JOIN checkpoints c ON c.space = s.space
WHERE t.thread_id = ?1 AND c.seq < ?2
ORDER BY c.seq DESC LIMIT ?3;

-- name: page_of_store
SELECT t.thread_id, t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.ns,
       c.seq, c.id, c.parent, c.run, c.frame, c.history, s.space
FROM checkpoints c
CROSS JOIN spaces s ON s.space = c.space
CROSS JOIN threads t ON t.thread = s.thread
WHERE c.seq < ?1
ORDER BY c.seq DESC LIMIT ?2;

-- name: page_by_id
-- Every namespace's checkpoint of one id.
SELECT t.thread_id, t.thread, t.revision, t.session, t.next_blob, t.collected, t.secret, s.ns,
       c.seq, c.id, c.parent, c.run, c.frame, c.history, s.space
FROM threads t
JOIN spaces s ON s.thread = t.thread
JOIN checkpoints c ON c.space = s.space AND c.id = ?2
WHERE t.thread_id = ?1 AND c.seq < ?3
ORDER BY c.seq DESC LIMIT ?4;

-- name: seqs_of_ids
-- ?1: thread_id; ?2: checkpoint id. In every namespace of the thread.
SELECT s.ns, c.seq FROM threads t
JOIN spaces s ON s.thread = t.thread
JOIN checkpoints c ON c.space = s.space AND c.id = ?2
WHERE t.thread_id = ?1;

-- name: ancestors
-- The chain of parents of a checkpoint, nearest first.
WITH RECURSIVE chain (seq, depth) AS (
    SELECT seq, 0 FROM checkpoints WHERE space = ?1 AND id = ?2
    UNION ALL
    SELECT p.seq, chain.depth + 1 FROM chain
    JOIN checkpoints c ON c.seq = chain.seq
    JOIN checkpoints p ON p.space = ?1 AND p.id = c.parent AND p.seq < chain.seq
    WHERE chain.depth < ?3
)
SELECT c.seq, c.id, c.parent, c.run, c.frame, c.history FROM chain
JOIN checkpoints c ON c.seq = chain.seq
ORDER BY chain.depth;

-- The adapter's own blocks.

-- name: vacuum
VACUUM;

-- name: schema_objects
SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\';

-- name: all_threads
SELECT t.thread_id, t.secret, t.revision,
       (SELECT count(*) FROM spaces s JOIN checkpoints c ON c.space = s.space WHERE s.thread = t.thread),
       (SELECT count(*) FROM spaces s WHERE s.thread = t.thread),
       n.ns, c.seq, c.id, c.parent, c.run, c.frame, c.history
FROM threads t
LEFT JOIN checkpoints c ON c.seq = (
    SELECT max(h.seq) FROM spaces s JOIN checkpoints h ON h.space = s.space
    WHERE s.thread = t.thread AND h.undone IS NULL
)
LEFT JOIN spaces n ON n.space = c.space
ORDER BY t.thread_id;

-- name: lineage
-- A checkpoint and its ancestors, nearest first.
WITH RECURSIVE chain (seq) AS (
    SELECT seq FROM checkpoints WHERE space = ?1 AND id = ?2
    UNION ALL
    SELECT p.seq FROM chain
    JOIN checkpoints c ON c.seq = chain.seq
    JOIN checkpoints p ON p.space = ?1 AND p.id = c.parent AND p.seq < chain.seq
)
SELECT chain.seq, c.id FROM chain JOIN checkpoints c ON c.seq = chain.seq ORDER BY chain.seq DESC;

-- name: has_child
SELECT 1 FROM checkpoints WHERE space = ?1 AND parent = ?2 LIMIT 1;

-- name: checkpoints_of_space
SELECT seq, id, parent, run, frame, history FROM checkpoints WHERE space = ?1 ORDER BY seq;

-- name: undo_newer
UPDATE checkpoints SET undone = ?3 WHERE space = ?1 AND seq > ?2 AND undone IS NULL;

-- name: undo_checkpoints
-- ?1: seqs as a JSON array.
UPDATE checkpoints SET undone = ?2 WHERE undone IS NULL AND seq IN (SELECT value FROM json_each(?1));

-- name: undo_writes
UPDATE writes SET undone = ?2 WHERE undone IS NULL AND seq IN (SELECT value FROM json_each(?1));

-- name: redo_checkpoints
UPDATE checkpoints SET undone = NULL WHERE undone IS NOT NULL AND seq IN (SELECT value FROM json_each(?1));

-- name: undone_ids
SELECT c.id FROM threads t JOIN spaces s ON s.thread = t.thread AND s.ns = ?2
JOIN checkpoints c ON c.space = s.space AND c.undone IS NOT NULL
WHERE t.thread_id = ?1 ORDER BY c.seq DESC;

-- name: undone_of_thread
-- What was rolled back: a row's sequence and the rollback's.
SELECT c.seq, c.undone FROM spaces s JOIN checkpoints c ON c.space = s.space AND c.undone IS NOT NULL
WHERE s.thread = ?1
UNION ALL
SELECT w.seq, w.undone FROM spaces s JOIN writes w ON w.space = s.space AND w.undone IS NOT NULL
WHERE s.thread = ?1;

-- name: all_thread_ids
SELECT thread_id FROM threads ORDER BY thread_id;

-- name: spaces_of_thread
SELECT space, ns FROM spaces WHERE thread = ?1 ORDER BY space;

-- name: checkpoints_of_thread
SELECT c.seq, s.space, s.ns, c.seq, c.id, c.parent, c.run, c.frame, c.history
FROM spaces s JOIN checkpoints c ON c.space = s.space
WHERE s.thread = ?1 ORDER BY c.seq;

-- name: writes_of_thread
SELECT w.seq, s.space, s.ns, w.seq, w.checkpoint, w.task, w.run, w.frame
FROM spaces s JOIN writes w ON w.space = s.space
WHERE s.thread = ?1 ORDER BY w.seq;

-- name: copy_blobs
INSERT INTO blobs (blob, digest, frame)
SELECT blob - ?1 + ?3, digest, frame FROM blobs WHERE blob BETWEEN ?1 AND ?2;

-- name: keys_of_thread
SELECT s.ns, c.id, c.parent FROM spaces s JOIN checkpoints c ON c.space = s.space
WHERE s.thread = ?1 AND c.undone IS NULL ORDER BY c.seq;

-- name: set_checkpoint_frame
UPDATE checkpoints SET frame = ?2 WHERE seq = ?1;

-- name: set_writes_frame
UPDATE writes SET frame = ?2 WHERE seq = ?1;

-- name: rename_thread
UPDATE threads SET thread_id = ?2, revision = ?3, session = NULL WHERE thread = ?1;

-- name: set_history
UPDATE checkpoints SET history = ?2 WHERE seq = ?1;

-- name: delete_checkpoints_of_thread
DELETE FROM checkpoints WHERE space IN (SELECT space FROM spaces WHERE thread = ?1);

-- name: delete_writes_of_thread
DELETE FROM writes WHERE space IN (SELECT space FROM spaces WHERE thread = ?1);

-- name: delete_blobs_of_thread
DELETE FROM blobs WHERE blob BETWEEN ?1 AND ?2;

-- name: delete_spaces_of_thread
DELETE FROM spaces WHERE thread = ?1;

-- name: delete_thread
DELETE FROM threads WHERE thread = ?1;

-- name: heads_of_thread
-- The newest checkpoint of each namespace.
SELECT s.space, s.ns, c.seq, c.id, c.parent, c.run, c.frame, c.history
FROM spaces s
JOIN checkpoints c ON c.seq = (
    SELECT seq FROM checkpoints WHERE space = s.space AND undone IS NULL ORDER BY seq DESC LIMIT 1
)
WHERE s.thread = ?1;

-- name: drop_writes_but_of
-- Writes of a namespace's other checkpoints; those of one that isn't stored yet stay if they are newer, or if its
-- id sorts above the head's: a run can be several checkpoints ahead of what is stored.
DELETE FROM writes WHERE space = ?1 AND (undone IS NOT NULL OR checkpoint <> ?2 AND (
    (seq < ?3 AND checkpoint < ?2) OR checkpoint IN (SELECT id FROM checkpoints WHERE space = ?1)
));

-- name: drop_checkpoints_but
DELETE FROM checkpoints WHERE space = ?1 AND seq <> ?2;

-- name: drop_undone_writes
-- What was rolled back, in namespaces that have no head.
DELETE FROM writes WHERE space IN (SELECT space FROM spaces WHERE thread = ?1) AND (
    undone IS NOT NULL OR EXISTS (
        SELECT 1 FROM checkpoints c WHERE c.space = writes.space AND c.id = writes.checkpoint AND c.undone IS NOT NULL
    )
);

-- name: drop_undone_checkpoints
DELETE FROM checkpoints WHERE undone IS NOT NULL AND space IN (SELECT space FROM spaces WHERE thread = ?1);

-- name: refs_of_blobs
-- ?1: the thread's first row; ?2: numbers as a JSON array. The frame only of blobs that refer to others.
SELECT wanted.value, b.digest, CASE WHEN substr(b.frame, 3, 1) IN (x'04', x'07') THEN b.frame END
FROM json_each(?2) AS wanted CROSS JOIN blobs b ON b.blob = ?1 + wanted.value;

-- name: drop_blobs_but
-- ?1 and ?2: the thread's range of rows; ?3: numbers to keep as a JSON array.
DELETE FROM blobs WHERE blob BETWEEN ?1 AND ?2 AND blob - ?1 NOT IN (SELECT value FROM json_each(?3));

-- name: set_collected
UPDATE threads SET collected = ?2 WHERE thread = ?1;

-- name: drop_empty_spaces
DELETE FROM spaces WHERE thread = ?1
AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.space = spaces.space)
AND NOT EXISTS (SELECT 1 FROM writes w WHERE w.space = spaces.space);

-- name: threads_of_run
SELECT t.thread_id FROM checkpoints c JOIN spaces s ON s.space = c.space JOIN threads t ON t.thread = s.thread
WHERE c.run = ?1
UNION
SELECT t.thread_id FROM writes w JOIN spaces s ON s.space = w.space JOIN threads t ON t.thread = s.thread
WHERE w.run = ?1;

-- name: drop_writes_of_run
DELETE FROM writes WHERE run = ?1;

-- name: drop_writes_of_run_checkpoints
DELETE FROM writes WHERE EXISTS (
    SELECT 1 FROM checkpoints c WHERE c.run = ?1 AND c.space = writes.space AND c.id = writes.checkpoint
) AND space IN (SELECT space FROM checkpoints WHERE run = ?1);

-- name: drop_checkpoints_of_run
DELETE FROM checkpoints WHERE run = ?1;

-- name: check_file
SELECT quick_check FROM pragma_quick_check;

-- name: stray_rows
SELECT 'checkpoint', count(*) FROM checkpoints WHERE space NOT IN (SELECT space FROM spaces)
UNION ALL SELECT 'writes row', count(*) FROM writes WHERE space NOT IN (SELECT space FROM spaces)
UNION ALL SELECT 'namespace', count(*) FROM spaces WHERE thread NOT IN (SELECT thread FROM threads)
UNION ALL SELECT 'blob', count(*) FROM blobs WHERE (blob >> 28) NOT IN (SELECT thread FROM threads)
UNION ALL SELECT 'pack', count(*) FROM packs WHERE pack NOT IN (SELECT blob FROM blobs)
UNION ALL SELECT 'checkpoint of versions that', count(*) FROM checkpoints
WHERE environment IS NOT NULL AND environment NOT IN (SELECT environment FROM environments)
UNION ALL SELECT 'credential use', count(*) FROM credential_uses WHERE vault NOT IN (SELECT vault FROM vaults);

-- name: counters_behind
-- Rows that stand beyond the counter that numbered them.
SELECT 'the commit sequence of the store', count(*) FROM (
    SELECT seq FROM checkpoints UNION ALL SELECT seq FROM writes UNION ALL SELECT revision FROM threads
    UNION ALL SELECT revision FROM vaults UNION ALL SELECT use FROM credential_uses
) WHERE seq > (SELECT sequence FROM this_store)
UNION ALL SELECT 'a thread''s revision', count(*) FROM threads t
JOIN spaces s ON s.thread = t.thread JOIN checkpoints c ON c.space = s.space WHERE c.seq > t.revision;

-- name: blobs_page
SELECT blob - ?1, digest, frame FROM blobs WHERE blob BETWEEN ?1 + ?2 AND ?3 ORDER BY blob LIMIT ?4;

-- name: count_blobs
SELECT count(*) FROM blobs WHERE blob BETWEEN ?1 AND ?2;

-- What is read of a file that an official SqliteSaver wrote; nothing is ever written to one.

-- name: official_threads
SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id;

-- name: official_keys
SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?1
ORDER BY checkpoint_id, checkpoint_ns;

-- name: official_checkpoint
SELECT type, checkpoint, metadata FROM checkpoints WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3;

-- name: official_writes
SELECT task_path, task_id, idx, channel, type, value FROM writes
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3 ORDER BY task_path, task_id, idx;

-- name: official_writes_without_path
-- Before 3.1 the saver kept no task_path.
SELECT '', task_id, idx, channel, type, value FROM writes
WHERE thread_id = ?1 AND checkpoint_ns = ?2 AND checkpoint_id = ?3 ORDER BY task_id, idx;

-- Credentials

-- name: vault_of_thread
SELECT v.vault, v.revision, v.keys, v.frame, (SELECT max(u.use) FROM credential_uses u WHERE u.vault = v.vault)
FROM vaults v WHERE v.thread_id = ?1;

-- name: vaults_page
SELECT vault, thread_id, keys FROM vaults WHERE vault > ?1 ORDER BY vault LIMIT ?2;

-- name: vault_as_stored
SELECT v.vault, v.revision, v.keys, v.frame, (SELECT max(u.use) FROM credential_uses u WHERE u.vault = v.vault)
FROM vaults v WHERE v.vault = ?1;

-- name: set_vault_key
UPDATE vaults SET keys = ?3 WHERE vault = ?1 AND keys = ?2;

-- name: set_use_as_stored
UPDATE credential_uses SET frame = ?2 WHERE use = ?1;

-- name: names_of_vaults
SELECT vault, thread_id FROM vaults;

-- name: rename_vault
UPDATE vaults SET thread_id = ?2 WHERE vault = ?1;

-- name: vault_owners
SELECT thread_id FROM vaults ORDER BY thread_id;

-- name: insert_vault
INSERT INTO vaults (vault, thread_id, revision, keys, frame) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: update_vault
UPDATE vaults SET revision = ?2, frame = ?3 WHERE vault = ?1;

-- name: insert_use
INSERT INTO credential_uses (use, vault, frame) VALUES (?1, ?2, ?3);

-- name: uses_of_vault
SELECT use, frame FROM credential_uses WHERE vault = ?1 ORDER BY use DESC LIMIT ?2;

-- name: drop_uses
-- All but the newest ?2 records of use.
DELETE FROM credential_uses WHERE vault = ?1 AND use <= (
    SELECT use FROM credential_uses WHERE vault = ?1 ORDER BY use DESC LIMIT 1 OFFSET ?2
);

-- name: delete_uses
DELETE FROM credential_uses WHERE vault = ?1;

-- name: delete_vault
DELETE FROM vaults WHERE vault = ?1;

-- Keys: rows as they stand in the file, whatever they are sealed with.

-- name: thread_keys_page
SELECT thread, thread_id, secret FROM threads WHERE thread > ?1 ORDER BY thread LIMIT ?2;

-- name: set_thread_key
UPDATE threads SET secret = ?3 WHERE thread = ?1 AND secret = ?2;

-- name: thread_as_stored
SELECT thread, revision, session, next_blob, collected, secret, thread_id FROM threads WHERE thread = ?1;

-- name: set_thread_as_stored
UPDATE threads SET thread_id = ?2, session = ?3, collected = ?4, secret = ?5 WHERE thread = ?1;

-- name: set_blob_as_stored
UPDATE blobs SET digest = ?2, frame = ?3 WHERE blob = ?1;

-- name: set_space_as_stored
UPDATE spaces SET ns = ?2 WHERE space = ?1;

-- name: set_checkpoint_as_stored
UPDATE checkpoints SET run = ?2, frame = ?3, history = ?4 WHERE seq = ?1;

-- name: set_writes_as_stored
UPDATE writes SET task = ?2, run = ?3, frame = ?4 WHERE seq = ?1;

-- name: names_of_spaces
SELECT space, ns FROM spaces WHERE ns <> '';

-- name: names_of_threads
SELECT thread, thread_id FROM threads;

-- name: names_of_runs
SELECT DISTINCT run FROM checkpoints WHERE run IS NOT NULL AND length(run) > 16
UNION SELECT DISTINCT run FROM writes WHERE run IS NOT NULL AND length(run) > 16;

-- name: set_thread_name
UPDATE threads SET thread_id = ?2 WHERE thread = ?1;

-- name: rename_run_of_checkpoints
UPDATE checkpoints SET run = ?2 WHERE run = ?1;

-- name: rename_run_of_writes
UPDATE writes SET run = ?2 WHERE run = ?1;

-- name: names_of_leases
SELECT thread_id, label FROM leases;

-- name: rename_lease
UPDATE leases SET thread_id = ?2, label = ?3 WHERE thread_id = ?1;

-- name: names_of_waiters
SELECT DISTINCT thread_id FROM waiters;

-- name: rename_waiters
UPDATE waiters SET thread_id = ?2 WHERE thread_id = ?1;

-- name: drop_leases
DELETE FROM leases;

-- name: drop_waiters
DELETE FROM waiters;

-- name: set_thread_keys
UPDATE threads SET secret = ?2, session = ?3, collected = ?4 WHERE thread = ?1;
