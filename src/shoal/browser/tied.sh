#!/bin/sh
# Runs a program so that it dies with its parent, with a folder for its files. Playwright wants the path of a program,
# not words: so this is a file of the package, which need not be written where nothing may be executed, and the words
# come in variables.
export TMPDIR="$TIED_FOLDER"
echo $$ >"$TIED_FOLDER/$TIED_NAME.pid"
exec "$TIED_PYTHON" -I -S "$TIED_SCRIPT" "$TIED_PARENT" "$TIED_PROGRAM" "$@"
