"""Tests, the benchmark (`python -m tests.bench`) and what they share."""
