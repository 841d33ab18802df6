"""The tests, in rooms that mirror the packages; `support` has what they share. No test imports another."""
