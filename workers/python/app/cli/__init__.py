"""Commands for people, kept under the names that the older Python system had."""
