-- How far FilesStore has read its segments, beside the index that it makes of them.
-- Saved after the rows: what is read twice after a crash changes nothing.

CREATE TABLE segment (
    name TEXT    PRIMARY KEY,
    done INTEGER NOT NULL     -- bytes of whole batches that are in the index
);
