-- Duties count their holders.
ALTER TABLE duty ADD COLUMN term INTEGER NOT NULL DEFAULT 0;
