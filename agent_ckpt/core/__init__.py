"""The logic of the saver as programs: pure generators, no I/O, no clock, no SQL (see `backend`)."""
