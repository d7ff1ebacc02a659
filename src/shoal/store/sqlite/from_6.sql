-- Version 6 to 7: views and tables of items in columns of their own. A new file runs this as well, last.

CREATE TABLE item_view (
    name     TEXT PRIMARY KEY COLLATE NOCASE, -- of the view or the table, which lies beside this one
    spider   TEXT    NOT NULL,
    is_table INTEGER NOT NULL,
    origin   TEXT    NOT NULL, -- what its columns were taken from, for people
    columns  TEXT    NOT NULL, -- JSON
    position INTEGER           -- up to which id of `item` a table is filled; NULL: it has all items
) WITHOUT ROWID;
