"""The runtime inside a namespace's Python worker process. See the README one folder up."""
