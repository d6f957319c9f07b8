"""The benchmark: what the saver costs, beside the official SQLite saver and InMemorySaver, measured in one run."""
