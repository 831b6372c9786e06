"""The engines of a server: found by their ids, with the requests under way and what is counted."""
