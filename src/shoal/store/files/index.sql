-- How far each segment of FilesStore is in the index, which is in the same file. Saved after the rows: rows that are
-- read twice after a crash change nothing.

CREATE TABLE segment (
    name TEXT    PRIMARY KEY,
    done INTEGER NOT NULL     -- bytes of whole batches that are in the index
);
